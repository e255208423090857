import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot
from torch.utils.checkpoint import checkpoint

import effdeg
from effdeg import Penalty
from tests.batches import seeded
from tests.models import mlp

X = torch.randn(16, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.randint(4, (16,), generator=torch.Generator().manual_seed(1))


def gradients(model):
    return [parameter.grad.clone() for parameter in model.parameters()]


def test_a_plain_loop_learns_and_becomes_simpler_than_without():
    results = {}
    for weighted in (False, True):
        torch.manual_seed(0)
        model = mlp(seed=0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(300):
            logits, degree = Penalty.efficient()(model, X.float(), Y)
            loss = cross_entropy(logits, Y) + (2.0 if weighted else 0.0) * degree
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracy = (logits.argmax(1) == Y).float().mean()
        results[weighted] = float(accuracy), effdeg.measure(model, X.float(), nodes=50, degree=20, paths=100).value
    assert results[True][0] == results[False][0] == 1.0
    assert results[True][1] < 0.95 * results[False][1]


@pytest.mark.parametrize("settings", [{}, {"anchor": "labels"}, {"anchor": "labels", "components": 2}])
def test_accumulated_gradients_are_those_of_one_large_batch(settings):
    penalty, model = Penalty(**settings), mlp().double()
    torch.manual_seed(0)
    parts = [penalty.points(x, y) for x, y in zip(X.split(4), Y.split(4), strict=True)]
    torch.manual_seed(0)
    for x, y in zip(X.split(4), Y.split(4), strict=True):
        logits, degree = penalty(model, x, y)
        ((cross_entropy(logits, y) + 3.0 * degree) / 4).backward()
    accumulated = gradients(model)
    model.zero_grad()

    pairs = torch.cat([points.pairs + 4 * number for number, points in enumerate(parts)])
    points = penalty.points(X, Y, pairs=pairs, alpha=torch.cat([points.alpha for points in parts]))
    outputs = model(points.append_to(X))
    (cross_entropy(outputs[:16], Y) + 3.0 * penalty.degree(outputs, points)).backward()
    torch.testing.assert_close(gradients(model), accumulated)


def assert_same_compiled(step, model, batches, backend="eager"):
    """A step without a break in its graph has the value and the gradients that it has uncompiled, as weights change."""
    compiled = torch.compile(step, fullgraph=True, backend=backend)
    for batch in batches:
        results = []
        for function in (step, compiled):
            torch.manual_seed(0)
            model.zero_grad()
            value = function(*batch)
            value.backward()
            results.append((value.detach(), gradients(model)))
        torch.testing.assert_close(*results)
        torch.optim.SGD(model.parameters(), lr=0.1).step()


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head, self.reentrant = nn.Linear(6, 16), nn.Linear(16, 4), reentrant
        self.block = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Tanh())
        self.double()

    def forward(self, x):
        hidden = self.embed(x)
        if self.reentrant is None:
            return self.head(self.block(hidden))
        return self.head(checkpoint(self.block, hidden, use_reentrant=self.reentrant))


@pytest.mark.parametrize("at", [None, "embed"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_nothing(reentrant, at):
    results = []
    for model in (Checkpointed(None), Checkpointed(reentrant)):
        torch.manual_seed(1)
        logits, degree = Penalty(anchor="labels", at=at)(model, X, Y)
        (cross_entropy(logits, Y) + degree).backward()
        results.append(gradients(model))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(("settings", "what"), [({"at": "block.0"}, "block.0"), ({"batchnorm": "frozen"}, "block.1")])
def test_what_checkpointing_would_undo_is_refused(settings, what, reentrant):
    with pytest.raises(ValueError, match=f"'{what}' runs inside torch.utils.checkpoint"):
        Penalty(**settings)(Checkpointed(reentrant), X)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("settings", "labels", "sizes"),
    [
        ({"anchor": "labels", "components": 3}, Y, (16,)),
        # Smaller last batches compile once more.
        ({"anchor": "labels", "sampling": "chebyshev"}, one_hot(Y, 4).double(), (16, 7)),
    ],
)
def test_a_compiled_step_is_the_same_step(settings, labels, sizes, without_shape_checks):
    """With a backend that draws the same random numbers; examples/compiled.py runs the one people use."""
    model, penalty = mlp().double(), Penalty(**settings)

    def loss_of(x, y, weight):
        logits, degree = penalty(model, x, y)
        return cross_entropy(logits, y) + weight * degree

    given = [(X[:rows], labels[:rows], torch.tensor(2.0)) for rows in sizes]
    assert_same_compiled(loss_of, model, given, backend="aot_eager")


@pytest.mark.filterwarnings("ignore")
def test_hooks_break_the_graph_and_nothing_else(without_shape_checks):
    """Without fullgraph=True they work."""
    model, penalty = mlp().double(), Penalty(at="1")
    compiled = torch.compile(lambda model, x: penalty(model, x), backend="eager")
    torch.testing.assert_close(*(seeded(function, model, X)[1] for function in (penalty, compiled)))
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(lambda x: penalty(model, x)[1], fullgraph=True, backend="eager")(X)


@pytest.mark.filterwarnings("ignore")
def test_integers_are_refused_compiled_too(without_shape_checks):
    penalty = Penalty()
    of_bytes = torch.compile(lambda x: penalty(lambda x: x / 255, x)[1], fullgraph=True, backend="eager")
    with pytest.raises(torch._dynamo.exc.Unsupported):
        of_bytes(torch.randint(255, (8, 4)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.filterwarnings("ignore")
def test_half_precision_trains(dtype):
    torch.manual_seed(0)
    model, penalty = mlp(), Penalty.efficient()
    optimizer, scaler = (
        torch.optim.AdamW(model.parameters(), lr=1e-2),
        torch.amp.GradScaler("cpu", enabled=dtype == torch.float16),
    )
    losses = []
    for _ in range(60):
        with torch.autocast("cpu", dtype):
            logits, degree = penalty(model, X.float(), Y)
            loss = cross_entropy(logits, Y) + 0.1 * degree
        assert (logits.dtype, degree.dtype) == (dtype, torch.float32)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
