"""The properties of tests/properties.py, applied to every measure and every method of training."""

from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import effdeg
from effdeg import baselines, changes, proxies
from tests.batches import X, Y
from tests.models import mlp, rescale, trained_relu
from tests.properties import (
    assert_close,
    assert_invariant_to_scale,
    assert_left_as_it_came,
    assert_same_for_every_batch_size,
)

PATHS = {"paths": 17, "nodes": 8, "degree": 3}
OTHER = mlp().double()


class Restless(nn.Module):
    """BatchNorm, dropout, and in evaluation mode too a buffer that a forward pass changes and one that it replaces."""

    def __init__(self, *, calm=False):
        super().__init__()
        torch.manual_seed(0)
        self.calm = calm
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 4))
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(()))

    def forward(self, x):
        if not self.calm:
            self.calls += 1
            self.last = self.last + x.detach().mean()
        return self.body(x)


def restless(*, calm=False):
    """Return a model whose modes, gradients and requires_grad differ from layer to layer."""
    model = Restless(calm=calm).double()
    model.body[1].eval()
    cross_entropy(model(X), Y).backward()
    model.body[0].bias.grad = None
    model.body[4].bias.requires_grad_(False)
    return model


def measure(model, **how):
    measured = effdeg.measure(model, X, **PATHS, **how)
    names = ("per_path", "per_path_normalized", "spectrum", "pairs")
    return {name: getattr(measured, name) for name in names}


def compare(model, **how):
    compared = effdeg.compare({"model": model, "other": OTHER}, X, **PATHS, **how)
    return {name: each.value for name, each in compared.measurements.items()}


def pick(model, **how):
    return effdeg.pick({"model": model, "other": OTHER}, X, change=torch.neg, **how).scores


def proxy(name, model, loss=cross_entropy, **how):
    reference = {key: each + 1 for key, each in model.state_dict().items()}
    needed = {"reference": reference, "others": [OTHER], "labeled": (X.flip(0), Y), "change": changes.noise(1.0)}
    return proxies.evaluate(model, (X, Y), loss, names=[name], **needed, **PATHS, **how)[name].value


def trace(model, **how):
    traced = effdeg.trace(model, X, paths=17, nodes=8, **how)
    return {name: getattr(traced, name) for name in ("outputs", "alpha", "ends", "pairs")}


MEASURES = {
    "measure": measure,
    "measure at a layer": partial(measure, at="body.0"),
    "trace": trace,
    "compare": compare,
    "pick": pick,
    **{name: partial(proxy, name) for name in proxies.names()},
}


@pytest.mark.parametrize("name", MEASURES)
def test_no_batch_size_changes_a_measure(name):
    # The steps of Lanczos magnify rounding.
    rel = 1e-3 if name.startswith("hessian") else 1e-9
    assert_same_for_every_batch_size(partial(MEASURES[name], restless(calm=True)), rel=rel)


@contextmanager
def default_dtype():
    kept = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(kept)


@pytest.mark.parametrize("name", [*MEASURES, "uniform", "chebyshev"])
def test_no_default_device_or_precision_changes_a_measure(name):
    model = restless(calm=True)
    measured = MEASURES.get(name, partial(measure, sampling=name))
    expected = measured(model)
    with torch.device("meta"), default_dtype():  # a tensor that is not made where the data are has no values
        assert_close(measured(model), expected, rel=1e-9)


class TestAModelIsLeftAsItCame:
    @pytest.mark.parametrize(
        "change",
        [
            lambda model: model.eval(),
            lambda model: model.zero_grad(),
            lambda model: model.requires_grad_(True),
            lambda model: model.body[0].weight.data.add_(1e-12),
            lambda model: model.calls.add_(1),
            lambda model: model.register_buffer("calls", model.calls.clone()),
            lambda model: model.body[0].register_forward_hook(print),
            lambda model: torch.rand(()),
        ],
    )
    def test_every_change_is_noticed(self, change):
        model = restless()
        with pytest.raises(AssertionError), assert_left_as_it_came(model):
            change(model)

    @pytest.mark.parametrize("name", MEASURES)
    def test_by_every_measure(self, name):
        # The path norm does not let a forward pass change its buffers.
        model = restless(calm=name == "path_norm")
        with assert_left_as_it_came(model):
            MEASURES[name](model, batch_size=5)

    @pytest.mark.parametrize("name", [*list(MEASURES)[:4], "margin@10", "jacobian_norm"])
    @pytest.mark.parametrize("fails_at", [1, 2, 4])
    def test_when_it_raises(self, name, fails_at):
        model = restless()
        model.body[4].register_forward_hook(_failing(fails_at, lambda *_: None))
        with assert_left_as_it_came(model), pytest.raises(ArithmeticError, match="on purpose"):
            MEASURES[name](model, batch_size=5)

    @pytest.mark.parametrize("name", [name for name in MEASURES if "sharpness" in name or "hessian" in name])
    @pytest.mark.parametrize("fails_at", [1, 2, 4])
    def test_when_the_loss_raises(self, name, fails_at):
        model = restless()
        with assert_left_as_it_came(model), pytest.raises(ArithmeticError, match="on purpose"):
            proxy(name, model, _failing(fails_at, cross_entropy), batch_size=5)

    def test_by_sharpness(self):
        model = restless()
        with assert_left_as_it_came(model):
            proxies.sharpness(model, (X, Y), cross_entropy, adaptive=True)

    @pytest.mark.parametrize(
        "name",
        [
            *("plain", "mixup+sam", "embedding-mixup", "asam", "jacobian", "ed", "ed at a layer", "cutmix"),
            *("regmixup", "manifold-mixup", "rdrop", "r3f", "r3f at a layer"),
        ],
    )
    def test_by_every_method_of_training_but_for_what_it_trains(self, name):
        model = restless(calm=True)
        at = {"at": "body.0"} if name in {"embedding-mixup", "ed at a layer", "r3f at a layer"} else {}
        at = {"at": [None, "body.0"]} if name == "manifold-mixup" else at
        classes = {"classes": 4} if "mix" in name else {}
        method = baselines.method(name.partition(" ")[0], **at, **classes)
        optimizer = method.optimizer(model, torch.optim.SGD, lr=0.1)
        images, y = method.batch(X.view(12, 1, 2, 3), Y)
        x = images.flatten(1)
        with assert_left_as_it_came(model, but={"buffers", "random state"}):
            method.loss(model, x, y, cross_entropy)

        def closure():
            loss = method.loss(model, x, y, cross_entropy)
            loss.backward()
            return loss

        with assert_left_as_it_came(model, but={"weights", "buffers", "gradients", "random state"}):
            optimizer.step(closure)


def _failing(at, function):
    """Return the function, which raises from a call on."""
    calls = 0

    def call(*arguments):
        nonlocal calls
        calls += 1
        if calls >= at:
            raise ArithmeticError("on purpose")
        return function(*arguments)

    return call


# What does not notice that a ReLU layer is scaled up and the next scaled down, which changes no output.
LAYERS = {
    *("effective_degree", "effective_degree_normalized", "path_norm", "margin@10", "margin@50", "mixup_margin"),
    *("jacobian_norm", "decision_regions", "linear_regions", "total_variation"),
    *("activation_changes", "spectral_centroid"),
    *("confidence", "entropy", "nuclear_norm", "mano", "energy", "cot", "disagreement"),
    *("inconsistency", "inconsistency_soft"),
}
# One factor for a whole layer cancels out of a product of norms, one for each unit does not.
WHOLE_LAYERS = {"frobenius_product", "spectral_product", "spectral_margin@10", "spectral_margin@50"}
# What does not notice a last layer that is scaled down.
OUTPUTS = {
    *("effective_degree_normalized", "decision_regions", "linear_regions", "mixup_margin"),
    *("spectral_margin@10", "spectral_margin@50", "disagreement", "inconsistency"),
    *("activation_changes", "spectral_centroid"),
}
INVARIANT = {"whole layer": LAYERS | WHOLE_LAYERS, "each unit": LAYERS, "outputs": OUTPUTS}
# The rank of an example by its entropy, from which an accuracy is predicted, depends little on the scale of outputs.
LEFT_OUT = ("distance", "hessian", "thresholded_confidence")
NAMES = [name for name in proxies.names() if not name.startswith(LEFT_OUT)]


@pytest.fixture(scope="module")
def values():
    """The proxies of a trained network, and of the same at other scales, by kind and name."""
    model, (x, y) = trained_relu()
    torch.manual_seed(1)
    models = {
        "original": model,
        "whole layer": rescale(model, torch.full((12,), 4.0).double()),
        "each unit": rescale(model, torch.exp(torch.randn(12)).double() * 2),
        "outputs": rescale(model, torch.ones(12).double(), outputs=0.1),
    }
    for kind in ("whole layer", "each unit"):
        torch.testing.assert_close(models[kind](x), model(x), rtol=1e-12, atol=1e-12)
    settings = {"names": NAMES, "others": [nn.Linear(5, 3).double()], "paths": 30, "nodes": 20, "degree": 8}
    settings["change"] = changes.noise(0.5)
    return {kind: proxies.evaluate(each, (x, y), cross_entropy, **settings).row() for kind, each in models.items()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["whole layer", "each unit", "outputs"])
def test_what_notices_another_scale(values, kind, name):
    check = partial(assert_invariant_to_scale, lambda kind: values[kind][name], "original", kind)
    if name in INVARIANT[kind]:
        check(rel=1e-3 if name in WHOLE_LAYERS else 1e-8)  # a spectral norm is found to 1e-4
    elif name.startswith("adaptive") and kind != "outputs":  # but for eta
        check(rel=0.2)
    else:
        with pytest.raises(AssertionError):
            check(rel=0.02)


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_the_normalized_degree_of_a_measurement_does_not_notice_the_scale_of_outputs(factor):
    def normalized(model):
        measured = effdeg.measure(model, X, output="identity", **PATHS)
        return {"normalized": measured.per_path_normalized, "residual": measured.residual}

    model = mlp().double()
    assert_invariant_to_scale(normalized, model, lambda x: factor * model(x))
