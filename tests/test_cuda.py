"""On a GPU: the same numbers, nothing left behind, and a batch that fits."""

import pytest
import torch
from torch import nn

import effdeg
from effdeg.functional import chebyshev_nodes, cosine_nodes, effective_degree, fit, project
from effdeg_lab.engine.step import CapturedStep
from tests.models import Tokens, mlp
from tests.properties import no_waiting

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

FAST = {"paths": 40, "nodes": 50, "degree": 20}
X = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("settings", [{}, {"components": 2}, {"sampling": "chebyshev"}, {"basis": "legendre"}])
def test_a_gpu_measures_what_the_cpu_does(settings):
    expected = effdeg.measure(mlp().double(), X, **FAST, **settings)
    for model, where in ((mlp().double().cuda(), {}), (mlp().double(), {"device": "cuda"})):
        for inputs in (X, X.cuda()):
            measured = effdeg.measure(model, inputs, **FAST, **settings, **where)
            torch.testing.assert_close(measured.per_path, expected.per_path, rtol=1e-8, atol=1e-10)
            traced = effdeg.trace(
                model, inputs, paths=40, nodes=50, sampling=settings.get("sampling", "cosine"), **where
            )
            rest = {name: value for name, value in settings.items() if name != "sampling"}
            torch.testing.assert_close(traced.fit(degree=20, **rest).per_path, expected.per_path, rtol=1e-8, atol=1e-10)


def test_the_random_state_of_gpus_survives_measuring_on_the_cpu():
    models = (mlp(), lambda x: x)
    torch.rand(1, device="cuda")
    state = torch.cuda.get_rng_state()
    for model in models:
        effdeg.measure(model, X, **FAST)
        assert torch.equal(torch.cuda.get_rng_state(), state)


def test_device_leaves_the_model_where_it_was():
    model = mlp()
    state = torch.cuda.get_rng_state()
    effdeg.measure(model, X, device="cuda", dtype=torch.bfloat16, **FAST)
    assert all(parameter.device.type == "cpu" and parameter.dtype == torch.float32 for parameter in model.parameters())
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_a_path_at_a_layer():
    inputs = {"input_ids": torch.randint(30, (20, 7)), "attention_mask": torch.ones(20, 7, dtype=torch.int64)}
    expected = effdeg.measure(Tokens().double(), inputs, at="embed", **FAST)
    measured = effdeg.measure(Tokens().double().cuda(), inputs, at="embed", **FAST)
    torch.testing.assert_close(measured.per_path, expected.per_path, rtol=1e-8, atol=1e-10)


def test_out_of_memory_halves_the_batch():
    class Hungry(nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.batches = mlp(), []

        def forward(self, x):
            torch.empty(len(x), 2**30, dtype=torch.uint8, device=x.device)
            self.batches.append(len(x))
            return self.model(x)

    hungry = Hungry().cuda()
    measured = effdeg.measure(hungry, X, paths=16, nodes=20, degree=5)
    expected = effdeg.measure(mlp(), X, paths=16, nodes=20, degree=5)
    torch.testing.assert_close(measured.per_path, expected.per_path, rtol=1e-3, atol=1e-6)
    assert max(hungry.batches) < 200


@pytest.mark.parametrize("damping", [0.0, 1e-9])
def test_the_maths_gives_the_same_values_and_gradients(damping):
    values = torch.randn(30, 8, 100, dtype=torch.float64)
    for alpha in (cosine_nodes(8, 30, generator=torch.Generator().manual_seed(0)), chebyshev_nodes(8)):
        results = []
        for device in ("cpu", "cuda"):
            leaf = values.clone().to(device).requires_grad_()
            degree = effective_degree(fit(project(leaf, 3), alpha.to(device), 5, damping=damping)).sum()
            degree.backward()
            results.append((degree.detach().cpu(), leaf.grad.cpu()))
        torch.testing.assert_close(results[0], results[1], rtol=1e-7, atol=1e-8)


# The penalty.

PENALTIES = {
    "plain": {},
    "anchored": {"anchor": "labels"},
    "own outputs at the ends": {"anchor": "self"},
    "curvature": {"anchor": "self", "weights": (0, 0, 1, 2)},
    "components": {"anchor": "labels", "components": 3},
    "many components": {"nodes": 15, "degree": 7, "components": 5},
    "fixed nodes": {"sampling": "chebyshev", "nodes": 15, "degree": 7},
    "uniform": {"sampling": "uniform", "basis": "legendre"},
    "at a layer": {"at": "1", "anchor": "labels"},
    "frozen": {"batchnorm": "frozen"},
    "many nodes": {"nodes": 40, "degree": 20},
    "changed copies": {"partners": [effdeg.changes.noise(0.1), effdeg.changes.noise(0.3)], "anchor": "labels"},
    "changed copies at a layer": {"partners": effdeg.changes.noise(0.1), "at": "1"},
}


def norm_mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 8)).cuda()


def train_captured(penalty, compiled, steps=60):
    """Capture whole steps, optimizer included, and give the losses of the replays."""
    model = norm_mlp()
    x, y = torch.randn(64, 6, device="cuda"), torch.randint(8, (64,), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(3e-2, device="cuda"), capturable=True)
    count, last = (torch.zeros((), device="cuda") for _ in range(2))
    weight = effdeg.SineRamp(0.1, steps=10)

    def loss_of(x, y):
        with torch.autocast("cuda", torch.bfloat16):
            logits, degree = penalty(model, x, y)
            return nn.functional.cross_entropy(logits, y) + weight(count) * degree

    loss_of = torch.compile(loss_of, fullgraph=True) if compiled else loss_of

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        count.add_(1)
        last.copy_(loss.detach())

    replay = CapturedStep(model, step)
    losses = []
    for _ in range(steps):
        replay()
        losses.append(last.item())
    return losses


@pytest.mark.parametrize("name", PENALTIES)
def test_a_whole_step_is_captured_in_one_graph(name):
    losses = train_captured(effdeg.Penalty(**PENALTIES[name]), compiled=False)
    assert losses[-1] < 0.8 * losses[0]
    assert len(set(losses)) > 50  # every replay draws paths of its own


@pytest.mark.parametrize("name", ["anchored", "components", "fixed nodes", "changed copies"])
@pytest.mark.filterwarnings("ignore")
def test_a_whole_step_is_compiled_and_captured(name):
    torch._dynamo.reset()
    losses = train_captured(effdeg.Penalty(**PENALTIES[name]), compiled=True)
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("anchor", ["labels", "self"])
@pytest.mark.filterwarnings("ignore")
def test_a_step_with_unlabeled_examples_and_a_teacher_is_captured(anchor, compiled):
    torch._dynamo.reset()
    penalty, teacher = effdeg.Penalty(anchor=anchor, weights=(0, 0, 2, 3)), norm_mlp().eval()
    unlabeled = torch.randn(96, 6, device="cuda")

    def penalize(model, x, y):
        return penalty(model, x, y, unlabeled=unlabeled, teacher=teacher)

    losses = train_captured(penalize, compiled)
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_an_eager_step_with_unlabeled_examples_does_not_wait_for_the_gpu():
    model, penalty = norm_mlp(), effdeg.Penalty(anchor="labels")
    x, y = torch.randn(64, 6, device="cuda"), torch.randint(8, (64,), device="cuda")
    given = {"unlabeled": torch.randn(96, 6, device="cuda"), "teacher": norm_mlp().eval()}
    penalty(model, x, y, **given)[1].backward()
    with no_waiting():
        penalty(model, x, y, **given)[1].backward()
    assert all(each.grad.isfinite().all() for each in model.parameters())


@pytest.mark.parametrize("name", [name for name in PENALTIES if PENALTIES[name].get("batchnorm") != "frozen"])
def test_what_is_captured_is_what_is_computed(name):
    penalty = effdeg.Penalty(**PENALTIES[name])
    x, y = torch.randn(64, 6, device="cuda"), torch.randint(8, (64,), device="cuda")
    points = penalty.points(x, y)
    values = torch.randn(points.total, 8, device="cuda", dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(penalty.degree(values, points), values)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        degree = penalty.degree(values, points)
        (gradient,) = torch.autograd.grad(degree, values)
    graph.replay()
    torch.testing.assert_close(degree, penalty.degree(values, points), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", [name for name in PENALTIES if "components" not in name])
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_an_eager_step_does_not_wait_for_the_gpu(name):
    model, penalty = norm_mlp(), effdeg.Penalty(**PENALTIES[name])
    x, y = torch.randn(64, 6, device="cuda"), torch.randint(8, (64,), device="cuda")
    penalty(model, x, y)[1].backward()
    with no_waiting():
        penalty(model, x, y)[1].backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_soft_labels_are_read_in_the_first_call_and_not_waited_for_later():
    model, penalty = norm_mlp(), effdeg.Penalty(anchor="labels")
    x, soft = torch.randn(64, 6, device="cuda"), torch.rand(64, 8, device="cuda").softmax(-1)
    for _ in range(2):  # also once more: what was refused has not been checked
        with pytest.raises(ValueError, match="output='softmax' fits distributions"):
            penalty(model, x, 5 * soft)
    with pytest.raises(ValueError, match="do not match 8 classes"):
        penalty(model, x, torch.full((64,), 9, device="cuda"))
    penalty(model, x, soft)[1].backward()
    with no_waiting():
        penalty(model, x, soft)[1].backward()


def test_half_precision_with_a_scaler():
    model, penalty = norm_mlp(), effdeg.Penalty.efficient()
    x, y = torch.randn(64, 6, device="cuda"), torch.randint(8, (64,), device="cuda")
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=3e-2), torch.amp.GradScaler("cuda")
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            logits, degree = penalty(model, x, y)
            loss = nn.functional.cross_entropy(logits, y) + 0.1 * degree
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
