"""The real data sets, against what the files say when they are read directly."""

import gzip
import io
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from effdeg.lab.data import load

CACHE = os.environ.get("EFFDEG_CACHE")
pytestmark = pytest.mark.skipif("EFFDEG_DATA" not in os.environ, reason="EFFDEG_DATA names no folder of data sets")


@pytest.fixture
def folder(monkeypatch):
    # The user's own cache: decoding takes ten seconds and more.
    monkeypatch.setenv("EFFDEG_CACHE", CACHE) if CACHE else monkeypatch.delenv("EFFDEG_CACHE")
    return Path(os.environ["EFFDEG_DATA"])


def needs(folder):
    if not folder.is_dir():
        pytest.skip(f"EFFDEG_DATA has no {folder.name}")
    return folder


def test_cifar10(folder):
    files = sorted(needs(folder / "cifar10").glob("*.parquet"))
    loaded = load("cifar10", folder)
    assert loaded.train_inputs.shape == (50_000, 3, 32, 32)
    assert loaded.test_inputs.shape == (10_000, 3, 32, 32)
    assert loaded.train_labels.bincount().tolist() == [5000] * 10
    assert loaded.test_labels.bincount().tolist() == [1000] * 10
    pixels = loaded.train_inputs[::10].double() / 255
    torch.testing.assert_close(pixels.mean((0, 2, 3)), torch.tensor(loaded.mean).double(), rtol=0, atol=5e-3)
    torch.testing.assert_close(pixels.std((0, 2, 3)), torch.tensor(loaded.std).double(), rtol=0, atol=5e-3)
    test, train = files[0], files[1:]
    for file, inputs, labels, first in (
        (test, loaded.test_inputs, loaded.test_labels, True),
        (train[0], loaded.train_inputs, loaded.train_labels, True),
        (train[-1], loaded.train_inputs, loaded.train_labels, False),
    ):
        row = pq.read_table(file).slice(0 if first else pq.read_metadata(file).num_rows - 1, 1).to_pylist()[0]
        direct = np.asarray(Image.open(io.BytesIO(row["img"]["bytes"])))
        index = 0 if first else -1
        assert int(labels[index]) == row["label"]
        np.testing.assert_array_equal(inputs[index].permute(1, 2, 0).numpy(), direct)


def test_mnist(folder):
    place = needs(folder / "mnist")
    loaded = load("mnist", folder)
    assert loaded.train_inputs.shape == (60_000, 1, 28, 28)
    assert loaded.test_inputs.shape == (10_000, 1, 28, 28)
    assert loaded.train_labels[:5].tolist() == [5, 0, 4, 1, 9]
    pixels = loaded.train_inputs.float() / 255
    torch.testing.assert_close(pixels.mean(), torch.tensor(loaded.mean[0]), rtol=0, atol=1e-4)
    torch.testing.assert_close(pixels.std(), torch.tensor(loaded.std[0]), rtol=0, atol=1e-4)
    direct = gzip.decompress((place / "t10k-images-idx3-ubyte.gz").read_bytes())[16:]
    assert loaded.test_inputs.numpy().tobytes() == direct
    classes = gzip.decompress((place / "t10k-labels-idx1-ubyte.gz").read_bytes())[8:]
    assert loaded.test_labels.tolist() == list(classes)
