"""What several methods have in common: a property each, for all of them."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import dropout
from torch.nn.parallel import DistributedDataParallel

from effdeg import baselines, changes
from tests.batches import X, Y
from tests.models import Shared, TwoInputs, Unexpected, mlp
from tests.properties import assert_same_under_vmap
from tests.train.test_loops import Checkpointed


def mix_images(model, x, y, **settings):
    images = x.unflatten(1, (1, 2, 3)) if isinstance(x, torch.Tensor) else x
    mixed, soft = baselines.cutmix(images, y, **settings)
    return model(mixed.flatten(1)), soft


def mix_inputs(model, x, y, **settings):
    mixed, soft = baselines.mixup(x, y, **settings)
    return model(mixed), soft


TEACHER = mlp(seed=1).double()


def interpolate_unlabeled(model, x, y, **settings):
    return baselines.ICT(TEACHER, **settings)(model, x, unlabeled=x)


def keep_consistent(method):
    return lambda model, x, y, **settings: method(changes.noise(0.5), **settings)(model, x, unlabeled=x)


def call(method):
    return lambda model, x, y, **settings: method(**settings)(model, x, y)


LABELED = {
    "mixup": mix_inputs,
    "cutmix": mix_images,
    "embedding-mixup": lambda *given, at="layer", **settings: baselines.embedding_mixup(*given, at=at, **settings),
    "manifold-mixup": lambda *given, at="layer", **settings: baselines.manifold_mixup(*given, at=[at], **settings),
    "regmixup": call(baselines.RegMixup),
}
DRAWING = {
    **LABELED,
    "ict": interpolate_unlabeled,
    **{name: keep_consistent(getattr(baselines, name)) for name in ("Consistency", "UDA", "FixMatch")},
    "r3f": call(baselines.R3F),
    "jacobian": call(baselines.JacobianPenalty),
}
SETTINGS = {name: {"classes": 4} for name in LABELED} | {"r3f": {"noise": 0.5}, "FixMatch": {"threshold": 0}}
SETTINGS["UDA"] = {"threshold": 0}
AT_LAYERS = ["embedding-mixup", "manifold-mixup", "r3f", "jacobian"]


def run(name, model, x=X, y=Y, **settings):
    return DRAWING[name](model, x, y, **SETTINGS.get(name, {}) | settings)


@pytest.mark.parametrize("name", DRAWING)
def test_a_generator_repeats_itself_and_leaves_the_global_state(name):
    model, at = mlp().double(), {"at": "1"} if name in {"embedding-mixup", "manifold-mixup"} else {}
    state = torch.get_rng_state()
    found = [
        [each.detach() for each in run(name, model, generator=torch.Generator().manual_seed(seed), **at)]
        for seed in (5, 5, 6)
    ]
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    assert not torch.equal(found[0][1], found[2][1])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", DRAWING)
def test_settings_and_batches_that_are_refused_before_the_model_is_run(name):
    def refuse(kind, message, x=X, y=Y, **settings):
        with pytest.raises(kind, match=message):
            run(name, Unexpected(), x, y, **settings)

    refuse(TypeError, "generator=3 must be a torch.Generator or None", generator=3)
    if name in {*LABELED, "ict"}:
        refuse(ValueError, "alpha=0.0 must be positive", alpha=0.0)
        refuse(TypeError, "alpha='1' must be a number, positive", alpha="1")
    if name in LABELED:
        refuse(ValueError, "classes=…", classes=None)
        refuse(ValueError, "labels from 0 to 3 do not match classes=3", classes=3)
        refuse(TypeError, "classes=2.5 must be a whole number", classes=2.5)
        refuse(ValueError, "needs a tensor of 12 rows", y=Y[:3])
    if name in {*LABELED, "ict", "r3f"}:
        refuse(TypeError, "complex numbers|complex", x=X.cfloat())
    if name not in {"cutmix", "jacobian"}:
        refuse(ValueError, "x holds 'labels'", x={"x": X, "labels": Y})
    if name in {*LABELED, "r3f"} - {"cutmix"}:
        refuse(TypeError, "first dimension|no examples", x="text")
    if name in AT_LAYERS:
        refuse(ValueError, "Did you mean 'layer'", at="layr")
        refuse(TypeError, "at=3 must be the name of a layer", at=3)


@pytest.mark.parametrize("name", AT_LAYERS)
def test_layers_that_cannot_be_used(name):
    model = Shared().double()
    with pytest.raises(ValueError, match="ran 2 times"):
        run(name, model, at="layer")
    assert not any(module._forward_hooks for module in model.modules())
    if name != "jacobian":
        with pytest.raises(ValueError, match=r"'block.0' runs inside torch.utils.checkpoint"):
            run(name, Checkpointed(False), at="block.0")


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("name", ["embedding-mixup", "r3f"])
def test_wrapped_models_at_a_layer(name):
    def value_of(model):
        torch.manual_seed(3)
        outputs, value = run(name, model, at="1")
        return outputs.square().sum() + value.sum()

    model = mlp().double()
    expected = value_of(model)
    gradients = torch.autograd.grad(expected, list(model.parameters()))
    compiled, parallel = torch.compile(model, backend="eager"), DistributedDataParallel(model)
    compiled(X)
    for each in (compiled, parallel, model.forward):
        torch.testing.assert_close(value_of(each), expected)
    for _ in range(2):
        parallel.zero_grad()
        value_of(parallel).backward()
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], list(gradients))


PENALTIES = {
    **{f"regmixup {loss}": baselines.RegMixup(classes=4, loss=loss) for loss in ("cross-entropy", "brier", "l1")},
    "rdrop": baselines.RDrop(),
    "r3f": baselines.R3F(0.5),
    "r3f at a layer": baselines.R3F(0.5, at="1"),
    "jacobian": baselines.JacobianPenalty(),
}


def test_they_say_what_they_are():
    assert repr(PENALTIES["regmixup l1"]) == "RegMixup(alpha=10.0, classes=4, loss='l1')"
    assert repr(PENALTIES["r3f at a layer"]) == "R3F(noise=0.5, at='1')"
    assert repr(baselines.ICT(TEACHER, alpha=0.1)) == "ICT(alpha=0.1)"


def drop(model):
    return lambda x: dropout(model(x), 0.2)


@pytest.mark.parametrize("name", PENALTIES)
def test_half_precision_is_summed_in_single(name):
    model = mlp()
    with torch.autocast("cpu", torch.bfloat16):
        outputs, value, *_ = PENALTIES[name](drop(model) if name == "rdrop" else model, X.float(), Y)
    assert (outputs.dtype, value.dtype) == (torch.bfloat16, torch.float32)
    value.backward()
    assert model[0].weight.grad.abs().sum() > 0


@pytest.mark.parametrize("name", ["regmixup cross-entropy", "r3f", "rdrop"])
def test_several_models_under_vmap(name):
    models = [nn.Sequential(nn.Dropout(0.5 if name == "rdrop" else 0.0), mlp(seed=seed)).double() for seed in range(2)]
    assert_same_under_vmap(PENALTIES[name], models, X, Y)


@pytest.mark.parametrize(("mix", "x"), [(baselines.mixup, X), (baselines.cutmix, X.view(12, 1, 2, 3))])
def test_several_batches_under_vmap(mix, x):
    run, xs, ys = partial(mix, classes=4), torch.stack([x, 2 * x]), torch.stack([Y, Y.flip(0)])
    torch.manual_seed(3)
    same = torch.vmap(run, randomness="same")(xs, ys)
    for number in range(2):
        torch.manual_seed(3)
        for both, alone in zip(same, run(xs[number], ys[number]), strict=True):
            torch.testing.assert_close(both[number], alone)
    mixed, _ = torch.vmap(run, randomness="different")(x.expand(2, *x.shape), Y.expand(2, 12))
    assert not torch.equal(*mixed)


@pytest.mark.parametrize("name", ["regmixup l1", "rdrop", "r3f"])
def test_several_inputs_and_outputs(name):
    model, values = TwoInputs().double(), []

    def wrapped(left, right, scale):
        logits = model(left, dropout(right, 0.5) if name == "rdrop" else right)
        return {"scale": scale, "logits": logits, "norm": torch.ones(3)}

    for x, more in (
        ((X[:, :3], X[:, 3:], 2.0), {}),
        ({"left": X[:, :3], "right": X[:, 3:], "scale": 2.0}, {}),
        (X[:, :3], {"right": X[:, 3:], "scale": 2.0}),
    ):
        torch.manual_seed(3)
        outputs, value, *labels = PENALTIES[name](wrapped, x, Y, **more)
        values.append(value)
        if name == "rdrop":
            assert outputs["logits"].shape == (24, 4)
            assert torch.equal(labels[0], torch.cat([Y, Y]))
        else:
            torch.testing.assert_close(outputs["logits"], model(X[:, :3], X[:, 3:]))
        assert (outputs["scale"], outputs["norm"].shape) == (2.0, (3,))
    assert values[0] == values[1] == values[2] > 0


@pytest.mark.parametrize("name", ["regmixup brier", "rdrop", "r3f"])
def test_outputs_that_are_no_logits(name):
    x, y = torch.rand(8, 6), torch.arange(8) % 4
    for model, message in (
        (lambda x: x.sum(), r"returned \(\) for a joined batch of 8 \+ 8 examples, but no tensor with 16"),
        (lambda x: x[:, :1], "softmax|logits of shape"),
        (nn.Sequential(mlp(), nn.Dropout(0.1), nn.Softmax(-1)), "outputs are probabilities already.*Let it return log"),
    ):
        with pytest.raises(ValueError, match=message):
            PENALTIES[name](model, x, y)
    with pytest.warns(UserWarning, match=r"the network returned several tensors. \[0\] is used, not \[1\]; .*alone"):
        PENALTIES[name](lambda x: (dropout(mlp()(x)), x), x, y)


@pytest.mark.parametrize("name", ["regmixup brier", "rdrop"])
@pytest.mark.parametrize(("y", "given"), [(Y[:3], r"shape \(3,\)"), (None, "type NoneType"), (Y.tolist(), "type list")])
def test_labels_that_do_not_match_the_batch(name, y, given):
    with pytest.raises(ValueError, match=rf"the labels \(y\) are of {given}.* needs a tensor of 12 rows"):
        PENALTIES[name](Unexpected(), X, y)
    with pytest.raises(ValueError, match="x holds 'labels'"):
        PENALTIES[name](Unexpected(), {"x": X, "labels": Y}, Y)


@pytest.mark.parametrize("name", ["regmixup", "ict"])
def test_masks_are_joined_by_the_names_of_the_parameters(name):
    """A position is hidden where both examples hide it: True in a padding mask."""
    seen, hidden = [], torch.arange(6) >= 1 + torch.arange(12)[:, None] % 6

    def model(x, padding_mask):
        seen.append(padding_mask)
        return x[:, :4] * 1.0

    if name == "ict":
        baselines.ICT(lambda x, padding_mask: x[:, :4])(model, (X, X > 9), unlabeled=(X, hidden))
    else:
        baselines.RegMixup(classes=4)(model, (X, hidden), Y)
    assert all((seen[0][12 + row] == (hidden[row] & hidden)).all(1).any() for row in range(12))
