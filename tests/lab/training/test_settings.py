import numpy as np
import pytest

from effdeg.lab.settings import digest, identity
from effdeg.lab.training import Training


def test_equal_settings_are_one_run_whatever_they_are_given_as():
    given = [
        Training(weight=7.0, method="mixup+ed", proxies=("all",), pairs=1.0, seed=3, start=0.0),
        Training(weight=7, method=" Mixup + ED", proxies=["all"], pairs=1, seed=np.int64(3), start=-0.0),
    ]
    assert given[0] == given[1]
    assert digest(given[0]) == digest(given[1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "sdg"}, "Did you mean 'sgd'"),
        ({"decay": "liner"}, "decay='liner'"),
        ({"precision": "fp16"}, "precision='fp16'"),
        ({"weight": "7"}, "weight='7'"),
        ({"weight": float("nan")}, "finite"),
        ({"lr": float("inf")}, "finite"),
        ({"nodes": 2.5}, "nodes=2.5"),
        ({"proxies": "all"}, "proxies='all'"),
        ({"proxies": ("sharpnes",)}, "'sharpnes' is not a known proxy"),
        ({"epochs": 0}, "epochs=0 is too small"),
        ({"warm_up": 1.5}, "warm_up=1.5 is a share of training"),
        ({"pairs": 0.0}, "pairs=0.0 is a share of the batch"),
        ({"momentum": -1.0}, "momentum=-1.0 must not be negative"),
        ({"measure_nodes": 8}, "nodes=8 cannot determine a polynomial of degree=40"),
        ({"limit": 0}, "limit=0"),
        ({"warm_up_epochs": -1}, "warm_up_epochs=-1 must lie between 0 and epochs=300"),
        ({"warm_up_epochs": 10, "epochs": 5}, "warm_up_epochs=10 must lie between 0 and epochs=5"),
        ({"warm_up_epochs": 10, "warm_up": 0.1}, "warm_up=0.1 and warm_up_epochs=10 both say how long"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Training(**settings)


def test_a_warm_up_in_epochs_replaces_the_share_and_leaves_older_runs_their_names():
    assert "warm_up_epochs" not in identity(Training())
    in_epochs = Training(warm_up_epochs=10)
    assert (in_epochs.warm_up, in_epochs.warm_up_epochs) == (0.0, 10.0)
    assert in_epochs == Training(warm_up=0.0, warm_up_epochs=10.0)
    assert digest(in_epochs) != digest(Training(warm_up=0.0))
