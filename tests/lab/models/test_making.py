import sys
from itertools import pairwise

import pytest
import torch
from torch import nn

from effdeg import proxies
from effdeg.demo import network
from effdeg.lab.models import make
from effdeg.lab.models.mlp import MLP

CODE = """
from torch import nn

READY = nn.Linear(4, 2)
NUMBER = 3

def both(*, channels, classes=10):
    return nn.Sequential(nn.Conv2d(channels, classes, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())

def neither(width=6):
    return nn.Linear(width, 2)

def function():
    return lambda x: x
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    (tmp_path / "own_nets.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("own_nets", None)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("vit-tiny", (3, 32, 32)),
        ("vit-tiny", (1, 28, 28)),
        ("vit-tiny", (3, 64, 32)),
        ("resnet18", (3, 32, 32)),
        ("resnet18", (1, 20, 12)),
        ("mlp", (64,)),
        ("mlp", (1, 8, 8)),
    ],
)
def test_models_fit_the_data(name, shape):
    model = make(name, shape=shape, classes=7).eval()
    with torch.no_grad():
        assert model(torch.rand(2, *shape)).shape == (2, 7)


def test_resnet18_has_as_many_parameters_as_counted_by_hand():
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    count = 3 * 9 * 64 + 2 * 64 + 512 * 10 + 10
    for before, width in pairwise(widths):
        count += before * 9 * width + width * 9 * width + 4 * width
        count += (before * width + 2 * width) if before != width else 0
    made = make("resnet18", shape=(3, 32, 32), classes=10)
    assert sum(each.numel() for each in made.parameters()) == count == 11_173_962


def test_the_mlp_is_the_demonstrations_network():
    torch.manual_seed(0)
    made = make("mlp", shape=(64,), classes=10)
    torch.manual_seed(0)
    expected = network()
    inputs = torch.rand(5, 64)
    torch.testing.assert_close(made(inputs), expected(inputs), rtol=0, atol=0)
    torch.testing.assert_close(made(inputs.view(5, 1, 8, 8)), expected(inputs), rtol=0, atol=0)
    assert proxies.path_norm(made, inputs).value == proxies.path_norm(expected, inputs).value
    shapes = [tuple(each.weight.shape) for each in MLP(3, 2, width=5, depth=1).layers if isinstance(each, nn.Linear)]
    assert shapes == [(5, 3), (2, 5)]


def test_the_random_stream_decides_the_first_weights():
    def weights():
        torch.manual_seed(3)
        return make("mlp", shape=(4,), classes=2).state_dict()

    for one, two in zip(weights().values(), weights().values(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)


@pytest.mark.usefixtures("code")
def test_own_models_are_told_what_they_ask_for():
    assert make("own_nets:both", shape=(3, 8, 8), classes=7)(torch.rand(2, 3, 8, 8)).shape == (2, 7)
    assert make("own_nets:neither", shape=(6,), classes=7)(torch.rand(2, 6)).shape == (2, 2)


@pytest.mark.usefixtures("code")
def test_a_ready_model_begins_every_run_with_the_same_weights():
    first = make("own_nets:READY", shape=(4,), classes=2)
    before = first.weight.detach().clone()
    nn.init.zeros_(first.weight)
    torch.testing.assert_close(make("own_nets:READY", shape=(4,), classes=2).weight, before, rtol=0, atol=0)


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize(
    ("name", "shape", "error", "words"),
    [
        ("resnet81", (3, 8, 8), ValueError, "model='resnet81' is not known. Did you mean 'resnet18'.*package.module:c"),
        ("vit-tiny", (64,), ValueError, "takes images, and the examples have the shape 64: use model='mlp'"),
        ("resnet18", (64,), ValueError, "takes images"),
        ("vit-tiny", (3, 30, 30), ValueError, "cannot be cut into patches of 4 × 4"),
        ("vit-tiny", (3, 8, 30), ValueError, "images of 8 × 30 pixels cannot be cut into patches of 4 × 4"),
        ("no_such_module:net", (4,), ValueError, "there is no Python module 'no_such_module'"),
        ("own_nets:neithr", (4,), ValueError, "own_nets has no 'neithr'. Did you mean 'neither'"),
        (
            "own_nets:NUMBER",
            (4,),
            TypeError,
            "model='own_nets:NUMBER' is 3; expected something that returns an nn.Module",
        ),
        ("own_nets:function", (4,), TypeError, "returned function; expected an nn.Module"),
        ("own_nets:both", (4,), TypeError, "missing 1 required keyword-only argument: 'channels'"),
    ],
)
def test_what_is_no_model_is_refused(name, shape, error, words):
    with pytest.raises(error, match=words):
        make(name, shape=shape, classes=2)
