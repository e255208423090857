"""Properties that hold for many measures and methods, each named once."""

import gc
import random
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def assert_same_for_every_batch_size(measure, sizes=(1, 5, 1000), rel=1e-9):
    """``measure(batch_size=...)`` gives the same values however many rows a forward pass has."""
    expected = measure(batch_size=sizes[0])
    for size in sizes[1:]:
        assert_close(measure(batch_size=size), expected, rel=rel)


def assert_invariant_to_scale(measure, original, scaled, rel=1e-8):
    """``measure`` gives the same for a model and for the same model at another scale."""
    assert_close(measure(scaled), measure(original), rel=rel)


def assert_close(found, expected, *, rel):
    """Values agree: floats and tensors nearly, all else exactly, and mappings of them."""
    if isinstance(expected, Mapping):
        assert found.keys() == expected.keys()
        for name in expected:
            assert_close(found[name], expected[name], rel=rel)
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, rtol=rel, atol=1e-12)
    else:
        assert found == (pytest.approx(expected, rel=rel) if isinstance(expected, float) else expected)


def assert_same_gradients(value, expected, model, twin):
    """Two numbers agree, and so do their gradients: of one by a model's parameters, of the other by its twin's."""
    torch.testing.assert_close(value, expected)
    value.backward()
    expected.backward()
    torch.testing.assert_close(*([each.grad for each in network.parameters()] for network in (model, twin)))


@contextmanager
def assert_left_as_it_came(model, *, but=()):
    """What runs inside leaves everything about a model as it was, also when it raises.

    Args:
        model: The model.
        but: Names of parts, as in :func:`_parts`, that may change: training counts the statistics of BatchNorm.
    """
    before = _parts(model)
    yield
    for name, expected in _parts(model).items():
        if name not in but:
            assert _same(before[name], expected), name


def assert_same_under_vmap(penalty, models, *given, **options):
    """With the same draws for all, each of several networks under ``vmap`` has the penalty that it has alone."""
    state = torch.func.stack_module_state(models)

    def penalize(*own):
        return penalty(lambda x: torch.func.functional_call(models[0], own, (x,)), *given, **options)[1]

    torch.manual_seed(3)
    together = torch.vmap(penalize, randomness="same")(*state)
    for model, value in zip(models, together, strict=True):
        torch.manual_seed(3)
        torch.testing.assert_close(penalty(model, *given, **options)[1], value)


def _parts(model):
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "objects": {name: id(each) for name, each in tensors.items()},
        "weights": {name: each.detach().clone() for name, each in model.named_parameters()},
        "buffers": {name: each.detach().clone() for name, each in model.named_buffers()},
        "gradients": {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()},
        "requires_grad": {name: each.requires_grad for name, each in tensors.items()},
        "modes": {name: module.training for name, module in model.named_modules()},
        "hooks": {name: _hooks(module) for name, module in model.named_modules()},
        "random state": {
            "torch": torch.get_rng_state(),
            "python": random.getstate(),
            "numpy": torch.from_numpy(np.random.get_state()[1].astype(np.int64)),
        },
        "settings of torch": (torch.is_grad_enabled(), torch.backends.cudnn.enabled),
    }


def _hooks(module):
    return [
        len(getattr(module, kind))
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    ]


def _same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    return one == other


def assert_same_on_every_number_of_processes(measure, folder, sizes=(3,)):
    """``measure()``, a function of a module that returns values by name, gives them on every rank of many processes."""
    expected = measure()
    for size in sizes:
        results = folder / str(size)
        results.mkdir()
        run_in_processes(_save_measured, (measure, results), size)
        for rank in range(size):
            assert_close(torch.load(results / f"{rank}.pt", weights_only=True), expected, rel=1e-6)


def _save_measured(rank, measure, folder):
    torch.save(measure(), folder / f"{rank}.pt")


def run_in_processes(work, arguments, count):
    """Run ``work(rank, *arguments)`` in several processes at once, which form a process group.

    Forked processes need not import torch again, but cannot use a GPU.
    """
    method = "spawn" if torch.cuda.is_available() else "fork"
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # of forks next to xdist's threads; and what forks warn of is no error
        given = (f"{folder}/store", count, work, *arguments)
        mp.start_processes(_run_in_group, given, nprocs=count, start_method=method)


def _run_in_group(rank, store, count, work, *arguments):
    torch.set_num_threads(1)  # forks have none of the threads of OpenMP, and would wait for them
    with process_group(store, rank, count):
        work(rank, *arguments)


@contextmanager
def no_waiting():
    """Nothing in the block waits for the GPU."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@contextmanager
def process_group(store, rank=0, size=1):
    """Join a process group (gloo), which ends once the block has let go of its models.

    A DDP that outlives its group can wait forever: its destructor joins gloo's threads while it holds the GIL, which
    they need to free what they have reduced.
    """
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    yield
    gc.collect()
    dist.barrier()  # leave together: gloo takes a peer that closes early for a failure
    dist.destroy_process_group()
