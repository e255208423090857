import pytest

from effdeg.demo._experiment import DigitsPool, NetworkScore, Outcome, SeedDifference
from effdeg.pools import Choice


def test_a_difference_and_what_it_means():
    assert SeedDifference(1.0, 0.75, 1.25).describe(" points") == "+1.00 points (95% interval +0.75 to +1.25)"
    assert SeedDifference(-0.5, -1.5, 0.5).describe() == "−0.50 (95% interval −1.50 to +0.50, not significant)"


def make_pool(change):
    """Return a pool in which ED has ``change`` more points than plain training, at two learning rates."""
    scores = {
        "plain-0.1": NetworkScore(0.7, 1.0, 2.0),
        "plain-1": NetworkScore(0.5, 1.4, 2.4),
        "mixup-1": NetworkScore(0.6, 1.0, 1.0),
    }
    scores |= {f"ED-{rate}": NetworkScore(0.6 + change / 100, 0.9, 1.2) for rate in ("0.1", "1")}
    order = {name: float(rank) for rank, name in enumerate(scores)}
    return DigitsPool(None, Choice({}, order, {}, (), {}, {}, ()), len(scores), scores)


def test_scores_are_averaged_over_rates_and_compared_seed_by_seed():
    outcome = Outcome([make_pool(change) for change in (1.0, 2.0, 3.0)])
    assert outcome.average("plain") == pytest.approx((0.6, 1.2, 2.2))
    assert outcome.pools[0].accuracies() == pytest.approx((0.604, 0.7, 0.7))
    difference = outcome.difference("ED", "plain", "accuracy")
    assert difference.mean == pytest.approx(2)
    assert difference.low < 0 < 4 < difference.high  # three seeds
    assert outcome.difference("ED", "plain", "loss").mean == pytest.approx(-0.3)
    assert outcome.difference("ED", "plain", "loss").high == pytest.approx(-0.3)
    assert "ED − plain: +2.00 points (95% interval −0.48 to +4.48, not sig" in outcome.describe_penalty()[0]
