"""How fast the lab's engine trains, on random images in the shape and number of CIFAR-10's."""

import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache, partial
from pathlib import Path

import torch

from benchmarks.timing import Record, device, interleaved
from effdeg_lab.core.runs import Job, RunFolder
from effdeg_lab.data import Labeled
from effdeg_lab.engine import Task, Training, open_loop
from effdeg_lab.engine.classify import make_network, make_task
from effdeg_lab.engine.examples import DeviceExamples
from effdeg_lab.engine.loop import Loop, tune_kernels
from effdeg_lab.engine.step import Step
from effdeg_lab.models import ViT

EXAMPLES, STEPS, REPEATS = 50_000, 50, 5
# By variant: the model, whether its parameters are joined, and whether it is compiled and run in our kernels.
VARIANTS = {
    "baseline": ("vit-tiny", False, False),
    "flat parameters": ("vit-tiny", True, False),
    "64 tokens": ("vit-tiny-mean", False, False),
    "64 tokens, flat, fused": ("vit-tiny-mean", True, True),
}


def engine_speedups() -> Record:
    """Time a step of ViT-Tiny, plain and with the penalty, by what makes it faster."""
    rows, base = list[Record](), dict[str, float]()
    for name, (model, flat, fused) in VARIANTS.items():
        for method in ("plain", "ed"):
            with prepare_step(make_settings(method, model), flat=flat, fused=fused) as step:
                (seconds,) = interleaved(partial(_repeat, step), repeats=REPEATS)
            ratio = seconds / base.setdefault(method, seconds)
            milliseconds = 1e3 * seconds / STEPS
            rows.append({"variant": name, "method": method, "milliseconds": milliseconds, "ratio": ratio})
    detail = f"batch of 256, CIFAR-10's size, bf16; median of {REPEATS} times {STEPS} steps"
    return {"name": "milliseconds of a training step", "detail": detail, "rows": rows}


def fast_example() -> Record:
    """Time a step of the example of fast training, against the lab's step with the penalty."""
    file = Path(__file__).parents[1] / "examples" / "fast_training.py"
    given, sys.argv = sys.argv, [str(file), "--epochs", "1"]
    try:
        example = runpy.run_path(str(file), run_name="__main__")
    finally:
        sys.argv = given
    with prepare_step(make_settings("ed", "vit-tiny-mean")) as step:
        # The graph works in the memory of what else is in the example.
        ours, lab = interleaved(partial(_repeat, example["train"]), partial(_repeat, step), repeats=REPEATS)
    detail = f"ViT-Tiny on 64 tokens, batch 256, ed; {1e3 * ours / STEPS:.2f} and {1e3 * lab / STEPS:.2f} ms"
    name = "step of examples/fast_training.py / step of the lab"
    return {"name": name, "ratio": ours / lab, "target": "≤ 1.05", "detail": detail}


def make_settings(method: str, model: str) -> Training:
    """Return the settings of a step: those of a GPU, or on a CPU of a small network, to try it."""
    own: Record = {"model": model} if device().type == "cuda" else {"model": "mlp", "batch": 32}
    return Training(regularizer=method, weight=7.0, **own)


@contextmanager
def prepare_step(
    settings: Training, examples: DeviceExamples | None = None, *, flat: bool | None = None, fused: bool = True
) -> Iterator[Callable[[], object]]:
    """Prepare a training step on random images: on a GPU compiled and captured."""
    examples = _make_examples(settings) if examples is None else examples
    model = make_network(settings, examples, device()).train()
    if not fused and isinstance(model, ViT):
        model.fuse(False)
    step = Step(make_task(settings, examples, model), size=settings.batch, flat=flat)
    penalized = settings.regularizer != "plain"
    with tune_kernels(device(), tokens=getattr(model, "tokens", 0)), closing(step):
        step.compile(penalized=penalized)
        step.capture(penalized=penalized)
        indices = torch.arange(settings.batch, device=device())
        yield partial(step, indices, rate=settings.lr, weight=float(settings.weight or 0.0) if penalized else 0.0)


def run_loop(task: Task, settings: Training) -> Loop:
    """Train as a run does, and keep nothing of it."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(settings, "benchmarks", settings.regularizer, settings, RunFolder(Path(folder)), device())
        with open_loop(task, job) as loop:
            loop.start()
            loop.train()
        job.close()
    return loop


def _repeat(step: Callable[[], object]) -> None:
    for _ in range(STEPS):
        step()


def _make_examples(settings: Training) -> DeviceExamples:
    images, labels = _draw_images(EXAMPLES if device().type == "cuda" else 640)
    data = Labeled(images, labels, images[:100], labels[:100], 10, (0.5,) * 3, (0.25,) * 3)
    return DeviceExamples(data, settings, device())


@cache
def _draw_images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return images, torch.randint(10, (count,), generator=generator)
