"""Two and three real processes (gloo): every rank returns what a single process would."""

import dataclasses

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

import effdeg
from tests.models import mlp

X = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
CASES = {
    "plain": {"paths": 70, "nodes": 8, "degree": 4},
    "tolerance": {"paths": 2000, "nodes": 8, "degree": 4, "tolerance": 0.04},
    "few paths": {"paths": 5, "nodes": 8, "degree": 4},
}


def broken_model(x):
    return torch.where(x[:, :1] > 1.0, torch.nan, x)


def work(rank, size, store, results):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.BatchNorm1d(6), mlp()))
    measured = {name: effdeg.measure(model, X, **settings) for name, settings in CASES.items()}
    found = {name: each.per_path for name, each in measured.items()}
    found["settings"] = {name: dataclasses.asdict(each.settings) for name, each in measured.items()}
    for name in ("plain", "few paths"):
        settings = dict(CASES[name])
        degree = settings.pop("degree")
        found[f"trace, {name}"] = effdeg.trace(model, X, **settings).fit(degree=degree).per_path
    try:
        effdeg.measure(broken_model, X, paths=200, nodes=8, degree=4)
    except ValueError as error:
        found["error"] = str(error)
    torch.save(found, f"{results}.{rank}")
    dist.barrier()  # leave together: gloo takes a peer that closes early for a failure
    dist.destroy_process_group()


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_share_the_paths_and_agree_with_one_process(size, tmp_path):
    mp.spawn(work, (size, tmp_path / "store", tmp_path / "results"), nprocs=size)
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(6), mlp())
    measured = {name: effdeg.measure(model, X, **settings) for name, settings in CASES.items()}
    expected = {name: each.per_path for name, each in measured.items()}
    settings = {name: dataclasses.asdict(each.settings) for name, each in measured.items()}
    assert 64 <= len(expected["tolerance"]) < 2000
    with pytest.raises(ValueError, match="NaN or infinite on path") as caught:
        effdeg.measure(broken_model, X, paths=200, nodes=8, degree=4)
    for rank in range(size):
        found = torch.load(f"{tmp_path / 'results'}.{rank}", weights_only=True)
        assert found["settings"] == settings
        for name, per_path in expected.items():
            torch.testing.assert_close(found[name], per_path, rtol=1e-6, atol=1e-9)
        for name in ("plain", "few paths"):
            torch.testing.assert_close(found[f"trace, {name}"], expected[name], rtol=1e-6, atol=1e-9)
        # Every rank says which path; ranks that see all paths at once also count the others.
        assert found["error"].split(" (and")[0].split(". Look")[0] in str(caught.value)
