"""What the numbers say, in sentences: does the paper's claim hold here?"""

import math

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.lines import Line
from effdeg.lab.report.naming import mean, seeds_of, title
from effdeg.lab.report.orders import noise, ordered
from effdeg.lab.report.prices import AIM, LIMIT, best_buy, full_line, price_list
from effdeg.lab.report.ranked import ranked
from effdeg.lab.report.spread import SeedDifference
from effdeg.lab.report.verdicts import Finding, Verdict
from effdeg.lab.report.wording import duration, listed, percent


def finding(block: Block) -> Finding:
    """Describe what a block shows."""
    if block.pool is not None:
        verdict, sentences = ranked(block, block.pool)
        return Finding(verdict, tuple(sentences))
    if not block.done:
        return Finding("not run", ("Not run yet.",))
    if block.recipe.study is not None:
        return block.recipe.study.finding(block)
    if block.recipe.shows == "prices":
        verdict, sentences = _bought(block)
    else:
        verdict, sentences = ordered(block)
        sentences += [*_gain(block), *_highest(block), *_in_equal_time(block)]
    return Finding(verdict, (*sentences, *_caveats(block)))


def _gain(block: Block) -> list[str]:
    """Describe what ED, or else the paper's best line, gains over the first."""
    first, line = block.lines[0], next((line for line in block.done if line.row.name == "ed"), None)
    if line is None:
        line = max(block.done, key=_papers)
    difference = block.difference(line)
    if difference is None:
        return []
    reported = ""
    if line.row.paper and first.row.paper:
        reported = f" (paper: {line.row.paper.mean - first.row.paper.mean:+.2f})"
    how = f", {words}" if (words := noise(difference)) else ""
    return [f"{title(line)} is {_points(difference)} {title(first)}{how}{reported}."]


def _highest(block: Block) -> list[str]:
    """Name the highest line where the paper does not have it."""
    highest = max(block.done, key=mean)
    if highest.row.paper is not None or len(block.done) < 2:
        return []
    absent = ", which is not in the paper," if any(line.row.paper for line in block.lines) else ""
    return [f"{title(highest)}{absent} is the highest here: {percent(mean(highest))}."]


def _in_equal_time(block: Block) -> list[str]:
    """State who is ahead when all may train as long as the reference, and who was not given that time."""
    at = block.equal_time
    if at is None:
        return []
    found, reference = [], block.line(at.reference)
    # Runs of as many epochs have been compared before.
    others = [(line, epochs) for line, epochs in at.lines.values() if epochs != block.epochs]
    if others:
        line, epochs = max(others, key=lambda found: mean(found[0]))
        ahead = "above" if mean(line) > mean(reference) else "below"
        found.append(
            f"In the time of {title(reference)} ({duration(at.seconds)}), {title(line)} reaches "
            f"{percent(mean(line))} in {epochs} epochs, {ahead} {title(reference)}'s {percent(mean(reference))}."
        )
    if missing := [title(line) for line in at.missing(block.lines)]:
        were = "was" if len(missing) == 1 else "were"
        found.append(f"In {title(reference)}'s time ({duration(at.seconds)}), {listed(missing)} {were} not run.")
    return found


def _bought(block: Block) -> tuple[Verdict, list[str]]:
    """Describe what the best cheap setting brings."""
    full, best = full_line(block), best_buy(block)
    difference, price = block.difference(full), block.price(full)
    if difference is None:
        return "not decided", ["The first line and the full setting were not both run: there is no gain to share."]
    cost = f", at {price:.2f} times its step" if price else ""
    gained = (
        f"The full setting is {_points(difference)} {title(block.lines[0])}{cost} "
        f"({block.epochs} epochs, {seeds_of(block)})."
    )
    if best is not None and best.share is not None:
        met: Verdict = "aim met" if best.share >= AIM else "aim missed"
        return met, [
            f"At {LIMIT} times the plain step or less, the best is {title(best.line)} ({best.price:.2f} times): "
            f"{percent(mean(best.line))}, {best.share:.0%} of the gain of the full setting; the aim was {AIM:.0%}.",
            gained,
        ]
    return "not decided", [gained, _cheaper(block, price), *_unshared(difference)]


def _cheaper(block: Block, price: float | None) -> str:
    """Describe what the cheaper settings reach, or that there are none."""
    cheaper = [
        f"{title(priced.line)} ({priced.price:.2f} times) {percent(mean(priced.line))}"
        for priced in price_list(block)
        if priced.line is not block.lines[0] and priced.price and price and priced.price < price
    ]
    if not cheaper:
        return "What a cheaper one would keep of it is not known: none was run."
    limit = "" if best_buy(block) else f", none of them at {LIMIT} times the plain step or less"
    return f"Cheaper ones that were run{limit}: {listed(cheaper)}."


def _unshared(difference: SeedDifference) -> list[str]:
    if difference.value <= 0:
        return ["The full setting gains nothing, so that there is nothing to share."]
    return ["It takes several seeds to tell what share of the gain that is."] * (difference.interval is None)


def _caveats(block: Block) -> list[str]:
    found = []
    if len(block.done) > 1 and all(len(line.runs) == 1 for line in block.done):
        found.append("With one seed, nobody knows how much of a difference is chance.")
    absent = [title(line) for line in block.lines if not line.runs]
    if absent:
        found.append(f"Not run: {listed(absent)}".rstrip(".") + ".")
    return found


def _points(difference: SeedDifference) -> str:
    return f"{100 * abs(difference.value):.2f} points {'below' if difference.value < 0 else 'above'}"


def _papers(line: Line) -> float:
    return line.row.paper.mean if line.row.paper else -math.inf
