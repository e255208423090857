"""Norms against their definitions, spectral norms against materialized matrices."""

import copy
import math

import pytest
import torch
from torch import nn

from effdeg.proxies import (
    NotApplicable,
    distance,
    frobenius_product,
    frobenius_sum,
    parameter_norm,
    spectral_product,
    spectral_sum,
)
from effdeg.proxies._evaluator import Evaluator
from effdeg.proxies._norms import linear_maps
from tests.models import mlp


def matrix_of(function, shape):
    """Materialize a linear map: its image of every unit vector."""
    size = math.prod(shape)
    units = torch.eye(size, dtype=torch.float64).view(size, *shape)
    return torch.cat([function(unit[None]).flatten(1) for unit in units]).T


LAYERS = {
    "plain": (nn.Conv2d(2, 3, 3, padding=1), (2, 6, 5)),
    "strided": (nn.Conv2d(2, 4, 3, stride=2, padding=1), (2, 7, 6)),
    "dilated": (nn.Conv2d(2, 2, 3, dilation=2), (2, 7, 7)),
    "grouped": (nn.Conv2d(4, 4, 3, groups=2, padding="same"), (4, 5, 5)),
    "circular": (nn.Conv2d(1, 3, 3, padding=1, padding_mode="circular"), (1, 6, 6)),
    "without bias": (nn.Conv2d(2, 3, 2, bias=False), (2, 5, 5)),
    "transposed": (nn.ConvTranspose2d(2, 3, 3, stride=2), (2, 4, 4)),
    "one dimension": (nn.Conv1d(3, 4, 5), (3, 12)),
    "three dimensions": (nn.Conv3d(1, 2, 2), (1, 3, 4, 3)),
    "matrix": (nn.Linear(9, 5), (9,)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_spectral_norm_is_that_of_the_materialized_map(name):
    torch.manual_seed(1)
    layer, shape = LAYERS[name]
    layer = copy.deepcopy(layer).double()
    zero = layer(torch.zeros(1, *shape, dtype=torch.float64))
    exact = float(torch.linalg.svdvals(matrix_of(lambda x: layer(x) - zero, shape).detach())[0])
    found = spectral_sum(layer, torch.randn(4, *shape, dtype=torch.float64)).value
    assert found == pytest.approx(exact, rel=1e-4)
    assert found <= exact * (1 + 1e-9)


def test_products_and_sums_over_all_weights():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3)).double()
    images = torch.randn(3, 1, 4, 4, dtype=torch.float64)
    norms = [float(model[index].weight.detach().norm()) for index in (0, 3)]
    assert frobenius_product(model).value == pytest.approx(norms[0] * norms[1])
    assert frobenius_sum(model).value == pytest.approx(sum(norms))
    each = [spectral_sum(model[0], images).value, float(torch.linalg.matrix_norm(model[3].weight.detach(), 2))]
    assert spectral_product(model, images).value == pytest.approx(each[0] * each[1], rel=1e-4)
    assert spectral_sum(model, images).value == pytest.approx(sum(each), rel=1e-4)


def test_a_product_beyond_floats_keeps_its_logarithm():
    model = nn.Sequential(*[nn.Linear(20, 20, bias=False) for _ in range(300)])
    for layer in model:
        nn.init.constant_(layer.weight, 1.0)  # a norm of 20 each
    found = frobenius_product(model)
    assert math.isinf(found.value)
    assert found.settings["logarithm"] == pytest.approx(300 * math.log(20))


NORMS = [parameter_norm, frobenius_sum, spectral_sum, frobenius_product, spectral_product]


@pytest.mark.parametrize("factor", [1e200, 1e-200])
def test_weights_whose_squares_leave_the_range_of_float64(factor):
    model, large = nn.Linear(6, 4).double(), nn.Linear(6, 4).double()
    with torch.no_grad():
        for one, other in zip(large.parameters(), model.parameters(), strict=True):
            one.copy_(factor * other)
    for norm in NORMS:
        assert norm(large).value == pytest.approx(factor * norm(model).value, rel=1e-9)
    zero = {name: torch.zeros_like(each) for name, each in model.state_dict().items()}
    assert distance(large, zero).value == pytest.approx(factor * parameter_norm(model).value, rel=1e-9)


def test_weights_that_are_no_numbers_have_no_norm():
    broken, codes = nn.Linear(6, 4), nn.Linear(6, 4)
    nn.init.constant_(broken.weight, torch.nan)
    codes.weight = nn.Parameter(torch.ones(4, 6, dtype=torch.int8), requires_grad=False)
    for norm in NORMS:
        with pytest.raises(NotApplicable, match="'weight' holds NaN or infinite"):
            norm(broken)
        with pytest.raises(NotApplicable, match=r"'weight' is in torch\.int8, as quantized weights are"):
            norm(codes)


def test_complex_weights_have_norms_but_no_spectral_norm_here():
    model = nn.Linear(6, 4, bias=False, dtype=torch.complex128)
    expected = torch.view_as_real(model.weight.detach()).norm().item()
    assert frobenius_sum(model).value == parameter_norm(model).value == pytest.approx(expected)
    with pytest.raises(NotApplicable, match="'weight' is complex"):
        spectral_sum(model)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.attention = nn.MultiheadAttention(4, 2)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.position = nn.Parameter(torch.ones(1, 3, 4))


def test_which_weights_are_linear_maps():
    model = Tied()
    with Evaluator.open(model) as evaluator:
        maps = {each.name: each.weight for each in linear_maps(evaluator)}
    # A shared weight once, the weight that weight norm makes, no positions, no biases.
    assert set(maps) == {"embedding.weight", "attention.in_proj_weight", "attention.out_proj.weight", "normed.weight"}
    assert torch.equal(maps["normed.weight"], model.normed.weight)


def test_parameter_norm_and_distance():
    first, second = mlp(seed=0), mlp(seed=1)
    one, two = (nn.utils.parameters_to_vector(model.parameters()).detach().double() for model in (first, second))
    assert parameter_norm(first).value == pytest.approx(float(one.norm()), rel=1e-7)
    for reference in (second, second.state_dict(), nn.DataParallel(second)):
        assert distance(first, reference).value == pytest.approx(float((one - two).norm()), rel=1e-7)
    assert distance(first, copy.deepcopy(first)).value == 0
    with pytest.raises(ValueError, match="shares its memory with the model"):
        distance(first, first.state_dict())


def test_a_largest_singular_value_that_hides():
    # One direction of a thousand is stretched a little more than the others, and a random start hardly has it.
    direction = torch.randn(1000, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    direction = direction / direction.norm()
    model = nn.Linear(1000, 1000, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.eye(1000) + 0.0015 * torch.outer(direction, direction))
    for seed in range(3):
        assert spectral_sum(model, seed=seed).value == pytest.approx(1.0015, abs=1e-5)


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm"])
def test_layers_whose_weight_is_made_in_the_older_way(kind):
    layer = getattr(nn.utils, kind)(nn.Conv2d(2, 3, 3, padding=1))
    x = torch.randn(1, 2, 5, 5)
    layer.eval()(x)
    plain = nn.Conv2d(2, 3, 3, padding=1)
    plain.weight = nn.Parameter(layer.weight.detach().clone())
    found = spectral_sum(layer, x)
    assert found.settings["maps"] == 1
    assert found.value == pytest.approx(spectral_sum(plain, x).value, rel=1e-4)
    assert frobenius_sum(layer).value == pytest.approx(frobenius_sum(plain).value)


def test_hooks_of_a_layer_are_not_run_by_the_search():
    layer, calls = nn.Conv2d(1, 2, 3), []
    expected = spectral_sum(layer, torch.randn(1, 1, 6, 6)).value
    layer.register_forward_hook(lambda module, given, output: calls.append(1) or torch.relu(output))
    assert spectral_sum(layer, torch.randn(1, 1, 6, 6)).value == pytest.approx(expected)
    assert len(calls) == 1  # the one pass that finds the size


def test_a_reference_as_ddp_and_the_compiler_save_it():
    first, second = mlp(seed=0), mlp(seed=1)
    expected = distance(first, second).value
    for prefix in ("module.", "_orig_mod.", "module._orig_mod."):
        saved = {prefix + name: each for name, each in second.state_dict().items()}
        assert distance(first, {**saved, "epoch": 3}).value == expected


def test_a_convolution_that_does_not_run_is_left_out():
    class WithHead(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.spare = nn.Conv2d(1, 2, 3), nn.Conv2d(1, 9, 3)

        def forward(self, x):
            return self.body(x)

    model, x = WithHead(), torch.randn(1, 1, 6, 6)
    found = spectral_product(model, x)
    assert found.settings["maps"] == 1
    assert found.value == pytest.approx(spectral_sum(model.body, x).value)


def test_integers_are_no_reference():
    integers = {name: (10 * weight).to(torch.int8) for name, weight in mlp().state_dict().items()}
    with pytest.raises(ValueError, match=r"reference= holds integers \('0.weight' in torch.int8\)"):
        distance(mlp(), integers)


def test_matrices_of_other_names_are_mentioned():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel, self.pos_embed = nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(1, 3, 2))
            self.weight = nn.Parameter(torch.eye(2))

    with pytest.warns(UserWarning, match=r"matrices that are not counted, .*: kernel\.$"):
        assert frobenius_sum(Named()).value == pytest.approx(math.sqrt(2))
