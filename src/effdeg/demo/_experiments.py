"""The two experiments of the demonstration: choose between networks by simplicity, and train networks for it."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import effdeg
from effdeg._utils.statistics import interval, mean_and_stderr
from effdeg.demo._digits import Digits, load_digits, network

PER_CLASS = 5
TRACKED = (0, 5, 10, 20, 30, 50, 75, 100, 150, 200, 300, 400)
STEPS = TRACKED[-1]
SEEDS = 8
# Chosen by accuracy on seeds 100 to 107, which are not among those shown, from weights 1, 3, 10 and nodes 3, 4.
WEIGHT, NODES = 3.0, 3
STAGES = 2 * (len(TRACKED) + 1) + 2 * SEEDS
"""The number of reports of the two experiments together."""

QUESTION = (
    "So far, simplicity was used to choose between networks that were trained without regard to it. Here a penalty "
    "enforces it, which is a different question: even where the simpler of two networks is the better one, making a "
    "network simpler need not make it better."
)
"""The question of the second experiment, after the first."""

Report = Callable[[str], object]
"""Called at the beginning of every stage with a description of it."""


@dataclass(frozen=True)
class Regime:
    """How a network is trained."""

    name: str
    description: str
    lr: float
    weight_decay: float


GENTLE = Regime("gentle", "small steps, strong weight decay", lr=1e-3, weight_decay=1.0)
HASTY = Regime("hasty", "steps ten times as large, no weight decay", lr=1e-2, weight_decay=0.0)


@dataclass(frozen=True)
class MeanInterval:
    """A mean, such as of paired differences, and its 95% interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, sample: Tensor) -> "MeanInterval":
        """Return the mean of a sample."""
        mean, stderr = mean_and_stderr(sample.double())
        return cls(mean, *interval(mean, stderr, count=len(sample), level=0.95))

    @property
    def sign(self) -> int:
        """1 if the interval lies above zero, -1 if below, 0 if it holds zero."""
        return (self.low > 0) - (self.high < 0)

    def describe(self, *, scale: float = 1.0, unit: str = "") -> str:
        """Describe in which direction the difference is significant, if it is, with its interval."""
        words = ("no clear difference", "higher", "lower")[self.sign]
        low, high = scale * self.low, scale * self.high
        return f"{words} (95% interval of the difference {low:+.2g} to {high:+.2g}{unit})"


@dataclass
class TrackedNetwork:
    """A network and its scores during training; ``correct`` and ``losses`` are the last ones, per held-out digit."""

    regime: Regime
    model: nn.Module
    degrees: list[effdeg.Measurement] = field(default_factory=list)
    train_accuracy: list[float] = field(default_factory=list)
    test_accuracy: list[float] = field(default_factory=list)
    test_loss: list[float] = field(default_factory=list)
    correct: Tensor = field(default_factory=lambda: torch.empty(0))
    losses: Tensor = field(default_factory=lambda: torch.empty(0))

    @torch.no_grad()
    def track(self, digits: Digits) -> None:
        """Score the network in its present state."""
        logits = self.model(digits.held_out)
        self.degrees.append(effdeg.measure(self.model, digits.pool, paths=96, nodes=80))
        self.train_accuracy.append(float((self.model(digits.labeled).argmax(1) == digits.labels).float().mean()))
        self.correct = (logits.argmax(1) == digits.held_out_labels).float()
        self.losses = cross_entropy(logits, digits.held_out_labels, reduction="none")
        self.test_accuracy.append(float(self.correct.mean()))
        self.test_loss.append(float(self.losses.mean()))


@dataclass(frozen=True)
class Selection:
    """The first experiment: two networks that fit the same few labels, which of them is simpler, and which is better.

    The second question needs the held-out labels, the first does not.
    """

    digits: Digits
    networks: dict[str, TrackedNetwork]
    traces: dict[str, effdeg.Trace]
    comparison: effdeg.Comparison

    def findings(self) -> list[str]:
        """Describe what was found, in sentences."""
        one, two = self.comparison.ranking
        simpler, other = self.networks[one], self.networks[two]
        degrees = {name: measured.value for name, measured in self.comparison.measurements.items()}
        significant = self.comparison.differences()[0].significant
        accuracy = MeanInterval.of(simpler.correct - other.correct)
        loss = MeanInterval.of(simpler.losses - other.losses)
        verdict = {2: "agree", 1: "agree in part", 0: "do not decide"}.get(accuracy.sign - loss.sign, "disagree")
        reached = " and ".join(f"{each.train_accuracy[-1]:.0%} ({name})" for name, each in self.networks.items())
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


@dataclass(frozen=True)
class Scores:
    """The accuracy and loss of a trained network on held-out digits, and its effective degree."""

    accuracy: float
    loss: float
    degree: float


@dataclass(frozen=True)
class PenaltyEffect:
    """The second experiment: networks with and without the penalty, for several labeled digits and initial weights."""

    seeds: list[int]
    plain: list[Scores]
    penalized: list[Scores]

    def mean(self, group: str, what: str) -> float:
        """Average a score over the seeds of ``"plain"`` or ``"penalized"``."""
        scores: list[Scores] = getattr(self, group)
        return sum(float(getattr(each, what)) for each in scores) / len(scores)

    def difference(self, what: str) -> MeanInterval:
        """Return what the penalty changed, seed by seed."""
        pairs = zip(self.plain, self.penalized, strict=True)
        changes = [getattr(two, what) - getattr(one, what) for one, two in pairs]
        return MeanInterval.of(torch.tensor(changes, dtype=torch.float64))

    def findings(self) -> list[str]:
        """Describe what was found, in sentences."""
        accuracy, loss, degree = (self.difference(what) for what in ("accuracy", "loss", "degree"))
        return [
            f"Trained with the penalty, over {len(self.seeds)} seeds, networks reach "
            f"{self.mean('penalized', 'accuracy'):.1%} on held-out digits, without it "
            f"{self.mean('plain', 'accuracy'):.1%}: {accuracy.describe(scale=100, unit=' points')}.",
            f"Their held-out loss is {self.mean('penalized', 'loss'):.2f} against {self.mean('plain', 'loss'):.2f}: "
            f"{loss.describe()}.",
            f"Their effective degree is {self.mean('penalized', 'degree'):.2f} against "
            f"{self.mean('plain', 'degree'):.2f}: {degree.describe()}.",
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return all settings and results, for JSON."""
        changes = {what: asdict(self.difference(what)) for what in ("accuracy", "loss", "degree")}
        settings = {"weight": WEIGHT, "nodes": NODES, "steps": STEPS, "rate": HASTY.lr, "per_class": PER_CLASS}
        return {"settings": settings, **asdict(self), "differences": changes}


def select_network(*, seed: int, report: Report) -> Selection:
    """Train two networks in different ways, tracking both, and compare them."""
    digits = load_digits(per_class=PER_CLASS, seed=seed)
    networks = {}
    for regime in (GENTLE, HASTY):
        model, optimizer = _start(regime, seed)
        networks[regime.name] = tracked = TrackedNetwork(regime, model)
        for step in range(STEPS + 1):
            if step in TRACKED:
                report(f"training {regime.name!r}, step {step}")
                tracked.track(digits)
            if step < STEPS:
                _step(optimizer, cross_entropy(model(digits.labeled), digits.labels))
    traces = {}
    for name, each in networks.items():
        report(f"measuring {name!r} on 400 paths × 200 nodes")
        traces[name] = effdeg.trace(each.model, digits.pool, seed=seed)
    comparison = effdeg.compare({name: trace.fit() for name, trace in traces.items()})
    return Selection(digits, networks, traces, comparison)


def apply_penalty(*, seed: int, report: Report) -> PenaltyEffect:
    """Train networks with and without the penalty, on several seeds starting with the given one."""
    seeds = list(range(seed, seed + SEEDS))
    scores: dict[str, list[Scores]] = {"plain": [], "penalized": []}
    for each in seeds:
        for kind, kept in scores.items():
            report(f"training {kind} networks, seed {each}")
            kept.append(_score(each, penalized=kind == "penalized"))
    return PenaltyEffect(seeds, **scores)


def _score(seed: int, *, penalized: bool) -> Scores:
    digits = load_digits(per_class=PER_CLASS, seed=seed)
    model, optimizer = _start(HASTY, seed)
    penalty = effdeg.Penalty(nodes=NODES, degree=NODES - 1, anchor="labels")
    weight = effdeg.SineRamp(WEIGHT, steps=STEPS // 3)
    x, y = digits.labeled, digits.labels
    for step in range(STEPS):
        if penalized:
            logits, degree = penalty(model, x, y)
            _step(optimizer, cross_entropy(logits, y) + weight(step) * degree)
        else:
            _step(optimizer, cross_entropy(model(x), y))
    with torch.no_grad():
        logits = model(digits.held_out)
    correct = logits.argmax(1) == digits.held_out_labels
    return Scores(
        accuracy=float(correct.float().mean()),
        loss=float(cross_entropy(logits, digits.held_out_labels)),
        degree=effdeg.measure(model, digits.pool, paths=96, nodes=80).value,
    )


def _start(regime: Regime, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = network()
    return model, torch.optim.AdamW(model.parameters(), lr=regime.lr, weight_decay=regime.weight_decay)


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
