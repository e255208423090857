import copy
import pickle
from functools import partial

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW

import effdeg
from effdeg import baselines
from tests.baselines.test_rdrop import with_dropout
from tests.baselines.test_sam import closing
from tests.batches import X, Y
from tests.models import mlp

SETTINGS = {
    "mixup": {"classes": 4, "alpha": 0.2},
    "cutmix": {"classes": 4, "alpha": 0.2},
    "regmixup": {"classes": 4},
    "embedding-mixup": {"classes": 4, "alpha": 0.2, "at": "1"},
    "manifold-mixup": {"classes": 4, "alpha": 0.2, "at": [None, "0", "1"]},
    "neftune": {"alpha": 0.2, "at": "1"},
    "r3f": {"noise": 0.1},
    "ed": {"weight": 0.1},
}
JOINED = [
    *("mixup+ed", "sam+ed", "mixup+sam", "mixup+asam+jacobian", "embedding-mixup+sam", "asam+ed"),
    *("cutmix+ed", "cutmix+sam", "sam+regmixup", "manifold-mixup+sam", "mixup+rdrop", "asam+rdrop", "mixup+r3f"),
]


def settings_of(name):
    return {key: value for part in name.split("+") for key, value in SETTINGS.get(part, {}).items()}


def network_for(name):
    """Return a network, with dropout where a method is about it."""
    return (with_dropout(0.2) if "rdrop" in name else mlp()).double()


def train(way, model, steps=60, base=AdamW, lr=1e-2, **loss_options):
    torch.manual_seed(7)
    optimizer = way.optimizer(model, base, lr=lr)
    losses = []
    for _ in range(steps):
        # Mixed as images, which CutMix needs.
        images, y = way.batch(X.view(12, 1, 2, 3), Y)
        x = images.flatten(1)

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = way.loss(model, x, y, cross_entropy, **loss_options)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    return losses


def weights(model):
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def test_the_names():
    expected = ["plain", "mixup", "cutmix", "regmixup", "embedding-mixup", "manifold-mixup", "neftune"]
    assert baselines.names() == [*expected, "sam", "asam", "jacobian", "rdrop", "r3f", "ed"]


@pytest.mark.parametrize("name", [*baselines.names(), *JOINED])
def test_every_method_trains(name):
    model = network_for(name)
    before = cross_entropy(model(X), Y)
    train(baselines.method(name, **settings_of(name)), model)
    assert cross_entropy(model.eval()(X), Y) < 0.6 * before


def penalize(penalty, weight):
    def loss(model, x, y):
        outputs, value = penalty(model, x, y)
        return cross_entropy(outputs, y) + weight * value

    return loss


def compare(model, x, y):
    return cross_entropy(model(x), y)


def unmixed(model):
    return SGD(model.parameters(), lr=0.1)


def uphill(kind, **options):
    return lambda model: kind(model.named_parameters(), SGD, lr=0.1, **options)


def cut():
    images, y = baselines.cutmix(X.view(12, 1, 2, 3), Y, classes=4, alpha=0.2)
    return images.flatten(1), y


SMALL = {"classes": 4, "alpha": 0.2}
LAYERS = {**SMALL, "at": [None, "0", "1"]}
# By hand: the batch, the loss and the optimizer.
BY_HAND = {
    "sam": ({"rho": 0.3}, lambda: (X, Y), compare, uphill(baselines.SAM, rho=0.3)),
    "asam": ({"rho": 0.3}, lambda: (X, Y), compare, uphill(baselines.ASAM, rho=0.3)),
    "mixup": (SMALL, lambda: baselines.mixup(X, Y, **SMALL), compare, unmixed),
    "mixup+sam": (SMALL, lambda: baselines.mixup(X, Y, **SMALL), compare, uphill(baselines.SAM)),
    "cutmix": (SMALL, cut, compare, unmixed),
    "embedding-mixup": (
        {**SMALL, "at": "1"},
        lambda: (X, Y),
        lambda *given: cross_entropy(*baselines.embedding_mixup(*given, at="1", **SMALL)),
        unmixed,
    ),
    "manifold-mixup": (
        LAYERS,
        lambda: (X, Y),
        lambda *given: cross_entropy(*baselines.manifold_mixup(*given, **LAYERS)),
        unmixed,
    ),
}
PENALTIES = {
    "ed": ({"nodes": 5, "degree": 2}, effdeg.Penalty(nodes=5, degree=2, anchor="labels"), 7.0),
    "jacobian": ({"projections": 2}, baselines.JacobianPenalty(2), 0.01),
    "r3f": ({"noise": 0.1, "at": "1"}, baselines.R3F(0.1, at="1"), 1.0),
    "regmixup": ({"alpha": 20.0, "classes": 4}, baselines.RegMixup(20.0, classes=4), 1.0),
    # The same name in upper case, for other settings.
    "REGMIXUP": ({"loss": "brier", "classes": 4}, baselines.RegMixup(classes=4, loss="brier"), 1.0),
}
for name, (settings, penalty, default) in PENALTIES.items():
    BY_HAND[name] = settings, lambda: (X, Y), penalize(penalty, default), unmixed
    BY_HAND[f"{name}, weighted"] = settings, lambda: (X, Y), penalize(penalty, 0.5), unmixed


@pytest.mark.parametrize("name", BY_HAND)
def test_a_method_by_name_is_that_by_hand(name):
    settings, batch, loss, make_optimizer = BY_HAND[name]
    model, other = mlp().double(), mlp().double()
    name, _, weighted = name.partition(", ")
    weight = {"weight": torch.tensor(0.5)} if weighted else {}
    train(baselines.method(name, **settings), model, steps=3, base=SGD, lr=0.1, **weight)
    torch.manual_seed(7)
    optimizer = make_optimizer(other)
    for _ in range(3):
        x, y = batch()
        optimizer.step(closing(partial(loss, other, x, y), optimizer))
    assert torch.equal(weights(model), weights(other))


def test_a_setting_that_two_parts_have_goes_to_both():
    generator = torch.Generator().manual_seed(0)
    way = baselines.method("mixup+ed", classes=4, generator=generator, weight=1.0)
    assert way.mix.keywords["generator"] is way.penalty.settings.generator is generator
    model, state = mlp().double(), torch.get_rng_state()
    way.loss(model, *way.batch(X, Y), cross_entropy)
    assert torch.equal(torch.get_rng_state(), state)


def test_parameter_groups_and_models_with_many_inputs():
    model = mlp().double()
    groups = [{"params": [model[0].weight], "weight_decay": 0.1}, {"params": [model[0].bias]}]
    assert baselines.method("plain").optimizer(model, SGD, params=groups, lr=0.1).param_groups[0]["weight_decay"] == 0.1
    named = [{"params": [("0.weight", model[0].weight)], "rho": 0.1}]
    assert baselines.method("asam", rho=0.7).optimizer(model, SGD, params=named, lr=0.1).param_groups[0]["rho"] == 0.1
    for x in ((X, 2.0), {"x": X, "scale": 2.0}):
        loss = baselines.method("plain").loss(lambda x, scale: model(x) * scale, x, Y, cross_entropy)
        torch.testing.assert_close(loss, cross_entropy(model(X) * 2, Y))


def test_sam_by_name_looks_after_batchnorm():
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(6), mlp()).double()
    train(baselines.method("sam"), model, steps=3)
    assert model[0].num_batches_tracked == 3


def test_names_may_have_capitals_and_spaces():
    assert repr(baselines.method(" Mixup + ASAM ")) == repr(baselines.method("mixup+asam"))


def test_settings_of_a_method_are_not_for_its_optimizer():
    model = mlp()
    with pytest.raises(TypeError, match=r"given rho=0.3, which belongs in method\('sam', rho=0.3\)"):
        baselines.method("sam", rho=0.1).optimizer(model, SGD, lr=0.1, rho=0.3)
    with pytest.raises(TypeError, match=r"belongs in method\('asam\+ed', rho=0.3, eta=0.1\)"):
        baselines.method("asam+ed").optimizer(model, SGD, lr=0.1, rho=0.3, eta=0.1)
    assert baselines.method("plain").optimizer(model, torch.optim.Adadelta, rho=0.3).param_groups[0]["rho"] == 0.3


def test_what_is_drawn_anew_in_the_second_pass_of_sam():
    """Pairs of a penalty and the mixing at a layer are; the batch that mixup mixed is the same."""
    others = ("sam+ed", "sam+jacobian", "manifold-mixup+sam", "sam+regmixup", "sam+rdrop", "sam+r3f")
    for name in ("mixup+sam", "embedding-mixup+sam", *others):
        model = network_for(name)
        way = baselines.method(name, **settings_of(name))
        # So short a climb that the loss does not change by it.
        optimizer, losses = baselines.SAM(model.parameters(), SGD, rho=1e-12, lr=0.0), []
        x, y = way.batch(X, Y)

        def closure(way=way, model=model, x=x, y=y, losses=losses):
            losses.append(way.loss(model, x, y, cross_entropy))
            losses[-1].backward()

        optimizer.step(closure)
        assert torch.allclose(*losses, rtol=1e-9, atol=0) == (name == "mixup+sam")


def test_plain_does_nothing():
    way, model = baselines.method("plain"), mlp()
    assert way.batch(X, Y) == (X, Y)
    assert type(way.optimizer(model, SGD, lr=0.1)) is SGD
    assert way.loss(model, X.float(), Y, cross_entropy, weight=3.0) == cross_entropy(model(X.float()), Y)


@pytest.mark.parametrize("name", [*baselines.names(), *JOINED])
def test_a_method_can_be_read_and_copied(name):
    way = baselines.method(name, **settings_of(name))
    assert repr(way).startswith(f"Method(name={name!r}, settings=")
    for twin in (copy.deepcopy(way), pickle.loads(pickle.dumps(way))):
        assert repr(twin) == repr(way)
        first, second = network_for(name), network_for(name)
        assert train(way, first, 2) == train(twin, second, 2)


@pytest.mark.parametrize(
    ("name", "settings", "kind", "message"),
    [
        ("mixupp", {}, ValueError, "method='mixupp' is not known. Did you mean 'mixup'"),
        ("sam+asam", {}, ValueError, "joins 'sam' and 'asam', which both act on the optimizer"),
        ("jacobian+ed", {}, ValueError, "joins 'jacobian' and 'ed', which both act on the loss"),
        ("mixup+cutmix", {}, ValueError, "joins 'mixup' and 'cutmix', which both act on the batch"),
        ("manifold-mixup", {"classes": 4}, TypeError, "at=None must be a list of the layers"),
        ("manifold-mixup", {"at": "1"}, TypeError, "at='1' must be a list of the layers"),
        ("cutmix", {"alpha": 0.0}, ValueError, "alpha=0.0 must be positive"),
        ("rdrop", {"alpha": 1.0}, TypeError, "'alpha' is not a setting of method 'rdrop'. It has none"),
        ("r3f", {"noise": 0.0}, ValueError, "noise=0.0 must be positive"),
        ("regmixup", {"loss": "mse"}, ValueError, "loss='mse' is not known"),
        ("ed", {"node": 3}, TypeError, "'node' is not a setting of method 'ed'. Did you mean 'nodes'"),
        ("sam", {"nodes": 3}, TypeError, "Choose from: 'rho'"),
        ("sam", {"weight": 3.0}, TypeError, "weight=3.0 is the weight of a penalty, but method 'sam' has none"),
        ("ed", {"weight": -1.0}, ValueError, "weight=-1.0 must be zero or positive"),
        ("ed", {"weight": torch.tensor(7.0)}, TypeError, r"must be a number.* to Method.loss"),
        ("embedding-mixup", {"at": 3}, TypeError, "at=3 must be the name of a layer or a module"),
        ("embedding_mixup", {}, ValueError, "Did you mean 'embedding-mixup'"),
        (None, {}, TypeError, "by its name, such as 'mixup.ed', but None was given"),
        ("mixup", {"classes": 0}, ValueError, "classes=0 is too small"),
        *[(name, {"generator": 3}, TypeError, "generator=3 must be") for name in ("mixup", "jacobian", "ed")],
        ("ed", {"nodes": 2}, ValueError, "nodes=2"),
        ("jacobian", {"projections": 0}, ValueError, "projections=0"),
        ("sam", {"rho": -1.0}, ValueError, "rho=-1.0"),
        ("asam", {"eta": -1.0}, ValueError, "eta=-1.0"),
    ],
)
def test_bad_input_is_found_at_once(name, settings, kind, message):
    with pytest.raises(kind, match=message):
        baselines.method(name, **settings)
