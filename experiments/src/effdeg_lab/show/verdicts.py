"""Does a claim hold? One rule for all studies: a number, its interval, and where the claim wants it to lie."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

# The first of these decides.
Word = Literal["does not hold", "not decided", "holds", "no claim", "not run"]


@dataclass(frozen=True)
class Verdict:
    """What the runs say about a claim."""

    word: Word
    quantity: str = ""  # what the deciding number is, in a few words
    value: float | None = None  # the deciding number
    interval: tuple[float, float] | None = None  # of 95%; None if there is none, as with a single seed
    wanted: tuple[float, float] = (-math.inf, math.inf)  # where the claim wants the number to lie
    reason: str = ""  # why the number does not decide, where its interval alone would not tell

    @property
    def details(self) -> str:
        """What the deciding number is, the number, its interval, and why it does not decide; empty if there is none."""
        low, high = self.interval or (0.0, 0.0)
        spread = f" (95% interval {low:.3g} to {high:.3g})" if low < high else ""  # an exact number has none
        bounds = zip(("above", "below"), self.wanted, strict=True)
        claimed = " and ".join(f"{side} {bound:.3g}" for side, bound in bounds if bound and math.isfinite(bound))
        claimed = f", claimed {claimed}" if claimed else ""
        number = "" if self.value is None else f"{self.quantity}: {self.value:.3g}{spread}{claimed}"
        return "; ".join(filter(None, (number, self.reason)))

    def __str__(self) -> str:
        return f"{self.word}: {self.details}" if self.details else self.word


def judge(
    quantity: str,
    value: float,
    interval: tuple[float, float] | None,
    reason: str = "",
    /,
    *,
    above: float = -math.inf,
    below: float = math.inf,
) -> Verdict:
    """Judge a claim that a number lies above one bound, below another, or both.

    The claim holds if the whole interval lies within the bounds, does not hold if the whole interval lies outside, and
    is not decided otherwise, if there is no interval, or if there is a reason, such as seeds that failed. An exact
    number has the interval ``(value, value)``.
    """
    word: Word = "not decided"
    if reason:
        pass
    elif interval and above < interval[0] and interval[1] < below:
        word = "holds"
    elif interval and (interval[1] <= above or interval[0] >= below):
        word = "does not hold"
    return Verdict(word, quantity, value, interval, (above, below), reason)


def judge_all(verdicts: Iterable[Verdict]) -> Verdict:
    """Combine the parts of a claim: it fails with any part, holds if all parts do, and is not decided otherwise."""
    return min(verdicts, key=lambda part: get_args(Word).index(part.word), default=Verdict("no claim"))
