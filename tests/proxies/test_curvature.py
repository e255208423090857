"""Curvature against Hessians written out: by differentiating twice, and by differences of the gradient."""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, l1_loss, mse_loss, scaled_dot_product_attention

from effdeg._adapters.derivatives import PlainWeightNorm
from effdeg.proxies import evaluate, hessian_eigenvalue, hessian_trace
from tests.batches import X, Y
from tests.models import mlp


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.head = nn.Linear(2, 12), nn.Linear(4, 4)

    def forward(self, x):
        q, k, v = self.qkv(x.view(len(x), 3, 2)).chunk(3, dim=-1)
        return self.head(scaled_dot_product_attention(q, k, v).mean(1))


def transformer():
    block = nn.TransformerEncoderLayer(4, 2, dim_feedforward=3, activation="gelu", batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (3, 2)), nn.Linear(2, 4), block, nn.Flatten(), nn.Linear(12, 4))


def signal(*middle):
    return nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), *middle, nn.Tanh(), nn.Flatten(), nn.Linear(16, 4)
    )


MODELS = {
    "linear, LayerNorm": lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 4)),
    "InstanceNorm": lambda: signal(nn.InstanceNorm1d(4, affine=True)),
    "BatchNorm of the batch": lambda: signal(nn.BatchNorm1d(4, track_running_stats=False)),
    "BatchNorm": lambda: signal(nn.BatchNorm1d(4)),
    "GroupNorm": lambda: signal(nn.GroupNorm(2, 4)),
    "SiLU": lambda: mlp(activation=nn.SiLU),
    "weight norm": lambda: nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 4)
    ),
    "attention": Attention,
    "transformer": transformer,
}


def make(name):
    torch.manual_seed(0)
    model = MODELS[name]().double()
    with torch.no_grad():
        for parameter in model.parameters():  # scales and shifts that are not 1 and 0, as if learnt
            parameter += 0.3 * torch.randn_like(parameter)
    return model.eval()


def loss_of(model, x=X, y=Y, loss=cross_entropy):
    """The mean loss as a function of all weights in one row."""
    weights = {name: each.detach() for name, each in model.named_parameters()}
    sizes = [each.numel() for each in weights.values()]

    def compute(flat):
        parts = zip(weights, flat.split(sizes), weights.values(), strict=True)
        stand_ins = {name: part.view_as(like) for name, part, like in parts}
        with sdpa_kernel(SDPBackend.MATH), PlainWeightNorm():
            return loss(functional_call(model, stand_ins, (x,)), y)

    return compute, torch.cat([each.flatten() for each in weights.values()])


def written_out(model, **given):
    return torch.autograd.functional.hessian(*loss_of(model, **given))


def by_differences(model, step=1e-5, **given):
    """The Hessian by central differences of the gradient, column by column: no second derivative is taken."""
    compute, at = loss_of(model, **given)

    def gradient(weights):
        weights = weights.detach().requires_grad_()
        return torch.autograd.grad(compute(weights), weights)[0]

    columns = [(gradient(at + move) - gradient(at - move)) / (2 * step) for move in step * torch.eye(len(at)).double()]
    return torch.stack(columns)


@pytest.mark.filterwarnings("ignore:the outputs of the model .* depend on the other examples")
@pytest.mark.parametrize("name", MODELS)
def test_against_the_whole_hessian(name):
    model = make(name)
    differences, hessian = by_differences(model), written_out(model)
    assert torch.allclose(differences, hessian, rtol=1e-6, atol=1e-8)
    expected = float(torch.linalg.eigvalsh(hessian)[-1])
    top = hessian_eigenvalue(model, (X, Y), cross_entropy, tolerance=1e-8)
    assert top.value == pytest.approx(expected, rel=1e-9)
    assert hessian_eigenvalue(model, (X, Y), cross_entropy).value == pytest.approx(expected, rel=1e-3)
    trace = hessian_trace(model, (X, Y), cross_entropy, samples=30)
    assert abs(trace.value - float(hessian.trace())) < 4 * trace.stderr
    # Random signs see the diagonal without error: all of the variance is 2 Σ over i ≠ j of H_ij².
    spread = (2 * (hessian.square().sum() - hessian.diagonal().square().sum()) / 30).sqrt()
    assert trace.stderr == pytest.approx(float(spread), rel=0.5)


def test_frozen_weights_are_left_out_and_batches_add_up():
    model = mlp().double()
    whole = hessian_eigenvalue(model, (X, Y), cross_entropy).value
    model[0].requires_grad_(False)
    rows = slice(-sum(each.numel() for each in model[2].parameters()), None)
    block = written_out(model)[rows, rows]
    found = hessian_eigenvalue(model, (X, Y), cross_entropy, batch_size=5, tolerance=1e-8)
    assert found.value == pytest.approx(float(torch.linalg.eigvalsh(block)[-1]), rel=1e-9)
    assert 0 < found.stderr < found.value < whole


def test_a_loss_without_curvature():
    model, y = nn.Linear(6, 1).double(), X[:, :1] + 9
    assert hessian_eigenvalue(model, (X, y), l1_loss).value == 0
    assert hessian_trace(model, (X, y), l1_loss).value == 0


@pytest.mark.parametrize(("measure", "setting"), [(hessian_eigenvalue, "tolerance"), (hessian_trace, "samples")])
def test_numbers_are_checked(measure, setting):
    with pytest.raises(ValueError, match=setting):
        measure(mlp(), (X, Y), cross_entropy, **{setting: 0})


class FusedWeightNorm(nn.Module):
    """Torch's own kernel of weight norm, whose second derivative is wrong."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.direction, self.length = nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.rand(4, 1))

    def forward(self, x):
        return x @ torch._weight_norm_interface(self.direction, self.length)[0].T


class Drawing(nn.Linear):
    def forward(self, x):
        return super().forward(x * torch.rand_like(x))


@pytest.mark.filterwarnings("ignore:the model .* returns different outputs for the same point")
@pytest.mark.parametrize("measure", [hessian_eigenvalue, hessian_trace])
@pytest.mark.parametrize("model", [FusedWeightNorm(), Drawing(6, 4)])
def test_second_derivatives_that_are_wrong_are_told(measure, model):
    with pytest.raises(ValueError, match="Hessian of the loss is not symmetric"):
        measure(model.double(), (X, Y), cross_entropy)


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


def test_an_operation_without_a_second_derivative_leaves_hessians_out():
    class Squared(nn.Linear):
        def forward(self, x):
            return Once.apply(super().forward(x))

    table = evaluate(Squared(6, 4).double(), (X, Y), cross_entropy, paths=5, nodes=9, degree=3)
    assert "cannot be differentiated twice" in table.skipped["hessian_trace"]
    assert "sharpness@0.05" in table


def test_second_derivatives_that_are_not_finite_are_told():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(6).double())

        def forward(self, x):
            return (x.abs() @ self.weight.square()).sqrt()

    with pytest.raises(ValueError, match="NaN or infinite"):
        hessian_eigenvalue(Root(), (X, X[:, 0]), mse_loss)
