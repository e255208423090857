"""What the numbers say, in sentences: does the paper's claim hold here?"""

import math
from dataclasses import dataclass
from itertools import permutations
from typing import Literal

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.lines import Line
from effdeg.lab.report.pool import ModelPool
from effdeg.lab.report.prices import AIM, LIMIT, best_buy, full_line
from effdeg.lab.report.spread import Difference
from effdeg.lab.report.wording import duration, listed, percent, seeds
from effdeg.ranking import Score

Verdict = Literal[
    "holds",
    "holds so far",
    "does not hold",
    "not decided",
    "aim met",
    "aim missed",
    "not in the paper",
    "not run",
]

# Where the paper gives no spread, lines closer than this many points are not told apart: the spreads it does give for
# such networks go from 0.1 to 1.5 points.
_UNSTATED = 1.0


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


def finding(block: Block) -> Finding:
    """Say what a block shows."""
    if block.pool is not None:
        verdict, sentences = _ranked(block.pool)
        return Finding(verdict, tuple(sentences))
    if not block.done:
        return Finding("not run", ("Not run yet.",))
    if block.recipe.shows == "prices":
        verdict, sentences = _bought(block)
    else:
        verdict, sentences = _ordered(block)
        sentences += [*_gain(block), *_highest(block), *_in_equal_time(block)]
    return Finding(verdict, (*sentences, *_caveats(block)))


def _ordered(block: Block) -> tuple[Verdict, list[str]]:
    """Hold the order of the lines against the paper's, in the pairs that the paper's numbers tell apart."""
    reported = [line for line in block.lines if line.row.paper]
    if not reported:
        return "not in the paper", []
    done = [line for line in reported if line.runs]
    if len(done) < 2:
        some = "only one" if done else "none"
        return "not decided", [f"Of the {len(reported)} lines that the paper has, {some} was run: nothing to compare."]
    pairs = [pair for pair in permutations(done, 2) if _told_apart(*pair)]
    if not pairs:
        return _alike(block, done)
    where = f"at {block.epochs} epochs, {_seeds(block)}"
    holds: Verdict = "holds" if len(done) == len(reported) else "holds so far"
    wrong = [(better, worse) for better, worse in pairs if _mean(worse) > _mean(better)]
    if not wrong:
        if len(pairs) == 1:
            return holds, [f"As in the paper, {_named(pairs[0][0])} is above {_named(pairs[0][1])}, {where}."]
        clear = [pair for pair in pairs if _noise(block, *pair) == "beyond the noise"]
        how = "" if max(len(line.runs) for line in block.done) == 1 else f", {len(clear)} of them beyond the noise"
        return holds, [
            f"The paper's order holds {where}: all {len(pairs)} pairs of lines that its numbers tell apart stand in it"
            f"{how}."
        ]
    firm = [pair for pair in wrong if _noise(block, *pair) != "within the noise"]
    best = max(block.done, key=_papers)
    # The paper's best line matters most, then the largest contradiction.
    better, worse = max(firm or wrong, key=lambda pair: (pair[0] is best, _mean(pair[1]) - _mean(pair[0])))
    noise = _noise(block, better, worse)
    verdict: Verdict = "does not hold" if firm else "not decided"
    consequence = "does not hold" if firm else "is not confirmed"
    found = f"Here {_named(worse)} is above {_named(better)}{f', {noise}' if noise else ''}"
    sentences = [f"{found}: the paper's order {consequence} {where}."]
    if len(pairs) > 1:
        kept = f"{len(pairs) - len(wrong)} of {len(pairs)}"
        sentences.append(f"The order is the paper's in {kept} pairs of lines that its numbers tell apart.")
    return verdict, sentences


def _alike(block: Block, lines: list[Line]) -> tuple[Verdict, list[str]]:
    """Look whether lines that the paper does not tell apart are alike here too."""
    worse, better = min(lines, key=_mean), max(lines, key=_mean)
    noise = _noise(block, better, worse)
    verdicts: dict[str, Verdict] = {"": "not decided", "within the noise": "holds", "beyond the noise": "does not hold"}
    apart = 100 * (_mean(better) - _mean(worse))
    return verdicts[noise], [
        f"The paper's numbers do not tell these lines apart. Here {_named(better)} and {_named(worse)} are "
        f"{apart:.2f} points apart{f', {noise}' if noise else ''}, at {block.epochs} epochs, {_seeds(block)}."
    ]


def _told_apart(better: Line, worse: Line) -> bool:
    """Whether the paper has one line above the other by more than its own spread."""
    one, other = better.row.paper, worse.row.paper
    if one is None or other is None:
        return False
    stated = one.std is not None and other.std is not None
    spread = math.hypot(one.std or 0.0, other.std or 0.0) if stated else _UNSTATED
    return one.mean - other.mean > spread


def _noise(block: Block, line: Line, other: Line) -> str:
    """Say whether two lines differ by more than seeds do; nothing if there is a single seed."""
    difference = block.difference(line, other)
    if difference is None or difference.beyond_noise is None:
        return ""
    return "beyond the noise" if difference.beyond_noise else "within the noise"


def _gain(block: Block) -> list[str]:
    """Say what ED, or else the paper's best line, gains over the first."""
    first, line = block.lines[0], next((line for line in block.done if line.row.name == "ed"), None)
    if line is None:
        line = max(block.done, key=_papers)
    difference = block.difference(line)
    if difference is None:
        return []
    reported = ""
    if line.row.paper and first.row.paper:
        reported = f" (paper: {line.row.paper.mean - first.row.paper.mean:+.2f})"
    how = f", {noise}" if (noise := _noise(block, line, first)) else ""
    return [f"{_title(line)} is {_points(difference)} {_title(first)}{how}{reported}."]


def _highest(block: Block) -> list[str]:
    """Name the highest line where the paper does not have it."""
    highest = max(block.done, key=_mean)
    if highest.row.paper is not None or len(block.done) < 2:
        return []
    absent = ", which is not in the paper," if any(line.row.paper for line in block.lines) else ""
    return [f"{_title(highest)}{absent} is the highest here: {percent(_mean(highest))}."]


def _in_equal_time(block: Block) -> list[str]:
    """Say who is ahead when all may train as long as the reference."""
    at = block.equal_time
    if at is None:
        return []
    reference = block.line(at.reference)
    # Runs of as many epochs have been compared before.
    others = [(line, epochs) for line, epochs in at.lines.values() if epochs != block.epochs]
    if not others:
        return []
    line, epochs = max(others, key=lambda found: _mean(found[0]))
    ahead = "above" if _mean(line) > _mean(reference) else "below"
    return [
        f"In the time of {_title(reference)} ({duration(at.seconds)}), {_title(line)} reaches "
        f"{percent(_mean(line))} in {epochs} epochs, {ahead} {_title(reference)}'s {percent(_mean(reference))}."
    ]


def _bought(block: Block) -> tuple[Verdict, list[str]]:
    """Say what the best cheap setting brings."""
    full, best = full_line(block), best_buy(block)
    difference = block.difference(full)
    if difference is None:
        return "not decided", ["The first line and the full setting were not both run: there is no gain to share."]
    price = block.price(full)
    cost = f", at {price:.2f} times its step" if price else ""
    gained = (
        f"The full setting is {_points(difference)} {_title(block.lines[0])}{cost} "
        f"({block.epochs} epochs, {_seeds(block)})."
    )
    if best is None or best.share is None:
        reason = f"no setting at {LIMIT} times the plain step or less was run" if best is None else "it gains nothing"
        return "not decided", [gained, f"What a cheaper one would keep of it is not known: {reason}."]
    met: Verdict = "aim met" if best.share >= AIM else "aim missed"
    return met, [
        f"At {LIMIT} times the plain step or less, the best is {_title(best.line)} ({best.price:.2f} times): "
        f"{percent(_mean(best.line))}, {best.share:.0%} of the gain of the full setting; the aim was {AIM:.0%}.",
        gained,
    ]


def _ranked(pool: ModelPool) -> tuple[Verdict, list[str]]:
    """Say whether the effective degree has the strongest correlation of the paper's four measures, and of all."""
    if not pool.table:
        return "not run", ["Not run yet."]
    count = f"{len(pool.table)} models, {seeds(len(pool.seeds))}"
    degree, *others = pool.best.values() if "effective degree" in pool.best else (None,)
    if pool.ranking is None or degree is None or not others:
        return "not decided", [f"{count}: {pool.unranked or 'there is nothing to hold the effective degree against.'}"]
    rival = max(others, key=_pearson)
    advantage = pool.ranking.compare(degree.measure, rival.measure, "pearson")
    clear = advantage.interval is not None and not advantage.interval[0] <= 0 <= advantage.interval[1]
    above = advantage.value > 0
    order = "As in the paper, the effective degree has" if above else f"Unlike in the paper, {rival.measure} has"
    sentences = [
        f"{order} the highest correlation with the gap of the paper's four measures"
        f"{'' if clear else ', but within the noise'}: {listed([_correlation(score) for score in pool.best.values()])} "
        f"({count})."
    ]
    random = pool.ranking.scores.get(f"{degree.measure}_random_pixels")
    if random is not None and random.pearson:
        sentences.append(f"Along paths between random pixels it is {random.pearson}.")
    if pool.best_rival:
        best = pool.ranking.compare(degree.measure, pool.best_rival.measure)
        sentences.append(f"Against the best other of all {len(pool.ranking.scores)} measures: {best}.")
    verdict: Verdict = "holds" if above else "does not hold"
    return verdict if clear else "not decided", sentences


def _caveats(block: Block) -> list[str]:
    found = []
    if len(block.done) > 1 and all(len(line.runs) == 1 for line in block.done):
        found.append("With one seed, nobody knows how much of a difference is chance.")
    absent = [_title(line) for line in block.lines if not line.runs]
    if absent:
        found.append(f"Not run: {listed(absent)}".rstrip(".") + ".")
    return found


def _seeds(block: Block) -> str:
    counts = sorted({len(line.runs) for line in block.done})
    return seeds(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"


def _title(line: Line) -> str:
    """Name a line within a sentence; a title that is a phrase is quoted."""
    title = line.row.title
    return f"“{title}”" if set(title) & set(",:(") else title


def _named(line: Line) -> str:
    return f"{_title(line)} ({percent(_mean(line))})"


def _points(difference: Difference) -> str:
    return f"{100 * abs(difference.value):.2f} points {'below' if difference.value < 0 else 'above'}"


def _mean(line: Line) -> float:
    return line.accuracy.mean if line.accuracy else -math.inf


def _papers(line: Line) -> float:
    return line.row.paper.mean if line.row.paper else -math.inf


def _pearson(score: Score) -> float:
    return score.pearson.value if score.pearson else -math.inf


def _correlation(score: Score) -> str:
    return f"{score.measure} {score.pearson}"
