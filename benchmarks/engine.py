"""How fast the lab's engine trains, on random images in the shape and number of CIFAR-10's."""

from functools import cache
from typing import Any

import torch

from benchmarks.timing import device, interleaved
from effdeg.lab import models
from effdeg.lab.data import Labelled
from effdeg.lab.recipes.cifar10_methods import RECIPE
from effdeg.lab.training.capture import CapturedStep
from effdeg.lab.training.examples import DeviceExamples
from effdeg.lab.training.methods import made_method
from effdeg.lab.training.step import Step

Record = dict[str, Any]
EXAMPLES, STEPS = 50_000, 50
AIMS = {"plain": 0.8, "ed": 1.4}


def engine_epochs() -> Record:
    """Time an epoch of plain training and of training with the penalty, evaluation left out."""
    runs = [lambda name=name: _train(name) for name in AIMS]
    times = dict(zip(AIMS, interleaved(*runs, repeats=5), strict=True))
    epoch = EXAMPLES // RECIPE.settings.batch / STEPS
    rows = [
        {
            "method": name,
            "seconds_per_epoch": epoch * time,
            "aim": f"≤ {AIMS[name]} s",
            "milliseconds_per_step": 1e3 * time / STEPS,
            "ratio": time / times["plain"],
        }
        for name, time in times.items()
    ]
    return {
        "name": "seconds per epoch",
        "detail": "ViT-Tiny, CIFAR-10's size, batch 256; the lab's engine",
        "rows": rows,
    }


def models_at_once() -> Record:
    """Train two networks on one GPU at once, each on a stream of its own, against one after the other."""
    graphs = [_graph("plain", number) for number in range(2)]
    streams = [torch.cuda.Stream() for _ in graphs]  # type: ignore[no-untyped-call]

    def replay(*, together: bool) -> None:
        for _ in range(STEPS):
            for graph, stream in zip(graphs, streams, strict=True):
                with torch.cuda.stream(stream if together else streams[0]):
                    graph.replay()

    once, turns = interleaved(lambda: replay(together=True), lambda: replay(together=False), repeats=5)
    detail = f"ViT-Tiny, batch 256; {1e3 * once / STEPS:.2f} and {1e3 * turns / STEPS:.2f} ms for a step of both"
    return {
        "name": "two networks at once / one after the other",
        "ratio": once / turns,
        "target": "< 0.8",
        "detail": detail,
    }


def _train(name: str) -> None:
    indices = torch.arange(RECIPE.settings.batch, device=device())
    for _ in range(STEPS):
        _step(name)(indices, rate=1e-3, weight=0.0 if name == "plain" else 7.0)


@cache
def _step(name: str, number: int = 0) -> Step:  # noqa: ARG001  (another number, another network)
    settings = RECIPE.resolved(RECIPE.row(name), {})
    method = made_method(settings)
    model = models.make(settings.model, shape=(3, 32, 32), classes=10).to(device()).train()
    step = Step(model, method, _examples(), settings, batch=settings.batch)
    step.capture(penalized=method.penalty is not None)
    return step


def _graph(name: str, number: int) -> torch.cuda.CUDAGraph:
    (captured,) = _step(name, number)._steps.values()
    assert isinstance(captured, CapturedStep)
    return captured.graph


@cache
def _examples() -> DeviceExamples:
    images = torch.randint(256, (EXAMPLES, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(10, (EXAMPLES,))
    data = Labelled(images, labels, images[:100], labels[:100], 10, (0.5,) * 3, (0.25,) * 3)
    return DeviceExamples(data, RECIPE.settings, device())


CASES = [engine_epochs, models_at_once]
