"""Where a training step's time goes: its kernels by what they do, and the least time that its work could take."""

import json
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile, record_function

from benchmarks.timing import Record, device, seconds, synchronize

Event = dict[str, Any]

STEPS = 10
# The first pattern that is found in a kernel's name decides. Inductor's names begin with triton_ and list what was
# fused; those of matrix products are cuBLAS's and CUTLASS's, or of a template (triton_tem_).
PATTERNS = (
    ("fused kernels", r"^(mlp|attention|norm)_"),
    ("attention", r"^(?!triton_).*(flash|fmha|sdpa|cudnn::fusion)"),
    ("matrix products", r"^triton_tem_|^(?!triton_).*(gemm|gemv|nvjet|cutlass|xmma|splitk|conv|dgrad|wgrad|fprop)"),
    ("batch and points", r"^(?!triton_).*(randperm|radix|sort|distribution|philox)"),
    ("casts and copies", r"^mem(cpy|set)|copy_kernel|CatArray"),
    (
        "casts and copies",
        r"^triton_poi_fused(?=.*__to_copy)(_(_to_copy|_unsafe_view|t|view|transpose|permute|clone|unbind))+_\d+$",
    ),
    ("reductions", r"reduce_kernel.*sum_functor"),
    # What runs outside the two compiled functions: clipping, AdamW, and the sum of penalties.
    ("optimizer and clipping", r"multi_tensor_apply|lpnorm|adam|at::native"),
    ("batch and points", r"^triton_.*_(rand|randint|random|inductor_random|inductor_randint|flip|index|lerp|sort)_"),
    ("reductions", r"^triton_(red|per)_(?!.*layer_norm).*_sum_"),
    ("normalization and elementwise", r"^triton_"),
)
OTHER, GAPS = "other", "gaps"

# A transformer block, one kernel per product and per attention, elementwise operations between them fused: for each
# token, FLOPs of matrix products in units of width², and values read and written in units of the width.
OPERATIONS = {
    "residual sum and LayerNorm, twice": (0, 8),
    "queries, keys and values": (6, 4),
    "attention": (0, 4),
    "projection": (2, 2),
    "MLP, first layer": (8, 5),
    "GELU": (0, 8),
    "MLP, second layer": (8, 5),
    "gradient of the second layer's inputs": (8, 5),
    "gradient of the second layer's weights": (8, 5),
    "gradient of GELU": (0, 12),
    "gradient of the first layer's inputs": (8, 5),
    "gradient of the first layer's weights": (8, 5),
    "gradient of the projection's inputs": (2, 2),
    "gradient of the projection's weights": (2, 2),
    "gradient of attention": (0, 8),
    "gradient of the inputs of queries, keys and values": (6, 4),
    "gradient of the weights of queries, keys and values": (6, 4),
    "gradient of LayerNorm, twice": (0, 8),
    "gradients of biases": (0, 9),
}
# With each half of a block in one kernel: read and write its inputs once, and once more with two gradients on the way
# back, on which the forward products are computed again.
FUSED_VALUES, FUSED_FLOPS = 10, 4 / 3
# AdamW, per parameter: reads the weight, the gradient and two moments, writes all but the gradient and a bf16 copy of
# the weight; the gradient was written before, and read for clipping.
OPTIMIZER_BYTES = 4 * 7 + 2 + 4 * 2


def profile_step(replay: Callable[[], object], run: Callable[[], object], milliseconds: float) -> Record:
    """Profile a step, given its time: its replayed graph, or, if the profiler sees no kernels in it, without one.

    Both are recorded in one session, since a second one in the same process may record nothing.
    """
    with profile(acc_events=True) as profiler:
        for name, step in (("replayed", replay), ("uncaptured", run)):
            with record_function(name):
                synchronize()
                for _ in range(STEPS):
                    step()
                synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    return summarize(events, milliseconds)


def summarize(events: list[Event], milliseconds: float) -> Record:
    """Return microseconds and number of kernels per step by group, and the time of every kernel, the longest first."""
    source = "replayed" if find_kernels(events, "replayed") else "uncaptured"
    kernels = find_kernels(events, source)
    counts, times, groups = Counter[str](), defaultdict[str, float](float), defaultdict[str, float](float)
    for each in kernels:
        name, group = each["name"], classify(each["name"])
        times[shorten(name)] += each["dur"] / STEPS
        groups[group] += each["dur"] / STEPS
        counts[group] += 1
    groups[GAPS] = 1e3 * milliseconds - sum(groups.values())
    return {
        "source": source,
        "microseconds": _sort(groups),
        "kernels": {group: count / STEPS for group, count in counts.most_common()},
        "kernel_times": _sort(times),
    }


def _sort(times: dict[str, float]) -> dict[str, float]:
    return {name: round(time, 2) for name, time in sorted(times.items(), key=lambda each: -each[1])}


def find_kernels(events: Iterable[Event], mark: str) -> list[Event]:
    """Return the kernels, copies and fills that began within a marked time."""
    events = list(events)
    marks = [each for each in events if each.get("cat") == "user_annotation" and each["name"] == mark]
    kinds = {"kernel", "gpu_memcpy", "gpu_memset"}
    return [
        each
        for each in events
        if each.get("cat") in kinds and any(mark["ts"] <= each["ts"] <= mark["ts"] + mark["dur"] for mark in marks)
    ]


def classify(name: str) -> str:
    """Return the group of a kernel."""
    return next((group for group, pattern in PATTERNS if re.search(pattern, name, re.IGNORECASE)), OTHER)


def shorten(name: str) -> str:
    """Cut the arguments of a template, which may be thousands of characters, but never what decides the group."""
    short = name if len(name) <= 160 else f"{name[:150]}…"
    return short if classify(short) == classify(name) else name


def measure_rates() -> tuple[float, float]:
    """Measure what this machine reaches at best: FLOP/s of a large product in bf16, and bytes/s of a large copy."""
    size = 8192 if device().type == "cuda" else 128
    one, other = torch.randn(2, size, size, device=device(), dtype=torch.bfloat16)
    values = torch.zeros(16 * size**2, device=device())
    copy = torch.empty_like(values)
    product = min(seconds(lambda: [one @ other for _ in range(10)]) for _ in range(5)) / 10
    copied = min(seconds(lambda: [copy.copy_(values) for _ in range(10)]) for _ in range(5)) / 10
    return 2 * size**3 / product, 2 * 4 * len(values) / copied


def count_work(images: int, tokens: int, parameters: int, rates: tuple[float, float]) -> Record:
    """Count FLOPs and bytes of a step of ViT-Tiny, and the least milliseconds that they take at these rates.

    The unfused floor takes, operation by operation, the longer of its FLOPs and its bytes; that of products alone and
    the fused one take either for the whole step.
    """
    (rate, bandwidth), width, depth = rates, 192, 12
    rows = images * tokens
    # Queries times keys, and weights times values; twice as much on the way back.
    scores = 4 * tokens * width
    inner = {"attention": scores, "gradient of attention": 2 * scores}
    # Patches of 48 values whose gradient nobody needs, and the head, on one token and 10 classes.
    outer = 2 * 2 * 48 * width * 64 * images + 3 * 2 * width * 10 * images
    flops = {
        name: depth * rows * (squares * width**2 + inner.get(name, 0)) for name, (squares, _) in OPERATIONS.items()
    }
    moved = {name: depth * rows * values * width * 2 for name, (_, values) in OPERATIONS.items()}
    products, optimizer = sum(flops.values()) + outer, parameters * OPTIMIZER_BYTES
    unfused = sum(max(flops[name] / rate, moved[name] / bandwidth) for name in OPERATIONS)
    fused = max(FUSED_FLOPS * products / rate, depth * rows * FUSED_VALUES * width * 2 / bandwidth)
    least = outer / rate + optimizer / bandwidth
    return {
        "teraflop_per_second": rate / 1e12,
        "terabytes_per_second": bandwidth / 1e12,
        "teraflop": products / 1e12,
        "gigabytes_unfused": (sum(moved.values()) + optimizer) / 1e9,
        "floor_of_products": 1e3 * products / rate,
        "floor_unfused": 1e3 * (unfused + least),
        "floor_fused": 1e3 * (fused + optimizer / bandwidth),
    }
