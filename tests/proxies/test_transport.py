"""Optimal transport to classes against scipy: linear programs, and assignments of whole examples."""

import numpy as np
import pytest
import scipy.optimize

from effdeg.proxies._transport import transport


def transport_slowly(costs):
    examples, classes = costs.shape
    rows = np.kron(np.eye(examples), np.ones(classes))
    columns = np.kron(np.ones(examples), np.eye(classes))
    masses = [*[1 / examples] * examples, *[1 / classes] * classes]
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
    cost, prices = transport(costs)
    assert cost == pytest.approx(transport_slowly(costs), abs=1e-6)
    # What the prices of examples leave of the cost is paid by the classes, each at most its cheapest rest.
    assert prices.mean() + (costs - prices[:, None]).min(0).mean() == pytest.approx(cost, abs=1e-6)


def test_mass_moves_through_a_class_in_between():
    # From the first class to the third it is cheaper through the second than directly.
    costs = np.array([[0.0, 1.0, 9.0], [0.0, 1.0, 9.0], [9.0, 0.0, 1.0]])
    assert transport(costs)[0] == pytest.approx(2 / 3)
