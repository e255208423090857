from itertools import product

import numpy as np

AXES = {"lr": [0.01, 0.1, 0.3], "batch": [32, 128, 512], "decay": [0.0, 1e-4, 5e-4]}


def grid_pool(seed=0, axes=3, noises=(0.3, 1.0, 3.0), copies=1):
    """Every combination of hyperparameters, with measures of the gap at several levels of noise."""
    generator = np.random.default_rng(seed)
    names = list(AXES)[:axes]
    configurations = list(product(*(AXES[name] for name in names))) * copies
    rows = [dict(zip(names, values, strict=True)) for values in configurations]
    for row in rows:
        drift = 0.1 * np.log10(row["lr"]) + 1e-4 * row.get("batch", 0)
        row["gap"] = float(drift + 0.03 * generator.standard_normal())
    spread = float(np.std([row["gap"] for row in rows]))
    for row in rows:
        for noise in noises:
            row[f"noise {noise:g}"] = row["gap"] + noise * spread * generator.standard_normal()
    return rows


def ragged_pool(seed=0, models=14):
    """A pool with holes, seeds, ties in measures and gaps, and text among the hyperparameters."""
    generator = np.random.default_rng(seed)
    return [
        {
            "width": int(generator.choice([8, 16, 64])),
            "norm": str(generator.choice(["none", "batch", "layer"])),
            "depth": int(generator.integers(1, 3)),
            "coarse": int(generator.integers(0, 4)),
            "fine": float(generator.standard_normal()),
            "gap": int(generator.integers(0, 6)) / 10,
        }
        for _ in range(models)
    ]


def columns(rows):
    return {name: [row[name] for row in rows] for name in rows[0]}
