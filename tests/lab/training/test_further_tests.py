"""Runs on images with a further test, whose halves are recombined in training."""

from functools import partial

import pytest
import torch

from effdeg.lab.training import loop
from tests.lab.training import runs
from tests.lab.training.pictures import pictures
from tests.lab.training.runs import breaking_off, carried_out, metrics, summary, weights

small = partial(runs.small, limit=None, batch=50, epochs=3)


@pytest.fixture(autouse=True)
def loaded(monkeypatch):
    monkeypatch.setattr(loop.data, "load", lambda *_: pictures())


def test_further_tests_are_logged_and_kept(tmp_path):
    folder = carried_out(tmp_path, small(lr=5e-3))
    found = summary(folder)
    assert found["test_accuracy"] == 1.0
    data = pictures()
    hidden = ((data.further_tests["dark"].float() / 255 - 0.4) / 0.2).flatten(1)
    kept = list(weights(folder).values())
    for weight, bias in zip(kept[::2], kept[1::2], strict=True):
        hidden = hidden @ weight.T + bias
        hidden = hidden if weight is kept[-2] else hidden.clamp(min=0)
    right = float((hidden.argmax(1) == data.test_labels).float().mean())
    assert found["further_tests"] == {"dark": pytest.approx(right)}
    assert [list(line["further_tests"]) for line in metrics(folder)] == [["dark"]] * 3
    assert metrics(folder)[-1]["further_tests"] == found["further_tests"]


def test_they_are_left_out_where_examples_are_held_out(tmp_path):
    folder = carried_out(tmp_path, small(held_out=100, epochs=1))
    assert "further_tests" not in summary(folder)
    assert "further_tests" not in metrics(folder)[-1]


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "ed", "ends": "simple-half", "anchor_labels": False},
        {"method": "ed", "ends": "balanced", "anchor_labels": False},
        {"method": "ed", "ends": "cuts", "augment": "cutmix"},
        {"augment": "swap-simple-half"},
    ],
    ids=["simple-half", "balanced", "cuts", "swap"],
)
def test_a_run_that_breaks_off_goes_on_where_it_was(tmp_path, settings):
    settings = small(**settings)
    whole = carried_out(tmp_path / "whole", settings)
    with breaking_off(1):
        carried_out(tmp_path / "broken", settings)
    broken = carried_out(tmp_path / "broken", settings)
    assert all(
        torch.equal(one, two) for one, two in zip(*(weights(each).values() for each in (whole, broken)), strict=True)
    )
    assert metrics(whole) == metrics(broken)


@pytest.mark.parametrize("ends", ["data", "simple-half"])
def test_held_back_the_simple_half_no_longer_decides(tmp_path, ends):
    settings = small(
        method="ed", weight=20.0, ramp=0.0, ends=ends, anchor_labels=ends == "data", epochs=15, evaluate_every=15
    )
    folder = carried_out(tmp_path, settings)
    # Nothing but the upper half tells the class.
    assert (summary(folder)["test_accuracy"] > 0.9) == (ends == "data")


def test_features_have_no_halves(tmp_path, monkeypatch):
    monkeypatch.undo()
    for settings in ({"augment": "cutmix"}, {"method": "ed", "ends": "cuts"}):
        with pytest.raises(ValueError, match="is for images; digits has features"):
            carried_out(tmp_path, runs.small(**settings))
    assert not list(tmp_path.iterdir())
