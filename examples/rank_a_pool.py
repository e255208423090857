"""Which measure tells best which network generalizes? Train a pool of networks, measure them all, rank the measures.

    python examples/rank_a_pool.py              # 27 networks on the demo's digits, some minutes on two cores
    python examples/rank_a_pool.py --quick      # 6 networks and fewer paths, a try

Writes pool.csv, one row per network, and pool.png; ``effdeg rank pool.csv --by width …`` does the last part alone.
"""

import argparse
import csv
import itertools
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from effdeg import pools, proxies
from effdeg.demo import load_digits

GRID = {"width": (32, 128, 512), "lr": (3e-4, 1e-3, 3e-3), "weight_decay": (0.0, 0.1, 1.0)}
# Hessians are left out for the sake of time, and what needs other models, more examples or a change of them.
LEFT_OUT = ("hessian", "disagreement", "thresholded_confidence", "inconsistency")
MEASURES = [name for name in proxies.names() if not name.startswith(LEFT_OUT)]


def train(width: int, lr: float, weight_decay: float) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Train one network on 100 digits, until it fits them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    start = {name: each.clone() for name, each in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)
    for _ in range(2000):
        optimizer.zero_grad()
        loss = cross_entropy(model(digits.labeled), digits.labels)
        loss.backward()
        optimizer.step()
        if float(loss.detach()) < 0.01:
            break
    return model, start


def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    return float((model(x).argmax(1) == y).float().mean())


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--quick", action="store_true")
parser.add_argument("--out", type=Path, default=Path("pool.csv"))
options = parser.parse_args()
grid = {**GRID, "width": (32,), "lr": (1e-3, 3e-3)} if options.quick else GRID
route = {"paths": 32, "nodes": 30, "degree": 10} if options.quick else {"paths": 200, "nodes": 100, "degree": 30}

digits = load_digits(per_class=10, seed=0)
rows = []
for point in itertools.product(*grid.values()):
    hyperparameters = dict(zip(grid, point, strict=True))
    model, start = train(**hyperparameters)
    gap = accuracy(model, digits.labeled, digits.labels) - accuracy(model, digits.held_out, digits.held_out_labels)
    table = proxies.evaluate(
        model, (digits.labeled, digits.labels), cross_entropy, names=MEASURES, reference=start, **route
    )
    rows.append({**hyperparameters, "gap": gap, **table.row()})
    print(f"{len(rows):2d}  {hyperparameters}  gap {gap:.1%}  effective degree {table['effective_degree'].value:.3f}")

with options.out.open("w", newline="") as file:
    writer = csv.DictWriter(file, rows[0])
    writer.writeheader()
    writer.writerows(rows)

# What is a good sign if it is large, such as a margin, is negated.
turned = [f"-{name}" if proxies.larger_is_better(name) else name for name in MEASURES]
# Weight decay hardly matters here: networks that differ in it alone are nearly copies, and are resampled together.
ranked = pools.rank(rows, target="gap", measures=turned, hyperparameters=list(grid), clusters=["width", "lr"])
print(ranked)
for name in turned:
    if name != "effective_degree":
        print(ranked.compare("effective_degree", name))
best = ["effective_degree", "sharpness@0.05", "adaptive_sharpness@0.5", "parameter_norm"]
ranked.plot(measures=best).savefig(options.out.with_suffix(".png"))
