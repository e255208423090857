import torch

from effdeg.lab.studies.polynomials.networks.least_squares import levenberg_marquardt


def descend(residuals, weights, steps, damping=0.01):
    for _ in range(steps):
        jacobian = torch.func.jacrev(residuals)(weights)
        before = residuals(weights).square().sum()
        weights, damping = levenberg_marquardt(residuals, jacobian, weights, damping)
        assert residuals(weights).square().sum() <= before
    return weights


def test_a_linear_problem_is_solved_as_by_normal_equations():
    generator = torch.Generator().manual_seed(0)
    matrix, right = (torch.randn(9, size, dtype=torch.float64, generator=generator) for size in (4, 1))
    found = descend(lambda weights: matrix @ weights - right[:, 0], torch.zeros(4, dtype=torch.float64), 5, 1e-9)
    torch.testing.assert_close(found, torch.linalg.lstsq(matrix, right).solution[:, 0])


def test_rosenbrocks_bent_valley_is_followed_to_its_end():
    def residuals(weights):
        return torch.stack([10 * (weights[1] - weights[0] ** 2), 1 - weights[0]])

    found = descend(residuals, torch.tensor([-1.2, 1.0], dtype=torch.float64), 60)
    torch.testing.assert_close(found, torch.ones(2, dtype=torch.float64), rtol=1e-6, atol=1e-6)


def test_where_nothing_is_better_the_weights_stay():
    found = descend(lambda weights: weights, torch.zeros(3, dtype=torch.float64), 2)
    assert found.tolist() == [0, 0, 0]


def test_a_step_into_overflow_is_not_taken():
    start = torch.tensor([2.0], dtype=torch.float64)
    found = descend(lambda weights: torch.exp(weights**2) - 1, start, 40, damping=1e-15)
    assert float(found.abs()) < 0.1
