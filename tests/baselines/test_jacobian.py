"""The Jacobian penalty, against torch.func.jacrev."""

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev, vmap
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from effdeg.baselines import JacobianPenalty
from tests.batches import X, Y, tokens
from tests.models import Pair, Tokens, TwoInputs, Unexpected, mlp, with_batchnorm


def jacobian_norm(function, *inputs):
    """Half the mean over the batch of the squared Frobenius norm, example by example."""
    jacobians = vmap(
        jacrev(lambda *each: function(*(one[None] for one in each))[0], argnums=tuple(range(len(inputs))))
    )(*inputs)
    return sum(jacobian.square().sum() for jacobian in jacobians) / (2 * len(inputs[0]))


class Maps(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return torch.sin(self.linear(x)).view(-1, 2, 3)


class Single(nn.Module):
    def forward(self, x):
        return torch.tanh(x).prod(1)


# How people give a model two inputs: x, and keywords.
FORMS = {
    "tuple": lambda left, right: ((left, right), {}),
    "mapping": lambda left, right: ({"left": left, "right": right}, {}),
    "dataclass": lambda left, right: (Pair(left, right), {}),
    "keywords": lambda left, right: (left, {"right": right}),
}

MODELS = {
    "linear": nn.Linear(6, 4).double(),
    "network": mlp().double(),
    "maps": Maps().double(),
    "one output": Single(),
    "in place": nn.Sequential(nn.ELU(inplace=True), mlp()).double(),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_exact_value(name):
    model, x = MODELS[name], X.clone()
    expected = jacobian_norm(lambda each: model(each.clone()), X)
    outputs, value = JacobianPenalty(-1)(model, x, Y)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(outputs, model(X.clone()))
    assert torch.equal(x, X)
    assert not x.requires_grad
    assert x.grad is None


def test_examples_that_are_single_numbers():
    numbers = X[:, 0]
    _, value = JacobianPenalty(-1)(lambda x: torch.stack([x.sin(), x**2], 1), numbers)
    torch.testing.assert_close(value, (numbers.cos() ** 2 + (2 * numbers) ** 2).mean() / 2)


@pytest.mark.parametrize(("share", "taken"), [(1, 12), (0.25, 3)])
@pytest.mark.parametrize("form", FORMS)
def test_all_floating_inputs_count(form, share, taken):
    model = TwoInputs().double()
    left, right = X[:, :3], X[:, 3:]
    x, more = FORMS[form](left, right)
    outputs, value = JacobianPenalty(-1, share=share)(model, x, **more)
    torch.testing.assert_close(value, jacobian_norm(model, left[:taken], right[:taken]))
    torch.testing.assert_close(outputs, model(left, right))


@pytest.mark.parametrize("mask", [X > 0, (X > 0).double()], ids=["boolean", "floating"])
@pytest.mark.parametrize(("share", "taken"), [(1, 12), (0.25, 3)])
def test_what_is_no_input_does_not_count(share, taken, mask):
    """Masks, labels, unused inputs, and what all examples share, though it has as many rows as examples are taken."""
    model, rows = mlp().double(), []

    def run(x, mask, shared, labels, unused):
        rows.append(len(x))
        assert len(mask) == len(labels) == len(x)
        assert not shared.requires_grad
        assert not labels.requires_grad
        return {"loss": x.sum(), "logits": model(x * mask) * shared.sum() + labels[:, None]}

    shared = X[0, :3]
    x = {"x": X, "mask": mask, "shared": shared, "labels": X[:, 0], "unused": X}
    outputs, value = JacobianPenalty(-1, share=share)(run, x)
    torch.testing.assert_close(value, jacobian_norm(lambda x: model(x * (x > 0)) * shared.sum(), X[:taken]))
    torch.testing.assert_close(outputs, run(**x))
    assert rows == ([12, 12] if share == 1 else [3, 12, 12])


def draw_values(model, projections, draws=200):
    torch.manual_seed(0)
    return torch.stack([JacobianPenalty(projections)(model, X)[1].detach() for _ in range(draws)])


@pytest.mark.parametrize("name", ["maps", "one output"])
def test_random_projections_are_unbiased_and_more_of_them_vary_less(name):
    exact, values = JacobianPenalty(-1)(MODELS[name], X)[1], [draw_values(MODELS[name], count) for count in (1, 3)]
    assert all(abs(each.mean() - exact) <= 4 * each.std() / 200**0.5 + 1e-12 for each in values)
    if name == "one output":
        assert values[0].std() < 1e-12
    else:
        assert 0.75 < values[0].std() / values[1].std() / math.sqrt(3) < 1.35


@pytest.mark.parametrize("projections", [2, -1])
def test_under_batchnorm_in_training_all_projections_estimate_the_same(projections):
    """Namely the squares of all derivatives of the batch's outputs with respect to the batch's inputs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4)).double()
    whole = float(torch.autograd.functional.jacobian(model, X).square().sum()) / (2 * len(X))
    values = draw_values(model, projections)
    assert abs(float(values.mean()) - whole) < 4 * float(values.std()) / 200**0.5 < 0.2 * whole


@pytest.mark.parametrize("projections", [-1, 2])
def test_the_gradient(projections):
    model = mlp().double()
    parameters = {name: parameter.detach().clone().requires_grad_() for name, parameter in model.named_parameters()}
    torch.manual_seed(0)
    JacobianPenalty(projections)(model, X)[1].backward()
    torch.manual_seed(0)
    directions = [torch.randn(12, 4, dtype=torch.float64) for _ in range(2)]
    jacobians = vmap(jacrev(lambda x: functional_call(model, parameters, x[None])[0]))(X)
    if projections == -1:
        expected = jacobians.square().sum() / 24
    else:
        units = [direction / direction.norm(dim=1, keepdim=True) for direction in directions]
        expected = sum(4 / 2 * torch.einsum("bc,bci->bi", unit, jacobians).square().sum() for unit in units) / 24
    expected.backward()
    for name, parameter in model.named_parameters():
        # The last bias has none.
        assert (parameter.grad is None) == (parameters[name].grad is None)
        torch.testing.assert_close(parameter.grad, parameters[name].grad)


def test_inputs_that_carry_gradients_keep_them():
    before, model = nn.Linear(6, 6).double(), mlp().double()
    outputs, value = JacobianPenalty(-1)(model, before(X))
    expected = torch.autograd.grad(cross_entropy(model(before(X)), Y), before.weight)
    found = torch.autograd.grad(cross_entropy(outputs, Y), before.weight, retain_graph=True)
    torch.testing.assert_close(found, expected)
    assert torch.autograd.grad(value, before.weight)[0].abs().sum() > 0


def test_without_gradients_there_is_still_a_value():
    model = mlp().double()
    with torch.no_grad():
        outputs, value = JacobianPenalty(-1)(model, X)
    torch.testing.assert_close(value, JacobianPenalty(-1)(model, X)[1].detach())
    assert not outputs.requires_grad
    assert not value.requires_grad


# At a layer.


def test_at_a_layer_it_is_that_of_what_comes_behind():
    model = mlp().double()
    for at in ("1", model[1]):
        outputs, value = JacobianPenalty(-1, at=at)(model, X)
        torch.testing.assert_close(value, jacobian_norm(model[2], model[:2](X)))
        torch.testing.assert_close(outputs, model(X))
    value.backward()
    assert model[2].weight.grad.abs().sum() > 0


def test_what_works_in_place_behind_the_layer_is_differentiated_too():
    model = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.5, inplace=True), nn.Linear(8, 4)).double()
    expected = jacobian_norm(lambda hidden: model[2](nn.functional.leaky_relu(hidden, 0.5)), model[0](X))
    torch.testing.assert_close(JacobianPenalty(-1, at="0")(model, X)[1], expected)


def test_token_ids():
    model, inputs = Tokens().double(), tokens()
    model.embed.requires_grad_(False)

    def behind(hidden, mask):
        weight = mask[..., None]
        return model.head((torch.tanh(model.mix(hidden)) * weight).sum(1) / weight.sum(1))

    outputs, value = JacobianPenalty(-1, at="embed")(model, inputs)
    mask = inputs["attention_mask"].double()
    hidden = model.embed(inputs["input_ids"])
    jacobians = vmap(jacrev(lambda h, m: behind(h[None], m[None])[0]))(hidden, mask)
    torch.testing.assert_close(value, jacobians.square().sum() / 20)
    torch.testing.assert_close(outputs, model(**inputs))


# Models whose fastest code has no second derivative.


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0].mean(1)


class Direct(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 18)

    def forward(self, x):
        query, key, value = self.linear(x)[:, None].chunk(3, -1)
        return nn.functional.scaled_dot_product_attention(query, key, value)[:, 0].sum(1)


def encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(6, 2, 12, batch_first=True, dropout=0.0)
    return nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(30, 4))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.cells = kind(6, 5, batch_first=True)

    def forward(self, x):
        return self.cells(x)[0][:, -1]


SEQUENCES = {
    "nn.MultiheadAttention": Attention,
    "scaled_dot_product_attention": Direct,
    "nn.TransformerEncoder": encoder,
    "nn.LSTM": lambda: Recurrent(nn.LSTM),
    "nn.GRU": lambda: Recurrent(nn.GRU),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", SEQUENCES)
def test_models_of_sequences(name, training):
    model = SEQUENCES[name]().double().train(training)
    x = torch.randn(3, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    outputs, value = JacobianPenalty(-1)(model, x)
    torch.testing.assert_close(outputs, model(x))
    jacobian = torch.autograd.functional.jacobian(lambda x: model(x).sum(0), x)
    torch.testing.assert_close(value, jacobian.square().sum() / 6)
    value.backward()
    # By finite differences along the gradient itself.
    gradient = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
    norm = sum(part.square().sum() for part in gradient).sqrt()
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            for parameter, part in zip(model.parameters(), gradient, strict=True):
                parameter.add_(part, alpha=sign * 1e-5 / norm.item() * (1 if sign == 1 else 2))
        values.append(JacobianPenalty(-1)(model, x)[1].detach())
    torch.testing.assert_close((values[0] - values[1]) / 2e-5, norm, rtol=1e-5, atol=0)


# In training.


def test_the_layer_does_not_become_a_part_of_the_penalty():
    model = mlp()
    penalty = JacobianPenalty(2, at=model[1])
    assert not list(penalty.modules())[1:]
    assert repr(penalty) == "JacobianPenalty(projections=2, share=1.0, at='Tanh')"


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"projections": 0}, ValueError, "projections=0 must be at least 1, or -1 for the exact value"),
        ({"projections": -2}, ValueError, "projections=-2 must be at least 1, or -1"),
        ({"projections": 1.5}, TypeError, "projections=1.5 must be a whole number"),
        ({"share": 0}, ValueError, "share=0 must be positive and finite: it is the share of the batch"),
        ({"share": 64}, ValueError, "share=64 is too large: it is the share of the batch .* above 0 and at most 1"),
        ({"share": "0.25"}, TypeError, "share='0.25' must be a number"),
    ],
)
def test_bad_settings(settings, kind, message):
    with pytest.raises(kind, match=message):
        JacobianPenalty(**settings)


@pytest.mark.parametrize(
    ("share", "model", "x", "message"),
    [
        (1.0, Tokens(), tokens(), r"needs floating-point inputs.*at='embed'"),
        (1.0, Unexpected(), torch.randint(5, (4, 3)), r"but there are none. Convert images"),
        (0.5, Unexpected(), torch.randint(5, (4, 3)), "needs floating-point inputs"),
        (1.0, lambda x: x.sum(), X, "first dimension must be the batch"),
    ],
)
def test_bad_calls(share, model, x, message):
    with pytest.raises((TypeError, ValueError), match=message):
        JacobianPenalty(share=share)(model, x)


def gradients(value, model):
    found = torch.autograd.grad(value, list(model.parameters()), allow_unused=True)
    # The last bias has none.
    return [torch.zeros_like(p) if part is None else part for p, part in zip(model.parameters(), found, strict=True)]


@pytest.mark.parametrize(("share", "taken"), [(0.25, 3), (0.01, 1), (0.99, 12)])
def test_a_share_is_the_first_examples_alone(share, taken):
    model = mlp().double()
    outputs, value = JacobianPenalty(-1, share=share)(model, X, Y)
    expected = jacobian_norm(model, X[:taken])
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradients(value, model), gradients(expected, model))
    assert torch.equal(outputs, model(X))
    torch.testing.assert_close(*(gradients(cross_entropy(found, Y), model) for found in (outputs, model(X))))


def seeded():
    return torch.Generator().manual_seed(0)


def test_a_share_at_a_layer():
    model = mlp().double()
    outputs, value = JacobianPenalty(-1, share=0.25, at="1")(model, X)
    torch.testing.assert_close(value, jacobian_norm(model[2], model[:2](X[:3])))
    assert torch.equal(outputs, model(X))
    tokens_model, inputs = Tokens().double(), tokens(8)
    outputs, value = JacobianPenalty(-1, share=0.25, at="embed")(tokens_model, inputs)
    first = {name: each[:2] for name, each in inputs.items()}
    torch.testing.assert_close(value, JacobianPenalty(-1, at="embed")(tokens_model, first)[1])
    assert torch.equal(outputs["logits"], tokens_model(**inputs)["logits"])


@pytest.mark.parametrize("at", [None, "1"])
def test_a_model_that_works_in_place_sees_the_batch_as_it_came(at):
    model = nn.Sequential(nn.ELU(inplace=True), nn.Linear(6, 4)).double()
    outputs, value = JacobianPenalty(-1, share=0.25, at=at)(model, X.clone())
    torch.testing.assert_close(outputs, model(X.clone()))
    expected = torch.tensor(4 / 2).double() if at else jacobian_norm(lambda x: model[1](nn.functional.elu(x)), X[:3])
    torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("call", ["module", "method"])
def test_batchnorm_counts_the_whole_batch_and_once(call):
    model, other = with_batchnorm(), with_batchnorm()
    buffers = dict(model.named_buffers())
    penalty = JacobianPenalty(-1, share=0.5, generator=seeded())
    outputs, value = penalty(model if call == "module" else model.forward, X)
    assert torch.equal(outputs, other(X))
    assert model[1].num_batches_tracked == 1
    for name, buffer in model.named_buffers():
        assert buffer is buffers[name]
        assert torch.equal(buffer, other.get_buffer(name))
    # Examples that are normalized together depend on each other, which counts too, each with a sign of its own.
    signs = torch.where(torch.randn(6, 4, generator=seeded()) < 0, -1.0, 1.0)
    jacobian = torch.autograd.functional.jacobian(lambda x: (signs * other(x)).sum(0), X[:6], create_graph=True)
    expected = jacobian.square().sum() / 12
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(
        gradients(outputs.square().sum() + value, model), gradients(other(X).square().sum() + expected, other)
    )


def test_buffers_come_back_after_an_error():
    model = with_batchnorm()
    buffers = dict(model.named_buffers())
    with pytest.raises(RuntimeError):
        JacobianPenalty(share=0.5)(model, X[:, :5])
    assert all(buffer is buffers[name] for name, buffer in model.named_buffers())
    assert model[1].num_batches_tracked == 0


def test_the_whole_batch_is_run_compiled():
    model, compilations, runs = with_batchnorm(), 0, []

    def backend(graph, _):
        nonlocal compilations
        compilations += 1

        def run(*arguments):
            shapes = [each.shape for each in arguments if isinstance(each, torch.Tensor)]
            runs.append(max(shape[0] for shape in shapes if len(shape) == 2 and shape[1] == 6))
            return graph(*arguments)

        return run

    compiled = torch.compile(model, backend=backend)
    other = with_batchnorm()
    for _ in range(3):
        # Under BatchNorm in training the exact value is drawn, too.
        outputs, value = JacobianPenalty(-1, share=0.5, generator=seeded())(compiled, X)
        expected = JacobianPenalty(-1, share=0.5, generator=seeded())(other, X)
        torch.testing.assert_close((outputs, value), expected)
        torch.testing.assert_close(
            gradients(outputs.sum() + value, model), gradients(expected[0].sum() + expected[1], other)
        )
    assert (runs, compilations) == ([12, 12, 12], 1)


# torch's compiler warns so where it goes on behind a break, of what it does itself.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_share_in_a_compiled_step():
    model, penalty = mlp().double(), JacobianPenalty(-1, share=0.25)

    @torch.compile(backend="aot_eager")
    def step(x, y):
        outputs, value = penalty(model, x, y)
        return cross_entropy(outputs, y) + value

    for rows in (12, 8, 7):
        x, y = X[:rows], Y[:rows]
        expected = cross_entropy(model(x), y) + jacobian_norm(model, x[: round(rows / 4)])
        loss = step(x, y)
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(gradients(loss, model), gradients(expected, model))


@pytest.mark.usefixtures("process_group")
def test_a_share_in_parallel():
    model, other = with_batchnorm(), with_batchnorm()
    parallel, penalty, rows = DistributedDataParallel(model), JacobianPenalty(-1, share=0.5), []
    parallel.register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))
    for _ in range(2):
        for each in (parallel, other):
            each.zero_grad()
            torch.manual_seed(0)
            outputs, value = penalty(each, X, Y)
            (cross_entropy(outputs, Y) + value).backward()
        torch.testing.assert_close(
            [parameter.grad for parameter in model.parameters()], [parameter.grad for parameter in other.parameters()]
        )
    assert model[1].num_batches_tracked == 2
    # Not through DDP, which with a static graph would then average wrong gradients: only the whole batch is.
    assert rows == [12, 12]


def test_a_share_reads_no_values():
    """Shapes alone decide what is done, as a CUDA graph needs it: it runs where there are no values at all."""
    with torch.device("meta"):
        model, x = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)), torch.empty(12, 6)
    outputs, value = JacobianPenalty(share=0.5)(model, x)
    assert outputs.shape == (12, 4)
    (outputs.sum() + value).backward()
    assert all(parameter.grad.is_meta for parameter in model.parameters())
