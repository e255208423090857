"""How fast the kernels of ViT-Tiny and of IMPALA are, by the sizes of their tiles: for choosing them on another GPU."""

import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

import filelock
import torch

from benchmarks.timing import LOCK, Record

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
FRAMES = (4096, 12288)  # of an update of PPO, and of one with the penalty
# Pairs or pixels, warps, stages.
_SHAPES = ((64, 4, 1), (64, 4, 2), (64, 4, 3), (128, 8, 1), (128, 8, 2), (128, 4, 2))


def _list_tiles(side: str, programs: tuple[int, ...]) -> list[dict[str, int]]:
    return [
        {side: count, "num_warps": warps, "num_stages": stages, "programs": each}
        for count, warps, stages in _SHAPES
        for each in programs
    ]


_ONCE = [{"PIXELS": pixels, "num_warps": warps} for pixels, warps in ((32, 4), (64, 4), (128, 8))]
_CONVOLVE, _SUM = _list_tiles("PAIRS", (1056, 2112)), _list_tiles("PAIRS", (264, 528))
CONVOLUTION_TILES: dict[str, list[dict[str, int]]] = {
    **{f"convolve {kind} {inputs}": _CONVOLVE for kind in ("forward", "backward") for inputs in (16, 32)},
    **{f"sum_weights {kind} {inputs}": _SUM for kind in ("rectified", "as is") for inputs in (16, 32)},
    **dict.fromkeys(("look", "sum_look"), _list_tiles("PIXELS", (528, 1056))),
    **dict.fromkeys(("pool", "unpool"), _ONCE),
}
DEPTH = 12
# Matrix products of 64 × 64 tiles per image of 64 tokens.
_PRODUCTS = {"mlp_forward": 72, "mlp_backward": 36, "attention_forward": 15, "attention_backward": 27}


def kernel_tiles() -> Record:
    """Time every kernel of ViT-Tiny with every size of tiles."""
    return _time_all(TILES, ROWS)


def convolution_tiles() -> Record:
    """Time every kernel of IMPALA's convolutions with every size of tiles."""
    return _time_all(CONVOLUTION_TILES, FRAMES)


def _time_all(tiles: dict[str, list[dict[str, int]]], sizes: tuple[int, ...]) -> Record:
    """Time kernels: compiled at the same time, timed one after another."""
    rows: list[Record] = []
    with ProcessPoolExecutor(14, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(_time_tiles, kernel, one, sizes) for kernel, each in tiles.items() for one in each]
        for done in as_completed(waiting):
            rows += done.result()
            for row in done.result():
                print(row, flush=True)
    rows.sort(key=lambda row: (row["kernel"], row["rows"], row.get("microseconds", 1e9)))
    return {"name": "microseconds of a kernel", "rows": rows}


def _time_tiles(kernel: str, tiles: dict[str, int], sizes: tuple[int, ...]) -> list[Record]:
    found = []
    prepare = _prepare if kernel in TILES else _prepare_convolution
    for rows in sizes:
        row: Record = {"kernel": kernel, "rows": rows, **tiles}
        try:
            for name, launch in prepare(kernel, tiles, rows):
                launch()
                torch.cuda.synchronize()
                with filelock.FileLock(LOCK):
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
    from effdeg_lab.models import vit_kernels as kernels

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


def _prepare_convolution(kernel: str, given: dict[str, int], frames: int) -> list[tuple[str, Callable[[], object]]]:
    from effdeg_lab.models import impala_kernels as kernels

    torch.manual_seed(0)
    tiles = dict(given)
    programs = tiles.pop("programs", 0)
    name, *variant = kernel.split(" ")
    channels = int(variant[-1]) if variant else 32
    side = 512 // channels  # 16 channels on 32 × 32 pixels, and 32 on 16 × 16

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    if name in ("convolve", "sum_weights"):
        x, dy, out = (draw(frames, side, side, channels) for _ in range(3))
        weight = draw(channels, channels, 3, 3).float().contiguous(memory_format=torch.channels_last)
        bias, count = torch.zeros(channels, device="cuda"), x[..., 0].numel() // 2 // tiles["PAIRS"]
        sizes = (count, side, side, channels, channels)
        if name == "convolve":
            forward = (x, weight, bias, None, None, out, *sizes, True, True, False, False, False)
            backward = (dy, weight, None, x, dy, out, *sizes, False, False, True, True, True)
            arguments = forward if variant[0] == "forward" else backward
            return [(kernel, lambda: kernels.convolve[(min(count, programs),)](*arguments, **tiles))]
        sums = torch.zeros(programs, 12 * channels + 1, 2 * channels, device="cuda")
        rectified = variant[0] == "rectified"
        return [(kernel, lambda: kernels.sum_weights[(programs,)](x, dy, sums, *sizes, rectified, **tiles))]
    side, channels = (64, 16) if "look" in name else (32, 32)
    pooled = draw(frames, side // 2, side // 2, channels)
    places = torch.randint(9, pooled.shape, device="cuda", dtype=torch.uint8)
    seen, weight = draw(frames, 64, 64, 4), draw(16, 3, 3, 3).float().contiguous(memory_format=torch.channels_last)
    count = pooled[..., 0].numel() // tiles["PIXELS"]
    bias, sums = torch.zeros(16, device="cuda"), torch.zeros(max(programs, 1), 257, 16, device="cuda")
    x = seen if "look" in name else draw(frames, side, side, channels)
    each: dict[str, Callable[[], object]] = {
        "look": lambda: kernels.look[(programs,)](
            x, weight, bias, pooled, places, count, side, side, channels, **tiles
        ),
        "sum_look": lambda: kernels.sum_look[(programs,)](
            x, pooled, places, sums, count, side, side, channels, **tiles
        ),
        "pool": lambda: kernels.pool[(count,)](x, pooled, places, side, side, channels, **tiles),
        "unpool": lambda: kernels.unpool[(4 * count,)](pooled, places, x, side, side, channels, **tiles),
    }
    return [(kernel, each[name])]


CASES = [kernel_tiles, convolution_tiles]
