"""What follows for a user: the cheapest setting that is good enough, the best split of passes, and whom to believe."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from effdeg.lab.studies.estimator.outcomes import EstimatorOutcome
from effdeg.measure._measurement import UPPER_HALF_LIMIT

# A bias that hides behind a standard error of 2%.
UNBIASED = 0.01
# An error that a measurement should warn of.
WRONG = 0.05


@dataclass(frozen=True)
class Warned:
    """How a rule that warns does, counted over settings.

    Attributes:
        caught: Wrong, and warned of.
        untold: Wrong, where the measurement says that it cannot tell.
        missed: Wrong, and nothing said.
        needless: Right, and warned of all the same.
        quiet: Right, and nothing said.
    """

    caught: int
    untold: int
    missed: int
    needless: int
    quiet: int

    @property
    def wrong(self) -> int:
        """All that should be warned of."""
        return self.caught + self.untold + self.missed

    @property
    def right(self) -> int:
        """All that should not."""
        return self.needless + self.quiet


def cheapest(outcomes: Iterable[EstimatorOutcome], sampling: str) -> EstimatorOutcome | None:
    """Find the setting that reaches the tolerance with the fewest forward passes; None if all are biased.

    The bias counts against the whole value and against the exact value at the setting's own degree: errors of two
    kinds that happen to cancel do not make a setting good.
    """
    good = [
        each
        for each in outcomes
        if each.sampling == sampling and abs(each.whole_bias) <= UNBIASED and abs(each.bias) <= UNBIASED
    ]
    return min(good, key=lambda each: each.passes, default=None)


def fewest_nodes(outcomes: Iterable[EstimatorOutcome], sampling: str, degree: int) -> int | None:
    """Find the number of nodes from which on a fit is true to the exact value at its degree; None if it never is."""
    along = sorted(
        (each for each in outcomes if (each.sampling, each.degree) == (sampling, degree)), key=lambda each: -each.nodes
    )
    found = None
    for each in along:
        if abs(each.bias) > UNBIASED:
            break
        found = each.nodes
    return found


def best_split(outcomes: Sequence[EstimatorOutcome], passes: int) -> EstimatorOutcome:
    """Find the setting with the least error for so many forward passes, of those that leave at least two paths."""
    return min((each for each in outcomes if 2 * each.nodes <= passes), key=lambda each: each.error(passes))


def warns(outcome: EstimatorOutcome) -> bool:
    """Return whether the measurement warned of its residual."""
    return outcome.warned > 0


def upper_half_warns(outcome: EstimatorOutcome) -> bool:
    """Return whether it warns of the upper half of the degrees."""
    return outcome.upper_half > UPPER_HALF_LIMIT


def count_warnings(
    outcomes: Iterable[EstimatorOutcome], rule: Callable[[EstimatorOutcome], bool], *, untold: bool
) -> Warned:
    """Count how a rule does.

    Args:
        outcomes: What single runs gave.
        rule: Whether it warns.
        untold: Whether an interpolating fit says that it cannot tell.

    Returns:
        The counts.
    """
    counts = dict.fromkeys(("caught", "untold", "missed", "needless", "quiet"), 0)
    for each in outcomes:
        if abs(each.whole_bias) > WRONG:
            counts["caught" if rule(each) else "untold" if untold and each.interpolates else "missed"] += 1
        else:
            counts["needless" if rule(each) else "quiet"] += 1
    return Warned(**counts)
