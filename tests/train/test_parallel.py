"""Two real processes (gloo): DDP does what one process does on the joined batch, and FSDP2 what DDP does."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.nn.functional import all_reduce
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from effdeg import Penalty
from tests.models import mlp
from tests.properties import run_in_processes

SIZE, LOCAL = 2, 6
# In torch 2.6 fully_shard itself fails on the CPU.
SHARDS_ON_CPU = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)
X = torch.randn(SIZE * LOCAL, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.randint(4, (SIZE * LOCAL,), generator=torch.Generator().manual_seed(1))


class SynchronizedNorm(nn.BatchNorm1d):
    """BatchNorm over the rows of all processes; torch's own SyncBatchNorm runs on GPUs only."""

    def forward(self, x):
        if not dist.is_initialized():
            return super().forward(x)
        count = torch.tensor(float(len(x)), dtype=x.dtype)
        total = all_reduce(torch.cat([count[None], x.sum(0), x.square().sum(0)]))
        mean, square = total[1:].view(2, -1) / total[0]
        return (x - mean) / (square - mean**2 + self.eps).sqrt() * self.weight + self.bias


def normed(norm):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), norm(8), nn.Tanh(), nn.Linear(8, 4)).double()


MODELS = {
    "plain": (lambda: mlp().double(), {}),
    "anchored": (lambda: mlp().double(), {"anchor": "labels", "components": 2}),
    "own outputs": (lambda: mlp().double(), {"anchor": "self"}),
    "at a layer": (lambda: mlp().double(), {"at": "1"}),
    "synchronized BatchNorm": (lambda: normed(SynchronizedNorm), {}),
    "BatchNorm": (lambda: normed(nn.BatchNorm1d), {}),
    "BatchNorm, frozen": (lambda: normed(nn.BatchNorm1d), {"batchnorm": "frozen"}),
}


def one_step(model, penalty, x, y):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    logits, degree = penalty(model, x, y)
    (cross_entropy(logits, y) + 2.0 * degree).backward()
    optimizer.step()


def share(rank):
    rows = slice(rank * LOCAL, (rank + 1) * LOCAL)
    return X[rows], Y[rows]


def work(rank, results):
    found = {}
    for name, (make, settings) in MODELS.items():
        model = make()
        torch.manual_seed(10 + rank)
        one_step(DistributedDataParallel(model), Penalty(**settings), *share(rank))
        found[name] = model.state_dict()
    for name in ("ddp", "fsdp") if SHARDS_ON_CPU else ("ddp",):
        found[name] = train(name, rank)
    torch.save(found, f"{results}.{rank}")


def train(kind, rank):
    model = mlp()
    if kind == "fsdp":
        fully_shard(model[0])
        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = share(rank)
    torch.manual_seed(rank)
    losses = []
    for _ in range(20):
        logits, degree = Penalty.efficient()(model, x.float(), y)
        loss = cross_entropy(logits, y) + 0.5 * degree
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


def as_one_process(name):
    make, settings = MODELS[name]
    model, penalty = make(), Penalty(**settings)
    parts = []
    for rank in range(SIZE):
        torch.manual_seed(10 + rank)
        parts.append(penalty.points(*share(rank)))
    pairs = torch.cat([points.pairs + LOCAL * rank for rank, points in enumerate(parts)])
    points = penalty.points(X, Y, pairs=pairs, alpha=torch.cat([points.alpha for points in parts]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if settings.get("at"):
        hidden = model[:2](X)
        outputs = model[2](torch.cat([hidden, points.interpolate(hidden)]))
    else:
        outputs = model(points.append_to(X))
    (cross_entropy(outputs[: len(X)], Y) + 2.0 * penalty.degree(outputs, points)).backward()
    optimizer.step()
    return model.state_dict()


def as_halves_in_turn(name):
    """Train on the halves in turn, as BatchNorm that is not synchronized has it: each has statistics of its own."""
    make, settings = MODELS[name]
    gradients = []
    for rank in range(SIZE):
        model = make()
        torch.manual_seed(10 + rank)
        logits, degree = Penalty(**settings)(model, *share(rank))
        (cross_entropy(logits, share(rank)[1]) + 2.0 * degree).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    model = make()
    with torch.no_grad():
        for parameter, *parts in zip(model.parameters(), *gradients, strict=True):
            parameter -= 0.5 * sum(parts) / SIZE
    return dict(model.named_parameters())


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    run_in_processes(work, (folder / "results",), SIZE)
    return [torch.load(f"{folder / 'results'}.{rank}", weights_only=True) for rank in range(SIZE)]


@pytest.mark.parametrize("name", ["plain", "anchored", "own outputs", "at a layer", "synchronized BatchNorm"])
def test_ddp_does_what_one_process_does_on_the_joined_batch(name, found):
    expected = as_one_process(name)
    for rank in range(SIZE):
        for key, parameter in expected.items():
            if "running" not in key and "tracked" not in key:
                torch.testing.assert_close(found[rank][name][key], parameter)


@pytest.mark.parametrize("name", ["BatchNorm", "BatchNorm, frozen"])
def test_ddp_with_statistics_per_process_does_what_the_halves_do_in_turn(name, found):
    expected = as_halves_in_turn(name)
    for rank in range(SIZE):
        for key, parameter in expected.items():
            torch.testing.assert_close(found[rank][name][key], parameter)


@pytest.mark.skipif(not SHARDS_ON_CPU, reason="fully_shard needs torch 2.8 to run on the CPU")
def test_fsdp_trains_as_ddp_does(found):
    for rank in range(SIZE):
        torch.testing.assert_close(found[rank]["fsdp"], found[rank]["ddp"], rtol=1e-4, atol=1e-5)
        assert found[rank]["fsdp"][-1] < 0.8 * found[rank]["fsdp"][0]
