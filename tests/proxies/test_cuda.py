"""On a GPU: the same numbers as on the CPU, and a model that stays where it was."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from effdeg import changes, proxies

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

ROUTE = {"paths": 20, "nodes": 15, "degree": 5}


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 5)
    ).double()


@pytest.mark.parametrize("name", [name for name in proxies.names() if name != "distance"])
def test_a_gpu_gives_what_the_cpu_does(name):
    x = torch.randn(30, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.arange(30) % 5
    needed = {"others": [lambda x: x.flatten(1)[:, :5]], "labeled": (x.flip(0), y), "change": changes.noise(1.0)}
    settings = {"names": [name], "batch_size": 8, **needed, **ROUTE}
    expected = proxies.evaluate(network(), (x, y), cross_entropy, **settings)[name]
    moved, there = network(), network().cuda()
    for model, data, where in (
        (there, (x.cuda(), y.cuda()), {}),
        (there, (x, y), {}),
        (moved, (x, y), {"device": "cuda"}),
    ):
        found = proxies.evaluate(model, data, cross_entropy, **settings, **where)[name]
        assert found.value == pytest.approx(expected.value, rel=1e-3 if name == "hessian_eigenvalue" else 1e-6)
    assert next(moved.parameters()).device.type == "cpu"
