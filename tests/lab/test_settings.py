"""Settings as people change them, and the names of runs that follow from them."""

import hashlib
import json
import re
import subprocess
import sys
from dataclasses import dataclass, fields, replace
from typing import Literal

import pytest

from effdeg.lab.settings import changed, differences, digest, parsed, to_dict
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


def test_the_digest_is_the_same_in_another_process_and_for_whole_numbers():
    code = "from effdeg.lab.settings import digest; from effdeg.lab.training import Training; print(digest(Training()))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == digest(Training())
    assert digest(changed(Training(), {"weight": 7})) == digest(changed(Training(), {"weight": 7.0}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs=0 is too small"),
        ({"seed": -1}, "seed=-1 is too small"),
        ({"warm_up": 1.5}, "warm_up=1.5 is a share of training"),
        ({"pairs": 0.0}, "pairs=0.0 is a share of the batch"),
        ({"lr": float("nan")}, "lr=nan must be positive"),
        ({"clip": 0.0}, "clip=0.0 must be positive"),
        ({"limit": 0}, "limit=0 is too small"),
    ],
)
def test_impossible_trainings_are_refused(changes, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        changed(Training(), changes)
