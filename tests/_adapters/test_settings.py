import dataclasses

import numpy as np
import pytest
from torch import nn

from effdeg._adapters.settings import FitSettings, NodeSettings, PathSettings


def test_numbers_from_numpy_become_python_numbers():
    path = PathSettings(paths=np.int64(5), nodes=np.int32(8), seed=np.int64(3))
    fit = FitSettings(degree=np.int64(3), components=np.int64(2))
    assert {type(each) for each in (path.paths, path.nodes, path.seed, fit.degree, fit.components)} == {int}


def test_settings_are_frozen_and_compared_by_value():
    settings = PathSettings(paths=5, at="layer")
    assert settings == PathSettings(paths=5, at="layer") != PathSettings(paths=6, at="layer")
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.paths = 6


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: NodeSettings(nodes=0), ValueError, r"nodes=0 is too small: it must be at least 1"),
        (lambda: NodeSettings(sampling="cosin"), ValueError, r"sampling='cosin' is not known. Did you mean 'cosine'"),
        (lambda: NodeSettings(at=3), TypeError, r"at=3 must be the name of a layer or a module"),
        (lambda: PathSettings(paths=1.5), TypeError, r"paths=1.5 must be a whole number"),
        (lambda: PathSettings(seed=-1), ValueError, r"seed=-1 is too small"),
        (lambda: FitSettings(basis="fourier"), ValueError, r"basis='fourier' is not known"),
        (lambda: FitSettings(output="logits"), ValueError, r"output='logits' is not known"),
        (lambda: FitSettings(damping=-1.0), ValueError, r"damping=-1.0 must be zero or positive"),
        (lambda: FitSettings(degree=8).check_nodes(8), ValueError, r"nodes=8 cannot determine .* degree=8"),
        (lambda: FitSettings(degree=2, components=4).check_nodes(4), ValueError, r"components=4 is too many"),
    ],
)
def test_every_setting_is_checked_when_it_is_made(make, error, message):
    assert NodeSettings(at=nn.Identity()).nodes == 200  # a module is a layer too
    with pytest.raises(error, match=message):
        make()
