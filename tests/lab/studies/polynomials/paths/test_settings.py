import pytest

from effdeg.lab.studies.polynomials.paths.settings import PathDegrees


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"degree": 10}, "degree=10 leaves no room above .* Use degree=11"),
        ({"nodes": 16}, "nodes=16 cannot determine a polynomial of degree=16"),
        ({"terms": 0}, "terms=0 is too small"),
        ({"polynomials": 1}, "polynomials=1 is too small"),
        ({"variables": 0}, "variables=0 is too small"),
    ],
)
def test_what_cannot_be_is_said_before_any_work(changes, message):
    with pytest.raises(ValueError, match=message):
        PathDegrees(**changes)


def test_inputs_of_an_unknown_kind_are_refused():
    with pytest.raises(TypeError, match="Did you mean 'lattice'"):
        PathDegrees(inputs="latice")
