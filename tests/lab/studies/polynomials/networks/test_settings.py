import pytest

from effdeg.lab.studies.polynomials.networks.settings import PolynomialFit


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": 7}, "task=7 is not one of the six maps"),
        ({"degree": 7}, "polynomial of degree 8. Use degree=8"),
        ({"nodes": 10}, "nodes=10 cannot determine a polynomial of degree=10"),
        ({"steps": 0}, "steps=0 is too small"),
        ({"paths": 1}, "paths=1 is too small"),
        ({"seed": -1}, "seed=-1 is too small"),
    ],
)
def test_what_cannot_be_is_said_before_any_work(changes, message):
    with pytest.raises(ValueError, match=message):
        PolynomialFit(**changes)
