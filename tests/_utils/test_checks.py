"""What every check refuses, and what its message says to write instead."""

import math
import re

import numpy as np
import pytest

from effdeg._utils import checks


@pytest.mark.parametrize(
    ("check", "arguments", "message"),
    [
        (checks.check_choice, ("basis", "zzz", ["chebyshev", "legendre"]), "Choose from: 'chebyshev', 'legendre'."),
        (checks.check_fit, (4, 4), "Use nodes=5 or more, or degree=3 or less."),
        (checks.check_components, (9, 4), "Use components=3 or less, or more nodes."),
        (checks.check_components, (1, 1), "nodes=1 shows no variation"),
    ],
)
def test_the_message_says_what_to_write_instead(check, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        check(*arguments)


@pytest.mark.parametrize("value", [True, 2.0, "2", None])
def test_a_count_is_a_whole_number(value):
    with pytest.raises(TypeError, match=f"paths={value!r} must be a whole number, at least 1"):
        checks.check_count("paths", value, least=1)


def test_a_count_comes_back_as_pythons_integer():
    assert type(checks.check_count("paths", np.int64(3), least=1)) is int
    with pytest.raises(ValueError, match="paths=0 is too small: it must be at least 1"):
        checks.check_count("paths", 0, least=1)


@pytest.mark.parametrize(("value", "zero"), [(math.inf, True), (math.nan, True), (-1, True), (0, False)])
def test_numbers_that_are_refused(value, zero):
    with pytest.raises(ValueError, match=rf"rho={value!r} must be .*positive and finite: it is a radius\."):
        checks.check_number("rho", value, "it is a radius", zero=zero)


def test_what_is_accepted():
    assert checks.check_number("rho", np.float32(0.5), "it is a radius") == 0.5
    assert checks.check_number("rho", 0, "it is a radius", zero=True) == 0.0


def test_long_lists_are_shortened():
    assert checks.shorten(["a", "b", "c"]) == "a, b, c"
    assert checks.shorten(["a", "b", "c", "d"]) == "a, b, c, …"
    assert checks.suggest("zzz", map(str, range(30))).endswith("'19', ….")


def test_a_count_has_64_bits():
    assert checks.check_count("seed", 2**63 - 1, least=0) == 2**63 - 1
    with pytest.raises(ValueError, match=r"seed=9223372036854775808 is too large: it must be below 2\*\*63"):
        checks.check_count("seed", 2**63, least=0)
