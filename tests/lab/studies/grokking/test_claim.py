from dataclasses import replace

import pytest

from effdeg.lab.studies.grokking.claim import Judged, judged, verdict
from effdeg.lab.studies.grokking.course import DEGREE, Course
from tests.lab.studies.grokking.runs import made_up

# Looked at after 10, 20, 40, … 163,840 steps; memorized after 40, generalized between 640 and 1,280.
ACCURACIES = [0.0, 0.0, 0.01, 0.01, 0.02, 0.05, 0.2, 0.95, *[1.0] * 7]
LOSSES = [4.0, 4.5, 5.0, 6.0, 8.0, 7.0, 5.0, 2.0, 0.1, 9.0, *[0.1] * 5]
AS_THE_PAPER = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.9, 0.8, 0.4, 0.2, *[0.1] * 5]


@pytest.fixture
def course(tmp_path):
    def make(degrees=AS_THE_PAPER, accuracies=ACCURACIES, losses=LOSSES, **changes):
        written = {"degrees": degrees, "accuracies": accuracies, "losses": losses, **changes}
        return Course.of(made_up(tmp_path / str(len(list(tmp_path.iterdir()))), "paper", **written))

    return make


def steps(found, *moments):
    return [found.steps[at] for at in moments]


def test_moments(course):
    found = course()
    assert steps(found, found.memorized, *found.transition) == [40, 640, 1280]
    # The loss is highest after 160 steps; the spike after 5,120 is not what drops.
    assert steps(found, found.drop, found.before, found.peak(DEGREE)) == [1280, 640, 640]
    assert found.lead(found.peak(DEGREE)) == 0.5
    assert steps(found, found.reached("validation_accuracy", 0.5)) == [1280]
    assert found.reached("validation_accuracy", 1.1) is None


def test_a_spike_at_the_end_is_no_fall(course):
    found = course([*AS_THE_PAPER[:8], *[0.9] * 4, 0.0, 0.0, 0.0])
    assert found.values(DEGREE)[found.end(DEGREE)] == 0.9
    assert not judged(found).falls


def test_the_largest_fall(course):
    norms = [10, 11, 12, 6, 20, 19, *range(21, 30)]
    assert course(norms=norms).largest_fall("parameter_norm") == 0.5
    assert course(norms=sorted(norms)).largest_fall("parameter_norm") == 0


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [
        (AS_THE_PAPER, Judged(rises=True, near=True, falls=True)),
        # At 2,560, twice the step of the drop, it is still near; at 5,120 no more.
        ([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.9, 0.2, *[0.1] * 5], Judged(rises=True, near=True, falls=True)),
        ([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.2, 0.9, *[0.1] * 5], Judged(rises=True, near=False, falls=True)),
        # Highest long before the drop.
        ([0, 0.1, 0.2, 0.9, 0.4, 0.3, 0.2, 0.1, 0.1, 0.1, *[0.1] * 5], Judged(rises=True, near=False, falls=True)),
        # Level while it memorizes, within its error bars.
        ([0.2, 0.2, 0.22, 0.3, 0.4, 0.5, 0.9, 0.8, 0.4, 0.2, *[0.1] * 5], Judged(rises=False, near=True, falls=True)),
        # Falls by less than its error bars.
        ([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.9, 0.89, 0.89, 0.89, *[0.89] * 5], Judged(rises=True, near=True, falls=False)),
    ],
)
def test_the_rule_comes_out_either_way(course, degrees, expected):
    found = course(degrees)
    assert judged(found) == expected
    assert expected.holds == (expected == Judged(rises=True, near=True, falls=True))
    assert verdict([found]) == ("holds" if expected.holds else "does not hold")


def test_error_bars_decide(course):
    assert judged(course(stderr=0.05)).rises
    assert not judged(course(stderr=0.08)).rises  # 0.2 is less than 2 · √2 · 0.08


def test_what_did_not_generalize_is_not_decided(course):
    never = course(accuracies=[0.01] * 15)
    assert never.drop is None
    assert never.before is None
    assert never.lead(3) is None
    assert judged(never) is None
    assert verdict([never]) == "not decided"
    assert verdict([]) == "not decided"
    assert verdict([never, course()]) == "holds"


def test_seeds_that_disagree_decide_nothing(course):
    early = course([0, 0.1, 0.2, 0.9, 0.4, 0.3, 0.2, *[0.1] * 8])
    assert verdict([course(), early]) == "not decided"
    assert verdict([early, early]) == "does not hold"


def test_a_loss_that_drops_before_all_is_memorized(tmp_path):
    record = made_up(tmp_path, "paper", degrees=AS_THE_PAPER, accuracies=ACCURACIES, losses=LOSSES)
    never = [entry | {"train_accuracy": 0.95} for entry in record.metrics]
    assert judged(Course.of(replace(record, metrics=never))) == Judged(rises=True, near=True, falls=True)
