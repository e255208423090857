"""Whether the effective degree has the strongest correlation of the paper's four measures, and of all."""

import math

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.pool import RANDOM_PIXELS, ModelPool
from effdeg.lab.report.verdicts import Verdict
from effdeg.lab.report.wording import listed, seeds
from effdeg.lab.settings import to_dict
from effdeg.ranking import Advantage, Score
from effdeg.ranking._result import format_range


def ranked(block: Block, pool: ModelPool) -> tuple[Verdict, list[str]]:
    """Describe how a pool's measures do, all by Pearson's correlation, as the paper has it.

    Args:
        block: The block of the pool.
        pool: The pool.

    Returns:
        The verdict, and what was found in sentences.
    """
    if not pool.table:
        return "not run", ["Not run yet."]
    count = f"{len(pool.table)} models, {seeds(len(pool.seeds))}"
    degree, *others = pool.best.values() if "effective degree" in pool.best else (None,)
    if pool.ranking is None or degree is None or not others:
        return "not decided", [f"{count}: {pool.unranked or 'there is nothing to hold the effective degree against.'}"]
    rival = max(others, key=pearson)
    advantage = pool.ranking.compare(degree.measure, rival.measure, "pearson")
    above = advantage.value > 0
    order = "As in the paper, the effective degree has" if above else f"Unlike in the paper, {rival.measure} has"
    sentences = [
        f"{order} the highest correlation with the gap of the paper's four measures: "
        f"{listed([f'{score.measure} {score.pearson}' for score in pool.best.values()])} ({count}). It is "
        f"{_lead(advantage)} that of {rival.measure if above else degree.measure}.",
        *_best_of_all(pool, degree, rival),
        *_random_pixels(pool),
    ]
    if reference := _training_accuracy(block, pool, degree):
        return "not decided", [*reference, *sentences]
    if not _clear(advantage):
        return "not decided", sentences
    return "holds" if above else "does not hold", sentences


def pearson(score: Score) -> float:
    """Return Pearson's correlation, below everything if there is none."""
    return score.pearson.value if score.pearson else -math.inf


def _training_accuracy(block: Block, pool: ModelPool, degree: Score) -> list[str]:
    """Note where training accuracy, which is no measure of complexity, follows the gap at least as closely."""
    if pool.reference is None or pearson(pool.reference) < pearson(degree):
        return []
    short = block.epochs < to_dict(block.recipe.settings).get("epochs", 0)
    among = "networks trained so briefly" if short else "these networks"
    given = {
        label: f"{left:z.2f}"
        for name, label in zip(pool.degrees, ("ED", "normalized ED"), strict=True)
        if (left := pool.given_training.get(name)) is not None
    }
    partial = listed([f"{label} {left}" for label, left in given.items()])
    return [
        f"Training accuracy alone has a correlation of {pearson(pool.reference):.2f} with the gap, effective degree "
        f"{pearson(degree):.2f}: among {among}, measures mostly show how far each got"
        f"{f'; given it, the partial correlations are {partial}' if partial else ''}."
    ]


def _best_of_all(pool: ModelPool, degree: Score, rival: Score) -> list[str]:
    best = pool.best_rival
    if pool.ranking is None or best is None or best is rival:
        return []
    advantage = pool.ranking.compare(best.measure, degree.measure, "pearson")
    return [
        f"Of all {len(pool.measures)} columns of measures, the highest of those that are no effective degree is "
        f"{best.measure}, {best.pearson}: {_lead(advantage)} that of {degree.measure}."
    ]


def _random_pixels(pool: ModelPool) -> list[str]:
    if pool.ranking is None or pool.random_pixels is None:
        return []
    scores, sentences = pool.ranking.scores, []
    for variant, along_noise in zip(pool.degrees, RANDOM_PIXELS, strict=True):
        along, between = scores.get(variant), scores.get(along_noise)
        if along and between:
            lead = _lead(pool.ranking.compare(between.measure, along.measure, "pearson"))
            sentences.append(f"{between.pearson} with {between.measure}, {lead} that of {variant}")
    return [
        f"Along paths between random pixels it is {'; '.join(sentences)}. The paper, for ResNet-18, has it slightly "
        "weaker."
    ]


def _lead(advantage: Advantage) -> str:
    """Write a difference of correlations, what lies between ``x is`` and ``that of y``."""
    side = "above" if advantage.value > 0 else "below"
    noise = "beyond the noise" if _clear(advantage) else "within the noise"
    interval = format_range(_turned(advantage))
    return f"{abs(advantage.value):.2f} ({advantage.level:.0%} interval {interval}, {noise}) {side}"


def _turned(advantage: Advantage) -> tuple[float, float] | None:
    """Return the interval of how far apart they are, in the direction that is told."""
    if advantage.interval is None or advantage.value > 0:
        return advantage.interval
    low, high = advantage.interval
    return -high, -low


def _clear(advantage: Advantage) -> bool:
    return advantage.interval is not None and not advantage.interval[0] <= 0 <= advantage.interval[1]
