"""Which training labels are wrong? Scores of given labels, and how well they find the wrong ones if these are known.

The effective degree is measured along paths that start at an example. The idea: between two examples with the same
label, the outputs have no reason to change unless one of the labels is wrong, even if the model has memorized it.
"""

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from scipy.stats import mannwhitneyu
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from effdeg.functional import effective_degree, fit
from effdeg_lab.engine.examples import DeviceExamples
from effdeg_lab.engine.settings import Training
from effdeg_lab.engine.step import State, evaluating

DEGREES = ("degree", "degree_within_label", "degree_of_label")
"""The scores by the effective degree."""
# The interpolating polynomial on 8 nodes; those at the ends need no forward pass of their own. Every shift of a random
# order joins each example to two others, so with 2 shifts 4 paths start at each.
_NODES, _DEGREE, _SHIFTS = 8, 7, 2
_NEARBY = 2  # nodes next to the example
_CHUNK = 1000
_LISTED = 40


@torch.no_grad()
def score_labels(
    predict: Callable[[Tensor], Tensor], inputs: Tensor, labels: Tensor, *, seed: int
) -> dict[str, Tensor]:
    """Score how suspicious the label of each example is; a score is larger where the label is more likely wrong.

    ``loss`` is the cross-entropy, ``margin`` the largest other logit minus that of the label. Three are effective
    degrees of probabilities, averaged over paths that start at the example: ``degree`` along paths to any others,
    ``degree_within_label`` along paths to others with the same label, and ``degree_of_label`` along the latter, but
    with the label instead of the output at the example itself. An example with a rare label may have paths to itself.
    ``nearby`` is a control without degrees: one minus the probability of the label at the first points of these paths.
    ``predict`` returns logits and leaves the model as it is; the seed decides which examples the paths lead to.
    """
    logits = predict(inputs)
    probabilities, ids = logits.softmax(1), labels[:, None]
    others = logits.scatter(1, ids, -math.inf).amax(1)
    scores = {
        "loss": cross_entropy(logits, labels, reduction="none"),
        "margin": others - logits.gather(1, ids).squeeze(1),
        "nearby": torch.ones_like(others),
        **{name: torch.zeros_like(others) for name in DEGREES},
    }
    targets = one_hot(labels, logits.shape[1]).to(probabilities.dtype)
    # Chebyshev points of the second kind, which contain both ends and are symmetric.
    alpha = (1 - torch.linspace(0, math.pi, _NODES, dtype=torch.float64, device=labels.device).cos()) / 2
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(labels.device)
    by_label = [order[labels[order] == each] for each in range(logits.shape[1])]
    pairings = {"degree": [order], "degree_within_label": by_label}
    for (name, groups), shift in product(pairings.items(), range(1, _SHIFTS + 1)):
        first, second = torch.cat(groups), torch.cat([group.roll(shift) for group in groups])
        ends = inputs[first], inputs[second]
        inner = [predict(torch.lerp(*ends, each)).softmax(1) for each in alpha[1:-1].tolist()]
        values = torch.stack([probabilities[first], *inner, probabilities[second]], dim=1)
        for start, along in ((first, values), (second, values.flip(1))):
            measured = {name: along}
            if groups is by_label:
                measured["degree_of_label"] = torch.cat([targets[start, None], along[:, 1:]], dim=1)
                near = (along[:, 1 : 1 + _NEARBY] * targets[start, None]).sum(2).mean(1)
                scores["nearby"][start] -= near / (2 * _SHIFTS)
            for key, each in measured.items():
                scores[key][start] += effective_degree(fit(each, alpha, _DEGREE)) / (2 * _SHIFTS)
    return scores


def area_under_roc(scores: Tensor, positive: Tensor) -> float:
    """Return the probability that a positive example has a higher score than a negative one; ties count half."""
    one, other = scores[positive].cpu(), scores[~positive].cpu()
    return float(mannwhitneyu(one, other, method="asymptotic").statistic) / (len(one) * len(other))


class WrongLabels:
    """What a run with known wrong labels remembers from its evaluations: the best epoch, and scores of the labels."""

    def __init__(self, examples: DeviceExamples, settings: Training) -> None:
        assert examples.truth is not None
        self._examples, self._precision = examples, settings.precision
        self._split = examples.train.first(settings.suspect)
        self._truth = examples.truth[: settings.suspect]
        self._wrong = self._split.labels != self._truth
        self._share = float((examples.train.labels != examples.truth).double().mean())
        count, wrong = len(self._split), int(self._wrong.sum())
        if settings.suspect and (count <= 2 * _SHIFTS or wrong in {0, count}):
            raise ValueError(
                f"suspect={settings.suspect} scores {count} labels, {wrong} of them wrong: it needs at least "
                f"{2 * _SHIFTS + 1}, both wrong and right. Raise suspect."
            )
        self._best = {"best_test_accuracy": -1.0, "best_epoch": 0}
        self._last: dict[str, Tensor] = {}
        self._sums: dict[str, Tensor] = {}

    def look(self, model: nn.Module, epoch: int, test_accuracy: float) -> dict[str, Any]:
        """Remember an evaluation; return how well each score finds the wrong labels."""
        if test_accuracy > self._best["best_test_accuracy"]:
            self._best = {"best_test_accuracy": test_accuracy, "best_epoch": epoch}
        if not len(self._split):
            return {}
        inputs = self._examples.normalize(self._split.inputs)

        def predict(points: Tensor) -> Tensor:
            with evaluating(model, self._precision):
                return torch.cat([model(part).float() for part in torch.split(points, _CHUNK)])

        self._last = score_labels(predict, inputs, self._split.labels, seed=epoch)
        self._sums = {name: score + self._sums.get(name, 0.0) for name, score in self._last.items()}
        return {"wrong_labels": self._measure()}

    def state(self) -> State:
        return {"best": self._best, "last": self._last, "sums": self._sums}

    def restore(self, state: State) -> None:
        device = self._truth.device
        self._best = state["best"]
        self._last, self._sums = (
            {name: score.to(device) for name, score in state[key].items()} for key in ("last", "sums")
        )

    def summarize(self) -> dict[str, Any]:
        """Return the best epoch, how well each score finds wrong labels, and the examples it would look at first.

        The best epoch is chosen on the test examples, as is common in the literature on noisy labels.
        """
        found = {**self._best, "wrong_share": self._share}
        if not self._last:
            return found
        areas, scores = self._measure(), self._collect()
        degree = max((name for name in scores if name.removeprefix("mean_") in DEGREES), key=areas.__getitem__)
        listed = {name: self._list(scores[name]) for name in (degree, "area_under_margin")}
        return {**found, "wrong_labels": areas, "suspicious": listed}

    def _collect(self) -> dict[str, Tensor]:
        """Return the scores of the last evaluation and, up to a factor, their means over all of them."""
        means = {f"mean_{name}": score for name, score in self._sums.items()}
        # The mean margin has a name of its own (Pleiss et al., 2020).
        return self._last | {"area_under_margin": means.pop("mean_margin")} | means

    def _measure(self) -> dict[str, float]:
        return {name: area_under_roc(score, self._wrong) for name, score in self._collect().items()}

    def _list(self, score: Tensor) -> list[dict[str, int]]:
        """List the most suspicious examples by their places among the training examples."""
        first = score.argsort(descending=True, stable=True)[:_LISTED]
        columns = first.tolist(), self._split.labels[first].tolist(), self._truth[first].tolist()
        return [dict(zip(("example", "given", "true"), row, strict=True)) for row in zip(*columns, strict=True)]
