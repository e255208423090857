"""A trial finds models whose rows depend on each other, says so once, and changes nothing."""

import re
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import effdeg
from effdeg._adapters import independence as _independence
from tests.models import mlp

FAST = {"paths": 20, "nodes": 10, "degree": 5}
X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
SEQUENCES = torch.randn(40, 7, 6, generator=torch.Generator().manual_seed(1))
WARNING = r"depend on the other examples in its batch.*batch_first=True, BatchNorm in training mode.*statistics"


class First(nn.Module):
    def __init__(self, layer, width):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.layer(x)[0].mean(1))


def with_batchnorm():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def warnings_of(model, inputs, **settings):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        effdeg.measure(model, inputs, **settings, **FAST)
    return [str(each.message) for each in caught]


def in_training(model):
    """A function with a model in it, whose mode nobody can see."""
    return lambda x: model(x)


def later_rows(x):
    return mlp()(x).flip(0).cumsum(0).flip(0)


DEPENDENT = {
    "recurrent, batch second": (First(nn.GRU(6, 5), 5), SEQUENCES, {}),
    "recurrent layer before the path": (First(nn.GRU(6, 5), 5), SEQUENCES, {"at": "layer"}),
    "BatchNorm in training": (in_training(with_batchnorm()), X, {}),
    "mean over the batch": (lambda x: x - x.mean(0), X, {}),
    "mean over two": (lambda x: x - x.mean(0), X, {"batch_size": 2}),
    "later rows": (later_rows, X, {}),
    "slightly": (lambda x: x + 0.02 * x.mean(0), X, {}),
    "in bfloat16": (lambda x: (x - x.mean(0)).bfloat16(), X, {}),
}


@pytest.mark.parametrize("kind", DEPENDENT)
def test_rows_that_depend_on_each_other_are_warned_of(kind):
    model, inputs, settings = DEPENDENT[kind]
    with pytest.warns(UserWarning, match=WARNING) as caught:
        effdeg.measure(model, inputs, **settings, **FAST)
    assert len(caught) == 1
    with pytest.warns(UserWarning, match=WARNING) as caught:
        effdeg.trace(model, inputs, **settings, paths=20, nodes=10)
    assert len(caught) == 1


def test_proxies_and_every_model_of_a_comparison_are_tried():
    dependent = DEPENDENT["mean over the batch"][0]
    for names in (["total_variation"], ["total_variation", "linear_regions"]):
        with pytest.warns(UserWarning, match=WARNING) as caught:
            effdeg.proxies.evaluate(lambda x: dependent(x).relu(), X, names=names, **FAST)
        assert len(caught) == 1
    with pytest.warns(UserWarning, match=WARNING) as caught:
        effdeg.compare({"a": dependent, "b": mlp(outputs=6), "c": dependent}, X, **FAST)
    assert len(caught) == 2


def noisy():
    generator = torch.Generator().manual_seed(0)
    return lambda x: mlp()(x) + torch.randn(len(x), 4, generator=generator)


class Remembering(nn.Module):
    """Keeps in a buffer, or in an attribute, how often it was run, and answers accordingly."""

    def __init__(self, in_buffer=True):
        super().__init__()
        self.register_buffer("times", torch.zeros(())) if in_buffer else setattr(self, "times", 0)

    def forward(self, x):
        self.times += 1
        return x * self.times


INDEPENDENT = {
    "recurrent": (First(nn.GRU(6, 5, batch_first=True), 5), SEQUENCES, {}),
    "recurrent layer before the path": (First(nn.GRU(6, 5, batch_first=True), 5), SEQUENCES, {"at": "layer"}),
    "BatchNorm in a module, which is evaluated": (with_batchnorm(), X, {}),
    "dropout in a module, which is evaluated": (nn.Sequential(nn.Dropout(0.5), mlp()), X, {}),
    "constant": (lambda x: torch.ones(len(x), 3), X, {}),
    "far from zero": (lambda x: x + 1e6, X, {}),
    "bfloat16": (mlp().bfloat16(), X, {}),
    "float64": (mlp(), X, {"dtype": torch.float64}),
    "one at a time": (lambda x: x - x.mean(0), X, {"batch_size": 1}),
}


@pytest.mark.parametrize("kind", INDEPENDENT)
def test_nothing_is_said_of_rounding_and_independent_rows(kind):
    model, inputs, settings = INDEPENDENT[kind]
    assert not warnings_of(model, inputs, **{"output": "identity"} | settings)


NOISY = {
    "dropout that was left on": in_training(nn.Sequential(mlp(), nn.Dropout(0.5))),
    "dropout that was left on, in bfloat16": in_training(nn.Sequential(mlp(), nn.Dropout(0.5)).bfloat16()),
    "noise of its own": noisy(),
    "numpy's noise": lambda x: x + torch.from_numpy(np.random.standard_normal(x.shape)),
    "a little": lambda x: x + 0.02 * torch.randn_like(x),
    "a state in a buffer": Remembering(),
    "a state in an attribute": Remembering(in_buffer=False),
}


@pytest.mark.parametrize("batch_size", [2, None])
@pytest.mark.parametrize("kind", NOISY)
def test_noise_is_warned_of_and_not_taken_for_a_dependence(kind, batch_size):
    inputs = X.bfloat16() if "bfloat16" in kind else X
    causes = r"different outputs for the same point.*dropout in training mode.*keeps a state from call"
    with pytest.warns(UserWarning, match=causes) as caught:
        effdeg.measure(NOISY[kind], inputs, output="identity", batch_size=batch_size, **FAST)
    assert len(caught) == 1


def test_rounding_that_is_other_for_other_companions_is_no_dependence():
    """Sums in any order, as scattered additions on a GPU have them: a few units in the last place."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32):

        class Rounding(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones((), dtype=dtype))  # noqa: B023

            def forward(self, x):
                eps = torch.finfo(x.dtype).eps
                return (100 + x * self.weight) * (1 + 2 * eps * x.mean().sign())

        assert not warnings_of(Rounding(), X, output="identity")


@pytest.mark.filterwarnings("ignore:.*different outputs for the same point")
@pytest.mark.parametrize("at", [None, "0"])
def test_a_trial_changes_no_number(at, monkeypatch):
    """Neither random states nor buffers, also of a model that draws from the one and writes to the other."""

    class Odd(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Linear(6, 4), Remembering())

        def forward(self, x):
            return super().forward(x) + torch.randn(len(x), 4) * np.random.standard_normal()

    results, runs = [], []
    for points in (8, 1):
        monkeypatch.setattr(_independence, "POINTS", points)
        model = Odd()
        torch.manual_seed(0)
        nn.init.normal_(model[0].weight)
        nn.init.zeros_(model[0].bias)
        seen = []
        handle = model.register_forward_hook(lambda *_, seen=seen: seen.append(1))
        results.append(effdeg.measure(model, X, at=at, **FAST).per_path)
        handle.remove()
        runs.append(len(seen))
    assert torch.equal(*results)
    assert runs[0] == runs[1] + 4  # two batches, each again


def test_a_model_that_cannot_run_small_batches_is_measured():
    def model(x):
        if len(x) < 20:
            raise RuntimeError("exported for 40")
        return x

    measured = effdeg.measure(model, X, batch_size=40, **FAST)
    assert measured.value > 0
    assert not measured.settings.notes  # since it was tried on 40


def test_a_trial_that_fails_is_noted():
    calls = []

    def model(x):
        calls.append(len(x))
        if len(calls) < 3:
            raise RuntimeError("no graph for\nthis batch")
        return x

    measured = effdeg.measure(model, X, batch_size=40, **FAST)
    assert calls[:2] == [8, 40]
    reason = r"could not be checked: the model failed on 40 points \(RuntimeError: no graph for this batch\). If they"
    assert re.search(reason, str(measured))
    calls.clear()
    with pytest.warns(UserWarning, match=reason):
        effdeg.proxies.effective_degree(model, X, batch_size=40, **FAST)


def test_a_compiled_model_is_not_compiled_for_the_trial():
    """Which would come first, and make every later size a dynamic one."""
    compiled_for = []

    def backend(graph, inputs):
        compiled_for.extend(int(each.shape[0]) for each in inputs if isinstance(each, torch.Tensor))
        return graph

    effdeg.measure(torch.compile(mlp(), backend=backend), X, **FAST)
    assert 160 in compiled_for
    assert 8 not in compiled_for


@pytest.mark.parametrize(
    "model",
    [lambda x: nn.Linear(6, 3)(x), lambda x: x * torch.empty(6).bernoulli_(), lambda x: nn.functional.dropout(x, 0.03)],
    ids=["weights", "a mask for all", "seldom"],
)
def test_noise_that_all_points_of_a_batch_share_is_found(model):
    (found,) = [each for each in warnings_of(model, X) if "returns different outputs for the same point" in each]
    assert "noise counts as complexity" in found
