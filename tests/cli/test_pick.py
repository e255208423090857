import json

import numpy as np
import pytest
import torch

import effdeg
from effdeg.io import load_model
from tests.cli.networks import SMALL


@pytest.fixture
def labeled(data, weights, tmp_path):
    """The examples of ``data``, with the classes that one checkpoint predicts as labels."""
    x = torch.from_numpy(np.load(data)).float()
    with torch.no_grad():
        labels = load_model(SMALL, weights[1])(x).argmax(1)
    np.savez(tmp_path / "labeled.npz", x=x, labels=labels)
    return tmp_path / "labeled.npz"


def test_pick_chooses_a_checkpoint_of_a_folder(run, data, weights, tmp_path):
    plot, keep = tmp_path / "pick.png", tmp_path / "kept"
    arguments = ("pick", SMALL, "--weights", weights[0].parent, "--data", data)
    code, out, _ = run(*arguments, "--plot", plot, "--keep", keep)
    assert code == 0
    models = {file.stem: load_model(SMALL, file) for file in weights}
    expected = effdeg.pick(models, torch.from_numpy(np.load(data)).float())
    assert f"{expected.best} is chosen of 3" in out
    assert plot.exists()
    assert len([*keep.iterdir()]) == 3
    code, out, _ = run(*arguments, "--keep", keep, "--json")
    found = json.loads(out)
    assert (code, found["best"], found["data"]) == (0, expected.best, str(data))
    first, *rest = weights  # as a shell writes them for --weights *.pt
    code, out, _ = run("pick", SMALL, "--weights", first, *rest, "--data", data, "--json")
    assert (code, json.loads(out)["best"]) == (0, expected.best)
    assert found["models"][0]["score"] == pytest.approx(expected.scores[expected.best])


def test_pick_uses_the_first_labels_and_training_examples(run, labeled, weights):
    arguments = ("pick", SMALL, "--weights", weights[0].parent, "--data", labeled, "--key", "x", "--labels", 10)
    code, out, _ = run(*arguments, "--train", labeled, "--json")
    assert code == 0
    found = json.loads(out)
    row = next(row for row in found["models"] if row["model"] == weights[1].stem)
    assert (row["accuracy"], row["train_accuracy"], found["settings"]["labels"]) == (1.0, 1.0, 10)
    code, _, errors = run(*arguments[:-1], 10_000)
    assert code == 2
    assert "holds" in errors


def test_pick_takes_changes_by_name(run, tmp_path):
    np.save(tmp_path / "images.npy", np.random.default_rng(0).random((30, 3, 8, 8), dtype=np.float32))
    colors = ["tests.cli.networks:colors"] * 2
    arguments = ("pick", *colors, "--data", tmp_path / "images.npy", "--json")
    code, out, _ = run(*arguments, "--change", "mirror+shift(2)", "--change", "noise(0.1)")
    assert (code, json.loads(out)["settings"]["change"]) == (0, "mirror + shift(2) or noise(0.1)")
    code, _, errors = run(*arguments, "--change", "miror")
    assert code == 2
    assert "mirror" in errors


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "at least two models"),
        (["--weights", "gone"], "gone does not exist"),
        (["--labels", "3"], "holds no labels"),
        (["--examples", "1"], "--examples"),
    ],
)
def test_bad_input_is_named_as_it_was_typed(run, data, weights, more, message):
    models = [SMALL] if more[:1] in ([], ["--weights"]) else [SMALL, SMALL]
    code, _, errors = run("pick", *models, "--data", data, *more)
    assert code == 2
    assert message in errors
