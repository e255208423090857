import pytest
import torch

from effdeg.demo._experiments import MeanInterval, PenaltyEffect, Scores


def test_a_difference_and_what_it_means():
    clear = MeanInterval.of(torch.tensor([0.9, 1.0, 1.1]))
    assert clear.mean == pytest.approx(1)
    assert clear.low < 1 < clear.high
    assert clear.sign == 1
    assert clear.describe(scale=100, unit=" points") == "higher (95% interval of the difference +75 to +1.2e+02 points)"
    assert MeanInterval.of(torch.tensor([-0.9, -1.0, -1.1])).describe().startswith("lower (95% interval")
    unclear = MeanInterval.of(torch.tensor([-1.0, 1.1]))
    assert unclear.sign == 0
    assert unclear.describe().startswith("no clear difference")


def test_the_effect_of_the_penalty_is_taken_seed_by_seed():
    plain = [Scores(0.8, 1.0, 2.0), Scores(0.7, 1.2, 2.2), Scores(0.6, 1.4, 2.4)]
    penalized = [Scores(0.81, 0.5, 1.0), Scores(0.71, 0.7, 1.2), Scores(0.61, 0.9, 1.4)]
    effect = PenaltyEffect([0, 1, 2], plain, penalized)
    assert effect.mean("penalized", "accuracy") == pytest.approx(0.71)
    assert effect.difference("degree").mean == pytest.approx(-1)
    assert effect.difference("loss").high < 0
    assert effect.findings()[0].startswith("Trained with the penalty, over 3 seeds, networks reach 71.0% on held-out")
    assert effect.to_dict()["differences"]["accuracy"]["mean"] == pytest.approx(0.01)
