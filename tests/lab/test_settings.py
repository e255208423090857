"""Settings as people change them, and the names of runs that follow from them."""

import hashlib
import json
import re
from dataclasses import dataclass, field, fields, make_dataclass, replace
from typing import Literal

import numpy as np
import pytest

from effdeg.cli._lab_options import shown
from effdeg.lab.registry import all_recipes
from effdeg.lab.settings import NEWER, changed, checked_fields, differences, digest, identity, parsed, to_dict
from effdeg.lab.training import Training


@dataclass(frozen=True)
class Toy:
    count: int = 1
    share: float = 0.5
    limit: int | None = None
    weight: float | None = None
    size: Literal["small", "large"] = "small"
    quick: bool = False
    name: str = "toy"
    names: tuple[str, ...] = ()


def test_what_is_typed_becomes_values_of_the_right_types():
    typed = ["count=3", "share=1", "limit=none", "weight=7", "size=large", "quick=yes", "name=a=b", "names=x, y,"]
    assert parsed(Toy(), typed) == {
        "count": 3,
        "share": 1.0,
        "limit": None,
        "weight": 7.0,
        "size": "large",
        "quick": True,
        "name": "a=b",
        "names": ("x", "y"),
    }
    assert isinstance(parsed(Toy(), ["share=1"])["share"], float)
    assert parsed(Toy(), ["share=1e-3", "limit=5", "quick=FALSE", "names="]) == {
        "share": 1e-3,
        "limit": 5,
        "quick": False,
        "names": (),
    }


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("count", "--set count has no value: write it as --set count=VALUE."),
        ("cuont=3", "'cuont' is not a setting. Did you mean 'count'?"),
        ("count=3.5", "count=3.5 is not possible: count is a whole number."),
        ("limit=few", "limit=few is not possible: limit is a whole number or none."),
        ("share=half", "share=half is not possible: share is a number."),
        ("quick=2", "quick=2 is not possible: quick is true or false."),
        ("size=lrage", "size=lrage is not possible: Did you mean 'large'?"),
        ("count=none", "count=none is not possible: count is a whole number."),
        ("share=nan", "share=nan is not possible: share must be a finite number."),
        ("weight=-inf", "weight=-inf is not possible: weight must be a finite number."),
        ("share=1e999", "share=inf is not possible: share must be a finite number."),
    ],
)
def test_what_cannot_be_meant_is_refused(typed, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parsed(Toy(), [typed])


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"cuont": 3}, ValueError, "'cuont' is not a setting. Did you mean 'count'?"),
        ({"count": "3"}, TypeError, "count='3' is not possible: count is a whole number."),
        ({"count": 3.0}, TypeError, "count=3.0 is not possible: count is a whole number."),
        ({"count": True}, TypeError, "count=True is not possible: count is a whole number."),
        ({"share": None}, TypeError, "share=None is not possible: share is a number."),
        ({"quick": 1}, TypeError, "quick=1 is not possible: quick is true or false."),
        ({"size": "medium"}, TypeError, "size='medium' is not possible: "),
        ({"names": "x"}, TypeError, "names='x' is not possible: several names are expected, in a tuple."),
        ({"names": ("x", 3)}, TypeError, "names=3 is not possible: names is text."),
        ({"share": float("inf")}, ValueError, "share=inf is not possible: share must be a finite number."),
        ({"weight": np.float32("nan")}, ValueError, "weight=nan is not possible: weight must be a finite number."),
        ({"count": np.float64(3)}, TypeError, "count="),
        ({"count": np.bool_(True)}, TypeError, "count="),
    ],
)
def test_changes_of_the_wrong_type_are_refused(changes, kind, message):
    with pytest.raises(kind, match=f"^{re.escape(message)}"):
        changed(Toy(), changes)


def test_changes_leave_the_rest_and_the_original_alone():
    before = Toy(count=2)
    after = changed(before, {"share": 1, "names": ["x"]})
    assert after == Toy(count=2, share=1.0, names=("x",))
    assert isinstance(after.share, float)
    assert before == Toy(count=2)
    assert differences(before, after) == {"share": (0.5, 1.0), "names": ([], ["x"])}
    assert differences(after, after) == {}


def test_an_error_names_the_option_that_was_typed():
    with pytest.raises(ValueError, match=r"^--tune count has no value: write it as --tune count=VALUE\.$"):
        parsed(Toy(), ["count"], option="--tune")


def test_numbers_of_all_kinds_become_python_s_own():
    given = {"count": np.int64(3), "share": np.float32(0.25), "weight": np.int32(7), "limit": np.uint8(5)}
    settings = changed(Toy(), given)
    assert settings == Toy(count=3, share=0.25, weight=7.0, limit=5)
    assert checked_fields(Toy(names=["x"], **given)) == to_dict(settings) | {"names": ("x",)}
    for values in (checked_fields(Toy(**given)), vars(settings)):
        assert [type(values[key]) for key in given] == [int, float, float, int]
    with pytest.raises(TypeError, match="count='3' is not possible"):
        checked_fields(Toy(count="3"))


def test_zero_has_one_sign():
    for settings in (changed(Toy(), {"share": -0.0}), changed(Toy(), parsed(Toy(), ["share=-0"]))):
        assert digest(settings) == digest(Toy(share=0.0))


def test_what_is_shown_can_be_typed():
    assert [shown(value) for value in ((), None, 7.0, 1 / 3, True, ("a", "b"))] == [
        "none",
        "none",
        "7",
        "0.3333333333333333",
        "true",
        "a,b",
    ]
    for recipe in all_recipes().values():
        for row in recipe.rows:
            settings = recipe.resolved(row, {})
            typed = parsed(settings, [f"{key}={shown(value)}" for key, value in to_dict(settings).items()])
            assert changed(settings, typed) == settings
            assert digest(changed(type(settings)(), typed)) == digest(settings)


def test_the_digest_of_settings_never_changes():
    # Runs that people have are found by it.
    assert digest(Training()) == "9761a0d3abfbb402"


def test_a_setting_cannot_take_the_place_of_the_kind():
    @dataclass(frozen=True)
    class Odd:
        kind: str = "Training"

    with pytest.raises(TypeError, match="Odd has a field called kind"):
        digest(Odd())


def test_the_digest_is_the_hash_of_kind_and_settings():
    settings = Toy(count=2, names=("x",))
    plain = {
        "count": 2,
        "share": 0.5,
        "limit": None,
        "weight": None,
        "size": "small",
        "quick": False,
        "name": "toy",
        "names": ["x"],
    }
    assert to_dict(settings) == plain
    text = json.dumps(plain | {"kind": "Toy"}, sort_keys=True)
    assert digest(settings) == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_every_setting_moves_the_digest():
    other = Toy(2, 0.25, 3, 7.0, "large", True, "other", ("x",))
    digests = {digest(replace(Toy(), **{field.name: getattr(other, field.name)})) for field in fields(Toy)}
    assert len(digests | {digest(Toy())}) == len(fields(Toy)) + 1


def test_the_digest_is_the_same_for_whole_numbers():
    assert digest(changed(Training(), {"weight": 7})) == digest(changed(Training(), {"weight": 7.0}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs=0 is too small"),
        ({"seed": -1}, "seed=-1 is too small"),
        ({"warm_up": 1.5}, "warm_up=1.5 is a share of training"),
        ({"pairs": 0.0}, "pairs=0.0 is a share of the batch"),
        ({"lr": float("nan")}, "lr=nan is not possible: lr must be a finite number."),
        ({"clip": 0.0}, "clip=0.0 must be positive"),
        ({"limit": 0}, "limit=0 is too small"),
    ],
)
def test_impossible_trainings_are_refused(changes, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        changed(Training(), changes)


def test_a_newer_setting_at_its_default_leaves_the_names_of_runs_as_they_are():
    older = make_dataclass("Older", [("seed", int, 0), ("weight", float, 1.0)], frozen=True)
    newer = make_dataclass(
        "Older",
        [("seed", int, 0), ("weight", float, 1.0), ("also", str, field(default="", metadata=NEWER))],
        frozen=True,
    )
    assert digest(newer()) == digest(older())
    assert identity(newer()) == to_dict(older())
    assert to_dict(newer())["also"] == ""
    assert digest(newer(also="this")) != digest(older())
    assert identity(newer(also="this"))["also"] == "this"
