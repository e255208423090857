import sys

import pytest
import torch

import effdeg
from tests.models import mlp

X = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
ENDS = {"sampling": "uniform", "paths": 40, "nodes": 3}


def test_outputs_are_kept_path_after_path():
    model = mlp().eval()
    traced = effdeg.trace(model, X, **ENDS)
    with torch.no_grad():
        expected = model(X)
    values = traced.values("identity")
    assert values.shape == (40, 3, 4)
    torch.testing.assert_close(values[:, 2], expected[traced.pairs[:, 0]])
    torch.testing.assert_close(values[:, 0], expected[traced.pairs[:, 1]])
    for part in (slice(7, 20), slice(3, 20, 4), slice(-5, None)):
        assert torch.equal(traced.values("identity", part), values[part])
    torch.testing.assert_close(traced.values().sum(-1), torch.ones(40, 3))


def test_only_tensors_with_a_row_per_point_are_kept():
    traced = effdeg.trace(lambda x: {"logits": x, "loss": x.sum(), "shape": (3, 4)}, X, **ENDS)
    assert traced.outputs["logits"].shape == (120, 6)
    assert traced.outputs["loss"] is None
    assert traced.outputs["shape"] == (None, None)


def test_ends_lie_in_the_plane_of_the_data():
    """Two dimensions are turned at most: distances between the ends of paths stay."""
    inputs = X[:, :2]
    traced = effdeg.trace(torch.tanh, inputs, **ENDS)
    expected = (inputs[traced.pairs[:, 0]] - inputs[traced.pairs[:, 1]]).norm(dim=1)
    torch.testing.assert_close((traced.ends[:, 0] - traced.ends[:, 1]).norm(dim=1).float(), expected)
    assert not effdeg.trace(torch.tanh, X[:, :1], **ENDS).ends[..., 1].any()


def test_a_trace_says_what_it_is_and_which_degrees_it_allows():
    traced = effdeg.trace(mlp(), X, paths=40, nodes=30)
    with pytest.raises(ValueError, match=r"nodes=30 cannot determine a polynomial of degree=40"):
        traced.fit()
    assert repr(traced) == "Trace(paths=40, nodes=30, sampling='cosine', at=None, seed=0)"


@pytest.mark.parametrize(("outputs", "slices"), [(3, [40]), (50, [3] * 13 + [1])])
def test_the_memory_of_a_fit_does_not_grow_with_the_outputs(outputs, slices, monkeypatch):
    module = sys.modules["effdeg.measuring._tracing"]
    fitted, summarize = [], module.summarize

    def count(values, *others):
        fitted.append(len(values))
        return summarize(values, *others)

    monkeypatch.setattr(module, "summarize", count)
    monkeypatch.setattr(module, "_FITTED_AT_ONCE", 2000)
    traced = effdeg.trace(mlp(outputs=outputs), X, paths=40, nodes=12)
    expected = effdeg.measure(mlp(outputs=outputs), X, paths=40, nodes=12, degree=5)
    torch.testing.assert_close(traced.fit(degree=5).per_path, expected.per_path, rtol=1e-12, atol=0)
    assert fitted == slices


def test_a_function_of_the_outputs_that_works_in_place_leaves_the_trace_as_it_is():
    traced = effdeg.trace(mlp(), X, paths=40, nodes=12)
    twice = [traced.fit(degree=5, output=lambda logits: logits.mul_(2)).per_path for _ in range(2)]
    assert torch.equal(*twice)
