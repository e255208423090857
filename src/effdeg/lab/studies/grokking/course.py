"""What a run was seen to do: when it memorized, when it generalized, and what its measures did meanwhile."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from effdeg.lab.store import Record
from effdeg.ranking._tables import Array

DEGREE = "validation_effective_degree"
"""The effective degree that is shown and judged: along paths between equations that are not trained on, as the loss
that it is compared with is of these. Along paths between the others it takes the same course, within a third."""

NORMALIZED = "normalized_effective_degree"
"""The normalized effective degree of the logits, along the same paths."""

_MEMORIZED = 0.99
_TRANSITION = (0.1, 0.9)
_LAST = 5


@dataclass(frozen=True, eq=False)
class Course:
    """What was found at each evaluation of a run.

    Attributes:
        paths: How many paths each effective degree was measured along.
        steps: The steps after which it was looked at.
        entries: What was found then.
    """

    paths: int
    steps: Array
    entries: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, run: Record) -> "Course":
        """Read the course of a run."""
        steps = np.array([entry["step"] for entry in run.metrics], dtype=float)
        return cls(int(run.settings["measure_paths"]), steps, tuple(map(_with_normalized, run.metrics)))

    def values(self, name: str) -> Array:
        """Return a measure at every evaluation."""
        found = [entry[name] for entry in self.entries]
        return np.array([each["value"] if isinstance(each, dict) else each for each in found], dtype=float)

    def errors(self, name: str) -> Array:
        """Return the standard errors of an effective degree."""
        return np.array([entry[name]["stderr"] for entry in self.entries], dtype=float)

    def reached(self, name: str, least: float) -> int | None:
        """Return the first evaluation at which a measure is at least so large; None if it never is."""
        found = np.flatnonzero(self.values(name) >= least)
        return int(found[0]) if len(found) else None

    @property
    def memorized(self) -> int | None:
        """The evaluation from which on 99% of the training equations had been answered correctly."""
        return self.reached("train_accuracy", _MEMORIZED)

    @cached_property
    def transition(self) -> tuple[int, int] | None:
        """The evaluations at which validation accuracy had passed 10% and 90%; None if it did not generalize."""
        start, end = (self.reached("validation_accuracy", share) for share in _TRANSITION)
        return None if start is None or end is None else (start, end)

    @cached_property
    def drop(self) -> int | None:
        """The evaluation at which the validation loss had dropped to half of its highest; None if it never did.

        The highest is that before the end of the transition: without a transition there is no drop, and later there
        may be spikes.
        """
        if self.transition is None:
            return None
        highest, loss = self.peak("validation_loss", until=self.transition[1]), self.values("validation_loss")
        found = np.flatnonzero(loss[highest:] <= loss[highest] / 2)
        return highest + int(found[0]) if len(found) else None

    def peak(self, name: str, *, until: int | None = None) -> int:
        """Return the evaluation at which a measure was highest, of all or of those until a certain one."""
        values = self.values(name)
        return int(values[: None if until is None else until + 1].argmax())

    def end(self, name: str) -> int:
        """Return the evaluation that stands for the end of the run: the one of the last five with the highest value.

        Spikes of the loss, of which training with Adam has some, lower the effective degree for a moment, and must not
        pass for a fall.
        """
        first = max(0, len(self.steps) - _LAST)
        return first + int(self.values(name)[first:].argmax())

    @property
    def before(self) -> int | None:
        """The evaluation at which the effective degree was highest until the drop; None without a drop."""
        return None if self.drop is None else self.peak(DEGREE, until=self.drop)

    def lead(self, at: int) -> float | None:
        """Return the step of an evaluation as a multiple of that of the drop; None without a drop."""
        return None if self.drop is None else float(self.steps[at] / self.steps[self.drop])

    def largest_fall(self, name: str) -> float:
        """Return by what share of its highest so far a measure fell, at most."""
        values = self.values(name)
        return float((1 - values / np.maximum.accumulate(values)).max())


def _with_normalized(entry: dict[str, Any]) -> dict[str, Any]:
    """Let the normalized effective degree stand beside the raw one."""
    found = entry[DEGREE]
    return entry | {NORMALIZED: {"value": found["normalized"], "stderr": found["normalized_stderr"]}}
