"""How fast the kernels of ViT-Tiny's blocks are, by the sizes of their tiles: for choosing them on another GPU."""

import statistics
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import filelock
import torch

Record = dict[str, Any]
ROWS = (256 * 64, 512 * 64)  # tokens of a plain step, and of one with the penalty
_MLP_FORWARD = ((128, 64, 8, 2), (128, 64, 8, 3), (128, 32, 8, 3), (64, 32, 4, 3))
_MLP_BACKWARD = ((128, 64, 8), (128, 64, 4), (64, 64, 4), (128, 128, 8), (64, 128, 8))
_NORM_BACKWARD = ((64, 8, 4), (64, 16, 4), (64, 16, 8), (32, 8, 4), (128, 8, 4), (128, 16, 8))
TILES: dict[str, list[dict[str, int]]] = {
    "norm_forward": [{"ROWS": rows, "num_warps": warps} for rows, warps in ((8, 4), (16, 4), (32, 4), (32, 8))],
    "attention_forward": [
        {"num_warps": warps, "num_stages": stages} for warps, stages in ((4, 1), (4, 2), (4, 3), (8, 1), (8, 2))
    ],
    "mlp_forward": [
        {"ROWS": rows, "CHUNK": chunk, "num_warps": warps, "num_stages": stages}
        for rows, chunk, warps, stages in _MLP_FORWARD
    ],
    "mlp_backward": [
        {"ROWS": rows, "COLUMNS": columns, "num_warps": warps, "num_stages": stages}
        for rows, columns, warps in _MLP_BACKWARD
        for stages in (2, 3)
    ],
    "norm_backward": [{"ROWS": rows, "CHUNK": chunk, "num_warps": warps} for rows, chunk, warps in _NORM_BACKWARD],
    "attention_backward": [{"num_warps": warps, "num_stages": 1} for warps in (4, 8)],
    "products": [{}],
}
DEPTH = 12
# Matrix products of 64 × 64 tiles per image of 64 tokens.
_PRODUCTS = {"mlp_forward": 72, "mlp_backward": 36, "attention_forward": 15, "attention_backward": 27}


def kernel_tiles() -> Record:
    """Time every kernel with every size of tiles: compiled at the same time, timed one after another."""
    lock = str(Path(tempfile.gettempdir()) / "effdeg-benchmarks.lock")
    rows: list[Record] = []
    with ProcessPoolExecutor(14, mp_context=get_context("spawn")) as pool:
        waiting = [
            pool.submit(_time_tiles, kernel, tiles, lock) for kernel, all_tiles in TILES.items() for tiles in all_tiles
        ]
        for done in as_completed(waiting):
            rows += done.result()
            for row in done.result():
                print(row, flush=True)
    rows.sort(key=lambda row: (row["kernel"], row["rows"], row.get("microseconds", 1e9)))
    return {"name": "microseconds of a kernel", "rows": rows}


def _time_tiles(kernel: str, tiles: dict[str, int], lock: str) -> list[Record]:
    found = []
    for rows in ROWS:
        row: Record = {"kernel": kernel, "rows": rows, **tiles}
        try:
            for name, launch in _prepare(kernel, tiles, rows):
                launch()
                torch.cuda.synchronize()
                with filelock.FileLock(lock):
                    time = _time(launch)
                rate = (
                    {"TFLOP/s": _PRODUCTS[kernel] * rows / 64 * 2 * 64**3 / time / 1e6} if kernel in _PRODUCTS else {}
                )
                found.append({**row, "kernel": name, "microseconds": time, **rate})
        except Exception as error:  # tiles that do not fit are a finding
            found.append({**row, "error": str(error)[:200]})
    return found


def _time(launch: Callable[[], object], launches: int = 20) -> float:
    """Return the microseconds of a launch, from a graph of some."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            launch()
    times = []
    for _ in range(8):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end) / launches)
    return statistics.median(times[2:])


def _prepare(kernel: str, tiles: dict[str, int], rows: int) -> list[tuple[str, Callable[[], object]]]:
    from effdeg_lab.models import kernels

    torch.manual_seed(0)

    def draw(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return scale * torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    x, dy, out, normed, attended = (draw(rows, 192) for _ in range(5))
    hidden, active, dhidden = (draw(rows, 768) for _ in range(3))
    qkv, dqkv = draw(rows, 576), draw(rows, 576)
    w1, w2, wqkv, wout = (draw(*shape, scale=0.1) for shape in ((768, 192), (192, 768), (576, 192), (192, 192)))
    one, zero = torch.ones(768, device="cuda"), torch.zeros(768, device="cuda")
    images, blocks = rows // 64, rows // tiles.get("ROWS", 64)
    sums = torch.zeros(rows // 16, 768, device="cuda")
    given: dict[str, tuple[Any, tuple[int, ...], tuple[Any, ...]]] = {
        "norm_forward": (kernels.norm_forward, (blocks,), (x, one, zero, normed)),
        "attention_forward": (kernels.attention_forward, (images,), (qkv, x, wout, zero, out)),
        "mlp_forward": (kernels.mlp_forward, (blocks,), (x, one, zero, w1, zero, w2, zero, out, normed, hidden)),
        "mlp_backward": (
            kernels.mlp_backward,
            (768 // tiles.get("COLUMNS", 64), blocks),
            (hidden, dy, w2, active, dhidden, sums),
        ),
        "norm_backward": (kernels.norm_backward, (blocks,), (normed, x, dy, one, out, sums)),
        "attention_backward": (kernels.attention_backward, (images, 3), (qkv, dy, wout, dqkv, attended, sums)),
    }
    if kernel in given:
        function, grid, arguments = given[kernel]
        return [(kernel, lambda: function[grid](*arguments, **tiles))]
    bias = zero[:576].bfloat16()
    many = {
        width: torch.randn(2 * DEPTH, rows, width, device="cuda", dtype=torch.bfloat16) for width in (192, 576, 768)
    }
    return [
        ("qkv", lambda: torch.addmm(bias, normed, wqkv.T, out=qkv)),
        ("dn of the MLP", lambda: torch.mm(dhidden, w1, out=out)),
        ("dn of attention", lambda: torch.mm(dqkv, wqkv, out=out)),
        ("dw1 of one block", lambda: dhidden.T @ normed),
        ("dw1", lambda: many[768][:DEPTH].mT @ many[192][1::2]),
        ("dw2", lambda: many[192][1::2].mT @ many[768][:DEPTH]),
        ("dwqkv", lambda: many[576][:DEPTH].mT @ many[192][::2]),
        ("dwout", lambda: many[192][::2].mT @ many[192][1::2]),
    ]


CASES = [kernel_tiles]
