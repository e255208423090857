"""Theorem 3.1: random polynomials, small runs where it holds and need not hold, and the study of made-up runs."""

from itertools import product

import numpy as np
import pytest
import torch
from engine_runs import assert_same_end, carry_out, carry_out_interrupted
from toy_results import invent_run

from effdeg_lab.core.recipe import find_recipe
from effdeg_lab.core.results import collect
from effdeg_lab.experiments import path_degrees
from effdeg_lab.experiments.path_degrees import PathDegrees, Polynomials, run_paths

RECIPE = find_recipe("path-degrees")

CPU = torch.device("cpu")
SMALL = PathDegrees(highest=3, polynomials=3, paths=40, nodes=16, degree=8)
DENSE = ("dense-2", "dense-3", "sparse-10", "monomial-3")


def draw(degree=4, **changes):
    return path_degrees.draw_polynomials(SMALL.change(changes), degree, torch.Generator().manual_seed(0))


def make_polynomial(*terms):
    """Make a polynomial of terms: a factor and the exponents."""
    factors, exponents = zip(*terms, strict=True)
    degree = max(map(sum, exponents))
    return Polynomials(torch.tensor([exponents]), torch.tensor([factors], dtype=torch.float64), degree)


def follow(degree, device=CPU, **changes):
    return path_degrees.follow_polynomials(SMALL.change(changes), degree, device)


def make_results(names=DENSE, **changes):
    """Make results of two seeds and three total degrees as the theorem has them; dense-3 and a lattice have changes."""
    noise = [{"size": size, "found": 8.0} for size in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)]
    runs = []
    for name in names:
        entries = [
            dict.fromkeys(("too_high", "dropped", "vanishing", "unexplained"), 0)
            | {"degree": degree, "followed": 1000, "found": float(degree), "found_coarsely": degree / 2}
            | {"effective_degree": {"value": 0.5 * degree, "stderr": 0.01}}
            | {"normalized": {"value": 0.3 * degree, "stderr": 0.01}}
            | {"noise": [each | {"effective_degree": 0.5 * degree * (1 + each["size"])} for each in noise]}
            | (changes if name in ("dense-3", "lattice-3") else {})
            for degree in (1, 2, 3)
        ]
        runs += [invent_run(RECIPE, name, {"degrees": entries}, highest=3, seed=seed) for seed in (0, 1)]
    return collect(RECIPE, runs)[0]


def test_fits_must_leave_room_above_the_polynomials():
    with pytest.raises(ValueError, match=r"degree=10 is not above .* Use degree=11"):
        PathDegrees(degree=10)


@pytest.mark.parametrize("terms", [None, 1, 5])
def test_values_are_sums_of_monomials(terms):
    polynomials, points = draw(terms=terms), torch.randn(4, 3, dtype=torch.float64)
    exponents = polynomials.exponents.expand(3, -1, -1).numpy()
    for value, point in zip(polynomials(points), points.numpy(), strict=True):
        expected = (polynomials.coefficients.numpy() * (point**exponents).prod(-1)).sum(-1)
        np.testing.assert_allclose(value, expected, rtol=1e-12)


@pytest.mark.parametrize(("variables", "degree"), [(1, 3), (2, 10), (4, 1)])
def test_all_terms_are_all_monomials_up_to_the_degree(variables, degree):
    found = sorted(map(tuple, draw(degree, variables=variables).exponents[0].tolist()))
    assert found == [powers for powers in product(range(degree + 1), repeat=variables) if sum(powers) <= degree]


def test_the_leading_coefficient_is_that_of_naive_algebra():
    polynomial = make_polynomial((2.0, (2, 1)), (-3.0, (1, 2)), (5.0, (1, 1)), (7.0, (0, 0)))
    first, second = np.array([0.3, -0.7]), np.array([-0.2, 0.9])
    x, y = (np.polynomial.Polynomial([(a + b) / 2, (a - b) / 2]) for a, b in zip(first, second, strict=True))
    path = 2 * x**2 * y - 3 * x * y**2 + 5 * x * y + 7
    found, vanishing = polynomial.compute_leading_coefficients(torch.tensor(first - second)[None])
    np.testing.assert_allclose(found, [[path.convert(kind=np.polynomial.Chebyshev).coef[3]]], rtol=1e-12)
    assert vanishing.tolist() == [[False]]


@pytest.mark.parametrize("kind", [{"variables": 2}, {"variables": 10, "terms": 20, "inputs": "normal"}, {"terms": 1}])
@pytest.mark.parametrize("degree", [1, 6])
def test_with_a_density_every_path_has_the_total_degree_and_noise_hides_it(kind, degree):
    found = follow(degree, highest=6, **kind)
    assert found["followed"] == 3 * 40
    assert found["found"] == pytest.approx(degree, abs=0.05)
    assert found["too_high"] == found["vanishing"] == found["unexplained"] == 0
    assert all(each["found"] > 7.9 for each in found["noise"])
    assert found["noise"][0]["effective_degree"] == pytest.approx(found["effective_degree"]["value"], rel=1e-4)


def test_on_a_lattice_the_degree_drops_as_often_as_a_step_stays_in_place():
    found = follow(3, variables=1, terms=1, inputs="lattice", paths=2000)
    # Of two independent values among three, a third are equal: the path of one variable is then a point.
    assert found["vanishing"] / found["followed"] == pytest.approx(1 / 3, abs=0.05)
    assert found["dropped"] == found["vanishing"]
    assert found["found"] == pytest.approx(3 * (1 - found["dropped"] / found["followed"]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpu_finds_what_a_cpu_does():
    here, there = (follow(3, device) for device in (CPU, torch.device("cuda", 0)))
    assert there["found"] == here["found"] == 3
    assert there["effective_degree"]["value"] == pytest.approx(here["effective_degree"]["value"], rel=1e-9)


def test_a_run_that_was_interrupted_ends_as_an_unbroken_one(tmp_path):
    unbroken, where = carry_out(tmp_path / "unbroken", SMALL, run_paths), (path_degrees, "follow_polynomials")
    broken, calls = carry_out_interrupted(tmp_path / "broken", SMALL, run_paths, *where, killed=2, stopped=3)
    assert_same_end(broken, unbroken)
    assert broken.metrics == broken.summary["degrees"]
    assert calls == 4  # only what was killed is done again


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "holds"),
        ({"dropped": 4}, "holds"),  # leading coefficients too small for float64
        ({"dropped": 1, "vanishing": 1}, "does not hold"),
        ({"dropped": 1, "unexplained": 1}, "does not hold"),
        ({"too_high": 1}, "does not hold"),
        ({"found": 2.0}, "does not hold"),  # the same for all total degrees
        ({"names": ("lattice-3",), "vanishing": 500}, "not decided"),
        ({"names": (*DENSE[2:], "lattice-3"), "vanishing": 500}, "holds"),
    ],
)
def test_the_claim(changes, word):
    assert RECIPE.study.claim(make_results(**changes)).word == word


def test_tables_have_what_was_found():
    results = make_results(dropped=4)
    degrees, noise = RECIPE.study.tables(results)
    assert degrees.rows[1] == ("3 variables, all terms", "6,000", "0", "24", "3.000", "1.50")
    assert degrees.rows[4] == ("one term, on a lattice", "not run", "–", "–", "–", "–")
    assert noise.rows[0][1::5] == ("2.00; 1.000", "8.00; 1.010")
    headline = "total degree found on 2,988 of 3,000; leading coefficient zero on 0"
    assert RECIPE.study.headline(results.done[1].runs[0]) == headline


@pytest.mark.parametrize("names", [("lattice-3",), (*DENSE, "lattice-3")])
def test_the_figure_shows_every_method(names):
    (figure,) = RECIPE.study.figures(make_results(names))
    labels = {each.get_text() for each in figure.draw("dark").axes[0].texts}
    assert labels == {method.title for method in RECIPE.methods if method.name in names}
