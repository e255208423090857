"""Several networks on one GPU: one after another, on streams of their own, or stacked under ``torch.func.vmap``."""

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from benchmarks.timing import Record, device, interleaved
from effdeg_lab.data import Labeled
from effdeg_lab.engine import Training
from effdeg_lab.engine.classify import make_network, make_task
from effdeg_lab.engine.examples import DeviceExamples
from effdeg_lab.engine.stacked import StackedStep
from effdeg_lab.engine.step import Step

REPEATS = 3


@dataclass(frozen=True)
class Networks:
    """Networks of one kind, and how many of them to train at once."""

    name: str
    settings: Training
    count: int
    features: bool = False  # 64 features, as of digits, instead of images
    steps: int = 3  # that are timed together


_MLP = Training(data="mnist", model="mlp", augment="none", precision="float32", compile=False)
_LARGE = Training(compile=False)
CASES = (
    Networks("MLP, MNIST, batch 256", _MLP, 16, steps=50),
    Networks("MLP, digits, batch 50", replace(_MLP, batch=50), 16, features=True, steps=50),
    Networks("ResNet-18, batch 256, not compiled", replace(_LARGE, model="resnet18"), 2),
    Networks("ViT-Tiny, batch 256, not compiled", _LARGE, 2),
)


def networks_at_once() -> Record:
    """Time a step of several networks in microseconds per network: in turns, on streams, and stacked."""
    detail = "captured in CUDA graphs, warm"
    return {"name": "microseconds per network and step", "detail": detail, "rows": list(map(_time, CASES))}


def _time(case: Networks) -> Record:
    """Time the ways to train networks; if one fails, for lack of memory for example, the others go on."""
    row: Record = {"network": case.name, "networks": case.count}
    ways: dict[str, Callable[[Networks], Callable[[], None]]] = {
        "one after another": partial(_in_turns, streams=False),
        "stacked": _stacked,
    }
    if device().type == "cuda":
        ways["streams"] = partial(_in_turns, streams=True)
    for name, make in ways.items():
        try:
            (seconds,) = interleaved(make(case), repeats=REPEATS)
            row[name] = round(1e6 * seconds / (case.steps * case.count), 1)
        except Exception as error:
            row[f"why, {name}"] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:200]
        gc.collect()
        if device().type == "cuda":
            torch.cuda.empty_cache()
            torch._dynamo.reset()
    return row


def _in_turns(case: Networks, *, streams: bool) -> Callable[[], None]:
    steps = [Step(_make_task(case, seed), size=case.settings.batch) for seed in range(case.count)]
    for step in steps:
        step.compile(penalized=False)
        step.capture(penalized=False)
    indices = torch.arange(case.settings.batch, device=device())
    own = [torch.cuda.Stream() if streams else None for _ in steps]  # type: ignore[no-untyped-call]

    def run() -> None:
        for _ in range(case.steps):
            for step, stream in zip(steps, own, strict=True):
                with torch.cuda.stream(stream):
                    step(indices, rate=1e-3, weight=0.0)

    return run


def _stacked(case: Networks) -> Callable[[], None]:
    stack = StackedStep([_make_task(case, seed) for seed in range(case.count)], ["all"] * case.count)
    stack.compile(penalized=False)
    stack.capture(penalized=False)
    indices = torch.arange(case.settings.batch, device=device()).repeat(case.count, 1)
    rates, weights = (torch.full((case.count,), value, device=device()) for value in (1e-3, 0.0))

    def run() -> None:
        for _ in range(case.steps):
            stack(indices, rates, weights, penalized=False)

    return run


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
