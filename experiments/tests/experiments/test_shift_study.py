import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_runs import carry_out
from pretrained_toys import make_shifted, tune
from scipy.stats import t
from test_finetuning import count_right
from test_smoke import command
from toy_results import invent_run

from effdeg_lab.core.recipe import Method, find_recipe
from effdeg_lab.core.results import collect
from effdeg_lab.core.runs import RunFolder
from effdeg_lab.engine import classify
from effdeg_lab.experiments.shifts import soups
from effdeg_lab.experiments.shifts.soups import measure_soups

RECIPE = find_recipe("finetune-shifts")
CPU = torch.device("cpu")


def make_run(method, points, seed=0, recipe=RECIPE, shifts=("art", "sketch")):
    """Make a run with a curve of points, test and mean accuracy under shifts, at 11 values of α."""

    def entry(test, mean):
        shifted = {name: mean + 0.01 * (place - (len(shifts) - 1) / 2) for place, name in enumerate(shifts)}
        return {"test_accuracy": test, "shifted": shifted, "shifted_accuracy": mean}

    curve = [{"alpha": place / 10, **entry(*point)} for place, point in enumerate(points)]
    along = {"interpolated": curve, "interpolated_images": {"test": 334}}
    return invent_run(recipe, method, {**entry(*points[-1]), "train_accuracy": 1.0, **along}, seed=seed)


def bend(end, lift=0.0):
    """Return a curve from (0.9, 0.5) to an end, lifted in between."""
    along = np.linspace(0, 1, 11)[:, None]
    line = np.array([0.9, 0.5]) * (1 - along) + np.array(end) * along
    return line + lift * 4 * along * (1 - along)


def make_runs(ends, lifts=None, noise=0.001, recipe=RECIPE):
    runs = []
    for place, (method, end) in enumerate(ends.items()):
        for seed in range(3):
            moved = np.array(end) + noise * ((seed + place) % 3 - 1)
            runs.append(make_run(method, bend(moved, (lifts or {}).get(method, 0.0)), seed, recipe))
    return runs


AHEAD = {"plain": (0.95, 0.55), "ed": (0.97, 0.6)}


def judge(ends, **given):
    results = collect(RECIPE, make_runs(ends, **given))[0]
    return RECIPE.study.claim(results), RECIPE.study.tables(results)


def test_a_method_that_is_ahead_everywhere_holds():
    verdict, (accuracies, between, relations) = judge(AHEAD, lifts={"ed": 0.02})
    assert verdict.word == "holds"
    rows = {row[0]: dict(zip(accuracies.columns, row, strict=True)) for row in accuracies.rows}
    assert rows["ED"]["test, %"] == "97.00 ± 0.10"
    assert rows["ED"]["art, %"] == "59.50 ± 0.10"
    assert rows["ED"]["mean of shifts, %"] == "60.00 ± 0.10"
    assert rows["ED"]["values"] == "lr = 0.0001, λ = 2"
    assert rows["Mixup"]["test, %"] == "not run"
    lead = [0.05 + 0.001 * (((seed + 1) % 3 - 1) - (seed % 3 - 1)) for seed in range(3)]
    width = t.ppf(0.975, 2) * np.std(lead, ddof=1) / np.sqrt(3)
    expected = f"+5.00 ({5 - 100 * width:+.2f} to {5 + 100 * width:+.2f})*"
    assert rows["ED"]["shifts, against Plain (LP-FT)"] == expected
    halfway = {row[0]: row[1:] for row in between.rows}
    assert halfway["ED"] == ("90.00", "50.00", "95.50", "57.00", "97.00", "60.00")
    assert relations.rows[0] == ("ED", "above", "above", f"{100 * width:.2f}", "3 of 3", "0 of 3")


@pytest.mark.parametrize(
    ("ends", "given", "word"),
    [
        ({"plain": (0.97, 0.6), "ed": (0.95, 0.55)}, {}, "does not hold"),
        ({"plain": (0.95, 0.6), "ed": (0.97, 0.55)}, {}, "does not hold"),
        (AHEAD, {"noise": 0.03}, "not decided"),
        # Ahead at the end, but below on the way.
        (AHEAD, {"lifts": {"plain": 0.08}}, "does not hold"),
        ({"plain": (0.95, 0.55)}, {}, "not decided"),
    ],
)
def test_claims_that_do_not_hold(ends, given, word):
    assert judge(ends, **given)[0].word == word


def test_the_papers_rows_are_shown_next_to_ours():
    recipe = find_recipe("clip-finetune-b32")
    shifts = ("imagenet-r", "imagenet-a")
    runs = [make_run(name, bend(end), seed, recipe, shifts) for name, end in AHEAD.items() for seed in range(3)]
    table = recipe.study.tables(collect(recipe, runs)[0])[0]
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert rows["ED, paper"]["test, %"] == "77.14 ± 0.05"
    assert rows["Plain, paper"]["imagenet-a, %"] == "20.48 ± 0.17"
    assert rows["Plain, paper"]["mean of shifts, %"] == "44.04 ± 0.08"
    assert "not all here" in table.notes[-1]


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Three models that tuned a rate, on images with shifts."""
    pictures = make_shifted()
    for module in (classify, soups):
        monkeypatch.setattr(module, "load", lambda *_: pictures)
    rates = (0.001, 0.02, 0.05)
    done = [carry_out(tmp_path, tune(lr=rate, held_out=100)) for rate in rates]
    methods = (Method("plain", "Plain", {"lr": 0.001}, tune={"lr": rates}),)
    recipe = replace(RECIPE, name="tests", settings=tune(), methods=methods, tuning={"held_out": 100})
    return recipe, pictures, done


def test_soups_are_means_of_the_models_that_tuned(tmp_path, sweep):
    recipe, pictures, done = sweep
    found = measure_soups(recipe, RunFolder(tmp_path).read(), None, CPU)["rows"]
    assert [row["kind"] for row in found] == ["best model", "uniform soup", "greedy soup"]
    held_out = pictures.train_inputs[-100:], pictures.train_labels[-100:]
    states = {each.file.stem: each.weights for each in done}
    greedy, names = {}, found[2]["names"]
    for row in found:
        used = [states[name] for name in row["names"]]
        mean = {key: torch.stack([each[key] for each in used]).mean(0) for key in used[0]}
        shifted = {name: count_right(mean, *each) for name, each in pictures.shifted.items()}
        assert row["held_out_accuracy"] == pytest.approx(count_right(mean, *held_out))
        assert row["test_accuracy"] == pytest.approx(count_right(mean, pictures.test_inputs, pictures.test_labels))
        assert row["shifted"] == pytest.approx(shifted)
        greedy[row["kind"]] = row["held_out_accuracy"]
    assert (found[0]["names"], found[1]["models"]) == (names[:1], 3)
    assert greedy["best model"] == max(count_right(state, *held_out) for state in states.values())
    assert greedy["greedy soup"] >= greedy["best model"]


@pytest.mark.parametrize(("name", "folder"), [("tests", "tests"), ("mine:RECIPE", "mine_RECIPE")])
def test_the_command_keeps_soups_for_the_table(tmp_path, sweep, monkeypatch, capsys, name, folder):
    recipe = replace(sweep[0], name=name)  # of runs that were made for "tests"
    monkeypatch.setattr("effdeg_lab.core.recipe.find_recipe", lambda _: recipe)
    command("soup", name, "--runs", str(tmp_path), "--device", "cpu")
    assert "Plain: greedy soup" in capsys.readouterr().out
    kept = json.loads((tmp_path / folder / "soups.json").read_text())
    assert len(kept["rows"]) == 3
    final = carry_out(tmp_path, tune(lr=0.001))
    results = collect(recipe, RunFolder(tmp_path).read())[0]
    table = recipe.study.tables(results)[-1]
    assert table.title == "Soups of sweeps"
    assert [row[0] for row in table.rows] == ["Plain: best model", "Plain: uniform soup", "Plain: greedy soup"]
    assert recipe.study.headline(final.run).endswith("% under shifts")


def test_without_kept_weights_there_are_no_soups(tmp_path, sweep, capsys):
    recipe, _, done = sweep
    for each in done:
        (each.file.with_suffix("") / "weights.pt").unlink()
    with pytest.raises(ValueError, match="there are no soups to make of tests: no method has two finished runs"):
        measure_soups(recipe, RunFolder(tmp_path).read(), None, CPU)
    command("soup", "digits-methods", "--runs", str(tmp_path), "--device", "cpu", code=2)
    assert "digits-methods does not fine-tune a pretrained network" in " ".join(capsys.readouterr().err.split())
