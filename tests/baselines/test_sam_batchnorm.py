"""Under sharpness-aware minimization, BatchNorm takes its running statistics from the first pass alone."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from effdeg.baselines import SAM
from tests.baselines.test_sam import closing, closure_of
from tests.batches import X, Y


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
