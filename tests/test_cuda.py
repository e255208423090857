"""On a GPU: the same numbers, nothing left behind, and a batch that fits."""

import pytest
import torch
from torch import nn

import effdeg
from effdeg.functional import chebyshev_nodes, cosine_nodes, effective_degree, fit, project
from tests.models import Tokens, mlp

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

FAST = {"paths": 40, "nodes": 50, "degree": 20}
X = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("settings", [{}, {"components": 2}, {"sampling": "chebyshev"}, {"basis": "legendre"}])
def test_a_gpu_measures_what_the_cpu_does(settings):
    expected = effdeg.measure(mlp().double(), X, **FAST, **settings)
    for model, where in ((mlp().double().cuda(), {}), (mlp().double(), {"device": "cuda"})):
        for inputs in (X, X.cuda()):
            measured = effdeg.measure(model, inputs, **FAST, **settings, **where)
            torch.testing.assert_close(measured.per_path, expected.per_path, rtol=1e-8, atol=1e-10)
            traced = effdeg.trace(
                model, inputs, paths=40, nodes=50, sampling=settings.get("sampling", "cosine"), **where
            )
            rest = {name: value for name, value in settings.items() if name != "sampling"}
            torch.testing.assert_close(traced.fit(degree=20, **rest).per_path, expected.per_path, rtol=1e-8, atol=1e-10)


def test_the_random_state_of_gpus_survives_measuring_on_the_cpu():
    models = (mlp(), lambda x: x)
    torch.rand(1, device="cuda")
    state = torch.cuda.get_rng_state()
    for model in models:
        effdeg.measure(model, X, **FAST)
        assert torch.equal(torch.cuda.get_rng_state(), state)


def test_device_leaves_the_model_where_it_was():
    model = mlp()
    state = torch.cuda.get_rng_state()
    effdeg.measure(model, X, device="cuda", dtype=torch.bfloat16, **FAST)
    assert all(parameter.device.type == "cpu" and parameter.dtype == torch.float32 for parameter in model.parameters())
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_a_path_at_a_layer():
    inputs = {"input_ids": torch.randint(30, (20, 7)), "attention_mask": torch.ones(20, 7, dtype=torch.int64)}
    expected = effdeg.measure(Tokens().double(), inputs, at="embed", **FAST)
    measured = effdeg.measure(Tokens().double().cuda(), inputs, at="embed", **FAST)
    torch.testing.assert_close(measured.per_path, expected.per_path, rtol=1e-8, atol=1e-10)


def test_out_of_memory_halves_the_batch():
    class Hungry(nn.Module):
        """Needs a gigabyte for every point."""

        def __init__(self):
            super().__init__()
            self.model, self.batches = mlp(), []

        def forward(self, x):
            torch.empty(len(x), 2**30, dtype=torch.uint8, device=x.device)
            self.batches.append(len(x))
            return self.model(x)

    hungry = Hungry().cuda()
    measured = effdeg.measure(hungry, X, paths=16, nodes=20, degree=5)
    expected = effdeg.measure(mlp(), X, paths=16, nodes=20, degree=5)
    torch.testing.assert_close(measured.per_path, expected.per_path, rtol=1e-3, atol=1e-6)
    assert max(hungry.batches) < 200


@pytest.mark.parametrize("damping", [0.0, 1e-9])
def test_the_maths_gives_the_same_values_and_gradients(damping):
    values = torch.randn(30, 8, 100, dtype=torch.float64)
    for alpha in (cosine_nodes(8, 30, generator=torch.Generator().manual_seed(0)), chebyshev_nodes(8)):
        results = []
        for device in ("cpu", "cuda"):
            leaf = values.clone().to(device).requires_grad_()
            degree = effective_degree(fit(project(leaf, 3), alpha.to(device), 5, damping=damping)).sum()
            degree.backward()
            results.append((degree.detach().cpu(), leaf.grad.cpu()))
        torch.testing.assert_close(results[0], results[1], rtol=1e-7, atol=1e-8)
