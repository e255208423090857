import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from effdeg.lab.data import load
from tests.lab.data import sets

TRAIN, TEST = sets.examples(24, (3, 6, 5), seed=0, classes=3), sets.examples(9, (3, 6, 5), seed=1, classes=3)
GREY_TRAIN, GREY_TEST = sets.examples(24, (1, 6, 5), seed=2, classes=3), sets.examples(9, (1, 6, 5), seed=3, classes=3)


def write_npz(file, train, test):
    np.savez(file, x_train=train[0], y_train=train[1], x_test=test[0], y_test=test[1])


def assert_same_examples(loaded, train, test):
    assert sets.by_contents(loaded.train_inputs, loaded.train_labels) == sets.by_contents(*train)
    assert sets.by_contents(loaded.test_inputs, loaded.test_labels) == sets.by_contents(*test)
    assert loaded.train_inputs.shape[1:] == loaded.test_inputs.shape[1:] == train[0].shape[1:]


@pytest.mark.parametrize(("train", "test"), [(TRAIN, TEST), (GREY_TRAIN, GREY_TEST)])
def test_folders_and_tables_of_images(tmp_path, train, test):
    sets.write_folders(tmp_path / "folders", train, test)
    sets.write_cifar10_parquet(tmp_path / "tables", train, test)
    for name in ("folders", "tables"):
        for loaded in (load(name, tmp_path), load(str(tmp_path / name), None)):
            assert_same_examples(loaded, train, test)
            assert loaded.classes == 3
            pixels = train[0].astype(np.float64) / 255
            np.testing.assert_allclose(loaded.mean, pixels.mean((0, 2, 3)))
            np.testing.assert_allclose(loaded.std, pixels.std((0, 2, 3)))


def test_a_path_from_where_one_stands_needs_no_folder(tmp_path, monkeypatch):
    here, data = tmp_path / "here", tmp_path / "data"
    for folder, count in ((here, 12), (data, 15)):
        folder.mkdir()
        sets.write_folders(folder / "plain", sets.examples(count, (1, 6, 5), seed=0, classes=3), GREY_TEST)
        write_npz(folder / "set.npz", sets.examples(count, (1, 6, 5), seed=0, classes=3), GREY_TEST)
    write_npz(data / "other.npz", TRAIN, TEST)
    monkeypatch.chdir(here)
    for name in ("./set.npz", "set.npz", "./plain", "../here/set.npz"):
        assert len(load(name, None).train_labels) == len(load(name, data).train_labels) == 12
    # What is not here, or could be any word, is looked for among the data.
    assert len(load("other.npz", data).train_labels) == len(load("./other.npz", data).train_labels) == 24
    assert len(load("plain", data).train_labels) == 15
    with pytest.raises(ValueError, match=r"data='./other.npz' needs the folder that holds it"):
        load("./other.npz", None)


def test_the_fingerprint_tells_data_apart(tmp_path):
    write_npz(tmp_path / "set.npz", TRAIN, TEST)
    loaded = load("set.npz", tmp_path)
    assert loaded.fingerprint() == load("set.npz", tmp_path).fingerprint()
    assert re.fullmatch(r"[0-9a-f]{16}", loaded.fingerprint())
    images = loaded.train_inputs.clone()
    images[3, 0, 1, 2] ^= 1
    others = [
        replace(loaded, train_inputs=images),
        replace(loaded, train_inputs=loaded.train_inputs.flip(0), train_labels=loaded.train_labels.flip(0)),
        replace(loaded, train_inputs=loaded.train_inputs.reshape(24, 3, 5, 6)),
        replace(loaded, train_labels=(loaded.train_labels + 1) % 3),
        replace(loaded, test_inputs=loaded.test_inputs[1:], test_labels=loaded.test_labels[1:]),
    ]
    assert len({loaded.fingerprint(), *(each.fingerprint() for each in others)}) == 6


def test_sorted_classes_come_in_a_random_order_that_is_always_the_same(tmp_path):
    images, labels = sets.examples(60, (1, 3, 3), seed=0, classes=3)
    write_npz(tmp_path / "sorted.npz", (images, np.sort(labels)), (images, labels))
    one, two = load("sorted.npz", tmp_path), load("sorted.npz", tmp_path)
    assert set(one.train_labels[:15].tolist()) == set(one.train_labels[-15:].tolist()) == {0, 1, 2}
    torch.testing.assert_close(one.train_inputs, two.train_inputs, rtol=0, atol=0)
    np.testing.assert_array_equal(one.test_labels.numpy(), labels)  # the test examples stay in order


@pytest.mark.parametrize(("train", "test"), [(TRAIN, TEST), (GREY_TRAIN, GREY_TEST)])
def test_images_in_arrays_may_have_their_channels_first_last_or_left_out(tmp_path, train, test):
    write_npz(tmp_path / "first.npz", train, test)
    last = [(images.transpose(0, 2, 3, 1), labels[:, None]) for images, labels in (train, test)]
    write_npz(tmp_path / "last.npz", *last)
    names = ["first.npz", "last.npz"]
    if train[0].shape[1] == 1:
        write_npz(tmp_path / "none.npz", *((images[:, 0], labels) for images, labels in (train, test)))
        names.append("none.npz")
    for name in names:
        assert_same_examples(load(name, tmp_path), train, test)


def test_features(tmp_path):
    features = np.random.default_rng(0).normal(size=(12, 4))
    labels = np.arange(12) % 3
    write_npz(tmp_path / "features.npz", (features, labels), (features.astype(np.float32), labels))
    for split in ("train", "test"):
        columns = {f"f{number}": features[:, number] for number in range(4)}
        pq.write_table(pa.table({**columns, "label": labels}), tmp_path / f"{split}-0.parquet")
    expected = features.astype(np.float32), labels
    for name in ("features.npz", "."):
        loaded = load(name, tmp_path)
        assert_same_examples(loaded, expected, expected)
        assert loaded.train_inputs.dtype == torch.float32
        assert (loaded.mean, loaded.std) == ((), ())


@pytest.mark.parametrize("labels", [np.array([5, -1, 8]), np.array(["cat", "ant", "dog"]), np.array([5, 1, 9], "u1")])
def test_classes_are_numbered_in_the_order_of_their_labels(tmp_path, labels):
    images = TRAIN[0][:12]
    write_npz(tmp_path / "a.npz", (images, labels[np.arange(12) % 3]), (images, labels[np.arange(12) % 3]))
    loaded = load("a.npz", tmp_path)
    assert loaded.test_labels.tolist() == [1, 0, 2] * 4
    assert loaded.classes == 3


def test_a_channel_that_never_varies_is_not_scaled(tmp_path):
    images = np.full((4, 1, 2, 2), 51, dtype=np.uint8)
    write_npz(tmp_path / "a.npz", (images, np.arange(4)), (images, np.arange(4)))
    loaded = load("a.npz", tmp_path)
    np.testing.assert_allclose(loaded.mean, 0.2)
    assert loaded.std == (1.0,)


FLOATS = np.ones((4, 3))


@pytest.mark.parametrize(
    ("train", "test", "words"),
    [
        ((np.ones((4, 3), "u1"), range(4)), (FLOATS, range(4)), r"training inputs are uint8 of the shape \(4, 3\)"),
        ((np.ones((4, 3, 8, 8)), range(4)), (FLOATS, range(4)), "are float64 of the shape .* expected images as bytes"),
        ((np.ones((4, 5, 8, 8), "u1"), range(4)), (FLOATS, range(4)), "with or without 1 or 3 channels"),
        ((np.array(3.0), range(4)), (FLOATS, range(4)), r"are float64 of the shape \(\)"),
        ((FLOATS, range(4)), (np.ones((0, 3)), []), "the test inputs are empty"),
        ((FLOATS, range(4)), (np.full((4, 3), np.nan), range(4)), "the test inputs are not all finite"),
        ((FLOATS, range(4)), (np.ones((4, 5)), range(4)), "the test inputs have the shape 5; expected 3"),
        ((FLOATS, range(4)), (np.ones((4, 3, 3), "u1"), range(4)), "the test inputs have the shape 1 × 3 × 3"),
        ((FLOATS, range(3)), (FLOATS, range(4)), r"4 training inputs came with labels of the shape \(3,\)"),
        ((FLOATS, np.eye(4)), (FLOATS, range(4)), r"labels of the shape \(4, 4\); one label is expected for each"),
        ((FLOATS, np.ones(4)), (FLOATS, range(4)), "the training labels are float64; expected whole numbers or text"),
        ((FLOATS, [2] * 4), (FLOATS, range(4)), "all training examples are of one class, 2"),
        ((FLOATS, range(4)), (FLOATS, [0, 1, 9, 2]), r"test label 9 \(example 2\) is none of the classes 0, 1, 2, 3\."),
        ((FLOATS, range(4)), (FLOATS, [*"abcd"]), "test label a"),
    ],
)
def test_examples_that_cannot_be_meant_are_refused(tmp_path, train, test, words):
    write_npz(tmp_path / "a.npz", *((np.asarray(inputs), np.asarray(labels)) for inputs, labels in (train, test)))
    with pytest.raises(ValueError, match=rf"a\.npz.*{words}"):
        load("a.npz", tmp_path)


def test_array_files_that_are_damaged_or_lack_an_array(tmp_path):
    file = tmp_path / "a.npz"
    write_npz(file, TRAIN, TEST)
    whole = file.read_bytes()
    for stored in (whole[: len(whole) // 2], b"", b"nonsense"):
        file.write_bytes(stored)
        with pytest.raises(ValueError, match=r"a\.npz cannot be read as a \.npz file"):
            load("a.npz", tmp_path)
    np.savez(file, x_train=TRAIN[0], y_train=TRAIN[1])
    with pytest.raises(ValueError, match=r"a\.npz has no array x_test; it has x_train, y_train"):
        load("a.npz", tmp_path)
    np.savez(file, x_train=np.array([{}]))
    with pytest.raises(ValueError, match=r"a\.npz cannot be read"):  # objects would run code
        load("a.npz", tmp_path)


def test_images_that_are_damaged_or_of_another_size_are_named(tmp_path):
    sets.write_folders(tmp_path / "a", TRAIN, TEST)
    file = sorted((tmp_path / "a" / "train" / "class-1").iterdir())[2]
    whole = file.read_bytes()
    file.write_bytes(whole[:40])
    with pytest.raises(ValueError, match=f"class-1/{file.name} cannot be read as an image"):
        load("a", tmp_path)
    file.write_bytes(sets.png(np.zeros((3, 6, 4), dtype=np.uint8)))
    with pytest.raises(ValueError, match=f"class-1/{file.name} has 6 × 4 pixels, the first image 6 × 5"):
        load("a", tmp_path)
    for cells, words in (
        ([{"bytes": whole}, {"bytes": b"nonsense"}], r"image 1 of .*train-0\.parquet cannot be read as an image"),
        ([{"bytes": whole}, {"bytes": None}], r"image 1 of .*train-0\.parquet is missing: its cell is empty"),
    ):
        pq.write_table(pa.table({"img": cells, "label": [0, 1]}), tmp_path / "train-0.parquet")
        sets.write_parquet(tmp_path / "test-0.parquet", *TEST)
        with pytest.raises(ValueError, match=words):
            load(".", tmp_path)


def test_tables_that_do_not_go_together(tmp_path):
    sets.write_cifar10_parquet(tmp_path, TRAIN, TEST)
    sets.write_parquet(tmp_path / "train-00001-of-00002.parquet", *GREY_TRAIN)
    with pytest.raises(ValueError, match=r"train-00001.*of the shape \(1, 6, 5\), .*train-00000.* \(3, 6, 5\)"):
        load(".", tmp_path)
    pq.write_table(pa.table({"img": [b""], "fine": [1]}), tmp_path / "train-00001-of-00002.parquet")
    with pytest.raises(ValueError, match=r"train-00001.* has no column of labels \(label.*\); it has img, fine"):
        load(".", tmp_path)


def test_names_and_folders_that_are_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"data='cifar10' needs the folder.*give --data DIR or set EFFDEG_DATA"):
        load("cifar10", None)
    with pytest.raises(ValueError, match=r"give --data DIR or set EFFDEG_DATA.*mean 'cifar10'.* a .npz file"):
        load("cifar01", None)
    with pytest.raises(FileNotFoundError, match=r"cifar01 does not exist. Did you mean 'cifar10'.*train/CLASS"):
        load("cifar01", tmp_path)
    with pytest.raises(FileNotFoundError, match="absent, which should hold data='mnist', is not a folder"):
        load("mnist", tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match=r"absent.npz does not exist"):
        load(str(tmp_path / "absent.npz"), None)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty is in no known layout: expected a folder with train-\*.parquet"):
        load("empty", tmp_path)
    for split in ("train", "test"):
        (tmp_path / "empty" / split).mkdir()
    with pytest.raises(FileNotFoundError, match="train has no images in folders named by class"):
        load("empty", tmp_path)
