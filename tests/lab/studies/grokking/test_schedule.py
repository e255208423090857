from itertools import pairwise

import pytest

from effdeg.lab.studies.grokking.run import evaluation_steps


@pytest.mark.parametrize(("steps", "evaluations"), [(1, 2), (2, 2), (40, 6), (1000, 3), (100_000, 200), (300_000, 150)])
def test_steps_rise_from_the_first_to_the_last(steps, evaluations):
    found = evaluation_steps(steps, evaluations)
    assert found == sorted(set(found))
    assert (found[0], found[-1]) == (1, steps)
    assert len(found) <= max(evaluations, 3)


def test_it_is_dense_early_and_late():
    found = evaluation_steps(100_000, 200)
    assert len(found) > 170
    for before, after in pairwise(found):
        # Never more than a hundredth of all steps, nor more than an eighth of those done once they are many.
        assert after - before <= 1000
        assert before < 10 or after <= 1.13 * before + 1
