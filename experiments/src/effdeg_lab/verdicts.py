"""Does a claim hold? One rule for all studies: a number, its interval, and where the claim wants it to lie."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Word = Literal["holds", "does not hold", "not decided", "no claim", "not run"]


@dataclass(frozen=True)
class Verdict:
    """What the runs say about a claim.

    Attributes:
        word: Whether the claim holds.
        quantity: What the deciding number is, in a few words; empty if there is none.
        value: The deciding number.
        interval: Its 95% interval; None if the runs do not give one, as with a single seed.
        wanted: Where the claim wants the number to lie.
    """

    word: Word
    quantity: str = ""
    value: float | None = None
    interval: tuple[float, float] | None = None
    wanted: tuple[float, float] = (-math.inf, math.inf)

    def __str__(self) -> str:
        if self.value is None:
            return self.word
        spread = f" (95% interval {self.interval[0]:.3g} to {self.interval[1]:.3g})" if self.interval else ""
        return f"{self.word}: {self.quantity} {self.value:.3g}{spread}"


def judge(
    quantity: str,
    value: float,
    interval: tuple[float, float] | None,
    *,
    above: float = -math.inf,
    below: float = math.inf,
) -> Verdict:
    """Judge a claim that a number lies above one bound, below another, or both.

    The claim holds if the whole interval lies within the bounds, does not hold if the whole interval lies outside, and
    is not decided otherwise, or if there is no interval. An exact number has the interval ``(value, value)``.
    """
    verdict = Verdict("not decided", quantity, value, interval, (above, below))
    if interval is None:
        return verdict
    low, high = interval
    if above < low and high < below:
        return Verdict("holds", quantity, value, interval, (above, below))
    if high <= above or low >= below:
        return Verdict("does not hold", quantity, value, interval, (above, below))
    return verdict


def judge_all(verdicts: Iterable[Verdict]) -> Verdict:
    """Combine the parts of a claim: it fails with any part, holds if all parts do, and is not decided otherwise."""
    parts = list(verdicts)
    for word in ("does not hold", "not decided", "holds"):
        for part in parts:
            if part.word == word:
                return part
    return parts[0] if parts else Verdict("no claim")
