"""Digits stacked on pictures: which, where, in what order, and with either half randomized."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from effdeg.lab.data import load
from tests.lab.data import sets

CACHE = os.environ.get("EFFDEG_CACHE")
MNIST = sets.examples(60, (1, 28, 28), seed=0), sets.examples(30, (1, 28, 28), seed=1)
CIFAR = sets.examples(100, (3, 32, 32), seed=2), sets.examples(50, (3, 32, 32), seed=3)


@pytest.fixture
def folder(tmp_path):
    sets.write_mnist(tmp_path / "mnist", *MNIST, zipped=False)
    sets.write_cifar10_binary(tmp_path / "cifar10", *CIFAR)
    return tmp_path


def contents(images):
    return [image.tobytes() for image in images]


def halves(images):
    return images[:, :, :32], images[:, :, 32:]


@pytest.mark.parametrize("split", ["train", "test"])
def test_zeros_stand_on_automobiles_and_ones_on_trucks(folder, split):
    loaded = load("mnist-cifar", folder)
    images, labels = (getattr(loaded, f"{split}_{what}").numpy() for what in ("inputs", "labels"))
    mnist, cifar = (each[split == "test"] for each in (MNIST, CIFAR))
    assert images.dtype == np.uint8
    assert images.shape[1:] == (3, 64, 32)
    assert loaded.classes == 2
    for label, (digit, picture) in enumerate([(0, 1), (1, 9)]):
        upper, lower = halves(images[labels == label])
        pictures, digits = cifar[0][cifar[1] == picture], mnist[0][mnist[1] == digit]
        assert sorted(contents(lower)) == sorted(contents(pictures))
        # There are fewer digits than pictures here: the first are used again.
        wanted = [digits[place % len(digits)] for place in range(len(pictures))]
        padded = [np.pad(each.repeat(3, 0), ((0, 0), (2, 2), (2, 2))) for each in wanted]
        assert sorted(contents(upper)) == sorted(contents(padded))
    assert len(set(labels[: len(labels) // 2].tolist())) == 2  # not sorted by class


def test_it_is_always_the_same_and_leaves_the_random_numbers_alone(folder):
    torch.manual_seed(1)
    one = load("mnist-cifar", folder)
    state = torch.get_rng_state()
    two = load("mnist-cifar", folder)
    assert torch.equal(torch.get_rng_state(), state)
    assert one.fingerprint() == two.fingerprint()


def test_channels_are_scaled_by_whole_training_images(folder):
    loaded = load("mnist-cifar", folder)
    pixels = loaded.train_inputs.double() / 255
    assert loaded.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist())
    assert loaded.std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist())


def test_a_randomized_half_is_that_of_another_test_image_each_used_once(folder):
    loaded = load("mnist-cifar", folder)
    assert list(loaded.further_tests) == ["MNIST randomized", "CIFAR randomized"]
    own = halves(loaded.test_inputs.numpy())
    for changed, name in enumerate(loaded.further_tests):
        found = halves(loaded.further_tests[name].numpy())
        np.testing.assert_array_equal(found[1 - changed], own[1 - changed])
        assert sorted(contents(found[changed])) == sorted(contents(own[changed]))
    lower = halves(loaded.further_tests["CIFAR randomized"].numpy())[1]
    assert all(new != old for new, old in zip(contents(lower), contents(own[1]), strict=True))


def test_further_tests_count_in_the_fingerprint_only_where_there_are_any(folder):
    loaded = load("mnist-cifar", folder)
    without = replace(loaded, further_tests={})
    assert without.fingerprint() != loaded.fingerprint()
    tensors = (without.train_inputs, without.train_labels, without.test_inputs, without.test_labels)
    expected = hashlib.sha256()
    for tensor in tensors:
        expected.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode() + tensor.numpy().tobytes())
    assert without.fingerprint() == expected.hexdigest()[:16]


def test_what_is_missing_is_named(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="mnist was not found"):
        load("mnist-cifar", tmp_path / "empty")
    images, labels = CIFAR[1]
    sets.write_cifar10_binary(folder / "cifar10", CIFAR[0], (images[labels != 9], labels[labels != 9]))
    with pytest.raises(ValueError, match="mnist-cifar needs test images of the class 9 of cifar10, which has none"):
        load("mnist-cifar", folder)


@pytest.mark.skipif("EFFDEG_DATA" not in os.environ, reason="EFFDEG_DATA names no folder of data sets")
def test_the_real_ones(monkeypatch):
    # The user's own cache: decoding takes ten seconds and more.
    monkeypatch.setenv("EFFDEG_CACHE", CACHE) if CACHE else monkeypatch.delenv("EFFDEG_CACHE")
    folder = Path(os.environ["EFFDEG_DATA"])
    if not all((folder / name).is_dir() for name in ("mnist", "cifar10")):
        pytest.skip("EFFDEG_DATA has no mnist and cifar10")
    loaded = load("mnist-cifar", folder)
    assert loaded.train_labels.bincount().tolist() == [5000, 5000]
    assert loaded.test_labels.bincount().tolist() == [1000, 1000]
    # MNIST has 980 zeros to test on, so that 20 are used twice.
    zeros = contents(halves(loaded.test_inputs[loaded.test_labels == 0].numpy())[0])
    assert len(set(zeros)) == 980
    assert len(set(contents(halves(loaded.train_inputs.numpy())[0]))) == 10_000
    # Of random others half are of the same class, up to four standard deviations.
    upper = dict(zip(contents(halves(loaded.test_inputs.numpy())[0]), loaded.test_labels.tolist(), strict=True))
    lent = [upper[each] for each in contents(halves(loaded.further_tests["MNIST randomized"].numpy())[0])]
    agreeing = np.mean(np.array(lent) == loaded.test_labels.numpy())
    assert agreeing == pytest.approx(0.5, abs=4 * 0.5 / 2000**0.5)
    # What docs/mnist-cifar.md says a network gets that looks at the digit alone.
    assert round(100 * agreeing, 1) == 49.5
