from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from effdeg.lab.matches import matching, scale_of
from effdeg.lab.recipe import Row
from effdeg.lab.settings import to_dict
from effdeg.lab.store import Record
from tests.lab.toys import RECIPE, Toy

GRID = replace(RECIPE, grid={"lr": (0.1, 0.2)})
ED = RECIPE.row("ed")


def record(settings, *, without=(), **extra):
    kept = {key: value for key, value in to_dict(settings).items() if key not in without}
    return Record(Path("x"), kept | extra, {}, [], None, None, type(settings).__name__)


def fits(settings_or_record, row="ed", recipe=RECIPE, **options):
    one = settings_or_record if isinstance(settings_or_record, Record) else record(settings_or_record)
    return matching([one], recipe, recipe.row(row), **options) == [one]


def test_runs_of_any_scale_and_strength_belong_to_a_line():
    own = Toy(method="ed", weight=2.0)
    assert fits(own)
    assert fits(replace(own, seed=5, epochs=100))
    assert fits(replace(own, weight=50.0))
    assert not fits(replace(own, lr=0.2))
    assert not fits(replace(own, method="plain"))
    assert not fits(replace(own, names=("a",)))
    assert not fits(own, "plain")
    # The weight is no strength of the plain line.
    assert fits(Toy(), "plain")
    assert not fits(Toy(weight=3.0), "plain")


def test_tuning_runs_are_kept_apart():
    own = Toy(method="ed", weight=2.0)
    tuning = replace(own, held_out=100, weight=7.0)
    assert fits(tuning, tuning=True)
    assert not fits(tuning)
    assert not fits(own, tuning=True)
    assert not fits(replace(tuning, held_out=50), tuning=True)
    assert not fits(tuning, recipe=replace(RECIPE, tuning={}), tuning=True)


def test_every_point_of_the_grid_belongs_to_the_line():
    assert fits(Toy(lr=0.2), "plain", GRID)
    assert fits(Toy(lr=0.3), "plain", GRID)
    assert not fits(Toy(lr=0.2), "plain")


def test_changes_of_a_user():
    assert fits(Toy(lr=0.3), "plain", changes={"lr": 0.3})
    assert not fits(Toy(), "plain", changes={"lr": 0.3})
    assert not fits(Toy(lr=0.2), "plain", GRID, changes={"lr": 0.1})
    assert not fits(Toy(method="ed", weight=2.0), changes={"weight": 3})
    assert fits(Toy(method="ed", weight=3.0), changes={"weight": 3})
    assert fits(Toy(epochs=9), "plain", changes={"epochs": 5})
    with pytest.raises(ValueError, match=r"'rl' is not a setting. Did you mean 'lr'"):
        fits(Toy(), changes={"rl": 0.3})


def test_older_and_newer_runs():
    assert fits(record(Toy(), without=["lr", "names", "epochs"]), "plain")
    assert not fits(record(Toy(), without=["method"]))  # its default is plain
    assert not fits(record(Toy(), unheard_of=None), "plain")
    assert scale_of(record(Toy(seed=3), without=["epochs"]), Toy) == {"epochs": 4}
    assert scale_of(record(Toy(seed=3, epochs=7)), Toy) == {"epochs": 7}


def test_other_kinds_of_settings():
    @dataclass(frozen=True)
    class Needs:
        data: str
        names: list[str] = field(default_factory=lambda: ["a"])
        seed: int = field(default=0, metadata={"scale": True})
        epochs: int = 1

    recipe = replace(RECIPE, settings=Needs("digits"), rows=(Row("plain", "Plain"),))
    assert fits(record(Needs("digits", seed=2)), "plain", recipe)
    assert fits(record(Needs("digits"), without=["names"]), "plain", recipe)
    # What has no default cannot be filled in.
    assert not fits(record(Needs("digits"), without=["data"]), "plain", recipe)
    same_names = replace(record(Needs("digits")), kind="Toy")
    assert not fits(same_names, "plain", recipe)
