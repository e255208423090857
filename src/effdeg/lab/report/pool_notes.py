"""What a reader of a pool's table should know."""

from effdeg.lab.report.pool import TEST_DEGREES, ModelPool
from effdeg.lab.report.wording import listed, percent


def pool_notes(pool: ModelPool) -> list[str]:
    """Describe what the models are, what the columns mean, and how the effective degree compares."""
    found = _models(pool)
    if pool.ranking is None:
        return found
    found += [
        "In bold the paper's four measures, each in the variant and at the radius with the highest Pearson "
        "correlation, as in the paper.",
        f"{pool.ranking.describe_intervals()}; Ψ: granulated Kendall.",
        *_images(pool),
        *(f"{note}." for note in pool.ranking.notes()),
    ]
    if falling := pool.ranking.falling:
        # The lab has turned margins round already: advice to turn one is for others.
        found.append(f"{', '.join(falling)} {'falls' if len(falling) == 1 else 'fall'} as the gap rises.")
    if pool.reference:
        found.append(
            "Given training: Pearson's correlation of what linear fits on training accuracy leave of the measure and "
            "of the gap."
        )
    if pool.inert:
        found.append(
            f"{listed(pool.inert)} {'has' if len(pool.inert) == 1 else 'have'} less than 1% of the gap's variance: "
            "models that differ there alone are resampled together."
        )
    if advantages := pool.advantages():
        found += [f"{advantage}." for advantage in advantages]
        found.append("By Pearson's r, as the paper has it, this test is somewhat lenient: 8% at a nominal 5%.")
    return found + _skipped(pool)


def _models(pool: ModelPool) -> list[str]:
    if not pool.table:
        return []
    configurations, seeds = pool.planned
    some = f"{pool.configurations} of {configurations}" if pool.configurations < configurations else configurations
    found = [
        f"{some} configurations, {len(pool.seeds)} of {seeds} seeds. Every model is a point by itself; the paper "
        "averages over three seeds."
    ]
    for name, title in (("gap", "Gaps"), ("train_accuracy", "Training accuracies")):
        values = [row[name] for row in pool.table]
        found.append(f"{title} go from {percent(min(values))} to {percent(max(values))}.")
    return found


def _images(pool: ModelPool) -> list[str]:
    """Describe on which images the effective degree was measured, and on which the rest."""
    if pool.ranking is None or not any(name in pool.measures for name in TEST_DEGREES):
        return []
    found = "Names that end with _test are effective degrees on test images; all other measures are of training images"
    if pool.degrees == TEST_DEGREES:
        found += ", of which no effective degree was taken: that on test images is held against them"
    return [f"{found}."]


def _skipped(pool: ModelPool) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for name, reason in pool.skipped.items():
        reasons.setdefault(reason, []).append(name)
    # A reason is that of the version that ran: what it advises may be out of date.
    return [f"Not measured when these were run: {listed(names)} ({reason})." for reason, names in reasons.items()]
