"""Settings as people change them, and what tells runs apart."""

import re
from dataclasses import dataclass, fields, make_dataclass, replace
from typing import Literal

import numpy as np
import pytest

from effdeg_lab.settings import SCALE, Settings, format_setting


@dataclass(frozen=True)
class Some(Settings):
    count: int = 1
    share: float = 0.5
    limit: int | None = None
    weight: float | None = None
    size: Literal["small", "large"] = "small"
    quick: bool = False
    name: str = "some"
    names: tuple[str, ...] = ()
    sizes: tuple[int, ...] = (1,)

    def check(self):
        if self.count < 1:
            raise ValueError(f"count={self.count} is too small.")


def test_what_is_typed_becomes_values_of_the_right_types():
    typed = ["count=3", "share=1", "limit=none", "weight=7", "size=large", "quick=yes", "name=a=b", "names=x, y,"]
    found = Some().parse([*typed, "sizes=2,3"])
    assert found == {
        "count": 3,
        "share": 1.0,
        "limit": None,
        "weight": 7.0,
        "size": "large",
        "quick": True,
        "name": "a=b",
        "names": ("x", "y"),
        "sizes": (2, 3),
    }
    assert isinstance(found["share"], float)
    more = Some().parse(["share=1e-3", "limit=5", "quick=FALSE", "names="])
    assert more == {"share": 1e-3, "limit": 5, "quick": False, "names": ()}


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("count", "--set count has no value: write --set count=VALUE."),
        ("cuont=3", "'cuont' is not a setting. Did you mean 'count'?"),
        ("count=3.5", "count=3.5 is not possible: count must be a whole number."),
        ("limit=few", "limit=few is not possible: limit must be a whole number or none."),
        ("share=half", "share=half is not possible: share must be a number."),
        ("quick=2", "quick=2 is not possible: quick must be true or false."),
        ("size=lrage", "size=lrage is not possible: Did you mean 'large'?"),
        ("count=none", "count=none is not possible: count must be a whole number."),
        ("share=nan", "share=nan is not possible: share must be a finite number."),
        ("weight=-inf", "weight=-inf is not possible: weight must be a finite number."),
        ("share=1e999", "share=inf is not possible: share must be a finite number."),
        ("sizes=1,x", "sizes=x is not possible: sizes must be a whole number."),
    ],
)
def test_what_cannot_be_meant_is_refused(typed, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Some().parse([typed])


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"cuont": 3}, ValueError, "'cuont' is not a setting. Did you mean 'count'?"),
        ({"count": "3"}, TypeError, "count='3' is not possible: count must be a whole number."),
        ({"count": 3.0}, TypeError, "count=3.0 is not possible: count must be a whole number."),
        ({"count": True}, TypeError, "count=True is not possible: count must be a whole number."),
        ({"share": None}, TypeError, "share=None is not possible: share must be a number."),
        ({"quick": 1}, TypeError, "quick=1 is not possible: quick must be true or false."),
        ({"size": "medium"}, TypeError, "size='medium' is not possible: "),
        ({"names": "x"}, TypeError, "names='x' is not possible: it must be a tuple."),
        ({"names": ("x", 3)}, TypeError, "names=3 is not possible: names must be text."),
        ({"share": float("inf")}, ValueError, "share=inf is not possible: share must be a finite number."),
        ({"count": np.float64(3)}, TypeError, "count="),
        ({"count": np.bool_(True)}, TypeError, "count="),
        ({"count": 0}, ValueError, "count=0 is too small."),
        ({"seed": -1}, ValueError, "seed=-1 is out of range: it must lie between 0 and 4294967295."),
        ({"seed": 2**32}, ValueError, "seed=4294967296 is out of range"),
    ],
)
def test_changes_that_are_wrong_are_refused(changes, kind, message):
    for make in (Some().change, lambda changes: Some(**changes)):
        if "cuont" not in changes or make == Some().change:
            with pytest.raises(kind, match=f"^{re.escape(message)}"):
                make(changes)


def test_numbers_of_all_kinds_become_those_of_python():
    given = {"count": np.int64(3), "share": np.float32(0.25), "weight": np.int32(7), "limit": np.uint8(5)}
    before = Some(count=2)
    settings = before.change({**given, "names": ["x"]})
    assert settings == Some(count=3, share=0.25, weight=7.0, limit=5, names=("x",))
    assert [type(getattr(settings, key)) for key in given] == [int, float, float, int]
    assert before == Some(count=2)
    assert Some(share=-0.0).hash == Some(share=0.0).hash
    assert Some(weight=7).hash == Some(weight=7.0).hash


def test_what_is_formatted_can_be_typed():
    values = ((), None, 7.0, 1 / 3, True, ("a", "b"), 1e-7)
    assert list(map(format_setting, values)) == ["none", "none", "7", "0.3333333333333333", "true", "a,b", "1e-07"]
    settings = Some(3, 7, 1 / 3, None, 2.5, "large", True, "x", ("a", "b"), ())
    typed = [f"{key}={format_setting(value)}" for key, value in settings.to_dict().items()]
    assert Some().change(Some().parse(typed)) == settings


def test_every_setting_moves_the_hash_and_a_new_one_at_its_default_does_not():
    other = Some(1, 2, 0.25, 3, 7.0, "large", True, "other", ("x",), (2,))
    changed = {replace(Some(), **{each.name: getattr(other, each.name)}).hash for each in fields(Some)}
    assert len(changed | {Some().hash}) == len(fields(Some)) + 1
    older = make_dataclass("Kind", [("weight", float, 1.0)], bases=(Settings,), frozen=True)
    newer = make_dataclass("Kind", [("weight", float, 1.0), ("also", str, "")], bases=(Settings,), frozen=True)
    another = make_dataclass("Another", [("weight", float, 1.0)], bases=(Settings,), frozen=True)
    assert newer(weight=2.0).hash == older(weight=2.0).hash != another(weight=2.0).hash
    assert newer(also="this").hash != older().hash
    assert newer.complete(older(weight=2.0).to_dict()) == newer(weight=2.0).to_dict()


def test_settings_of_scale():
    assert SCALE == {"scale": True}
    assert Some.scale_names() == []
