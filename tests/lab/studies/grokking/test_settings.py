import pytest

from effdeg.lab.settings import digest
from effdeg.lab.studies.grokking.settings import Grokking


def test_the_defaults_are_the_paper_s():
    settings = Grokking()
    assert (settings.operation, settings.prime, settings.fraction) == ("divide", 97, 0.3)
    assert (settings.depth, settings.width, settings.heads) == (2, 128, 4)
    assert (settings.lr, settings.weight_decay) == (1e-3, 0.0)
    assert (settings.measure_paths, settings.measure_nodes, settings.measure_degree) == (200, 64, 40)
    assert settings.train_equations == round(0.3 * 97 * 96)


def test_batches_are_at_most_half_of_what_is_trained_on():
    assert Grokking().batch_size == 512
    assert Grokking(prime=7, fraction=0.5).batch_size == 11  # half of 21, rounded up
    assert Grokking(batch=8).batch_size == 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prime": 91}, "prime=91 is not a prime number"),
        ({"prime": 1}, "prime=1 is not a prime number"),
        ({"operation": "power"}, "operation='power' is not possible"),
        ({"fraction": 0.0}, "it must lie between 0 and 1"),
        ({"fraction": 1.0}, "it must lie between 0 and 1"),
        ({"fraction": -0.5}, "it must lie between 0 and 1"),
        ({"width": 20}, "width=20 cannot be shared evenly by 4 heads.*multiple of 8"),
        ({"steps": 0}, "steps=0 is too small"),
        ({"evaluations": 1}, "evaluations=1 is too small"),
        ({"lr": 0.0}, "lr=0.0 must be positive"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0 must not be negative"),
        ({"measure_nodes": 40}, "nodes=40 cannot determine a polynomial of degree=40"),
    ],
)
def test_what_is_impossible_is_refused(changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Grokking(**changes)


def test_equal_settings_are_one_run():
    assert digest(Grokking(weight_decay=1)) == digest(Grokking(weight_decay=1.0))
