import re
from dataclasses import dataclass, fields, make_dataclass, replace
from typing import Literal

import numpy as np
import pytest

from effdeg_lab.core.settings import Settings, format_setting, setting


@dataclass(frozen=True)
class Some(Settings):
    count: int = setting(1, least=1)
    share: float = setting(0.5, above=0.0, most=1.0)
    limit: int | None = setting(None, least=1, scale=True)
    weight: float | None = None
    size: Literal["small", "large"] = "small"
    quick: bool = False
    name: str = "some"
    names: tuple[str, ...] = ()
    sizes: tuple[int, ...] = (1,)

    def check(self):
        if self.quick and self.limit is None:
            raise ValueError("quick needs a limit")


def test_what_is_typed_becomes_values_of_the_right_types():
    typed = ["count=3", "share=1", "limit=none", "weight=7", "size=large", "quick=yes", "name=a=b", "names=x, y,"]
    expected = {"count": 3, "share": 1.0, "limit": None, "weight": 7.0, "size": "large", "quick": True, "name": "a=b"}
    found = Some().parse([*typed, "sizes=2,3"])
    assert found == {**expected, "names": ("x", "y"), "sizes": (2, 3)}
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
        ("share=half", "share=half is not possible: share must be a finite number."),
        ("weight=-1e999", "weight=-inf is not possible: weight must be a finite number or none."),
        ("quick=2", "quick=2 is not possible: quick must be true or false."),
        ("size=lrage", "size=lrage is not possible: Did you mean 'large'?"),
        ("sizes=1,x", "sizes=x is not possible: sizes must be a whole number."),
    ],
)
def test_what_cannot_be_meant_is_refused(typed, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Some().parse([typed])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": "3"}, "count=3 is not possible: count must be a whole number."),
        ({"count": True}, "count=True is not possible: count must be a whole number."),
        ({"quick": 1}, "quick=1 is not possible: quick must be true or false."),
        ({"size": "medium"}, "size=medium is not possible: "),
        ({"names": "x"}, "names=x is not possible: names must be a tuple."),
        ({"names": ("x", 3)}, "names=3 is not possible: names must be text."),
        ({"count": np.float64(3)}, "count=3.0 is not possible"),
        ({"count": 0}, "count=0 is out of range: it must be at least 1."),
        ({"share": 0}, "share=0 is out of range: it must be above 0.0."),
        ({"share": 2}, "share=2 is out of range: it must be at most 1.0."),
        ({"quick": True}, "quick needs a limit"),
    ],
)
def test_changes_that_are_wrong_are_refused(changes, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        Some().change(changes)


def test_numbers_of_all_kinds_become_those_of_python():
    given = {"count": np.int64(3), "share": np.float32(0.25), "weight": np.int32(7), "limit": np.uint8(5)}
    settings = Some().change({**given, "names": ["x"]})
    assert settings == Some(count=3, share=0.25, weight=7.0, limit=5, names=("x",))
    assert [type(getattr(settings, key)) for key in given] == [int, float, float, int]
    assert Some(weight=-0.0).hash == Some(weight=0).hash


def test_what_is_formatted_can_be_typed():
    values = ((), None, 7.0, 1 / 3, True, ("a", "b"), 1e-7)
    assert list(map(format_setting, values)) == ["none", "none", "7", "0.3333333333333333", "true", "a,b", "1e-07"]
    settings = Some(3, 7, 1 / 3, 5, 2.5, "large", True, "x", ("a", "b"), ())
    typed = [f"{key}={format_setting(value)}" for key, value in settings.to_dict().items()]
    assert Some().change(Some().parse(typed)) == settings


def test_every_setting_moves_the_hash_and_a_new_one_at_its_default_does_not():
    base, other = Some(limit=1), Some(1, 2, 0.25, 3, 7.0, "large", True, "other", ("x",), (2,))
    changed = {replace(base, **{each.name: getattr(other, each.name)}).hash for each in fields(Some)}
    assert len(changed | {base.hash}) == len(fields(Some)) + 1
    older = make_dataclass("Kind", [("weight", float, 1.0)], bases=(Settings,), frozen=True)
    newer = make_dataclass("Kind", [("weight", float, 1.0), ("also", str, "")], bases=(Settings,), frozen=True)
    another = make_dataclass("Another", [("weight", float, 1.0)], bases=(Settings,), frozen=True)
    assert newer(weight=2.0).hash == older(weight=2.0).hash != another(weight=2.0).hash
    assert newer(also="this").hash != older().hash
    assert newer.complete(older(weight=2.0).to_dict()) == newer(weight=2.0).to_dict()
    assert Some.scale_names() == ["limit"]
