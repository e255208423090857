"""What was found at one scale, in a word and in sentences."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["holds", "does not hold", "not decided", "aim met", "aim missed", "not in the paper", "not run"]


@dataclass(frozen=True)
class Finding:
    """What was found at one scale.

    Attributes:
        verdict: Whether the paper's claim, or our own aim, holds here.
        sentences: What was found.
    """

    verdict: Verdict
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.sentences)
