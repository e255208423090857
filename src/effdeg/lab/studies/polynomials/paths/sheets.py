"""The tables of the degrees along paths."""

from typing import Literal

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.lines import Line
from effdeg.lab.report.notes import scale_notes
from effdeg.lab.report.sheet import NOTHING, Sheet
from effdeg.lab.report.sheets import heading
from effdeg.lab.studies.polynomials.paths.run import COARSE, THRESHOLD
from effdeg.lab.studies.polynomials.paths.values import Followed, followed


def sheets(block: Block) -> list[Sheet]:
    """Return the tables: the degrees found, what noise does to them, and effective degrees."""
    found = {line: followed(line) for line in block.done}
    degrees = [each.degree for each in next(iter(found.values()))]
    return [
        _degrees(block, found, degrees[-1]),
        _noise(block, found, degrees),
        _effective(block, found, degrees, "raw"),
        _effective(block, found, degrees, "normalized"),
    ]


def _degrees(block: Block, found: dict[Line, list[Followed]], last: int) -> Sheet:
    head = (
        "",
        "followed",
        "leading coefficient zero",
        "too small for float64",
        f"found at total degree {last}",
        f"above {COARSE:.0%} of the largest",
    )
    rows = [
        (line.row.title, *_counts(found[line])) if line in found else (line.row.title, line.state, *[NOTHING] * 4)
        for line in block.lines
    ]
    notes = (
        f"The degree found is that of the highest Chebyshev coefficient above {THRESHOLD:g} of the largest one; in the "
        f"last column, above {COARSE:g}.",
        "Followed: polynomials times paths, all total degrees together.",
        *scale_notes(block),
    )
    return Sheet(f"The degree found along paths: {heading(block)}", head, tuple(rows), notes)


def _counts(found: list[Followed]) -> tuple[str, ...]:
    count, dropped, vanishing = (
        sum(getattr(each, name) for each in found) for name in ("count", "dropped", "vanishing")
    )
    last = found[-1]
    return f"{count:,}", f"{vanishing:,}", f"{dropped - vanishing:,}", f"{last.found:.3f}", f"{last.found_coarsely:.2f}"


def _noise(block: Block, found: dict[Line, list[Followed]], degrees: list[int]) -> Sheet:
    middle = degrees[len(degrees) // 2]
    sizes = list(next(iter(found.values()))[0].noise)
    rows = []
    for line in block.lines:
        each = next((each for each in found.get(line, []) if each.degree == middle), None)
        cells = [f"{each.found:.2f}; {each.raw.value:.3f}"] if each else [line.state]
        cells += [f"{each.noise[size][0]:.2f}; {each.noise[size][1]:.3f}" if each else NOTHING for size in sizes]
        rows.append((line.row.title, *cells))
    title = f"Total degree {middle} with noise on the values: degree found; ED"
    notes = ("The noise is relative to the polynomials' standard deviation, which is one.",)
    return Sheet(title, ("", "no noise", *(f"{size:.0e}" for size in sizes)), tuple(rows), notes)


def _effective(
    block: Block, found: dict[Line, list[Followed]], degrees: list[int], kind: Literal["raw", "normalized"]
) -> Sheet:
    shown = [degree for degree in degrees if degree in {1, 2, 3, 5, 7} or degree == degrees[-1]]
    rows = []
    for line in block.lines:
        by_degree = {each.degree: each for each in found.get(line, [])}
        estimates = [getattr(by_degree[degree], kind) if by_degree else None for degree in shown]
        cells = [f"{each.value:.2f} ± {each.stderr:.2f}" if each else NOTHING for each in estimates]
        rows.append((line.row.title, *cells))
    what = "Normalized ED" if kind == "normalized" else "ED of polynomials with a standard deviation of one"
    head = ("", *(f"degree {degree}" for degree in shown))
    return Sheet(f"{what}, by total degree", head, tuple(rows), ("±: standard error over polynomials and paths.",))
