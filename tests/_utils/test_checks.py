import pytest

from effdeg._utils import checks


def test_long_lists_are_shortened():
    assert checks.shorten(["a", "b", "c"]) == "a, b, c"
    assert checks.shorten(["a", "b", "c", "d"]) == "a, b, c, …"
    assert checks.suggest("zzz", map(str, range(30))).endswith("'19', ….")


def test_a_count_has_64_bits():
    assert checks.check_count("seed", 2**63 - 1, least=0) == 2**63 - 1
    with pytest.raises(ValueError, match=r"seed=9223372036854775808 is too large: it must be below 2\*\*63"):
        checks.check_count("seed", 2**63, least=0)
