"""Several networks on one GPU: one after another, on streams of their own, or stacked under ``torch.func.vmap``."""

import gc
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.timing import Record, device, interleaved
from effdeg_lab.data import Labeled
from effdeg_lab.engine import Training
from effdeg_lab.engine.classify import make_network, make_task
from effdeg_lab.engine.examples import DeviceExamples
from effdeg_lab.engine.stacked import StackedStep
from effdeg_lab.engine.step import Step

Run = Callable[[], object]
SECONDS = 30.0
"""What does not begin within this time is left out."""
REPEATS = 3


@dataclass(frozen=True)
class Networks:
    """Networks of one kind, and how many of them to train at once."""

    name: str
    settings: Training
    counts: tuple[int, ...]
    features: bool = False  # 64 features, as of digits, instead of images
    steps: int = 3  # that are timed together


_MLP = Training(data="mnist", model="mlp", augment="none", precision="float32", compile=False)
_LARGE = Training(compile=False)
CASES = (
    Networks("MLP, MNIST, batch 256", _MLP, (1, 4, 16), steps=50),
    Networks("MLP, digits, batch 50", replace(_MLP, batch=50), (1, 4, 16), features=True, steps=50),
    Networks("MLP with ED, MNIST, batch 256", replace(_MLP, regularizer="ed"), (1, 4, 16), steps=20),
    Networks("ResNet-18, batch 256, not compiled", replace(_LARGE, model="resnet18"), (1, 2)),
    Networks("ViT-Tiny, batch 256, not compiled", _LARGE, (1, 2)),
)


def networks_at_once() -> Record:
    """Time a step of several networks in microseconds per network: in turns, on streams, and stacked."""
    started, rows = time.perf_counter(), list[Record]()
    for case in CASES:
        alone: list[Step] = []
        for count in case.counts:
            if time.perf_counter() - started > SECONDS:
                rows.append({"network": case.name, "networks": count, "why": f"left out after {SECONDS:g} s"})
            else:
                rows.append(_time(case, count, alone))
        for step in alone:
            step.close()
        _free()
    return {"name": "microseconds per network and step", "detail": "captured in CUDA graphs, warm", "rows": rows}


def _time(case: Networks, count: int, alone: list[Step]) -> Record:
    """Time the ways to train ``count`` networks; if one fails, the others go on. ``alone`` keeps steps for later."""
    row: Record = {"network": case.name, "networks": count}
    runs: dict[str, Run] = {}
    stack: StackedStep | None = None
    try:
        alone += [_make_step(case, seed) for seed in range(len(alone), count)]
        runs["one after another"] = _in_turns(case, alone[:count], streams=False)
    except Exception as error:  # of CUDA, of the compiler, for lack of memory
        row["why"] = _describe(error)
    try:
        stack = _make_stack(case, count)
        runs["stacked"] = _stacked(case, stack, count)
    except Exception as error:
        row["why, stacked"] = _describe(error)
    if device().type == "cuda" and count > 1 and "why" not in row:
        runs["streams"] = _in_turns(case, alone[:count], streams=True)
    for name, run in runs.items():
        try:
            (seconds,) = interleaved(run, repeats=REPEATS)
            row[name] = round(1e6 * seconds / (case.steps * count), 1)
            print(json.dumps(row), flush=True)
        except Exception as error:
            row[f"why, {name}"] = _describe(error)
    if stack is not None:
        stack.close()
    del runs, stack
    _free()
    return row


def _in_turns(case: Networks, steps: list[Step], *, streams: bool) -> Run:
    indices = torch.arange(case.settings.batch, device=device())
    own = [torch.cuda.Stream() if streams else None for _ in steps]  # type: ignore[no-untyped-call]

    def run() -> None:
        for _ in range(case.steps):
            for step, stream in zip(steps, own, strict=True):
                with torch.cuda.stream(stream):
                    step(indices, rate=1e-3, weight=_get_weight(case))

    return run


def _stacked(case: Networks, stack: StackedStep, count: int) -> Run:
    indices = torch.arange(case.settings.batch, device=device()).repeat(count, 1)
    rates, weights = (torch.full((count,), value, device=device()) for value in (1e-3, _get_weight(case)))

    def run() -> None:
        for _ in range(case.steps):
            stack(indices, rates, weights, penalized=_get_weight(case) > 0)

    return run


def _make_step(case: Networks, seed: int) -> Step:
    step = Step(_make_task(case, seed), size=case.settings.batch)
    step.compile(penalized=_get_weight(case) > 0)
    step.capture(penalized=_get_weight(case) > 0)
    return step


def _make_stack(case: Networks, count: int) -> StackedStep:
    stack = StackedStep([_make_task(case, seed) for seed in range(count)], ["all"] * count)
    stack.compile(penalized=_get_weight(case) > 0)
    stack.capture(penalized=_get_weight(case) > 0)
    return stack


def _make_task(case: Networks, seed: int) -> Any:
    settings = replace(case.settings, seed=seed)
    generator, count = torch.Generator().manual_seed(0), 2 * settings.batch
    shape = (1, 28, 28) if settings.data == "mnist" else (3, 32, 32)
    if case.features:
        inputs = torch.rand(count, 64, generator=generator)
    else:
        inputs = torch.randint(256, (count, *shape), dtype=torch.uint8, generator=generator)
    labels = torch.randint(10, (count,), generator=generator)
    data = Labeled(inputs, labels, inputs[:10], labels[:10], 10, (0.5,) * shape[0], (0.25,) * shape[0])
    examples = DeviceExamples(data, settings, device())
    return make_task(settings, examples, make_network(settings, examples, device()).train())


def _get_weight(case: Networks) -> float:
    return 7.0 if case.settings.regularizer == "ed" else 0.0


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:200]


def _free() -> None:
    gc.collect()
    if device().type == "cuda":
        torch.cuda.empty_cache()
        torch._dynamo.reset()
