from dataclasses import dataclass, replace

import pytest

from tests.lab.toys import RECIPE


@dataclass(frozen=True)
class Seedless:
    epochs: int = 3


@dataclass(frozen=True)
class Endless:
    seed: int = 0


@pytest.mark.parametrize(("settings", "missing"), [(Seedless(), "seed"), (Endless(), "epochs")])
def test_settings_need_a_seed_and_where_strengths_are_tuned_epochs(settings, missing):
    with pytest.raises(TypeError, match=rf"toy: its settings, \w+, have no field {missing}, which every run needs"):
        replace(RECIPE, settings=settings)
    if missing == "epochs":
        assert replace(RECIPE, settings=settings, tuning={}).settings is settings


@pytest.mark.parametrize(
    ("tuning", "message"),
    [
        ({"epochs": 2}, "held_out=0 would have the test set decide strengths"),
        ({"held_out": 0}, "held_out=0 would have the test set decide strengths"),
        ({"held_out": 10, "weight": 3.0}, "weight=3.0 cannot hold for the runs that tune 'ed'"),
    ],
)
def test_what_cannot_tune(tuning, message):
    with pytest.raises(ValueError, match=message):
        replace(RECIPE, tuning=tuning)
    assert replace(RECIPE, tuning={}).tuning == {}


@pytest.mark.parametrize("seed", [-1, 2**32, 10**400])
def test_seeds_out_of_range(seed):
    with pytest.raises(ValueError, match="is out of range: it must lie between 0 and 4294967295"):
        RECIPE.resolved(RECIPE.rows[0], {"seed": seed})
