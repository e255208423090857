"""Sharpness-aware minimization, against its formulas written out."""

import copy
import io
import pickle
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, lr_scheduler

from effdeg.baselines import ASAM, SAM
from tests.batches import X, Y
from tests.models import mlp

BASES = {
    "sgd": partial(SGD, lr=0.1),
    "momentum": partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": partial(AdamW, lr=0.01),
}
KINDS = {"sam": SAM, "asam": ASAM}


def make(kind, model, base=SGD, **options):
    return KINDS[kind](model.named_parameters(), base, **options)


def closure_of(model, optimizer, x=X, y=Y):
    return closing(lambda: cross_entropy(model(x), y), optimizer)


def closing(compute_loss, optimizer=None):
    """A closure, which need not clear the gradients."""

    def closure():
        if optimizer is not None:
            optimizer.zero_grad()
        loss = compute_loss()
        loss.backward()
        return loss

    return closure


def climbed(named, gradients, kind, rho, eta):
    """w + rho T² g / |T g|, written out."""
    scales = [w.abs() + eta if kind == "asam" and "weight" in name else torch.ones_like(w) for name, w in named]
    norm = sum(((scale * gradient) ** 2).sum() for scale, gradient in zip(scales, gradients, strict=True)).sqrt()
    return [
        weight + rho * scale**2 * gradient / norm
        for (_, weight), scale, gradient in zip(named, scales, gradients, strict=True)
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("base", BASES)
def test_steps_are_the_papers(kind, base):
    model, reference = mlp().double(), mlp().double()
    optimizer = make(kind, model, BASES[base], rho=0.7)
    plain = BASES[base](reference.parameters())
    for _ in range(3):
        loss = optimizer.step(closure_of(model, optimizer))
        expected = cross_entropy(reference(X), Y)
        gradients = torch.autograd.grad(expected, list(reference.parameters()))
        named = [(name, weight.detach()) for name, weight in reference.named_parameters()]
        uphill = [weight.requires_grad_() for weight in climbed(named, gradients, kind, 0.7, 0.01)]
        outputs = torch.func.functional_call(reference, dict(zip(dict(named), uphill, strict=True)), X)
        for parameter, gradient in zip(
            reference.parameters(), torch.autograd.grad(cross_entropy(outputs, Y), uphill), strict=True
        ):
            parameter.grad = gradient
        plain.step()
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(list(model.parameters()), list(reference.parameters()), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_closure_need_not_clear_the_gradients(kind):
    results = []
    for clears in (True, False):
        model = mlp().double()
        optimizer = make(kind, model, lr=0.1)
        for _ in range(3):
            optimizer.step(closure_of(model, optimizer if clears else None))
            optimizer.zero_grad()
        results.append(list(model.parameters()))
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_groups_have_their_own_rho_and_share_the_norm():
    model, seen = mlp().double(), []
    parameters = list(model.parameters())
    before = [parameter.detach().clone() for parameter in parameters]
    groups = [{"params": parameters[:2], "rho": 0.3}, {"params": parameters[2:], "lr": 0.5}]
    optimizer = SAM(groups, SGD, rho=0.1, lr=0.2)

    def closure():
        closure_of(model, optimizer)()
        seen.append([(parameter.detach().clone(), parameter.grad.clone()) for parameter in parameters])

    optimizer.step(closure)
    norm = torch.cat([gradient.flatten() for _, gradient in seen[0]]).norm()
    for index, rho in enumerate([0.3, 0.3, 0.1, 0.1]):
        torch.testing.assert_close(seen[1][index][0], before[index] + rho * seen[0][index][1] / norm)
        stepped = before[index] - [0.2, 0.2, 0.5, 0.5][index] * seen[1][index][1]
        torch.testing.assert_close(parameters[index].detach(), stepped)


def test_what_has_no_gradient_stays():
    model = mlp()
    model[0].requires_grad_(False)
    unused = nn.Parameter(torch.ones(3))
    optimizer = SAM([*model.parameters(), unused], SGD, lr=0.1, weight_decay=0.1)
    before = copy.deepcopy(model.state_dict())
    optimizer.step(closure_of(model, optimizer, X.float()))
    assert torch.equal(model[0].weight, before["0.weight"])
    assert not torch.equal(model[2].weight, before["2.weight"])
    assert torch.equal(unused, torch.ones(3))


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_without_gradients_is_the_bases(kind):
    model, stepped = mlp().requires_grad_(False), []
    optimizer = make(kind, model, lr=0.1, weight_decay=0.1)
    optimizer.base.register_step_pre_hook(lambda *_: stepped.append(True))
    before = copy.deepcopy(model.state_dict())
    loss = optimizer.step(lambda: cross_entropy(model(X.float()), Y))
    torch.testing.assert_close(loss, cross_entropy(model(X.float()), Y))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert stepped == [True]


def test_without_gradients_an_error_in_the_second_pass_is_not_hidden():
    passes = []

    def closure():
        passes.append(True)
        if len(passes) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SAM(mlp().parameters(), SGD, lr=0.1).step(closure)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_gradient_of_zero_moves_nothing(kind, dtype):
    weight = nn.Parameter(torch.ones(3, dtype=dtype))
    optimizer = KINDS[kind]([("weight", weight)], SGD, lr=0.1)
    seen = []

    def compute_loss():
        seen.append(weight.detach().clone())
        return (0 * weight).sum()

    optimizer.step(closing(compute_loss))
    assert all(torch.equal(each, torch.ones(3, dtype=dtype)) for each in (*seen, weight.detach()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("failure", ["raises", "nan"])
def test_the_weights_come_back_bit_for_bit(kind, failure):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    optimizer = make(kind, model, lr=0.0)
    passes = []

    def closure():
        optimizer.zero_grad()
        passes.append([parameter.detach().clone() for parameter in model.parameters()])
        loss = cross_entropy(model(X.float()), Y) * (torch.nan if failure == "nan" and len(passes) == 2 else 1)
        statistics.append(model[1].running_var.clone())
        if failure == "raises" and len(passes) == 2:
            raise KeyboardInterrupt
        loss.backward()
        return loss

    statistics = []
    if failure == "raises":
        with pytest.raises(KeyboardInterrupt):
            optimizer.step(closure)
    else:
        optimizer.base.step = lambda: None
        optimizer.step(closure)
    assert not torch.equal(passes[1][0], passes[0][0])
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), passes[0], strict=True))
    assert torch.equal(model[1].running_var, statistics[0])
    assert not torch.equal(model[1].running_var, statistics[1])


# Checkpoints, schedulers, copies: what belongs to the base.


def steps(model, optimizer, count, scheduler=None):
    for _ in range(count):
        optimizer.step(closure_of(model, optimizer))
        if scheduler is not None:
            scheduler.step()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("base", ["momentum", "adamw"])
def test_resuming_equals_not_stopping_bit_for_bit(kind, base):
    model = mlp().double()
    optimizer = make(kind, model, BASES[base], rho=0.3)
    optimizer.param_groups[0]["rho"] = 0.2
    scheduler = lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    steps(model, optimizer, 3, scheduler)
    file = io.BytesIO()
    torch.save([each.state_dict() for each in (model, optimizer, scheduler)], file)
    steps(model, optimizer, 3, scheduler)

    resumed = mlp(seed=5).double()
    again = make(kind, resumed, BASES[base])
    rescheduled = lr_scheduler.StepLR(again, 2, gamma=0.5)
    file.seek(0)
    for each, state in zip((resumed, again, rescheduled), torch.load(file, weights_only=True), strict=True):
        each.load_state_dict(state)
    assert again.param_groups[0]["rho"] == 0.2
    assert again.param_groups is again.base.param_groups
    assert again.state is again.base.state
    steps(resumed, again, 3, rescheduled)
    for parameter, expected in zip(resumed.parameters(), model.parameters(), strict=True):
        assert torch.equal(parameter, expected)


def test_a_checkpoint_of_the_base_alone_can_be_continued():
    model = mlp().double()
    base = BASES["momentum"](model.parameters())
    cross_entropy(model(X), Y).backward()
    base.step()
    optimizer = SAM(model.parameters(), BASES["momentum"], rho=0.3)
    optimizer.load_state_dict(base.state_dict())
    assert optimizer.param_groups[0]["rho"] == 0.3
    steps(model, optimizer, 1)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_goes_on_by_itself(kind, duplicate):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)).double()
    optimizer = KINDS[kind](model.named_parameters(), SGD, lr=0.1, momentum=0.9)
    steps(model, optimizer, 2)
    twin, of_twin = duplicate((model, optimizer))
    assert of_twin.param_groups is of_twin.base.param_groups
    assert of_twin.state is of_twin.base.state
    assert of_twin.param_groups[0]["params"][0] is twin[0].weight
    steps(model, optimizer, 2)
    assert not torch.equal(twin[0].weight, model[0].weight)
    steps(twin, of_twin, 2)
    for value, expected in zip(twin.state_dict().values(), model.state_dict().values(), strict=True):
        assert torch.equal(value, expected)


def test_hooks_and_later_groups():
    model, extra, calls = mlp().double(), nn.Parameter(torch.ones(4, dtype=torch.float64)), []
    optimizer = ASAM(model.named_parameters(), SGD, lr=0.1, momentum=0.9)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    optimizer.register_load_state_dict_post_hook(lambda *_: calls.append("loaded"))
    optimizer.add_param_group({"params": [("extra", extra)], "lr": 0.5, "rho": 2.0})
    assert optimizer.base.param_groups[1]["momentum"] == 0.9
    assert optimizer.param_groups[1]["eta"] == 0.01

    optimizer.step(closing(lambda: cross_entropy(model(X) * extra, Y)))
    assert not torch.equal(extra, torch.ones(4))
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls == ["before", "after", "loaded"]
    assert "momentum_buffer" in optimizer.base.state[extra]


def test_weights_of_several_precisions_share_one_norm():
    weights = [nn.Parameter(torch.full((4,), 2.0, dtype=dtype)) for dtype in (torch.float64, torch.bfloat16)]
    seen = []

    def compute_loss():
        seen.append([weight.detach().clone() for weight in weights])
        return sum((3 * weight).sum() for weight in weights)

    SAM(weights, SGD, lr=0.1, rho=1.0).step(closing(compute_loss))
    for weight in seen[1]:
        torch.testing.assert_close(weight.double(), torch.full((4,), 2 + 8**-0.5).double(), rtol=4e-3, atol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("factor", [1e-30, 1e25])
def test_the_ascent_of_a_tiny_or_huge_gradient_has_its_length(kind, factor):
    """The squares of such gradients, as of a network that is certain of everything, are 0 or infinite in float32."""
    moves = []
    for scale in (1.0, factor):
        model, seen = mlp(), []
        model.register_parameter("unused", nn.Parameter(torch.empty(0)))
        model.unused.grad = torch.empty(0)
        optimizer = make(kind, model, lr=0.0)

        def compute_loss(model=model, seen=seen, scale=scale):
            seen.append(nn.utils.parameters_to_vector(model.parameters()).detach().clone())
            return scale * cross_entropy(model(X.float()), Y)

        optimizer.step(closing(compute_loss))
        moves.append(seen[1] - seen[0])
    torch.testing.assert_close(*moves, rtol=1e-3, atol=1e-6)


def test_sparse_gradients():
    model = nn.Embedding(5, 2, sparse=True)
    optimizer, seen = SAM(model.parameters(), torch.optim.SparseAdam, rho=1.0), []

    def compute_loss():
        seen.append(model.weight.detach().clone())
        return model(torch.tensor([1, 3, 3])).sum()

    optimizer.step(closing(compute_loss, optimizer))
    torch.testing.assert_close(seen[1] - seen[0], torch.tensor([0.0, 1, 0, 2, 0])[:, None].expand(5, 2) / 10**0.5)


# Bad input.


def test_bad_settings():
    parameters = list(mlp().parameters())
    for rho in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=f"rho={rho} must be positive"):
            SAM(parameters, SGD, rho=rho, lr=0.1)
        with pytest.raises(ValueError, match="must be positive"):
            SAM([{"params": parameters, "rho": rho}], SGD, lr=0.1)
    with pytest.raises(ValueError, match="eta=-1 must be zero or positive"):
        ASAM(mlp().named_parameters(), SGD, eta=-1, lr=0.1)
    for wrong in ("0.1", None, True, [0.1]):
        with pytest.raises(TypeError, match=r"rho=.* must be a number, positive: it is the length of the ascent"):
            SAM(parameters, SGD, rho=wrong, lr=0.1)
        with pytest.raises(TypeError, match=r"eta=.* must be a number, zero or positive"):
            ASAM(mlp().named_parameters(), SGD, eta=wrong, lr=0.1)
    with pytest.raises(TypeError, match=r"model must be the nn.Module with the BatchNorm layers"):
        SAM(parameters, SGD, lr=0.1, model=lambda x: x)


def test_bad_bases():
    parameters = list(mlp().parameters())
    with pytest.raises(TypeError, match=r"base is an instance of AdamW; give the class .*torch.optim.AdamW"):
        SAM(parameters, AdamW(parameters))
    with pytest.raises(TypeError, match="base is str"):
        SAM(parameters, "sgd")
    with pytest.raises(TypeError, match="base must return a torch optimizer, but it returned a list"):
        SAM(parameters, lambda groups: groups)
    with pytest.raises(TypeError, match="Adadelta has an option called rho too"):
        SAM(parameters, torch.optim.Adadelta)
    for base in (torch.optim.LBFGS, partial(torch.optim.LBFGS, lr=0.1)):
        with pytest.raises(TypeError, match=r"SAM calls LBFGS.step without arguments: .*'closure'.*another base"):
            SAM(parameters, base)


def test_a_step_needs_a_closure_and_asam_names():
    with pytest.raises(TypeError, match=r"optimizer.step\(closure\)"):
        SAM(mlp().parameters(), SGD, lr=0.1).step()
    with pytest.raises(TypeError, match="named_parameters"):
        ASAM(mlp().parameters(), SGD, lr=0.1)
    with pytest.raises(TypeError, match="named_parameters"):
        ASAM([{"params": mlp().parameters()}], SGD, lr=0.1)


def norm_model(norm):
    torch.manual_seed(0)
    return nn.Sequential(nn.Unflatten(1, (2, 3)), norm, nn.Flatten(), nn.Dropout(0.0), nn.Linear(6, 4)).double()


NORMS = {
    "default": lambda: nn.BatchNorm1d(2),
    "cumulative": lambda: nn.BatchNorm1d(2, momentum=None),
    "instance": lambda: nn.InstanceNorm1d(2, track_running_stats=True),
    "untracked": lambda: nn.BatchNorm1d(2, track_running_stats=False),
    "lazy": nn.LazyBatchNorm1d,
    "synchronized": lambda: nn.SyncBatchNorm(2),
}


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("norm", NORMS)
def test_batchnorm_learns_from_the_first_pass_alone(norm, given):
    if norm == "synchronized" and not torch.cuda.is_available():
        pytest.skip("SyncBatchNorm needs a GPU")
    device = "cuda" if norm == "synchronized" else "cpu"
    model, plain = (norm_model(NORMS[norm]()).to(device) for _ in range(2))
    x, y = X.to(device), Y.to(device)
    for each in (model, plain):
        each(x)
    optimizer = SAM(model.parameters(), SGD, lr=0.1, model=model if given else None)
    for number in range(3):
        plain.load_state_dict(model.state_dict())
        cross_entropy(plain(x + number), y).backward()
        optimizer.step(closure_of(model, optimizer, x + number, y))
        for buffer, expected in zip(model.buffers(), plain.buffers(), strict=True):
            assert torch.equal(buffer, expected)
    assert norm == "untracked" or len(list(model.buffers())) == 3


def test_batchnorm_in_evaluation_mode_and_of_ones_own():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.running_mean = nn.Buffer(torch.zeros(6))
            self.passes = 0

        def forward(self, x):
            self.running_mean = self.running_mean + x.mean(0).detach()
            return x - self.running_mean

    model, plain = (nn.Sequential(nn.BatchNorm1d(6).eval(), Own(), nn.Linear(6, 4)) for _ in range(2))
    plain(X.float())
    optimizer = SAM(model.parameters(), SGD, lr=0.1)
    optimizer.step(closure_of(model, optimizer, X.float()))
    for buffer, expected in zip(model.buffers(), plain.buffers(), strict=True):
        assert torch.equal(buffer, expected)


@pytest.mark.parametrize("kind", ["model", "loss", "full loss"])
def test_batchnorm_is_found_in_compiled_models_too(kind):
    model, plain = norm_model(NORMS["default"]()), norm_model(NORMS["default"]())

    def loss_of(x, y):
        return cross_entropy(model(x), y)

    run = torch.compile(model, backend="eager")
    if kind == "model":
        loss_of_compiled = lambda x, y: cross_entropy(run(x), y)  # noqa: E731
    else:
        loss_of_compiled = torch.compile(loss_of, backend="eager", fullgraph=kind == "full loss")
    optimizer = SAM(model.parameters(), SGD, lr=0.0)

    for _ in range(3):
        optimizer.step(closing(lambda: loss_of_compiled(X, Y), optimizer))
        plain(X)
    for buffer, expected in zip(model.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(buffer, expected)
    assert not torch.nn.modules.module._global_forward_pre_hooks
