import numpy as np
import pytest
from scipy import stats

from effdeg.lab.report.labels import spread_apart
from effdeg.lab.report.spread import SeedDifference, Spread


def test_means_and_standard_deviations():
    values = [0.81, 0.84, 0.79]
    assert Spread.of(values) == Spread(pytest.approx(np.mean(values)), pytest.approx(np.std(values, ddof=1)), 3)
    assert Spread.of([0.8]) == Spread(0.8, None, 1)


def test_shared_seeds_are_paired():
    one, other = {0: 0.84, 1: 0.86, 2: 0.85, 7: 0.1}, {1: 0.82, 0: 0.81, 2: 0.80}
    found = SeedDifference.of(one, other)
    differences = [0.03, 0.04, 0.05]
    expected = stats.t.interval(0.95, 2, np.mean(differences), stats.sem(differences))
    assert found.paired
    assert found.value == pytest.approx(0.04)
    assert found.interval == pytest.approx(expected)
    assert found.beyond_noise


def test_other_seeds_are_not_paired():
    one, other = {0: 0.84, 1: 0.86}, {2: 0.82, 3: 0.83, 4: 0.81}
    found = SeedDifference.of(one, other)
    stderr = np.sqrt(np.var([0.84, 0.86], ddof=1) / 2 + np.var([0.82, 0.83, 0.81], ddof=1) / 3)
    assert not found.paired
    assert found.interval == pytest.approx(stats.t.interval(0.95, 1, 0.03, stderr))
    assert found.beyond_noise is False


@pytest.mark.parametrize("other", [{0: 0.8}, {0: 0.78, 1: 0.82}])
def test_a_single_seed_says_nothing_about_noise(other):
    found = SeedDifference.of({0: 0.85}, other)
    assert found.value == pytest.approx(0.05)
    assert found.interval is None
    assert found.beyond_noise is None


def test_seeds_that_agree_by_accident_are_no_certainty():
    found = SeedDifference.of({0: 0.841, 1: 0.853}, {0: 0.801, 1: 0.813})
    assert found.value == pytest.approx(0.04)
    assert found.paired
    assert found.interval is None


def test_labels_keep_their_distance_and_their_order():
    wanted = [0.5, 0.52, 0.1, 0.98, 0.99, 0.51]
    places = spread_apart(wanted, 0.06)
    assert np.argsort(places).tolist() == np.argsort(wanted).tolist()
    assert np.diff(sorted(places)).min() >= 0.06 - 1e-12
    assert max(places) <= 1
    assert places[2] == 0.1
    # Where there is no room they run over, but not into one another.
    assert np.diff(sorted(spread_apart([0.5] * 20, 0.1))).min() == pytest.approx(0.1)
