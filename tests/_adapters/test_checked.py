"""Models that were checked are known again, also within functions, and not kept alive."""

import copy
import gc
import pickle
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from effdeg._adapters.checked import CheckedModels
from tests.models import mlp


class Owner:
    def __init__(self, network):
        self.network = network

    def run(self, x):
        return self.network(x)


def call(network, x):
    return network(x)


FORMS = {
    "itself": lambda network: network,
    "a wrapper": lambda network: nn.DataParallel(network),
    "a method": lambda network: network.forward,
    "a closure": lambda network: lambda x: network(x)[0],
    "a default": lambda network: lambda x, inner=network: inner(x),
    "an argument": lambda network: partial(call, network),
}


@pytest.mark.parametrize("make", FORMS.values(), ids=FORMS)
def test_a_model_is_known_again_and_another_is_not(make):
    checked, network = CheckedModels(), mlp()
    assert make(network) not in checked
    checked.add(make(network))
    assert make(network) in checked
    assert make(mlp()) not in checked


def test_objects_and_their_methods():
    checked, one, other = CheckedModels(), Owner(mlp()), Owner(mlp())
    checked.add(one.run)
    checked.add(torch.tanh)
    assert one.run in checked
    assert other.run not in checked
    assert torch.tanh in checked
    assert torch.relu not in checked


def test_models_are_not_kept_alive_and_copies_start_anew():
    checked, network = CheckedModels(), AveragedModel(mlp())
    checked.add(network)
    for twin in (copy.deepcopy(checked), pickle.loads(pickle.dumps(checked))):
        assert network not in twin
    assert len(checked._parts) == 1
    del network
    gc.collect()
    assert len(checked._parts) == 0
