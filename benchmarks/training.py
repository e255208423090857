"""What the penalty adds to a training step: ratios within one run, on a GPU."""

from functools import cache

import torch
from torch import Tensor, nn

from benchmarks.steps import Loss, ordinary_step, penalty_loss, plain_loss
from benchmarks.timing import Record, interleaved, make_record
from effdeg import Penalty
from effdeg_lab.engine.step import CapturedStep
from effdeg_lab.models import ViT

REPLAYS = 20


def step_over_plain() -> Record:
    """Step with the penalty, against a plain step on the same batch."""
    times = _tiny_steps()
    detail = f"ViT-Tiny, batch 256, compiled and captured; {_ms(times['penalty'])} and {_ms(times['plain'])}"
    return make_record("step with penalty / plain step", times["penalty"] / times["plain"], "≤ 1.75", detail)


def step_over_same_size() -> Record:
    """Step with the penalty, against a plain step on as many examples: the penalty's own arithmetic."""
    times = _tiny_steps()
    detail = (
        f"ViT-Tiny, 256 examples and 256 points against 512 examples; {_ms(times['penalty'])} and {_ms(times['512'])}"
    )
    return make_record(
        "step with penalty / plain step of the same size", times["penalty"] / times["512"], "≤ 1.03", detail
    )


def many_classes() -> Record:
    """The same for ViT-S/16 with 1,000 classes and PCA."""
    batch, points = 512, 1024
    penalty = Penalty.efficient(pairs=512, components=3)
    steps = []
    for rows, regularized in ((batch, True), (batch + points, False)):
        model, x, y = _made(ViT(size=224, patch=16, width=384, heads=6, classes=1000), rows, size=224, classes=1000)
        steps.append(_captured(model, _loss(model, penalty if regularized else None), x, y))
    ours, alone = interleaved(*steps, repeats=REPLAYS)
    detail = f"ViT-S/16, 224 px, 1,000 classes to 3 components, 512 pairs of 512; {_ms(ours)} and {_ms(alone)}"
    return make_record("step with penalty / plain step of the same size, PCA", ours / alone, "≤ 1.01", detail)


def joined_forward() -> Record:
    """Eager: two forward passes, of the batch and of the points, against the joined one."""
    model, x, y = _made(ViT(), 256)
    penalty = Penalty.efficient()
    optimizer = torch.optim.AdamW(model.parameters())

    def finish(loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    def joined() -> None:
        finish(penalty_loss(model, penalty, torch.tensor(7.0, device="cuda"))(x, y))

    def apart() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            points = penalty.points(x, y)
            loss = nn.functional.cross_entropy(model(x), y)
            finish(loss + 7.0 * penalty.degree(model(points.inputs), points))

    two, one = interleaved(apart, joined, repeats=REPLAYS)
    return make_record(
        "two forwards / joined forward, eager", two / one, "≥ 1.3", f"ViT-Tiny, whole steps; {_ms(two)} and {_ms(one)}"
    )


def step_memory() -> Record:
    """Peak memory of a step with the penalty, against a plain one of the same size."""
    peaks = []
    for rows, regularized in ((256, True), (512, False)):
        model, x, y = _made(ViT(), rows)
        step = ordinary_step(model, _loss(model, Penalty.efficient() if regularized else None), x, y)
        step()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated() / 2**20)
        del model, x, y, step
    detail = f"ViT-Tiny, compiled; {peaks[0]:.0f} and {peaks[1]:.0f} MiB"
    return make_record("peak memory with penalty / plain of the same size", peaks[0] / peaks[1], "≤ 1.05", detail)


@cache
def _tiny_steps() -> dict[str, float]:
    steps = {}
    for name, rows in (("plain", 256), ("512", 512)):
        model, x, y = _made(ViT(), rows)
        steps[name] = _captured(model, _loss(model), x, y)
    model, x, y = _made(ViT(), 256)
    steps["penalty"] = _captured(model, _loss(model, Penalty.efficient()), x, y)
    return dict(zip(steps, interleaved(*steps.values(), repeats=REPLAYS), strict=True))


def _captured(model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> CapturedStep:
    return CapturedStep(model, ordinary_step(model, loss, x, y))


def _loss(model: nn.Module, penalty: Penalty | None = None) -> Loss:
    # The compiled code of one shape must not turn into that of any shape.
    torch._dynamo.reset()
    weight = torch.tensor(7.0, device="cuda")
    loss = plain_loss(model) if penalty is None else penalty_loss(model, penalty, weight)
    return torch.compile(loss, fullgraph=True, dynamic=False)


def _made(model: nn.Module, rows: int, *, size: int = 32, classes: int = 10) -> tuple[nn.Module, Tensor, Tensor]:
    x = torch.randn(rows, 3, size, size, device="cuda")
    return model.cuda().train(), x, torch.randint(classes, (rows,), device="cuda")


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"


CASES = [
    step_over_plain,
    step_over_same_size,
    many_classes,
    joined_forward,
    step_memory,
]
