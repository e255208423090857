"""Curvature against the Hessian written out by torch.func."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from effdeg.proxies import hessian_eigenvalue, hessian_trace
from tests.batches import X, Y
from tests.models import mlp

pytest.importorskip("curvlinops.hessian", reason="curvlinops is not installed", exc_type=ImportError)


def written_out(model, x, y):
    weights = {name: each.detach() for name, each in model.named_parameters()}
    shapes = [each.shape for each in weights.values()]
    sizes = [each.numel() for each in weights.values()]

    def loss(flat):
        parts = [part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]
        return cross_entropy(torch.func.functional_call(model, dict(zip(weights, parts, strict=True)), (x,)), y)

    return torch.autograd.functional.hessian(loss, torch.cat([each.flatten() for each in weights.values()]))


@pytest.mark.parametrize("batch_size", [5, 100])
def test_against_the_whole_hessian(batch_size):
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    hessian = written_out(model, X, Y)
    top = hessian_eigenvalue(model, (X, Y), cross_entropy, batch_size=batch_size, tolerance=1e-8)
    assert top.value == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-7)
    assert 0 < top.stderr < top.value
    trace = hessian_trace(model, (X, Y), cross_entropy, batch_size=batch_size, samples=60)
    assert abs(trace.value - float(hessian.trace())) < 4 * trace.stderr
    assert trace.stderr < 0.3 * trace.value


def test_a_seed_gives_the_same_trace():
    one, same, other = (
        hessian_trace(mlp().double(), (X, Y), cross_entropy, samples=2, seed=seed).value for seed in (0, 0, 1)
    )
    assert one == same != other


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.head = nn.Linear(2, 12), nn.Linear(4, 4)

    def forward(self, x):
        q, k, v = self.qkv(x.view(len(x), 3, 2)).chunk(3, dim=-1)
        return self.head(scaled_dot_product_attention(q, k, v).mean(1))


def test_of_an_attention_model():
    model = Attention().double()
    top = hessian_eigenvalue(model, (X, Y), cross_entropy, tolerance=1e-8)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = torch.linalg.eigvalsh(written_out(model, X, Y))[-1]
    assert top.value == pytest.approx(float(expected), rel=1e-6)


def test_numbers_are_checked():
    with pytest.raises(ValueError, match="tolerance"):
        hessian_eigenvalue(mlp(), (X, Y), cross_entropy, tolerance=0)
    with pytest.raises(ValueError, match="samples"):
        hessian_trace(mlp(), (X, Y), cross_entropy, samples=1)
