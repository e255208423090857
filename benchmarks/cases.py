"""The cases, each a function that returns its record."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.polynomial import chebyshev
from torch import Tensor

import effdeg
from benchmarks import comparisons, engine, imagenet, language, load, reinforcement, streaming, together, training
from benchmarks.timing import Record, device, interleaved, make_record
from effdeg.functional import (
    basis_matrix,
    chebyshev_nodes,
    cosine_nodes,
    effective_degree,
    fit,
    project,
    uniform_nodes,
)
from effdeg.pools._choice import NODES, PATHS
from effdeg_lab.models import ViT, make_model


def measure_overhead() -> Record:
    """Measure ViT-Tiny, against the same forward passes alone: same points, same batches, nothing else."""
    paths, nodes, repeats = (400, 200, 5) if device().type == "cuda" else (16, 60, 3)
    torch.manual_seed(0)
    model = ViT().to(device()).eval()
    inputs = torch.randn(256, 3, 32, 32)
    batch = 800 if device().type == "cuda" else 240
    points = [torch.randn(batch, 3, 32, 32, device=device()) for _ in range(4)]

    @torch.no_grad()
    def forward_alone() -> None:
        for number in range(paths * nodes // batch):
            model(points[number % 4])

    ours, alone = interleaved(
        lambda: effdeg.measure(model, inputs, paths=paths, nodes=nodes, degree=40), forward_alone, repeats=repeats
    )
    detail = f"ViT-Tiny, {paths} paths × {nodes} nodes, degree 40; {ours:.2f} s and {alone:.2f} s"
    return make_record("measure / forward passes alone", ours / alone, "≤ 1.05", detail)


def pick_overhead() -> Record:
    """Pick among ResNet-18s, against the same forward passes alone."""
    on_gpu = device().type == "cuda"
    count, examples, batch = (20, 2000, 1024) if on_gpu else (3, 128, 256)
    torch.manual_seed(0)
    models = [make_model("resnet18", shape=(3, 32, 32), classes=10).to(device()).eval() for _ in range(count)]
    inputs, points = torch.randn(examples, 3, 32, 32), torch.randn(batch, 3, 32, 32, device=device())

    @torch.no_grad()
    def forward_alone() -> None:
        for model in models:
            for _ in range((2 * examples + (NODES - 2) * min(examples, PATHS)) // batch):
                model(points)

    ours, alone = interleaved(lambda: effdeg.pick(models, inputs), forward_alone, repeats=3)
    detail = f"{count} ResNet-18s of 32 × 32 pixels, {examples} examples; {ours:.2f} s and {alone:.2f} s"
    return make_record("pick / forward passes alone", ours / alone, "≤ 1.25", detail)


def fitting_speed() -> Record:
    """Fit 2,000 paths of random nodes at degree 40, against a loop of numpy's chebfit; both on the CPU."""
    alpha = cosine_nodes(200, 2000, generator=torch.Generator().manual_seed(0))
    values = torch.randn(2000, 200, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    t, y = (2 * alpha - 1).numpy(), values.numpy()

    def loop() -> np.ndarray[Any, Any]:
        return np.stack([chebyshev.chebfit(t[path], y[path], 40) for path in range(2000)])

    expected = torch.from_numpy(loop())
    error = float((fit(values, alpha, 40) - expected).norm() / expected.norm())
    assert error < 1e-9, error
    numpy, ours = interleaved(loop, lambda: fit(values, alpha, 40), repeats=5)
    detail = f"2,000 paths × 200 nodes × 10 outputs, degree 40; relative difference {error:.0e}"
    return make_record("numpy chebfit loop / fit", numpy / ours, "≥ 10", detail)


def projection_speed() -> Record:
    """Reduce 1,000 outputs to 3 components, forward and backward, against a batched SVD."""
    values = torch.randn(512, 4, 1000, device=device())
    weights = torch.randn(4, 3, device=device())

    def ours() -> None:
        leaf = values.clone().requires_grad_()
        (project(leaf, 3).abs() * weights).sum().backward()  # type: ignore[no-untyped-call]

    def svd() -> None:
        leaf = values.clone().requires_grad_()
        left, singular, _ = torch.linalg.svd(leaf - leaf.mean(-2, keepdim=True), full_matrices=False)
        ((left * singular[..., None, :])[..., :3].abs() * weights).sum().backward()

    theirs, mine = interleaved(svd, ours, repeats=20)
    target = "≥ 10" if device().type == "cuda" else "≥ 4"
    return make_record(
        "torch.linalg.svd / project", theirs / mine, target, "3 of 1,000 outputs, 512 paths × 4 nodes, with gradient"
    )


def memory_growth() -> Record:
    """Measure with 4,000 paths, against 400: peak memory, each in a process of its own."""
    peaks = [_peak(paths) for paths in (400, 4000)]
    detail = f"peak {peaks[0]:.0f} and {peaks[1]:.0f} MiB on the {device().type}"
    return make_record("peak memory at 4,000 / 400 paths", peaks[1] / peaks[0], "≤ 1.05", detail)


def conditioning() -> Record:
    """Tabulate the condition number of the fit by nodes and degree."""
    schemes: dict[str, Callable[[int], Tensor]] = {
        "chebyshev": chebyshev_nodes,
        "cosine": lambda nodes: cosine_nodes(nodes, 1, generator=torch.Generator().manual_seed(0))[0],
        "uniform": uniform_nodes,
    }
    rows = []
    for nodes, degree in ((4, 3), (15, 7), (15, 14), (41, 40), (64, 40), (100, 40), (200, 40), (400, 40)):
        row: Record = {"nodes": nodes, "degree": degree}
        for scheme, make in schemes.items():
            for basis in ("chebyshev", "legendre"):
                design = basis_matrix(make(nodes), degree, basis)
                row[f"{scheme}, {basis}"] = float(torch.linalg.cond(design))
        rows.append(row)
    return {"name": "condition number of the design matrix", "rows": rows}


def damping() -> Record:
    """Tabulate what damping does to the effective degree of steep steps, and to its gradient, on few random nodes."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for nodes, degree, anchored in ((4, 3, True), (4, 3, False), (8, 7, True)):
        alpha = cosine_nodes(nodes, 20_000, anchored=anchored, generator=generator)
        where, steepness = torch.rand(2, 20_000, 1, dtype=torch.float64, generator=generator)
        values = torch.sigmoid(torch.exp(1 + 3 * steepness) * (alpha - where))[..., None].requires_grad_()
        reference = None
        for eps in (0.0, 1e-6, 1e-4, 1e-3, 1e-2):
            degrees = effective_degree(fit(values, alpha, degree, damping=eps))
            (gradient,) = torch.autograd.grad(degrees.sum(), values)
            norms, mean = gradient.norm(dim=1), float(degrees.detach().mean())
            reference = mean if reference is None else reference
            rows.append({
                "nodes": f"{nodes}, degree {degree}{', anchored' if anchored else ''}",
                "damping": eps,
                "change of the value": mean / reference - 1,
                "gradient, rms": float(norms.square().mean().sqrt()),
                "gradient, largest": float(norms.max()),
            })
    return {"name": "damping of the penalty", "rows": rows}


def _peak(paths: int) -> float:
    code = f"""
import torch, effdeg
from benchmarks.timing import read_peak
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 100)).to({device().type!r})
effdeg.measure(model, torch.randn(1000, 64), paths={paths}, nodes=200)
print(read_peak() / 2**20)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


Case = Callable[..., Record | Iterator[Record]]
"""Measures something; one that takes long yields its record in parts, which are kept one by one."""

ON_CPU: list[Case] = [
    measure_overhead,
    pick_overhead,
    training.step_costs,
    fitting_speed,
    projection_speed,
    memory_growth,
    conditioning,
    damping,
    *language.CASES,
    imagenet.imagenet_throughput,
    streaming.decoding_speed,
    *load.CASES,
]
ON_GPU: list[Case] = [
    measure_overhead,
    pick_overhead,
    projection_speed,
    memory_growth,
    *training.CASES,
    *comparisons.CASES,
    engine.engine_speedups,
    engine.fast_example,
    *language.CASES,
    together.networks_at_once,
    imagenet.imagenet_throughput,
    streaming.decoding_speed,
    reinforcement.ppo_parts,
]
