import pytest

from effdeg_lab.show.verdicts import judge


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        ((0.5, 2.0), "holds: gain of degree 3: 1 (95% interval 0.5 to 2)"),
        ((1.0, 1.0), "holds: gain of degree 3: 1"),  # an exact number
        (None, "not decided: gain of degree 3: 1"),
    ],
)
def test_a_verdict_says_what_its_number_is(interval, text):
    assert str(judge("gain of degree 3", 1.0, interval, above=0.0)) == text
