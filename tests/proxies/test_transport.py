"""Optimal transport to classes against scipy: linear programs, and assignments of whole examples."""

import numpy as np
import pytest
import scipy.optimize

from effdeg.proxies._transport import transport


def transport_slowly(costs, shares):
    examples, classes = costs.shape
    rows = np.kron(np.eye(examples), np.ones(classes))
    columns = np.kron(np.ones(examples), np.eye(classes))
    masses = [*[1 / examples] * examples, *shares]
    found = scipy.optimize.linprog(costs.ravel(), A_eq=np.vstack([rows, columns]), b_eq=masses)
    assert found.status == 0
    return found.fun


@pytest.mark.parametrize("seed", range(12))
def test_against_a_linear_program(seed):
    generator = np.random.default_rng(seed)
    examples, classes = generator.integers(1, 30), generator.integers(2, 7)
    # Some classes are cheaper than others, and some costs are equal.
    costs = generator.random((examples, classes)) + generator.random(classes) * (seed % 2)
    costs = costs.round(1) if seed % 3 == 0 else costs
    shares = generator.dirichlet(np.ones(classes))
    shares[0] *= seed % 4 > 0
    shares /= shares.sum()
    cost, of_examples, of_classes = transport(costs, shares)
    assert cost == pytest.approx(transport_slowly(costs, shares), abs=1e-6)
    assert of_examples.mean() + of_classes @ shares == pytest.approx(cost, abs=1e-6)
    assert (of_examples[:, None] + of_classes <= costs + 1e-9).all()


@pytest.mark.parametrize("counts", [(10, 10, 10), (1, 24, 5), (0, 0, 30)])
def test_against_an_assignment_of_whole_examples(counts):
    costs = np.random.default_rng(0).random((30, 3))
    repeated = np.repeat(costs, counts, axis=1)
    expected = repeated[scipy.optimize.linear_sum_assignment(repeated)].mean()
    assert transport(costs, np.array(counts) / 30)[0] == pytest.approx(expected, rel=1e-12)


def test_mass_moves_through_a_class_in_between():
    # From the first class to the third it is cheaper through the second than directly.
    costs = np.array([[0.0, 1.0, 9.0], [0.0, 1.0, 9.0], [9.0, 0.0, 1.0]])
    assert transport(costs, np.full(3, 1 / 3))[0] == pytest.approx(2 / 3)
