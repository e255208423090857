"""Train two networks that fit the same few labels perfectly, and ask which one to trust."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import effdeg
from effdeg.demo._difference import Difference
from effdeg.demo._digits import Digits, load_digits, network

PER_CLASS = 5
STEPS = (0, 5, 10, 20, 30, 50, 75, 100, 150, 200, 300, 400)

Report = Callable[[str, int], object]


@dataclass(frozen=True)
class Training:
    """How a network is trained."""

    name: str
    description: str
    lr: float
    weight_decay: float


TRAININGS = (
    Training("gentle", "small steps, strong weight decay", lr=1e-3, weight_decay=1.0),
    Training("hasty", "steps ten times as large, no weight decay", lr=1e-2, weight_decay=0.0),
)


@dataclass
class Run:
    """A network as it was trained, and what was seen on the way."""

    training: Training
    model: nn.Module
    steps: list[int] = field(default_factory=list)
    degrees: list[effdeg.Measurement] = field(default_factory=list)
    train_accuracy: list[float] = field(default_factory=list)
    test_accuracy: list[float] = field(default_factory=list)
    test_loss: list[float] = field(default_factory=list)
    correct: Tensor = field(default_factory=lambda: torch.empty(0))
    """Whether each held-out digit is recognized at the end, and below the loss of each."""
    losses: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def gap(self) -> float:
        """The generalization gap at the end: training accuracy minus held-out accuracy."""
        return self.train_accuracy[-1] - self.test_accuracy[-1]


@dataclass(frozen=True)
class Story:
    """Everything the demonstration found."""

    digits: Digits
    runs: dict[str, Run]
    traces: dict[str, effdeg.Trace]
    comparison: effdeg.Comparison

    def findings(self) -> list[str]:
        """Return what was found, in sentences."""
        simpler, other = (self.runs[name] for name in self.comparison.ranking)
        one, two = simpler.training.name, other.training.name
        degrees = {name: measured.value for name, measured in self.comparison.measurements.items()}
        significant = self.comparison.differences()[0].significant
        accuracy = Difference.of(simpler.correct - other.correct)
        loss = Difference.of(simpler.losses - other.losses)
        verdict = {2: "agree", 1: "agree in part", 0: "do not decide"}.get(accuracy.sign - loss.sign, "disagree")
        reached = " and ".join(f"{run.train_accuracy[-1]:.0%} ({name})" for name, run in self.runs.items())
        return [
            f"On their {len(self.digits.labels)} training labels the networks reach {reached}: training cannot tell "
            "which one to trust.",
            f"The effective degree, which needs no labels, is {degrees[one]:.3g} for {one!r} and {degrees[two]:.3g} "
            f"for {two!r}: {one!r} is {'significantly' if significant else 'not distinguishably'} simpler.",
            f"The {len(self.digits.held_out)} held-out labels {verdict}. The accuracy of {one!r} is "
            f"{simpler.test_accuracy[-1]:.1%} against {other.test_accuracy[-1]:.1%}: "
            f"{accuracy.describe(scale=100, unit=' points')}. Its loss is {simpler.test_loss[-1]:.2f} against "
            f"{other.test_loss[-1]:.2f}: {loss.describe()}.",
        ]


def tell(*, seed: int, report: Report) -> Story:
    """Train, track, measure and compare; ``report`` hears what is being done and how many stages are finished."""
    digits = load_digits(per_class=PER_CLASS, seed=seed)
    runs = {}
    for number, training in enumerate(TRAININGS):
        runs[training.name] = _train(training, digits, seed=seed, report=report, done=number * len(STEPS))
    done = len(TRAININGS) * len(STEPS)
    traces = {}
    for number, (name, run) in enumerate(runs.items()):
        report(f"measuring {name!r} on 400 paths × 200 nodes", done + number)
        traces[name] = effdeg.trace(run.model, digits.pool, seed=seed)
    comparison = effdeg.Comparison.of({name: trace.fit() for name, trace in traces.items()})
    return Story(digits, runs, traces, comparison)


def stages() -> int:
    """Count the stages that :func:`tell` reports."""
    return len(TRAININGS) * (len(STEPS) + 1)


def _train(training: Training, digits: Digits, *, seed: int, report: Report, done: int) -> Run:
    torch.manual_seed(seed)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=training.lr, weight_decay=training.weight_decay)
    run = Run(training, model)
    for step in count():
        if step in STEPS:
            report(f"training {training.name!r}, step {step}", done + len(run.steps))
            _look(run, digits, step)
        if step == STEPS[-1]:
            break
        optimizer.zero_grad()
        cross_entropy(model(digits.labelled), digits.labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return run


@torch.no_grad()
def _look(run: Run, digits: Digits, step: int) -> None:
    logits = run.model(digits.held_out)
    run.steps.append(step)
    run.degrees.append(effdeg.measure(run.model, digits.pool, paths=96, nodes=80))
    run.train_accuracy.append(float((run.model(digits.labelled).argmax(1) == digits.labels).float().mean()))
    run.correct = (logits.argmax(1) == digits.held_out_labels).float()
    run.losses = cross_entropy(logits, digits.held_out_labels, reduction="none")
    run.test_accuracy.append(float(run.correct.mean()))
    run.test_loss.append(float(run.losses.mean()))
