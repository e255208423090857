"""Data sets in every layout: read back as they were written, and refused with an error that names the file."""

import gzip
import io
import os
import pickle
import re
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


def iterate_batches(train, test):
    parts = zip(*(np.array_split(each, 5) for each in train), strict=True)
    yield from ((f"data_batch_{number}", *part) for number, part in enumerate(parts, 1))
    yield "test_batch", *test


def write_pickles(folder, train, test):
    folder.mkdir(exist_ok=True, parents=True)
    for name, images, labels in iterate_batches(train, test):
        batch = {b"batch_label": name.encode(), b"labels": labels.tolist(), b"data": images.reshape(len(images), -1)}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))


def write_binary(folder, train, test):
    folder.mkdir(exist_ok=True, parents=True)
    for name, images, labels in iterate_batches(train, test):
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


PUBLISHED = [
    ("cifar10", CIFAR, write_parquet, "train-00001-of-00002.parquet"),
    ("cifar10", CIFAR, write_pickles, "data_batch_3"),
    ("cifar10", CIFAR, write_binary, "test_batch.bin"),
    ("mnist", MNIST, write_parquet, "train-00001-of-00002.parquet"),
    ("mnist", MNIST, write_idx, "t10k-images-idx3-ubyte"),
    ("mnist", MNIST, partial(write_idx, compress=gzip.compress, suffix=".gz"), "train-labels-idx1-ubyte.gz"),
]


@pytest.mark.parametrize(("name", "examples", "write", "part"), PUBLISHED)
def test_published_sets_are_read_back_and_missing_or_damaged_files_are_named(tmp_path, name, examples, write, part):
    places = {
        "cifar10": ["cifar10", "cifar-10-batches-py", "cifar-10-batches-bin", "."],
        "mnist": ["MNIST/raw", "mnist"],
    }
    for number, place in enumerate(places[name]):
        write(tmp_path / str(number) / place, *examples)
        check(name, tmp_path / str(number))
        loaded = load(name, tmp_path / str(number))
        assert_holds(loaded, *examples)
        assert (loaded.classes, len(loaded.mean), len(loaded.std)) == (10, *[examples[0][0].shape[1]] * 2)
    file = tmp_path / str(number) / place / part
    whole = file.read_bytes()
    for stored in (whole[: len(whole) // 3], whole[:-1], b"", b"nonsense" * 20):
        file.write_bytes(stored)
        with pytest.raises(ValueError, match=f"{part} cannot be read as .*(CIFAR-10|Parquet|MNIST)"):
            load(name, tmp_path / str(number))
    file.unlink()
    for function in (load, check):
        with pytest.raises(FileNotFoundError, match=f"{part}.* is missing"):
            function(name, tmp_path / str(number))


def test_published_sets_of_another_shape_or_with_other_labels_are_refused(tmp_path):
    write_parquet(tmp_path / "cifar10", *SMALL)
    with pytest.raises(ValueError, match="the training inputs have the shape 3 × 6 × 5; expected 3 × 32 × 32"):
        load("cifar10", tmp_path)
    write_parquet(tmp_path / "cifar10", CIFAR[0], (CIFAR[1][0], CIFAR[1][1] + 7))
    with pytest.raises(ValueError, match=r"the test label 1\d \(example \d\) is none of the classes 0, 1, .* 9\."):
        load("cifar10", tmp_path)
    write_idx(tmp_path, (MNIST[0][0], MNIST[0][1][:-3]), MNIST[1])
    with pytest.raises(ValueError, match=r"training labels have the shape \(17,\); expected one label for each of 20"):
        load("mnist", tmp_path)


class Runs:
    def __reduce__(self):
        return __import__, ("antigravity",)


def test_pickles_run_no_code(tmp_path):
    write_pickles(tmp_path, *CIFAR)
    (tmp_path / "data_batch_2").write_bytes(pickle.dumps({b"data": Runs(), b"labels": []}, protocol=2))
    with pytest.raises(ValueError, match=r"data_batch_2 cannot be read as a pickled batch.*__import__ is not allowed"):
        load("cifar10", tmp_path)
    (tmp_path / "data_batch_2").write_bytes(pickle.dumps([1, 2], protocol=2))
    with pytest.raises(ValueError, match=r"data_batch_2 .*: it does not hold data and labels"):
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
    train, test = examples
    write_class_folders(tmp_path / "folders", *examples)
    write_parquet(tmp_path / "tables", *examples)
    write_arrays(tmp_path / "first.npz", *examples)
    last = [(images.transpose(0, 2, 3, 1), labels[:, None]) for images, labels in examples]
    write_arrays(tmp_path / "last.npz", *last)
    names = ["folders", "tables", "first.npz", "last.npz"]
    if train[0].shape[1] == 1:
        write_arrays(tmp_path / "none.npz", *((images[:, 0], labels) for images, labels in examples))
        names.append("none.npz")
    pixels = train[0].astype(np.float64) / 255
    for name in names:
        check(name, tmp_path)
        for loaded in (load(name, tmp_path), load(str(tmp_path / name), None)):
            assert_holds_in_any_order(loaded, *examples)
            assert loaded.train_labels.tolist() != sorted(loaded.train_labels.tolist())  # as in folders of classes
            assert loaded.classes == 3
            np.testing.assert_allclose(loaded.mean, pixels.mean((0, 2, 3)))
            np.testing.assert_allclose(loaded.std, pixels.std((0, 2, 3)))
    np.testing.assert_array_equal(load("first.npz", tmp_path).test_inputs, test[0])  # test examples stay in order


def test_features(tmp_path):
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
    with pytest.raises(ValueError, match=r"data='./other.npz' needs the folder that holds it"):
        load("./other.npz", None)


def test_the_fingerprint_tells_data_apart(tmp_path):
    write_arrays(tmp_path / "set.npz", *SMALL)
    loaded = load("set.npz", tmp_path)
    assert re.fullmatch(r"[0-9a-f]{16}", loaded.fingerprint())
    assert loaded.fingerprint() == load("set.npz", tmp_path).fingerprint()
    images = loaded.train_inputs.clone()
    images[3, 0, 1, 2] ^= 1
    others = [
        replace(loaded, train_inputs=images),
        replace(loaded, train_inputs=loaded.train_inputs.flip(0), train_labels=loaded.train_labels.flip(0)),
        replace(loaded, train_inputs=loaded.train_inputs.reshape(24, 3, 5, 6)),
        replace(loaded, test_inputs=loaded.test_inputs[1:], test_labels=loaded.test_labels[1:]),
        replace(loaded, further_tests={"changed": images}),
    ]
    assert len({loaded.fingerprint(), *(each.fingerprint() for each in others)}) == 6


@pytest.mark.parametrize("labels", [np.array([5, -1, 8]), np.array(["cat", "ant", "dog"]), np.array([5, 1, 9], "u1")])
def test_classes_are_numbered_in_the_order_of_their_labels(tmp_path, labels):
    images = np.full((12, 1, 2, 2), 51, dtype=np.uint8)
    write_arrays(tmp_path / "a.npz", *[(images, labels[np.arange(12) % 3])] * 2)
    loaded = load("a.npz", tmp_path)
    assert loaded.test_labels.tolist() == [1, 0, 2] * 4
    np.testing.assert_allclose(loaded.mean, 0.2)
    assert loaded.std == (1.0,)  # a channel that never varies is not scaled


FLOATS = np.ones((4, 3)), range(4)


@pytest.mark.parametrize(
    ("train", "test", "words"),
    [
        (
            (np.ones((4, 3), "u1"), range(4)),
            FLOATS,
            r"training inputs are uint8 of the shape \(4, 3\); expected images",
        ),
        ((np.ones((4, 5, 8, 8), "u1"), range(4)), FLOATS, "with or without 1 or 3 channels"),
        ((np.array(3.0), range(4)), FLOATS, r"are float64 of the shape \(\)"),
        (FLOATS, (np.ones((0, 3)), []), "the test inputs are empty"),
        (FLOATS, (np.full((4, 3), np.nan), range(4)), "the test inputs are not all finite"),
        (FLOATS, (np.ones((4, 5)), range(4)), "the test inputs have the shape 5; expected 3"),
        ((FLOATS[0], np.eye(4)), FLOATS, r"training labels have the shape \(4, 4\); expected one label for each of 4"),
        ((FLOATS[0], np.ones(4)), FLOATS, "the training labels are float64; expected whole numbers or text"),
        ((FLOATS[0], [2] * 4), FLOATS, "all training examples are of one class, 2"),
        (FLOATS, (FLOATS[0], [0, 1, 9, 2]), r"test label 9 \(example 2\) is none of the classes 0, 1, 2, 3\."),
        (FLOATS, (FLOATS[0], [*"abcd"]), "test label a"),
    ],
)
def test_examples_that_cannot_be_meant_are_refused(tmp_path, train, test, words):
    write_arrays(tmp_path / "a.npz", *((np.asarray(inputs), np.asarray(labels)) for inputs, labels in (train, test)))
    with pytest.raises(ValueError, match=rf"a\.npz.*{words}"):
        load("a.npz", tmp_path)


def test_damaged_arrays_and_images_are_named(tmp_path):
    file = tmp_path / "a.npz"
    for stored in (b"", b"nonsense"):
        file.write_bytes(stored)
        with pytest.raises(ValueError, match=r"a\.npz cannot be read as a \.npz file"):
            check("a.npz", tmp_path)
    np.savez(file, x_train=SMALL[0][0], y_train=SMALL[0][1])
    with pytest.raises(ValueError, match=r"a\.npz has no array x_test; it has x_train, y_train"):
        check("a.npz", tmp_path)
    write_arrays(file, (np.array([{}]), [0]), SMALL[1])
    with pytest.raises(ValueError, match=r"a\.npz cannot be read"):  # objects would run code
        load("a.npz", tmp_path)
    write_class_folders(tmp_path / "a", *SMALL)
    file = sorted((tmp_path / "a" / "train" / "class-1").iterdir())[2]
    whole = file.read_bytes()
    file.write_bytes(whole[:40])
    with pytest.raises(ValueError, match=f"class-1/{file.name} cannot be read as an image"):
        load("a", tmp_path)
    file.write_bytes(encode(np.zeros((3, 6, 4), dtype=np.uint8)))
    with pytest.raises(ValueError, match=f"class-1/{file.name} has 6 × 4 pixels, the first image 6 × 5"):
        load("a", tmp_path)
    file.rename(tmp_path / "a" / "train" / "stray.png")
    with pytest.raises(ValueError, match=r"train/stray.png is in no folder of a class; expected .*train/CLASS/"):
        load("a", tmp_path)


def test_tables_that_do_not_go_together(tmp_path):
    write_parquet(tmp_path, *SMALL)
    file = tmp_path / "train-00001-of-00002.parquet"
    write_table(file, *GRAY[0])
    with pytest.raises(ValueError, match=r"train-00001.*of the shape \(1, 6, 5\), .*train-00000.* \(3, 6, 5\)"):
        load(".", tmp_path)
    pq.write_table(pa.table({"img": [{"bytes": encode(SMALL[0][0][0])}, {"bytes": None}], "label": [0, 1]}), file)
    with pytest.raises(ValueError, match=r"image 1 of .*train-00001.* is missing: its cell is empty"):
        load(".", tmp_path)
    pq.write_table(pa.table({"img": [b""], "fine": [1]}), file)
    with pytest.raises(ValueError, match=r"train-00001.* has no column of labels \(label.*\); it has img, fine"):
        check(".", tmp_path)


@pytest.mark.parametrize("function", [load, check])
def test_names_and_folders_that_are_not_there(tmp_path, function):
    for name, folder, words in (
        ("cifar10", None, "data='cifar10' needs the folder.*give --data DIR or set EFFDEG_DATA"),
        ("cifar01", None, r"give --data DIR or set EFFDEG_DATA.*mean 'cifar10'.* a .npz file"),
        ("cifar01", tmp_path, "cifar01 does not exist. Did you mean 'cifar10'.*train/CLASS"),
        ("mnist", tmp_path / "absent", "absent, which should hold data='mnist', is not a folder"),
        ("cifar10", tmp_path, r"cifar10 was not found: expected data_batch_1, .*train-\*.parquet.*cifar-10-batches-py"),
        ("mnist-cifar", tmp_path, r"mnist was not found: expected train-images-idx3-ubyte, .* with .gz"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=words):
            function(name, folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty is in no known layout: expected a folder with train-\*.parquet"):
        function("empty", tmp_path)
    for split in ("train", "test"):
        (tmp_path / "empty" / split).mkdir()
    with pytest.raises(FileNotFoundError, match="train has no images in folders named by class"):
        function("empty", tmp_path)


@pytest.fixture
def decoded(monkeypatch):
    """Count the images that are decoded."""
    seen, original = [], layouts._Pixels.__call__
    monkeypatch.setattr(layouts._Pixels, "__call__", lambda *given: seen.append(1) or original(*given))
    return seen


@pytest.mark.parametrize("damage", [None, "cut", "changed", "other"])
def test_images_are_decoded_once_unless_the_cache_is_damaged(tmp_path, cache, decoded, damage):
    write_parquet(tmp_path / "cifar10", *CIFAR)
    check("cifar10", tmp_path)
    assert not decoded
    load("cifar10", tmp_path)
    assert len(decoded) >= 30
    (kept,) = cache.iterdir()  # nothing temporary stays
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

    def fail(*given):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("EFFDEG_CACHE")
    monkeypatch.setattr(Path, "home", fail)
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
    write_binary(tmp_path / "cifar10", cifar[0], tuple(each[cifar[1][1] != 9] for each in cifar[1]))
    with pytest.raises(ValueError, match="mnist-cifar needs test images of the class 9 of cifar10, which has none"):
        load("mnist-cifar", tmp_path)


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
