"""Three real processes (gloo): every rank returns what a single one would. The tests of the command line have two."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import effdeg
from effdeg import proxies
from tests.batches import Y
from tests.models import mlp
from tests.properties import assert_same_on_every_number_of_processes, run_in_processes

X = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
MANY, FEW = {"paths": 70, "nodes": 8}, {"paths": 5, "nodes": 8}


def broken_model(x):
    return torch.where(x[:, :1] > 1.0, torch.nan, x)


def measure_all():
    alone = nn.Sequential(nn.BatchNorm1d(6), mlp(activation=nn.ReLU))
    model = DistributedDataParallel(alone) if dist.is_initialized() else alone
    loose = effdeg.measure(model, X, paths=2000, nodes=8, degree=4, tolerance=0.04)
    compared = effdeg.compare({"model": model, "other": mlp(seed=1)}, X, degree=4, **MANY)
    names = [name for name in proxies.names() if name != "distance"]
    needed = {"others": [mlp(seed=1)], "labeled": (X[12:24], Y), "change": effdeg.changes.noise(1.0)}
    with pytest.raises(ValueError, match="NaN or infinite on path") as caught:
        effdeg.measure(broken_model, X, paths=200, nodes=8, degree=4)
    return {
        "measure": effdeg.measure(model, X, degree=4, **MANY).per_path,
        "measure along few paths": effdeg.measure(model, X, degree=4, **FEW).per_path,
        "measure to a tolerance": loose.per_path,
        "stopped early": 64 <= len(loose.per_path) < 2000,
        "settings": repr(loose.settings),
        "trace": effdeg.trace(model, X, **MANY).fit(degree=4).per_path,
        "trace of few paths": effdeg.trace(model, X, **FEW).fit(degree=4).per_path,
        "compare": {name: each.per_path for name, each in compared.measurements.items()},
        "proxies": proxies.evaluate(alone, (X[:12], Y), cross_entropy, names=names, degree=4, **needed, **MANY).row(),
        # Every rank says which path; ranks that see all paths at once also count the others.
        "error": str(caught.value).split(" (and")[0].split(". Look")[0],
    }


def test_ranks_share_the_paths_and_agree_with_one_process(tmp_path):
    assert measure_all()["stopped early"]
    assert_same_on_every_number_of_processes(measure_all, tmp_path)


def measure_apart(rank):
    given = {"model": mlp(), "inputs": X, "seed": 0}
    different = {
        "weights of the model": {"model": mlp(seed=rank)},
        "numbers of examples": {"inputs": X[rank:]},
        "examples": {"inputs": X.roll(rank, 0)},
        "settings": {"seed": rank},
    }
    for what, apart in different.items():
        with pytest.raises(ValueError, match=f"but the {what} differ between ranks 0 and 1"):
            effdeg.measure(**given | apart, paths=20, nodes=8, degree=4)
    for name, values in {"output": ("softmax", "identity"), "degree": (4, 3), "damping": (0.0, 1e-3)}.items():
        with pytest.raises(ValueError, match="but the settings differ between ranks 0 and 1"):
            effdeg.measure(mlp(), X, paths=20, nodes=8, **{"degree": 4, name: values[rank]})
    function = mlp(seed=rank)
    with pytest.raises(ValueError, match="but the weights of the model differ"):
        effdeg.trace(lambda x: function(x), X, **MANY)
    random = [(x + torch.rand(6, generator=torch.Generator().manual_seed(rank)), 0) for x in X]
    with pytest.raises(ValueError, match="but the examples differ"):
        effdeg.trace(mlp(), random, **MANY)


def test_ranks_that_measure_something_else_are_refused():
    run_in_processes(measure_apart, (), 2)
