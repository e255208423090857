"""Data sets in every layout: read back as they were written, and refused with an error that names the file."""

import gzip
import io
import os
import pickle
import struct
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from effdeg_lab.data import check, layouts, load

USERS_CACHE = os.environ.get("EFFDEG_CACHE")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EFFDEG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "data"


def draw(count, shape, seed, classes=10):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, *shape), dtype=np.uint8), rng.permutation(np.arange(count) % classes)


CIFAR = draw(20, (3, 32, 32), 0), draw(10, (3, 32, 32), 1)
MNIST = draw(20, (1, 28, 28), 2), draw(10, (1, 28, 28), 3)
SMALL = draw(24, (3, 6, 5), 4, classes=3), draw(9, (3, 6, 5), 5, classes=3)
GRAY = draw(24, (1, 6, 5), 6, classes=3), draw(9, (1, 6, 5), 7, classes=3)


def encode(image):
    stream = io.BytesIO()
    Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(stream, "PNG")
    return stream.getvalue()


def write_table(file, images, labels):
    file.parent.mkdir(exist_ok=True, parents=True)
    cells = [{"bytes": encode(image), "path": None} for image in images]
    pq.write_table(pa.table({"img": cells, "label": labels}), file)


def write_parquet(folder, train, test):
    half = len(train[0]) // 2
    write_table(folder / "train-00000-of-00002.parquet", train[0][:half], train[1][:half])
    write_table(folder / "train-00001-of-00002.parquet", train[0][half:], train[1][half:])
    write_table(folder / "test-00000-of-00001.parquet", *test)


def iterate_batches(folder, train, test):
    folder.mkdir(exist_ok=True, parents=True)
    parts = zip(*(np.array_split(each, 5) for each in train), strict=True)
    yield from ((f"data_batch_{number}", *part) for number, part in enumerate(parts, 1))
    yield "test_batch", *test


def write_pickles(folder, train, test):
    for name, images, labels in iterate_batches(folder, train, test):
        batch = {b"batch_label": name.encode(), b"labels": labels.tolist(), b"data": images.reshape(len(images), -1)}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))


def write_binary(folder, train, test):
    for name, images, labels in iterate_batches(folder, train, test):
        rows = [bytes([label]) + image.tobytes() for image, label in zip(images, labels, strict=True)]
        (folder / f"{name}.bin").write_bytes(b"".join(rows))


def write_idx(folder, train, test, compress=lambda content: content, suffix=""):
    folder.mkdir(exist_ok=True, parents=True)
    for name, (images, labels) in {"train": train, "t10k": test}.items():
        pixels = struct.pack(">IIII", 2051, len(images), 28, 28) + images.tobytes()
        classes = struct.pack(">II", 2049, len(labels)) + labels.astype(np.uint8).tobytes()
        (folder / f"{name}-images-idx3-ubyte{suffix}").write_bytes(compress(pixels))
        (folder / f"{name}-labels-idx1-ubyte{suffix}").write_bytes(compress(classes))


def write_class_folders(folder, train, test):
    for split, (images, labels) in {"train": train, "test": test}.items():
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            (folder / split / f"class-{label}").mkdir(exist_ok=True, parents=True)
            (folder / split / f"class-{label}" / f"{number}.png").write_bytes(encode(image))


def write_arrays(file, train, test):
    np.savez(file, x_train=train[0], y_train=train[1], x_test=test[0], y_test=test[1])


def assert_holds(loaded, train, test):
    for (inputs, labels), split in zip((train, test), ("train", "test"), strict=True):
        np.testing.assert_array_equal(getattr(loaded, f"{split}_inputs").numpy(), inputs)
        np.testing.assert_array_equal(getattr(loaded, f"{split}_labels").numpy(), labels)
    assert loaded.train_inputs.is_contiguous()
    assert loaded.train_labels.dtype == torch.int64


def sort(inputs, labels):
    return sorted((np.asarray(each).tobytes(), int(label)) for each, label in zip(inputs, labels, strict=True))


def assert_holds_in_any_order(loaded, train, test):
    assert sort(loaded.train_inputs, loaded.train_labels) == sort(*train)
    assert sort(loaded.test_inputs, loaded.test_labels) == sort(*test)
    assert loaded.train_inputs.shape[1:] == loaded.test_inputs.shape[1:] == train[0].shape[1:]


@pytest.mark.parametrize(
    ("name", "place", "examples", "write", "part"),
    [
        ("cifar10", "cifar10", CIFAR, write_parquet, "train-00001-of-00002.parquet"),
        ("cifar10", "cifar-10-batches-py", CIFAR, write_pickles, "data_batch_3"),
        ("cifar10", ".", CIFAR, write_binary, "test_batch.bin"),
        ("mnist", "MNIST/raw", MNIST, write_idx, "t10k-images-idx3-ubyte"),
        (
            "mnist",
            "mnist",
            MNIST,
            partial(write_idx, compress=gzip.compress, suffix=".gz"),
            "t10k-images-idx3-ubyte.gz",
        ),
    ],
)
def test_published_sets_are_read_back_and_missing_or_damaged_files_are_named(
    tmp_path, name, place, examples, write, part
):
    write(tmp_path / place, *examples)
    check(name, tmp_path)
    loaded = load(name, tmp_path)
    assert_holds(loaded, *examples)
    assert (loaded.classes, len(loaded.mean), len(loaded.std)) == (10, *[examples[0][0].shape[1]] * 2)
    file = tmp_path / place / part
    whole = file.read_bytes()
    for stored in (whole[: len(whole) // 3], whole[:-1], b"nonsense" * 20):
        file.write_bytes(stored)
        with pytest.raises(ValueError, match=f"{part} cannot be read as .*(CIFAR-10|Parquet|MNIST)"):
            load(name, tmp_path)
    file.unlink()
    for function in (load, check):
        with pytest.raises(FileNotFoundError, match=r"is incomplete: (1 of 2 train-\*.parquet|.*" + part + ")"):
            function(name, tmp_path)


class Runs:
    def __reduce__(self):
        return __import__, ("antigravity",)


def test_pickles_run_no_code(tmp_path):
    write_pickles(tmp_path, *CIFAR)
    (tmp_path / "data_batch_2").write_bytes(pickle.dumps({b"data": Runs(), b"labels": []}, protocol=2))
    with pytest.raises(ValueError, match=r"data_batch_2 cannot be read as a pickled batch.*__import__ is not allowed"):
        load("cifar10", tmp_path)


def test_digits_need_no_folder_and_are_always_split_alike():
    loaded = load("digits", None)
    check("digits", None)
    assert loaded.fingerprint() == "5cc535a3d4a36d71"
    assert (loaded.train_inputs.shape, loaded.test_inputs.shape) == ((797, 64), (1000, 64))
    assert (loaded.classes, loaded.mean, loaded.std) == (10, (), ())
    assert set(loaded.train_labels[:100].tolist()) == set(range(10))  # not sorted by class


@pytest.mark.parametrize("examples", [SMALL, GRAY])
def test_own_images_are_read_back_from_every_layout(tmp_path, examples):
    write_class_folders(tmp_path / "folders", *examples)
    write_parquet(tmp_path / "tables", *examples)
    write_arrays(tmp_path / "first.npz", *examples)
    write_arrays(
        tmp_path / "last.npz", *((images.transpose(0, 2, 3, 1), labels[:, None]) for images, labels in examples)
    )
    names = ["folders", "tables", "first.npz", "last.npz"]
    if examples is GRAY:
        write_arrays(tmp_path / "none.npz", *((images[:, 0], labels) for images, labels in examples))
        names.append("none.npz")
    pixels = examples[0][0].astype(np.float64) / 255
    for name in names:
        check(name, tmp_path)
        for loaded in (load(name, tmp_path), load(str(tmp_path / name), None)):
            assert_holds_in_any_order(loaded, *examples)
            assert loaded.train_labels.tolist() != sorted(loaded.train_labels.tolist())  # as in folders of classes
            assert loaded.classes == 3
            np.testing.assert_allclose(loaded.mean, pixels.mean((0, 2, 3)))
            np.testing.assert_allclose(loaded.std, pixels.std((0, 2, 3)))


def test_features_are_read_from_arrays_and_tables(tmp_path):
    features, labels = np.random.default_rng(0).normal(size=(12, 4)), np.arange(12) % 3
    write_arrays(tmp_path / "features.npz", (features, labels), (features.astype(np.float32), labels))
    for split in ("train", "test"):
        columns = {f"f{number}": features[:, number] for number in range(4)}
        pq.write_table(pa.table({**columns, "label": labels}), tmp_path / f"{split}-0.parquet")
    for name in ("features.npz", "."):
        loaded = load(name, tmp_path)
        assert_holds_in_any_order(loaded, *[(features.astype(np.float32), labels)] * 2)
        assert (loaded.mean, loaded.std) == ((), ())


def test_paths_from_the_current_folder_come_before_the_data_folder(tmp_path, monkeypatch):
    here, data = tmp_path / "here", tmp_path / "data"
    for folder, count in ((here, 12), (data, 15)):
        write_class_folders(folder / "plain", draw(count, (1, 6, 5), 0, classes=3), GRAY[1])
    write_arrays(data / "other.npz", *SMALL)
    monkeypatch.chdir(here)
    assert len(load("./plain", None).train_labels) == len(load("../here/plain", data).train_labels) == 12
    # What is not here, or could be any word, is looked for among the data.
    assert len(load("other.npz", data).train_labels) == len(load("./other.npz", data).train_labels) == 24
    assert len(load("plain", data).train_labels) == 15


def test_the_fingerprint_tells_data_apart(tmp_path):
    write_arrays(tmp_path / "set.npz", *SMALL)
    loaded = load("set.npz", tmp_path)
    assert loaded.fingerprint() == load("set.npz", tmp_path).fingerprint()
    images = loaded.train_inputs.clone()
    images[3, 0, 1, 2] ^= 1
    others = [
        replace(loaded, train_inputs=images),
        replace(loaded, train_inputs=loaded.train_inputs.flip(0), train_labels=loaded.train_labels.flip(0)),
        replace(loaded, train_inputs=loaded.train_inputs.reshape(24, 3, 5, 6)),
        replace(loaded, further_tests={"changed": images}),
    ]
    assert len({loaded.fingerprint(), *(each.fingerprint() for each in others)}) == 5


@pytest.mark.parametrize("labels", [np.array([5, -1, 8]), np.array(["cat", "ant", "dog"])])
def test_classes_are_numbered_in_the_order_of_their_labels(tmp_path, labels):
    images = np.full((12, 1, 2, 2), 51, dtype=np.uint8)
    write_arrays(tmp_path / "a.npz", *[(images, labels[np.arange(12) % 3])] * 2)
    loaded = load("a.npz", tmp_path)
    assert loaded.test_labels.tolist() == [1, 0, 2] * 4
    np.testing.assert_allclose(loaded.mean, 0.2)
    assert loaded.std == (1.0,)  # a channel that never varies is not scaled


ONES = np.ones((4, 3))


@pytest.mark.parametrize(
    ("train", "test", "words"),
    [
        (
            (ONES.astype("u1"), range(4)),
            (ONES, range(4)),
            r"training inputs are uint8 of the shape \(4, 3\).*expected N",
        ),
        ((ONES, range(4)), (ONES[:0], []), r"test inputs are float64 of the shape \(0, 3\)"),
        ((ONES, range(4)), (ONES * np.nan, range(4)), "features as finite floats"),
        (
            (ONES, range(4)),
            (np.ones((4, 5)), range(4)),
            r"test inputs have the shape \(4, 5\); expected that of \(4, 3\)",
        ),
        ((ONES, np.eye(4)), (ONES, range(4)), r"labels float64 of the shape \(4, 4\); expected .* N labels, whole num"),
        ((ONES, [2] * 4), (ONES, [2] * 4), "all training examples are of one class, 2"),
        ((ONES, range(4)), (ONES, [0, 1, 9, 2]), r"the test label 9 \(example 2\) is not trained on"),
    ],
)
def test_examples_that_cannot_be_meant_are_refused(tmp_path, train, test, words):
    write_arrays(tmp_path / "a.npz", *((inputs, np.asarray(labels)) for inputs, labels in (train, test)))
    with pytest.raises(ValueError, match=rf"a\.npz.*{words}"):
        load("a.npz", tmp_path)


def test_damaged_arrays_images_and_tables_are_named(tmp_path):
    file = tmp_path / "a.npz"
    file.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"a\.npz cannot be read as a \.npz file"):
        load("a.npz", tmp_path)
    np.savez(file, x_train=SMALL[0][0], y_train=SMALL[0][1])
    with pytest.raises(ValueError, match=r"a\.npz .*: there is no array x_test, y_test among x_train, y_train"):
        load("a.npz", tmp_path)
    write_class_folders(tmp_path / "a", *SMALL)
    file = sorted((tmp_path / "a" / "train" / "class-1").iterdir())[2]
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(ValueError, match=f"class-1/{file.name} cannot be read as an image"):
        load("a", tmp_path)
    file.write_bytes(encode(np.zeros((3, 6, 4), dtype=np.uint8)))
    with pytest.raises(ValueError, match=rf"class-1/{file.name} has the shape \(6, 4, 3\); expected \(6, 5, 3\)"):
        load("a", tmp_path)
    file.rename(tmp_path / "a" / "train" / "stray.png")
    with pytest.raises(ValueError, match=r"train/stray.png is in no folder of a class; expected .*train/CLASS/"):
        load("a", tmp_path)
    write_parquet(tmp_path, *SMALL)
    pq.write_table(pa.table({"img": [b""], "fine": [1]}), tmp_path / "train-00001-of-00002.parquet")
    with pytest.raises(ValueError, match=r"train-00001.* no column of labels \(label.*\) among img, fine"):
        load(".", tmp_path)


@pytest.mark.parametrize("function", [load, check])
def test_names_and_folders_that_are_not_there(tmp_path, function):
    (tmp_path / "empty").mkdir()
    for name, folder, words in (
        ("cifar10", None, r"data='cifar10' needs the folder.*give --data DIR or set EFFDEG_DATA\.$"),
        ("cifar01", None, r"give --data DIR or set EFFDEG_DATA.*mean 'cifar10'.* a .npz file"),
        ("cifar01", tmp_path, "cifar01 does not exist. Did you mean 'cifar10'.*train/CLASS"),
        ("mnist", tmp_path / "absent", "absent should hold data='mnist' but is not a folder"),
        ("cifar10", tmp_path, r"cifar10 was not found: expected data_batch_1, .*train-\*.parquet.*cifar-10-batches-py"),
        ("mnist-cifar", tmp_path, r"mnist was not found: expected train-images-idx3-ubyte, .* with .gz"),
        ("empty", tmp_path, r"empty is in no known layout: expected a folder with train-\*.parquet"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=words):
            function(name, folder)


@pytest.mark.parametrize("damage", [None, "cut", "changed", "other"])
def test_images_are_decoded_once_unless_the_cache_is_damaged(tmp_path, cache, monkeypatch, damage):
    decoded, original = [], layouts._decode
    monkeypatch.setattr(layouts, "_decode", lambda images: decoded.append(1) or original(images))
    write_parquet(tmp_path / "cifar10", *CIFAR)
    check("cifar10", tmp_path)
    assert not decoded
    load("cifar10", tmp_path)
    assert len(decoded) == 3
    for kept in cache.iterdir():
        content = bytearray(kept.read_bytes())
        if damage == "cut":
            del content[-100:]
        elif damage == "changed":
            content[len(content) // 2] ^= 1
        kept.write_bytes(content)
        if damage == "other":
            np.savez(kept, x=np.arange(3))
    decoded.clear()
    assert_holds(load("cifar10", tmp_path), *CIFAR)
    assert bool(decoded) == bool(damage)
    changed = CIFAR[1][0], np.roll(CIFAR[1][1], 1)
    write_table(tmp_path / "cifar10" / "test-00000-of-00001.parquet", *changed)
    assert_holds(load("cifar10", tmp_path), CIFAR[0], changed)


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    write_parquet(tmp_path / "cifar10", *CIFAR)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("EFFDEG_CACHE", str(tmp_path / "file"))
    assert_holds(load("cifar10", tmp_path), *CIFAR)


def split_halves(images):
    return images[:, :, :32], images[:, :, 32:]


def to_bytes(images):
    return [np.asarray(image).tobytes() for image in images]


def test_mnist_cifar_stacks_zeros_on_automobiles_and_ones_on_trucks(tmp_path):
    mnist = draw(60, (1, 28, 28), 0), draw(30, (1, 28, 28), 1)
    cifar = draw(100, (3, 32, 32), 2), draw(50, (3, 32, 32), 3)
    write_idx(tmp_path / "mnist", *mnist)
    write_binary(tmp_path / "cifar10", *cifar)
    state = torch.get_rng_state()
    loaded = load("mnist-cifar", tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert (loaded.classes, loaded.train_inputs.shape[1:]) == (2, (3, 64, 32))
    for number, split in enumerate(("train", "test")):
        images, labels = (getattr(loaded, f"{split}_{what}").numpy() for what in ("inputs", "labels"))
        for label, (digit, picture) in enumerate([(0, 1), (1, 9)]):
            upper, lower = split_halves(images[labels == label])
            pictures = cifar[number][0][cifar[number][1] == picture]
            digits = mnist[number][0][mnist[number][1] == digit]
            assert sorted(to_bytes(lower)) == sorted(to_bytes(pictures))
            # There are fewer digits than pictures here: the first are used again.
            wanted = [digits[place % len(digits)] for place in range(len(pictures))]
            padded = [np.pad(each.repeat(3, 0), ((0, 0), (2, 2), (2, 2))) for each in wanted]
            assert sorted(to_bytes(upper)) == sorted(to_bytes(padded))
    own = split_halves(loaded.test_inputs)
    assert list(loaded.further_tests) == ["MNIST randomized", "CIFAR randomized"]
    for changed, name in enumerate(loaded.further_tests):
        halves = split_halves(loaded.further_tests[name])
        assert torch.equal(halves[1 - changed], own[1 - changed])
        assert sorted(to_bytes(halves[changed])) == sorted(to_bytes(own[changed]))
    lower = split_halves(loaded.further_tests["CIFAR randomized"])[1]
    assert all(new != old for new, old in zip(to_bytes(lower), to_bytes(own[1]), strict=True))


@pytest.mark.skipif("EFFDEG_DATA" not in os.environ, reason="EFFDEG_DATA names no folder of data sets")
@pytest.mark.parametrize(
    ("name", "fingerprint"),
    [("cifar10", "62dee5fe7d829b6c"), ("mnist", "ce15d6c7e779c9a3"), ("mnist-cifar", "3fe60599936eae5b")],
)
def test_real_data_are_those_that_the_committed_results_were_made_with(monkeypatch, name, fingerprint):
    # The user's own cache: decoding takes ten seconds and more.
    monkeypatch.setenv("EFFDEG_CACHE", USERS_CACHE) if USERS_CACHE else monkeypatch.delenv("EFFDEG_CACHE")
    folder = Path(os.environ["EFFDEG_DATA"])
    try:
        check(name, folder)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    loaded = load(name, folder)
    assert loaded.fingerprint() == fingerprint
    if name == "mnist-cifar":
        # What docs/mnist-cifar.md says a network gets that looks at the digit alone.
        digits = to_bytes(split_halves(loaded.test_inputs)[0])
        labels = dict(zip(digits, loaded.test_labels.tolist(), strict=True))
        given = [labels[each] for each in to_bytes(split_halves(loaded.further_tests["MNIST randomized"])[0])]
        assert round(100 * np.mean(np.array(given) == loaded.test_labels.numpy()), 1) == 49.5
