"""What the runs of a line found together, degree by degree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.lines import Line
from effdeg.lab.report.spread import Spread
from effdeg.lab.studies.polynomials.estimates import Estimate


@dataclass(frozen=True)
class Followed:
    """What was found for polynomials of one total degree.

    Attributes:
        degree: The total degree.
        count: How many paths were followed, each once for every polynomial.
        found: The mean degree found.
        found_coarsely: The same where coefficients below 1% of the largest are ignored.
        too_high: Paths with a higher degree than the total degree.
        dropped: Paths with a lower one.
        vanishing: Those of them on which the leading coefficient is zero.
        unexplained: Those on which it is not, and large enough to be seen.
        raw: The effective degree.
        normalized: The normalized effective degree.
        noise: By the size of the noise, the mean degree found and the effective degree.
    """

    degree: int
    count: int
    found: float
    found_coarsely: float
    too_high: int
    dropped: int
    vanishing: int
    unexplained: int
    raw: Estimate
    normalized: Estimate
    noise: Mapping[float, tuple[float, float]]


def followed(line: Line) -> list[Followed]:
    """Put together what the seeds of a line found, total degree by total degree."""
    runs = [(run.summary or {})["degrees"] for run in line.runs]
    return [_together(entries) for entries in zip(*runs, strict=True)]


def has_density(line: Line) -> bool:
    """Return whether a line's examples have a density, as the theorem wants it."""
    return bool(line.runs[0].settings["inputs"] != "lattice")


def shown_with_noise(block: Block) -> Line:
    """Choose the line that noise is shown for: the second whose examples have a density, or what there is."""
    dense = [line for line in block.done if has_density(line)] or block.done
    return dense[min(1, len(dense) - 1)]


def noise_gain(each: Followed, size: float) -> float:
    """Return by what share noise of a size raises the effective degree."""
    return each.noise[size][1] / each.raw.value - 1


def _together(entries: Sequence[Mapping[str, Any]]) -> Followed:
    def total(key: str) -> int:
        return sum(entry[key] for entry in entries)

    def mean(key: str) -> float:
        return Spread.of([entry[key] for entry in entries]).mean

    noisy = zip(*(entry["noise"] for entry in entries), strict=True)
    return Followed(
        degree=entries[0]["degree"],
        count=total("followed"),
        found=mean("found"),
        found_coarsely=mean("found_coarsely"),
        too_high=total("too_high"),
        dropped=total("dropped"),
        vanishing=total("vanishing"),
        unexplained=total("unexplained"),
        raw=Estimate.of([entry["effective_degree"] for entry in entries]),
        normalized=Estimate.of([entry["normalized"] for entry in entries]),
        noise={
            of_size[0]["size"]: (
                Spread.of([each["found"] for each in of_size]).mean,
                Spread.of([each["effective_degree"] for each in of_size]).mean,
            )
            for of_size in noisy
        },
    )
