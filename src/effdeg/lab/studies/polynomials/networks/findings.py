"""Does the effective degree see the degrees of the maps, and are the paper's numbers right?"""

import math
from itertools import pairwise

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.lines import Line
from effdeg.lab.report.verdicts import Finding, Verdict
from effdeg.lab.report.wording import listed
from effdeg.lab.studies.polynomials.networks.columns import COLUMNS, Column
from effdeg.lab.studies.polynomials.networks.values import (
    by_seed,
    deviation_of_a_path,
    exact_value,
    fit_error,
    network_value,
    off_the_map,
    task_of,
)

# A network that misses its map by more says nothing about the map.
_FITS = 0.01
# Ratios that should be 2, or 1, may be off by so much.
_SAME = 0.01
# Standard errors between two values before they count as ordered.
_BEYOND_NOISE = 2.0
# From how far on a number of the paper is named.
_FAR = 0.05


def finding(block: Block) -> Finding:
    """Describe what was found.

    The paper's claim holds if, in every column, tasks 1, 2, 3 and tasks 4, 5, 6 rise by more than two standard errors
    each, tasks 4 to 6 measure twice what tasks 1 to 3 do (within 1%), and the same where it is normalized (within 1%).
    It does not hold if an order is reversed by more than two standard errors, or a ratio is off. All else, such as
    networks that miss their map by more than 1%, decides nothing.

    Args:
        block: The lines.

    Returns:
        The verdict and the sentences.
    """
    lines = {task_of(line): line for line in block.done}
    missing = [line.row.title for line in block.lines if not line.runs]
    misfits = [line.row.title for line in block.done if fit_error(line) > _FITS]
    order, ordered = _order(lines)
    ratios, scaled = _ratios(lines)
    verdict: Verdict = "holds" if order == ratios == "holds" else "not decided"
    if "does not hold" in (order, ratios):
        verdict = "does not hold"
    if missing or misfits:
        verdict = "not decided"
    caveats = [f"Not run: {listed(missing)}."] * bool(missing)
    caveats += [f"Not fitted within {_FITS:.0%}, which decides nothing: {listed(misfits)}."] * bool(misfits)
    return Finding(verdict, (*caveats, *ordered, *scaled, *_agreement(block), *_papers(block)))


def _order(lines: dict[int, Line]) -> tuple[Verdict, list[str]]:
    """Compare neighbours among the tasks of one scale in every column."""
    margins = {}
    for column in COLUMNS:
        for lower, higher in [*pairwise((1, 2, 3)), *pairwise((4, 5, 6))]:
            if lower in lines and higher in lines:
                one, other = network_value(lines[lower], column), network_value(lines[higher], column)
                margins[column.title, lower, higher] = other.above(one)
    if not margins:
        return "not decided", []
    (title, lower, higher), least = min(margins.items(), key=lambda item: item[1])
    where = f"{title}, tasks {lower} and {higher}: {abs(least):.0f} standard errors"
    if least > _BEYOND_NOISE:
        return "holds", [f"In every column the networks are ordered by the degree of their map (closest in {where})."]
    if least < -_BEYOND_NOISE:
        return "does not hold", [f"The order of degrees is reversed ({where})."]
    return "not decided", [f"The order of degrees is within the noise ({where})."]


def _ratios(lines: dict[int, Line]) -> tuple[Verdict, list[str]]:
    """Compare doubled maps with the maps, seed by seed: those have the same paths."""
    raw, normalized = list[float](), list[float]()
    for column in COLUMNS:
        for task in (1, 2, 3):
            if task in lines and task + 3 in lines:
                once, twice = by_seed(lines[task], column), by_seed(lines[task + 3], column)
                found = [twice[seed] / once[seed] for seed in once if seed in twice]
                (normalized if column.normalized else raw).extend(found)
    if not raw:
        return "not decided", []
    off = max(*(abs(ratio / 2 - 1) for ratio in raw), *(abs(ratio - 1) for ratio in normalized))
    sentence = (
        f"Doubling the outputs multiplies the effective degree by {min(raw):.4f} to {max(raw):.4f}, the normalized one "
        f"by {min(normalized):.4f} to {max(normalized):.4f}."
    )
    return "holds" if off <= _SAME else "does not hold", [sentence]


def _agreement(block: Block) -> list[str]:
    """Describe how far networks are from their maps, in outputs and in effective degree."""
    worst_fit = max(map(fit_error, block.done))
    most = max(off_the_map(line, column) for line in block.done for column in COLUMNS)
    return [
        f"The worst fit misses its map by {worst_fit:.1e} of its outputs' standard deviation; along the same paths, no "
        f"network's value differs from its map's by more than {most:.2%}."
    ]


def _papers(block: Block) -> list[str]:
    """Compare the paper's numbers with the exact ones, and say how many paths would have such noise."""
    named, near, scatter = list[str](), 0, list[float]()
    for line in block.done:
        apart = {}
        for column in COLUMNS:
            exact, paper = exact_value(line, column).value, paper_value(line, column)
            apart[f"{paper:.2f} instead of {exact:.3f} in {column.title}"] = paper / exact - 1
            scatter.append(((paper - exact) / deviation_of_a_path(line, column)) ** 2)
        far = [by for by in apart.values() if abs(by) > _FAR]
        near += len(apart) - len(far)
        if far:
            worst = max(apart, key=lambda what: abs(apart[what]))
            named.append(f"{len(far)} of {line.row.title}, by up to {apart[worst]:+.0%} ({worst})")
    paths = len(scatter) / math.fsum(scatter)
    return [
        f"{near} of the paper's {len(scatter)} numbers lie within {_FAR:.0%} of the exact ones"
        f"{f'; farther off are {listed(named)}' if named else ''}.",
        f"If that is noise, it is that of about {float(f'{paths:.1g}'):.0f} paths.",
    ]


def paper_value(line: Line, column: Column) -> float:
    """Return what the paper reports."""
    return column.paper[task_of(line) - 1]
