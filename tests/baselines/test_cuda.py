"""On a GPU: nothing waits for it, whole steps are captured, and what cuDNN cannot differentiate twice is."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel

from effdeg.baselines import ICT, R3F, JacobianPenalty, RDrop, cutmix, manifold_mixup, method, mixup, names
from effdeg_lab.engine.step import CapturedStep
from tests.baselines.test_jacobian import SEQUENCES, Recurrent
from tests.baselines.test_methods import JOINED
from tests.models import mlp
from tests.properties import no_waiting

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

SETTINGS = {
    **{name: {"classes": 8} for name in ("mixup", "cutmix", "regmixup")},
    "embedding-mixup": {"classes": 8, "at": "0"},
    "manifold-mixup": {"classes": 8, "at": [None, "0", "2"]},
    "neftune": {"alpha": 0.2, "at": "0"},
    "r3f": {"noise": 0.1},
    "ed": {"weight": 0.1},
}


def settings_of(name):
    return {key: value for part in name.split("+") for key, value in SETTINGS.get(part, {}).items()}


def training_step(name, base=torch.optim.AdamW, **options):
    """Make a whole step of a method, to be called or captured, and give the model with it."""
    torch.manual_seed(0)
    # Dropout only for the method that is about it.
    last = nn.Sequential(nn.Dropout(0.1), nn.Linear(32, 8)) if "rdrop" in name else nn.Linear(32, 8)
    model = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.Tanh(), last).cuda()
    way = method(name, **settings_of(name))
    optimizer = way.optimizer(model, base, **options)
    x, y = torch.randn(64, 6, device="cuda"), torch.randint(8, (64,), device="cuda")

    def step():
        images, labels = way.batch(x.view(64, 1, 2, 3), y)
        mixed = images.flatten(1)

        def closure():
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = way.loss(model, mixed, labels, cross_entropy)
            loss.backward()
            return loss

        return optimizer.step(closure).detach()

    return step, model, lambda: cross_entropy(model(x), y).item()


def captured(step):
    """Capture a step, and return its replay and the tensors that this writes to."""
    result = None

    def run():
        nonlocal result
        result = step()

    return CapturedStep(nn.Identity(), run), result


@pytest.mark.parametrize("name", [*names(), *JOINED])
def test_a_whole_step_is_captured_in_one_graph(name):
    step, _, loss = training_step(name, lr=torch.tensor(3e-2, device="cuda"), capturable=True)
    before = loss()
    replay, _ = captured(step)
    for _ in range(60):
        replay()
    assert loss() < 0.8 * before


@pytest.mark.parametrize("name", ["sam", "asam"])
def test_what_is_captured_is_what_is_computed(name):
    results = []
    for capture in (False, True):
        step, model, _ = training_step(name, torch.optim.SGD, lr=0.1, momentum=0.9)
        # Capturing runs nothing; three steps come before it.
        run = captured(step)[0] if capture else step
        for _ in range(5 if capture else 8):
            run()
        results.append(model.state_dict())
    torch.testing.assert_close(*results)
    assert results[0]["1.num_batches_tracked"] == 8


@pytest.mark.parametrize("name", [*names(), *JOINED])
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_an_eager_step_does_not_wait_for_the_gpu(name):
    step, model, _ = training_step(name, torch.optim.SGD, lr=0.1, momentum=0.9)
    step()
    with no_waiting():
        step()
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_replays_of_mixup_draw_anew():
    x, y = torch.randn(64, 6, device="cuda"), torch.randn(64, device="cuda")
    replay, (mixed, soft) = captured(lambda: mixup(x, y, alpha=0.4))
    seen = []
    for _ in range(20):
        replay()
        seen.append((mixed.sum(0)[0].item(), mixed[0, 0].item(), soft[0].item()))
    assert len(set(seen)) == 20


def test_replays_of_cutmix_and_manifold_mixup_draw_anew():
    x = torch.randn(64, 1, 2, 3, device="cuda")
    replay, (mixed, soft) = captured(lambda: cutmix(x, x.flatten(1)))
    layers = nn.Sequential(nn.Identity(), nn.Tanh(), nn.Identity())
    replay_manifold, (outputs, targets) = captured(lambda: manifold_mixup(layers, x, x.flatten(1), at=[None, "0", "1"]))
    seen, mixed_before_tanh = [], set()
    for _ in range(30):
        replay()
        replay_manifold()
        seen.append((mixed.sum((1, 2, 3))[0].item(), soft[0, 0].item()))
        mixed_before_tanh.add(torch.allclose(outputs.flatten(1), targets.tanh(), atol=1e-4))
    assert len(set(seen)) > 5
    assert mixed_before_tanh == {True, False}


def test_ict_is_captured_and_does_not_wait_for_the_gpu():
    torch.manual_seed(0)
    model, teacher = mlp().cuda(), AveragedModel(mlp(seed=1).cuda())
    x, unlabeled = torch.randn(16, 6, device="cuda"), torch.randn(40, 6, device="cuda")
    ict = ICT(teacher)
    ict(model, x, unlabeled=unlabeled)
    with no_waiting():
        ict(model, x, unlabeled=unlabeled)[1].backward()
    replay, (_, value) = captured(lambda: ict(model, x, unlabeled=unlabeled))
    values = set()
    for _ in range(5):
        replay()
        values.add(value.item())
    assert len(values) == 5


@pytest.mark.parametrize("name", ["rdrop", "r3f", "r3f at a layer"])
def test_replays_of_rdrop_and_r3f_draw_anew(name):
    model = nn.Sequential(nn.Linear(6, 32), nn.Dropout(0.1 if name == "rdrop" else 0.0), nn.Linear(32, 8)).cuda()
    x, y = torch.randn(64, 6, device="cuda"), torch.randint(8, (64,), device="cuda")
    way = RDrop() if name == "rdrop" else R3F(0.1, at="0" if "layer" in name else None)
    replay, (_, value, *_) = captured(lambda: way(model, x, y))
    values = set()
    for _ in range(5):
        replay()
        values.add(value.item())
    assert len(values) == 5


@pytest.mark.parametrize("alpha", [1e-4, 0.01])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_lambda_is_beta_there_too(compiled, alpha):
    x = torch.eye(2, device="cuda")
    draw = torch.compile(mixup, fullgraph=True, dynamic=False) if compiled else mixup
    shares = torch.stack([draw(x, x, alpha=alpha)[0].amax() for _ in range(1000)])
    assert ((shares < 0.9).float().mean()) < 0.05


def test_a_generator_of_the_cpu_draws_the_same_everywhere():
    x, y = torch.randn(64, 6), torch.randint(8, (64,))
    results = [
        mixup(x.to(device), y.to(device), classes=8, generator=torch.Generator().manual_seed(0))
        for device in ("cpu", "cuda")
    ]
    torch.testing.assert_close(results[0], tuple(each.cpu() for each in results[1]))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", SEQUENCES)
def test_models_of_sequences(name, training):
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    results = []
    for device in ("cpu", "cuda"):
        model = SEQUENCES[name]().double().to(device).train(training)
        value = JacobianPenalty(-1)(model, x.to(device))[1]
        value.backward()
        grads = [None if p.grad is None else p.grad.cpu() for p in model.parameters()]
        results.append([value.detach().cpu(), *[grad for grad in grads if grad is not None]])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("name", SEQUENCES)
def test_models_of_sequences_under_autocast(name):
    model, x = SEQUENCES[name]().cuda(), torch.randn(3, 5, 6, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        JacobianPenalty()(model, x)[1].backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_without_that_cudnn_refuses():
    model, x = Recurrent(nn.LSTM).cuda(), torch.randn(3, 5, 6, device="cuda", requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"derivative for|not implemented|cudnn"):
        gradient.square().sum().backward()
