"""The pool of model soups, by a stand-in: tiny CLIPs under OpenAI's names and an ImageNet of one image a class."""

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image
from test_pretrained import OpenAIVision, clip  # noqa: F401
from torch import nn

import effdeg
from effdeg.pools import rank, read_table
from effdeg_lab.data.imagenet import find_splits
from effdeg_lab.data.images import CLIP_SCALE, Crop, Images
from effdeg_lab.experiments.pools.clip import draw_training_images, measure_clip_pool, read_soups
from effdeg_lab.models.made_up import write_table

MODELS, SAME, DAMAGED = 14, ("model_4", "model_5"), "model_9"
QUICK = {"train_images": 20, "paths": 6, "nodes": 16, "degree": 5, "proxy_examples": 12}
pytestmark = pytest.mark.filterwarnings("ignore:for .* of .* model")  # notes on the fit


def make_network(seed):
    """Make a network that prefers the classes of the 20 training images, so that it is sometimes right."""
    torch.manual_seed(seed)
    vision, head = OpenAIVision(), nn.Linear(12, 1000)
    with torch.no_grad():
        head.weight *= 5
        head.bias[np.random.default_rng(0).permutation(1000)[:20]] += 3
    return vision, head


def make_checkpoint(seed):
    vision, head = make_network(seed)
    stored = {f"model.visual.{name}": tensor for name, tensor in vision.state_dict().items()}
    stored |= {f"classification_head.{name}": tensor for name, tensor in head.state_dict().items()}
    return stored | {"model.logit_scale": torch.zeros(())}


@pytest.fixture(scope="module")
def soups(tmp_path_factory):
    """A folder as model soups are published: one is where training began, two are the same, one is damaged."""
    folder = tmp_path_factory.mktemp("soups")
    info, lines = {"model_0": {"info": "LP initialization"}}, []
    for number in range(MODELS):
        name = f"model_{number}"
        seed = 4 if name in SAME else number
        torch.save(make_checkpoint(seed), folder / f"{name}.pt")
        if number:
            mix = 0 if seed % 2 else seed / 16
            info[name] = {"aug": None, "wd": 0.1, "lr": 0.5**seed, "mix": mix, "smoothing": 0, "epochs": 4}
        lines.append(json.dumps({"model_name": name, "ImageNet2p": 0.9, "ImageNet": 0.5 + seed**2 % 7 / 100}))
    (folder / f"{DAMAGED}.pt").write_bytes(b"nonsense")
    (folder / "hparam_info.json").write_text(json.dumps(info))
    (folder / "individual_model_results.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory):
    folder, rng, images = tmp_path_factory.mktemp("data"), np.random.default_rng(0), []
    for _ in range(40):
        stream = io.BytesIO()
        Image.fromarray(rng.integers(0, 255, (40, 32, 3), dtype=np.uint8)).save(stream, "PNG")
        images.append(stream.getvalue())
    numbered = {f"{number}.png": images[number % 40] for number in range(1000)}
    for split in ("train", "val"):
        write_table(folder / "imagenet" / f"{split}-0.parquet", numbered, label=[*range(1000)])
    return folder


@pytest.fixture(scope="module")
def table(tmp_path_factory, clip, soups, imagenet):  # noqa: F811
    out = tmp_path_factory.mktemp("out") / "pool.csv"
    with pytest.warns(UserWarning, match=f"{DAMAGED} left out"):
        return out, measure_clip_pool(out, soups, clip, imagenet, **QUICK)


def test_rows_have_what_was_published_and_what_was_measured(table, soups, imagenet):
    out, rows = table
    assert list(rows.index) == [f"model_{number}" for number in range(1, MODELS) if f"model_{number}" != DAMAGED]
    assert read_table(out)["gap"].tolist() == rows["gap"].tolist()
    row = rows.loc["model_6"]
    assert (row["recipe"], row["mix"], row["lr"], row["test_accuracy"]) == ("with mixup", 0.375, 0.5**6, 0.51)
    vision, head = make_network(6)
    mean, std = (torch.tensor(each).view(-1, 1, 1) for each in CLIP_SCALE)

    def classify(images):
        features = vision(images)
        return head(features / features.norm(dim=1, keepdim=True))

    train, test = find_splits(imagenet)()
    images, classes = draw_training_images(train, Crop(32), 20, soups / "none")
    right = classify((images.decode() / 255 - mean) / std).argmax(1) == classes
    assert row["train_accuracy"] == pytest.approx(right.double().mean().item())
    assert rows["train_accuracy"].nunique() > 2
    tests = (Images(test, Crop(32), "imagenet").decode() / 255 - mean) / std
    measured = effdeg.measure(classify, tests, paths=6, nodes=16, degree=5, components=3)
    assert row["effective_degree@3"] == pytest.approx(measured.value, rel=1e-3)
    assert row["gap"] == row["train_accuracy"] - row["test_accuracy"]
    assert {"effective_degree@3", "effective_degree_normalized@10", "adaptive_sharpness@1", "entropy"} <= {*rows}


def test_names_decide_what_is_one_model(table):
    ranked = rank(table[0], measures=["entropy"], strata=["recipe"], hyperparameters=["lr", "mix"], resamples=100)
    assert ranked.pool.duplicates == []  # of the same weights, but with names of their own
    assert {name: len(inside.pool) for name, inside in ranked.strata.items()} == dict(table[1]["recipe"].value_counts())


def test_images_that_were_held_out_are_not_drawn(imagenet, tmp_path):
    train, _ = find_splits(imagenet)()
    held_out = np.arange(1000) % 3 > 0
    np.save(tmp_path / "marks.npy", held_out.astype(float))
    _, classes = draw_training_images(train, Crop(32), 200, tmp_path / "marks.npy")
    assert len({*classes.tolist()}) == 200
    assert not held_out[classes].any()


def test_what_is_missing_is_named(soups, tmp_path):
    assert len(read_soups(soups)) == MODELS - 1
    with pytest.raises(ValueError, match=r"cannot be read as a folder with both tables .*hparam_info\.json"):
        read_soups(tmp_path)
    for name in ("hparam_info.json", "individual_model_results.jsonl"):
        (tmp_path / name).write_text((soups / name).read_text())
    with pytest.raises(FileNotFoundError, match="holds no checkpoints of model soups"):
        measure_clip_pool(tmp_path / "pool.csv", tmp_path, tmp_path, tmp_path)
