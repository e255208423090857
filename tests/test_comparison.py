import math

import pytest
import torch
from torch import nn

import effdeg
from tests.models import mlp

FAST = {"paths": 60, "nodes": 12, "degree": 6}
X = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))


class Scaled(nn.Module):
    """A model whose logits are multiplied: sharper probabilities, a more complex function."""

    def __init__(self, scale):
        super().__init__()
        self.model, self.scale = mlp(), scale

    def forward(self, x):
        return self.model(x) * self.scale


def test_differences_are_paired():
    models = {"sharp": Scaled(8.0), "plain": Scaled(1.0), "sharper": Scaled(8.5)}
    comparison = effdeg.compare(models, X, **FAST)
    assert comparison.ranking == ["plain", "sharp", "sharper"]
    by_pair = {(d.simpler, d.other): d for d in comparison.differences()}
    difference = by_pair["sharp", "sharper"]
    sample = comparison.measurements["sharper"].per_path - comparison.measurements["sharp"].per_path
    assert difference.value == pytest.approx(float(sample.mean()))
    assert difference.stderr == pytest.approx(float(sample.std()) / math.sqrt(60))
    # On the same paths even a small difference shows, though the two intervals overlap almost wholly.
    assert difference.significant
    sharp, sharper = (comparison.measurements[name].interval() for name in ("sharp", "sharper"))
    assert sharp[1] > sharper[0]
    assert "sharp is simpler than sharper" in str(comparison)
    record = comparison.to_dict()
    assert record["ranking"] == comparison.ranking
    assert len(record["differences"]) == 3


def test_equal_models_are_not_distinguished():
    torch.manual_seed(0)
    noise = {f"model {i}": mlp(seed=i) for i in range(2)}
    comparison = effdeg.compare(noise | {"twin": mlp(seed=1)}, X, **FAST)
    twins = next(d for d in comparison.differences() if {d.simpler, d.other} == {"model 1", "twin"})
    assert twins.value == 0
    assert not twins.significant
    assert "not distinguishable from" in str(comparison)


def test_false_alarms_are_rare():
    """Three models that differ by noise in their outputs alone: all intervals hold together in 95% of comparisons."""
    alarms = 0
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        models = {str(i): lambda x: x + torch.randn(x.shape, generator=generator) for i in range(3)}  # noqa: B023
        comparison = effdeg.compare(models, X, seed=seed, output="identity", **FAST)
        alarms += any(difference.significant for difference in comparison.differences())
    assert alarms <= 12


def test_an_iterable_is_read_once():
    comparison = effdeg.compare({"a": mlp(seed=0), "b": mlp(seed=1)}, (part for part in X.split(7)), **FAST)
    expected = effdeg.compare({"a": mlp(seed=0), "b": mlp(seed=1)}, X, **FAST)
    assert str(comparison) == str(expected)


def test_normalized():
    comparison = effdeg.compare({"a": Scaled(1.0), "b": Scaled(9.0)}, X, output="identity", normalized=True, **FAST)
    assert comparison.differences()[0].value == pytest.approx(0, abs=1e-5)  # scaling the logits changes nothing


def test_models_need_names():
    with pytest.raises(TypeError, match="models must be a dict of models by name, not a list"):
        effdeg.compare([mlp(), mlp()], X)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: effdeg.compare({"a": mlp()}, X), "at least two models, not 1"),
        (lambda: effdeg.compare({"a": mlp(), "b": mlp()}, X, tolerance=0.1), "tolerance= would give each model"),
        (
            lambda: effdeg.Comparison.of({
                "a": effdeg.measure(mlp(), X, **FAST),
                "b": effdeg.measure(mlp(), X, seed=1, **FAST),
            }),
            "'a' and 'b' cannot be compared. They differ in seed: 0 and 1. Measure",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
