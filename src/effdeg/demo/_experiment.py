"""The demonstration's experiment: train small networks in three ways, pick one without labels, compare the ways."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import effdeg
from effdeg import baselines
from effdeg._utils.statistics import interval, mean_and_stderr
from effdeg.demo._digits import Digits, load_digits, network

METHODS = ("plain", "mixup", "ED")
RATES = (0.001, 0.01, 0.03)
PER_CLASS, STEPS, SEEDS = 5, 150, 4
NOISE = 0.2  # of copies; to move them by a pixel would change digits of 8 x 8 too much
STAGES = SEEDS * (len(METHODS) * len(RATES) + 1)
"""The number of reports."""

Report = Callable[[str], object]
"""Called at the beginning of every stage with a description of it."""


class NetworkScore(NamedTuple):
    """The accuracy and loss of a network on held-out digits, and its effective degree on digits without labels."""

    accuracy: float
    loss: float
    degree: float


def _average(scores: list[NetworkScore]) -> NetworkScore:
    return NetworkScore(*map(fmean, zip(*scores, strict=True)))


@dataclass(frozen=True)
class SeedDifference:
    """The mean of differences, seed by seed, and its 95% interval."""

    mean: float
    low: float
    high: float

    def describe(self, unit: str = "") -> str:
        """Return the difference with its interval, and whether it is significant."""
        mean, low, high = (f"{value:+.2f}".replace("-", "−") for value in (self.mean, self.low, self.high))
        doubt = ", not significant" if self.low <= 0 <= self.high else ""
        return f"{mean}{unit} (95% interval {low} to {high}{doubt})"


@dataclass(frozen=True)
class DigitsPool:
    """Networks trained on the same few labels, which one is picked, and how good each is."""

    digits: Digits
    choice: effdeg.Choice
    fitted: int
    scores: dict[str, NetworkScore]

    def accuracies(self) -> tuple[float, float, float]:
        """Return the held-out accuracy of a random network (the mean), of the one that was picked, and of the best."""
        values = [score.accuracy for score in self.scores.values()]
        return fmean(values), self.scores[self.choice.best].accuracy, max(values)

    def average(self, method: str) -> NetworkScore:
        """Average the scores of a method over its learning rates."""
        return _average([score for name, score in self.scores.items() if name.startswith(f"{method}-")])


@dataclass(frozen=True)
class Outcome:
    """A pool for each seed, which determines the split of the digits and the initial weights. The first is shown."""

    pools: list[DigitsPool]

    def average(self, method: str) -> NetworkScore:
        """Average the scores of a method over seeds and learning rates."""
        return _average([pool.average(method) for pool in self.pools])

    def difference(self, method: str, other: str, score: str) -> SeedDifference:
        """Return how much more one method has than another, seed by seed; an accuracy in points."""
        scale = 100 if score == "accuracy" else 1
        pairs = [[getattr(pool.average(each), score) for each in (method, other)] for pool in self.pools]
        values = scale * torch.tensor([one - two for one, two in pairs], dtype=torch.float64)
        mean, stderr = mean_and_stderr(values)
        return SeedDifference(mean, *interval(mean, stderr, count=len(values)))

    def describe_pick(self) -> list[str]:
        """Describe in sentences which network was picked, and how good the picks are."""
        pool = self.pools[0]
        random, picked, best = pool.accuracies()
        means = [fmean(values) for values in zip(*(each.accuracies() for each in self.pools), strict=True)]
        return [
            f"{pool.fitted} of {len(pool.scores)} networks fit all of their {len(pool.digits.labels)} labeled digits, "
            "so training accuracy does not say which one to use.",
            pool.choice.describe(),
            *pool.choice.warnings(),
            f"On {len(pool.digits.held_out):,} digits that nothing above has seen, the chosen network classifies "
            f"{picked:.1%} correctly, a random one of the pool {random:.1%}, the best {best:.1%}.",
            f"Over {len(self.pools)} such pools: chosen {means[1]:.1%}, random {means[0]:.1%}, best {means[2]:.1%}.",
        ]

    def describe_penalty(self) -> list[str]:
        """Describe in sentences what mixup and the penalty change."""

        def means(score: str, form: str) -> str:
            return ", ".join(f"{method} {getattr(self.average(method), score):{form}}" for method in METHODS)

        def gains(score: str, unit: str = "") -> str:
            others = METHODS[:-1]
            return " ".join(f"ED − {other}: {self.difference('ED', other, score).describe(unit)}." for other in others)

        return [
            f"Held-out accuracy: {means('accuracy', '.1%')}. {gains('accuracy', ' points')}",
            f"Held-out loss: {means('loss', '.2f')}. {gains('loss')}",
            f"Effective degree: {means('degree', '.2f')}. A simpler network is not always a better one: choose by "
            "held-out accuracy, or by a pick.",
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return all settings and results, for JSON."""
        return {
            "settings": {"per_class": PER_CLASS, "steps": STEPS, "rates": RATES},
            "pick": self.describe_pick(),
            "penalty": self.describe_penalty(),
            "choice": self.pools[0].choice.to_dict(),
            "pools": [
                {"picked": pool.choice.best, "scores": {name: score._asdict() for name, score in pool.scores.items()}}
                for pool in self.pools
            ],
            "differences": {
                f"ED - {other}": {score: asdict(self.difference("ED", other, score)) for score in NetworkScore._fields}
                for other in METHODS[:-1]
            },
        }


def run(*, seed: int, report: Report) -> Outcome:
    """Train a pool of networks and pick one of them, for several seeds starting with the given one."""
    return Outcome([_make_pool(each, report) for each in range(seed, seed + SEEDS)])


def _make_pool(seed: int, report: Report) -> DigitsPool:
    digits = load_digits(per_class=PER_CLASS, seed=seed)
    models = {}
    for method, rate in product(METHODS, RATES):
        report(f"seed {seed}: training {method}, learning rate {rate:g}")
        models[f"{method}-{rate:g}"] = _train(digits, method, rate, seed)
    report(f"seed {seed}: picking one of {len(models)} networks")
    choice = effdeg.pick(models, digits.pool.view(-1, 1, 8, 8), change=effdeg.changes.noise(NOISE), seed=seed)
    fitted = sum(bool((model(digits.labeled).argmax(1) == digits.labels).all()) for model in models.values())
    return DigitsPool(digits, choice, fitted, {name: _score(model, digits) for name, model in models.items()})


def _train(digits: Digits, name: str, rate: float, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = network()
    method = baselines.method(name.lower(), **({"classes": 10} if name == "mixup" else {}))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    ramp = effdeg.SineRamp(7.0, steps=STEPS // 3)
    for step in range(STEPS):
        x, y = method.batch(digits.labeled, digits.labels)
        weight = {"weight": ramp(step)} if name == "ED" else {}
        loss = method.loss(model, x, y, cross_entropy, **weight)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def _score(model: nn.Module, digits: Digits) -> NetworkScore:
    logits, labels = model(digits.held_out), digits.held_out_labels
    return NetworkScore(
        accuracy=float((logits.argmax(1) == labels).float().mean()),
        loss=float(cross_entropy(logits, labels)),
        degree=effdeg.measure(model, digits.pool, paths=96, nodes=80).value,
    )
