import torch

from effdeg.functional import fit
from effdeg.lab.studies.polynomials.networks.network import DEGREE, PolynomialNetwork
from effdeg.lab.studies.polynomials.networks.targets import draw_inputs


def made(width=5, seed=0):
    torch.manual_seed(seed)
    network = PolynomialNetwork(width)
    network.scale.copy_(torch.tensor([1.0, 2.0, 3.0]))
    return network


def test_it_is_a_polynomial_of_degree_eight():
    network, alpha = made(), torch.linspace(0, 1, 20, dtype=torch.float64)
    first, second = draw_inputs(2, torch.Generator().manual_seed(0))
    values = network(alpha[:, None] * first + (1 - alpha[:, None]) * second).detach()
    coefficients = fit(values, alpha, 12, damping=0.0)
    assert DEGREE == 8
    assert float(coefficients[DEGREE].abs().min()) > 1e-9
    assert float(coefficients[DEGREE + 1 :].abs().max()) < 1e-14


def test_its_outputs_begin_at_ordinary_sizes():
    inputs = draw_inputs(1000, torch.Generator().manual_seed(0))
    for seed in range(5):
        torch.manual_seed(seed)
        size = float(PolynomialNetwork(16)(inputs).detach().square().mean().sqrt())
        assert 0.01 < size < 100


def test_the_jacobian_is_that_of_one_backward_pass_for_every_output():
    network, inputs = made(), draw_inputs(4, torch.Generator().manual_seed(0))
    found = network.jacobian(inputs)
    weights = list(network.parameters())
    for point in range(4):
        for output in range(3):
            value = network(inputs[point])[output]
            gradients = torch.autograd.grad(value, weights)
            torch.testing.assert_close(found[point, output], torch.cat([each.flatten() for each in gradients]))
