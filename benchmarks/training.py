"""What the penalty adds to a training step: ratios within one run."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from benchmarks.steps import Loss, ordinary_step, penalty_loss, plain_loss
from benchmarks.timing import Record, interleaved, make_record
from effdeg import Penalty, baselines
from effdeg_lab.engine.step import CapturedStep
from effdeg_lab.models import ViT, make_model

REPLAYS = 20


def step_costs() -> Record:
    """Time a step with the penalty, and with what else one might use, in plain steps: eager, for a CPU.

    A plain step on as many examples as there are examples and points shows the penalty's own arithmetic.
    """
    made = baselines.method("ed")
    assert isinstance(made.penalty, Penalty)
    methods = {
        "plain": baselines.method("plain"),
        "plain, twice the examples": baselines.method("plain"),
        "ed": made,
        "ed, path by path": replace(made, penalty=Naive(made.penalty)),
        "rdrop": baselines.method("rdrop"),
        "sam": baselines.method("sam"),
    }
    steps = [_make_eager_step(method, 128 if "twice" in name else 64) for name, method in methods.items()]
    times = interleaved(*steps, repeats=5)
    rows = [
        {"method": name, "ratio": time / times[0], "milliseconds": 1e3 * time}
        for name, time in zip(methods, times, strict=True)
    ]
    return {
        "name": "step / plain step",
        "detail": "ViT of width 64 and depth 4, batch of 64; AdamW, eager",
        "rows": rows,
    }


class Naive(nn.Module):
    """The penalty as one would write it down: a second forward pass, and a least-squares fit for each path."""

    def __init__(self, penalty: Penalty) -> None:
        super().__init__()
        self.penalty = penalty

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of the batch, and the mean degree of the paths."""
        points = self.penalty.points(x, y)
        inner = model(points.inputs).softmax(1).unflatten(0, (len(points.pairs), -1))
        soft = one_hot(y, inner.shape[-1]).to(inner.dtype)
        degrees, orders = [], torch.arange(inner.shape[1] + 2.0)
        for pair, alpha, values in zip(points.pairs, points.alpha, inner, strict=True):
            along = torch.cat([soft[pair[1:]], values, soft[pair[:1]]])
            basis = torch.cos(orders * torch.arccos((2 * alpha.to(inner) - 1).clamp(-1, 1))[:, None])
            coefficients = torch.linalg.lstsq(basis, along).solution
            degrees.append((orders @ coefficients.abs()).mean())
        return model(x), torch.stack(degrees).mean()


def _make_eager_step(method: baselines.Method, batch: int) -> Callable[[], object]:
    torch.manual_seed(0)
    model = make_model("vit-64x4-4", shape=(3, 32, 32), classes=10, dropout=0.1).train()
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
    optimizer = method.optimizer(model, torch.optim.AdamW, lr=1e-3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = method.loss(model, *method.batch(x, y), cross_entropy)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    return lambda: optimizer.step(closure)  # type: ignore[arg-type]


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
    step_memory,
]
