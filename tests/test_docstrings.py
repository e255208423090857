"""The examples in the docstrings run, on a small model and its batches."""

import doctest
from importlib import import_module

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import effdeg

MODULES = [
    "effdeg.train._penalty",
    "effdeg.train._schedules",
    "effdeg.baselines._methods",
    "effdeg.baselines._mixup",
    "effdeg.baselines._sam",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings(name):
    torch.manual_seed(0)
    loader = [(torch.randn(16, 8), torch.randint(10, (16,))) for _ in range(3)]
    names = {
        "effdeg": effdeg,
        "torch": torch,
        "cross_entropy": cross_entropy,
        "model": nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 10)),
        "loader": loader,
        "x": loader[0][0],
        "y": loader[0][1],
        "total_steps": len(loader),
    }
    result = doctest.testmod(import_module(name), extraglobs=names)
    assert result.attempted > 0
    assert result.failed == 0
