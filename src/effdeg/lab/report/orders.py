"""Whether lines stand in the paper's order, as far as its numbers tell them apart, and our seeds ours."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.lines import Line
from effdeg.lab.report.naming import mean, named, seeds_of, title
from effdeg.lab.report.spread import SeedDifference
from effdeg.lab.report.verdicts import Verdict
from effdeg.lab.report.wording import listed

# Where the paper gives no spread, lines closer than this many points are not told apart: the spreads it does give for
# such networks go from 0.1 to 1.5 points.
_UNSTATED = 1.0
_WITHIN = "that the paper does not tell apart by more than its spread"


@dataclass(frozen=True, eq=False)
class Pair:
    """Two lines that the paper has: how far apart they are there and here, in points of percent.

    Attributes:
        better: The line that the paper has higher.
        worse: The other.
        papers: By how much the paper has it higher.
        spread: The spread of that in the paper, or what stands in for it.
        yardstick: The words for that.
        difference: By how much it is higher here, in shares.
    """

    better: Line
    worse: Line
    papers: float
    spread: float
    yardstick: str
    difference: SeedDifference

    @property
    def told_apart(self) -> bool:
        """Whether the paper has one above the other by more than its own spread."""
        return self.papers > self.spread

    @property
    def lead(self) -> float:
        """By how much the better one is higher here."""
        return 100 * self.difference.value


def ordered(block: Block) -> tuple[Verdict, list[str]]:
    """Hold the order of the lines against the paper's, in the pairs that the paper's numbers tell apart.

    A verdict needs a pair that differs by more than seeds do: with one seed nothing is decided.

    Args:
        block: What was run of a table.

    Returns:
        The verdict, and what was found in sentences.
    """
    reported = [line for line in block.lines if line.row.paper]
    if not reported:
        return "not in the paper", []
    done = [line for line in reported if line.runs]
    if len(done) < 2:
        some = "only one" if done else "none"
        return "not decided", [f"Of the {len(reported)} lines that the paper has, {some} was run: nothing to compare."]
    pairs = [_pair(block, *sorted(two, key=_reported, reverse=True)) for two in combinations(done, 2)]
    complete = len(done) == len(reported)
    apart = [pair for pair in pairs if pair.told_apart]
    if not apart:
        return _alike(block, pairs, complete=complete)
    verdict, sentences = _in_order(block, apart, complete=complete)
    return verdict, [*sentences, *_left_out(done, pairs), *_no_longer_level(block, pairs)]


def noise(difference: SeedDifference | None) -> str:
    """Describe whether lines differ by more than seeds do; nothing if there is a single seed."""
    if difference is None or difference.beyond_noise is None:
        return ""
    return "beyond the noise" if difference.beyond_noise else "within the noise"


def _reported(line: Line) -> float:
    return line.row.paper.mean if line.row.paper else -math.inf


def _pair(block: Block, better: Line, worse: Line) -> Pair:
    one, other, difference = better.row.paper, worse.row.paper, block.difference(better, worse)
    # Both were reported and run.
    assert one is not None
    assert other is not None
    assert difference is not None
    stated = one.std is not None and other.std is not None
    spread = math.hypot(one.std or 0.0, other.std or 0.0) if stated else _UNSTATED
    yardstick = "the paper's own spread" if stated else "a point, as the paper states no spread"
    return Pair(better, worse, one.mean - other.mean, spread, yardstick, difference)


def _in_order(block: Block, pairs: Sequence[Pair], *, complete: bool) -> tuple[Verdict, list[str]]:
    where = f"at {block.epochs} epochs, {seeds_of(block)}"
    right = [pair for pair in pairs if pair.lead > 0]
    wrong = sorted((pair for pair in pairs if pair.lead < 0), key=lambda pair: pair.lead)
    firm = [pair for pair in right if pair.difference.beyond_noise]
    against = [pair for pair in wrong if pair.difference.beyond_noise]
    count = f"{len(right)} of the {len(pairs)} pairs that the paper tells apart stand in its order"
    if len(pairs) == 1:
        count = f"the one pair that the paper tells apart {'stands' if right else 'does not stand'} in its order"
    if against:
        contrary = f"{_contrary(against[0])}: the paper's order does not hold {where}."
        return "does not hold", [f"Here {contrary}", f"{count[0].upper()}{count[1:]}."]
    if all(pair.difference.interval is None for pair in pairs):
        clear = [pair for pair in right if pair.lead > pair.spread]
        how = _how_many(clear, right, pairs, f"by more than {pairs[0].yardstick}")
        found = f"{seeds_of(block).capitalize()}: {count} here{how}."
    elif firm and complete:
        how = _how_many(firm, right, pairs, "beyond the noise")
        found = f"The paper's order holds {where}: {count}{how}."
    else:
        how = _how_many(firm, right, pairs, "beyond the noise")
        found = f"The paper's order is not confirmed {where}: {count}{how}."
    verdict: Verdict = "holds" if firm and complete else "not decided"
    return verdict, [found, *(f"Against it, {_contrary(pair)}." for pair in wrong[:1])]


def _how_many(some: Sequence[Pair], right: Sequence[Pair], pairs: Sequence[Pair], how: str) -> str:
    if not right:
        return ""
    return f", {'' if some else 'but not '}{how}" if len(pairs) == 1 else f", {len(some) or 'none'} of them {how}"


def _contrary(pair: Pair) -> str:
    how = noise(pair.difference)
    if not how:
        how = f"by {'more' if -pair.lead > pair.spread else 'less'} than {pair.yardstick}"
    return f"{named(pair.worse)} is above {named(pair.better)}, {how}"


def _left_out(lines: Sequence[Line], pairs: Sequence[Pair]) -> list[str]:
    """Name what says nothing about the order: the pairs within the paper's spread, and lines that have no others."""
    within = [pair for pair in pairs if not pair.told_apart]
    if not within:
        return []
    said = {line for pair in pairs if pair.told_apart for line in (pair.better, pair.worse)}
    silent = [title(line) for line in lines if line not in said]
    among = f", among them all with {listed(silent)}" if silent else ""
    if len(within) == 1:
        return [f"Left out is the pair {_WITHIN}: {title(within[0].better)} and {title(within[0].worse)}."]
    return [f"Left out are {len(within)} pairs {_WITHIN}{among}."]


def _no_longer_level(block: Block, pairs: Sequence[Pair]) -> list[str]:
    """Name the lines that the paper does not tell from the first, but that are further from it than its spread here."""
    first = block.lines[0]
    found = {}
    for pair in pairs:
        if first in {pair.better, pair.worse} and not pair.told_apart and abs(pair.lead) > pair.spread:
            yardstick = pair.yardstick
            line, gain = (pair.worse, -pair.lead) if pair.better is first else (pair.better, pair.lead)
            found[line.row.name] = f"{title(line)} ({gain:+.2f} points)"
    if not found:
        return []
    return [
        f"Level with {title(first)} in the paper, but apart from it here by more than {yardstick}: "
        f"{listed(list(found.values()))}."
    ]


def _alike(block: Block, pairs: Sequence[Pair], *, complete: bool) -> tuple[Verdict, list[str]]:
    """Look whether lines that the paper does not tell apart are as close here, whatever the seeds."""
    widest = max(pairs, key=lambda pair: abs(pair.lead))
    verdict: Verdict = "not decided"
    if widest.difference.interval is not None:
        low, high = (100 * end for end in widest.difference.interval)
        if complete and -widest.spread <= low and high <= widest.spread:
            verdict = "holds"
        elif low > widest.spread or high < -widest.spread:
            verdict = "does not hold"
    higher, lower = sorted((widest.better, widest.worse), key=mean, reverse=True)
    how = noise(widest.difference)
    return verdict, [
        f"The paper does not tell these lines apart by more than {widest.yardstick} ({widest.spread:.2f}). Here "
        f"{named(higher)} and {named(lower)} are {abs(widest.lead):.2f} points apart{f', {how}' if how else ''}, "
        f"at {block.epochs} epochs, {seeds_of(block)}."
    ]
