"""What is seen along paths: closed forms, and the same numbers as effdeg.measure."""

import numpy as np
import pytest
import scipy.fft
import torch
from torch import nn

import effdeg
from effdeg.proxies import decision_regions, effective_degree, evaluate, spectral_centroid, total_variation
from tests.batches import X, Y, tokens
from tests.models import Tokens, mlp

ROUTE = {"paths": 40, "nodes": 30, "degree": 10}


def test_the_effective_degree_is_that_of_measure():
    model = mlp().double()
    for normalized, output in ((False, "softmax"), (True, "identity")):
        found = effective_degree(model, (X, Y), normalized=normalized, seed=3, **ROUTE)
        measured = effdeg.measure(model, X, seed=3, output=output, **ROUTE)
        assert (found.value, found.stderr) == pytest.approx(measured.estimate(normalized=normalized), rel=1e-9)
    at_layer = {"model": Tokens().double(), "at": "embed", **ROUTE}
    expected = effdeg.measure(inputs=tokens(), **at_layer).value
    assert effective_degree(data=tokens(), **at_layer).value == pytest.approx(expected, rel=1e-9)


class Waves(nn.Module):
    """Class 1 where a wave is above zero: at 0 < x < 1/4, 1/2 < x < 3/4."""

    def forward(self, x):
        return torch.cat([torch.zeros_like(x), 2 * torch.sin(4 * torch.pi * x)], dim=1)


def test_decision_regions_of_a_wave():
    ends = torch.tensor([[0.1], [0.9]])
    # 0.1 (class 1), 0.25 to 0.5 (class 0), 0.5 to 0.75 (class 1), up to 0.9 (class 0).
    assert decision_regions(Waves(), ends, **ROUTE).value == 4
    assert decision_regions(Waves(), torch.tensor([[0.05], [0.2]]), **ROUTE).value == 1


def test_total_variation_of_a_rise_and_of_a_wave():
    def rise(x):
        return torch.cat([torch.zeros_like(x), 4 * x], dim=1)

    ends = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    route = effdeg.trace(rise, ends, paths=40, nodes=30)
    probabilities = torch.sigmoid(4 * (2 * route.alpha - 1))
    span = (probabilities[:, -1] - probabilities[:, 0]).abs().mean()  # the same for a way back
    assert total_variation(rise, ends, **ROUTE).value == pytest.approx(float(span), rel=1e-9)
    assert total_variation(lambda x: rise(torch.sin(9 * x)), ends, **ROUTE).value > 4 * float(span)


def test_the_spectral_centroid_is_that_of_scipys_transform():
    model = mlp().double()
    traced = effdeg.trace(model, X, paths=40, nodes=31, seed=3)
    points, centroids = (np.arange(31) + 0.5) / 31, []
    for alpha, outputs in zip(traced.alpha.numpy(), traced.values("identity").numpy(), strict=True):
        for values in outputs.T:
            series = np.abs(scipy.fft.dct(np.interp(points, alpha, values)))[:11]
            series[0] /= 2
            centroids.append((np.arange(11) * series).sum() / series.sum())
    found = spectral_centroid(model, X, paths=40, nodes=31, degree=10, seed=3)
    assert found.value == pytest.approx(np.mean(centroids), rel=1e-9)
    per_path = np.reshape(centroids, (40, 4)).mean(1)
    assert found.stderr == pytest.approx(per_path.std(ddof=1) / 40**0.5, rel=1e-9)
    assert found.settings == {"paths": 40, "nodes": 31, "degree": 10}


@pytest.mark.parametrize("frequency", [0, 1, 6])
def test_the_spectral_centroid_of_a_wave_is_its_frequency(frequency):
    ends = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    found = spectral_centroid(lambda x: torch.cos(frequency * torch.pi * x), ends, paths=20)
    assert found.value == pytest.approx(frequency, rel=0.02, abs=1e-9)


def test_tokens_each_count_for_regions():
    def per_token(x):
        return torch.stack([torch.zeros_like(x), x], dim=-1)  # examples × tokens × 2 classes

    # The tokens change class at different places: two borders.
    ends = torch.tensor([[-1.0, -0.5], [0.5, 1.0]])
    assert decision_regions(per_token, ends, **ROUTE).value == 3


@pytest.mark.parametrize(
    ("model", "message"), [(nn.Linear(6, 1), "always 1"), (nn.Sequential(mlp(), nn.Softmax(1)), "Let it return logits")]
)
def test_one_number_has_no_classes_and_probabilities_are_no_logits(model, message):
    table = evaluate(model, X.float(), **ROUTE)
    for name in ("effective_degree", "decision_regions", "total_variation"):
        assert message in table.skipped[name]
    assert table["effective_degree_normalized"].value > 0
    assert table["spectral_centroid"].value > 0
