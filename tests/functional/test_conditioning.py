import pytest
import torch

import effdeg
from effdeg.functional import condition_number, uniform_nodes
from effdeg.functional._conditioning import CONDITION_LIMIT, IllConditionedFit, describe_ill_conditioning
from tests.models import mlp, never

X = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
LINE = {"paths": 64, "output": "identity"}


def first(x):
    return x[:, :1]


@pytest.mark.parametrize(("nodes", "degree"), [(41, 40), (60, 40), (100, 40), (15, 14), (24, 20)])
@pytest.mark.parametrize("basis", ["chebyshev", "legendre"])
def test_uniform_nodes_warn_before_the_model_is_run(nodes, degree, basis):
    settings = {"nodes": nodes, "degree": degree, "basis": basis, "sampling": "uniform"}
    # Warnings are errors here: this one comes first.
    with pytest.raises(IllConditionedFit, match=rf"nodes={nodes} does not support degree={degree}.*'cosine', or deg"):
        effdeg.measure(never, X, **settings)


@pytest.mark.parametrize("sampling", ["cosine", "chebyshev"])
@pytest.mark.parametrize("basis", ["chebyshev", "legendre"])
@pytest.mark.parametrize("nodes", [2, 4, 15, 41, 120])
def test_other_nodes_carry_any_degree_below_their_number(sampling, basis, nodes):
    settings = {"paths": 4, "nodes": nodes, "degree": nodes - 1, "basis": basis, "sampling": sampling}
    measured = effdeg.measure(mlp(8).double(), X.double(), **settings)
    assert not any("ill-conditioned" in note for note in measured.warnings())
    assert "ill-conditioned" not in str(measured)


@pytest.mark.parametrize(("nodes", "degree"), [(4, 3), (12, 6), (48, 20), (200, 40)])
def test_uniform_nodes_that_carry_the_degree_are_right(nodes, degree):
    found, expected = (
        effdeg.measure(first, X.double(), nodes=nodes, degree=degree, sampling=sampling, **LINE).value
        for sampling in ("uniform", "cosine")
    )
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_wrong_value_says_so_and_never_asks_for_a_higher_degree():
    """A straight line measures 20 times too high, with a tight error bar."""
    with pytest.warns(IllConditionedFit):
        measured = effdeg.measure(first, X, nodes=41, degree=40, sampling="uniform", **LINE)
    assert measured.value > 15 * effdeg.measure(first, X, **LINE).value
    assert measured.upper_half > 0.1
    (note,) = measured.warnings()
    assert "ill-conditioned (condition number 3.6e+09), and the value is too high" in note
    assert "higher degree" not in str(measured)
    assert measured.to_dict()["notes"] == [note]
    with pytest.warns(IllConditionedFit):
        again = effdeg.trace(first, X, paths=64, nodes=41, sampling="uniform").fit(degree=40, output="identity")
    assert again.warnings() == [note]


@pytest.mark.parametrize(("nodes", "degree"), [(15, 14), (41, 40), (100, 40)])
def test_the_degree_that_is_advised_is_the_highest_that_works(nodes, degree):
    advised = int(describe_ill_conditioning("uniform", nodes, degree).split("degree=")[-1].split()[0])
    assert 1 < advised < degree
    assert condition_number(uniform_nodes(nodes), advised) <= CONDITION_LIMIT
    assert condition_number(uniform_nodes(nodes), advised + 1) > CONDITION_LIMIT
    assert describe_ill_conditioning("uniform", nodes, advised) is None


def test_the_penalty_warns_when_it_is_made():
    with pytest.warns(IllConditionedFit, match="does not support degree=14") as caught:
        effdeg.Penalty(sampling="uniform", nodes=15, degree=14)
    assert caught[0].filename == __file__
    effdeg.Penalty(sampling="uniform", nodes=4, degree=3)
