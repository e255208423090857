import gzip
import io
import os
import pickle
import struct
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from engine_runs import carry_out, small

from effdeg_lab.data import DATA_SETS, MADE_UP, DataSet, Labeled, Size, check, labeled, load
from effdeg_lab.engine import check_training
from effdeg_lab.models.made_up import draw, encode, write, write_human_arrays

USERS_CACHE = os.environ.get("EFFDEG_CACHE")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EFFDEG_CACHE", str(tmp_path / "cache"))
    (tmp_path / MADE_UP).touch()  # its data sets are smaller than the published ones
    return tmp_path / "cache" / "data"


CIFAR = draw(20, (3, 32, 32), 0), draw(10, (3, 32, 32), 1)
MNIST = draw(20, (1, 28, 28), 2), draw(10, (1, 28, 28), 3)
SMALL = draw(24, (3, 6, 5), 4, classes=3), draw(9, (3, 6, 5), 5, classes=3)
GRAY = draw(24, (1, 6, 5), 6, classes=3), draw(9, (1, 6, 5), 7, classes=3)


def write_parquet(folder, train, test):
    folder.mkdir(exist_ok=True, parents=True)
    parts = [*zip(*(np.array_split(each, 2) for each in train), strict=True), test]
    for name, (images, labels) in zip(("train-0-of-2", "train-1-of-2", "test-0-of-1"), parts, strict=True):
        cells = [{"bytes": encode(image), "path": None} for image in images]
        pq.write_table(pa.table({"img": cells, "label": labels}), folder / f"{name}.parquet")


def write_batches(folder, train, test, dump, suffix=""):
    parts = [*zip(*(np.array_split(each, 5) for each in train), strict=True), test]
    for name, (images, labels) in zip([*(f"data_batch_{n}" for n in "12345"), "test_batch"], parts, strict=True):
        write(folder / f"{name}{suffix}", dump(images.reshape(len(images), -1), labels))


def dump_binary(pixels, labels):
    return np.hstack([labels[:, None].astype("u1"), pixels]).tobytes()


write_binary = partial(write_batches, dump=dump_binary, suffix=".bin")


def write_idx(folder, train, test, compress=bytes, suffix=""):
    for name, (images, labels) in {"train": train, "t10k": test}.items():
        header, label_header = struct.pack(">IIII", 2051, len(images), 28, 28), struct.pack(">II", 2049, len(labels))
        write(folder / f"{name}-images-idx3-ubyte{suffix}", compress(header + images.tobytes()))
        write(folder / f"{name}-labels-idx1-ubyte{suffix}", compress(label_header + labels.astype("u1").tobytes()))


def dump_pickle(pixels, labels):
    return pickle.dumps({b"batch_label": b"one", b"labels": labels.tolist(), b"data": pixels}, protocol=2)


write_pickles = partial(write_batches, dump=dump_pickle)
write_gzipped = partial(write_idx, compress=gzip.compress, suffix=".gz")


def write_class_folders(folder, train, test):
    for split, (images, labels) in {"train": train, "test": test}.items():
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            write(folder / split / f"class-{label}" / f"{number}.png", encode(image))


def write_arrays(file, train, test):
    np.savez(file, x_train=train[0], y_train=train[1], x_test=test[0], y_test=test[1])


def sort(inputs, labels):
    return sorted((np.asarray(each).tobytes(), int(label)) for each, label in zip(inputs, labels, strict=True))


def assert_holds(loaded, train, test):
    assert sort(loaded.train_inputs, loaded.train_labels) == sort(*train)
    assert sort(loaded.test_inputs, loaded.test_labels) == sort(*test)
    assert loaded.train_inputs.shape[1:] == loaded.test_inputs.shape[1:] == train[0].shape[1:]
    assert loaded.train_inputs.is_contiguous()
    assert loaded.train_labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("name", "place", "examples", "write_all", "part"),
    [
        ("cifar10", "cifar10", CIFAR, write_parquet, "train-1-of-2.parquet"),
        ("cifar10", "cifar-10-batches-py", CIFAR, write_pickles, "data_batch_3"),
        ("cifar10", ".", CIFAR, write_binary, "test_batch.bin"),
        ("mnist", "MNIST/raw", MNIST, write_idx, "t10k-images-idx3-ubyte"),
        ("mnist", "mnist", MNIST, write_gzipped, "t10k-images-idx3-ubyte.gz"),
    ],
)
def test_published_sets_are_read_and_missing_or_damaged_files_named(tmp_path, name, place, examples, write_all, part):
    write_all(tmp_path / place, *examples)
    check(name, tmp_path)
    loaded = load(name, tmp_path)
    assert_holds(loaded, *examples)
    np.testing.assert_array_equal(loaded.train_labels, examples[0][1])  # not shuffled
    assert (loaded.classes, len(loaded.mean), len(loaded.std)) == (10, *[examples[0][0].shape[1]] * 2)
    file = tmp_path / place / part
    whole = file.read_bytes()
    for stored in (whole[: len(whole) // 3], whole[:-1], b"nonsense" * 20):
        file.write_bytes(stored)
        with pytest.raises(ValueError, match=f"{part} cannot be read as .*(CIFAR-10|Parquet|MNIST)"):
            load(name, tmp_path)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=rf"is incomplete: (found 1 of 2 train-\*.parquet|.*{part})"):
        check(name, tmp_path)


class Runs:
    def __reduce__(self):
        return __import__, ("antigravity",)


def test_pickles_run_no_code(tmp_path):
    write_pickles(tmp_path, *CIFAR)
    (tmp_path / "data_batch_2").write_bytes(pickle.dumps({b"data": Runs(), b"labels": []}, protocol=2))
    with pytest.raises(ValueError, match=r"data_batch_2 cannot be read as a pickled batch.*__import__ is not allowed"):
        load("cifar10", tmp_path)


def test_a_new_data_set_is_one_entry(tmp_path, monkeypatch):
    x, y = torch.rand(20, 5), torch.arange(20) % 2

    def find(folder, pixels):
        if not (folder / "tiny.txt").exists():
            raise FileNotFoundError("tiny.txt was not found.")
        return lambda: Labeled(x, y, x[:10], y[:10], classes=2)

    monkeypatch.setitem(DATA_SETS, "tiny", DataSet(find, "https://example.org", Size(20, 10, (5,), 2)))
    with pytest.raises(FileNotFoundError, match=r"tiny is published: https://example\.org"):
        check("tiny", tmp_path)
    (tmp_path / "tiny.txt").touch()
    settings = small(data="tiny", limit=None, batch=10)
    check_training([settings], tmp_path)
    with pytest.raises(ValueError, match="limit=30 is more than the 20 training examples"):
        check_training([settings.change({"limit": 30})], tmp_path)
    assert carry_out(tmp_path / "runs", settings, data=tmp_path).summary["train_examples"] == 20
    (tmp_path / MADE_UP).unlink()
    monkeypatch.setitem(DATA_SETS, "tiny", DATA_SETS["tiny"]._replace(size=Size(21, 10, (5,), 2)))
    with pytest.raises(ValueError, match="has 20 training and 10 test examples of 5 in 2 classes; expected 21"):
        load("tiny", tmp_path)


@pytest.mark.parametrize("examples", [SMALL, GRAY])
def test_own_images_are_read_from_every_layout(tmp_path, monkeypatch, examples):
    write_class_folders(tmp_path / "folders", *examples)
    write_parquet(tmp_path / "tables", *examples)
    write_arrays(tmp_path / "first.npz", *examples)
    last = [(np.moveaxis(images, 1, 3), labels[:, None]) for images, labels in examples]
    write_arrays(tmp_path / "last.npz", *last)
    write_arrays(tmp_path / "none.npz", *((images.squeeze(1), labels) for images, labels in GRAY))
    monkeypatch.chdir(tmp_path)
    pixels = examples[0][0] / 255
    for name in ("folders", "tables", "first.npz", "last.npz", *(["none.npz"] if examples is GRAY else [])):
        check(name, tmp_path)
        # Without a slash or a suffix it could be any word, of a data set in the data folder.
        for loaded in (load(name, tmp_path), load(str(tmp_path / name), None), load(f"./{name}", tmp_path / "other")):
            assert_holds(loaded, *examples)
            assert loaded.train_labels.tolist() != sorted(loaded.train_labels.tolist())  # as in folders of classes
            np.testing.assert_allclose((loaded.mean, loaded.std), (pixels.mean((0, 2, 3)), pixels.std((0, 2, 3))))


@pytest.mark.parametrize("labels", [np.array([5, -1, 8]), np.array(["cat", "ant", "dog"])])
def test_classes_are_numbered_in_order(tmp_path, labels):
    images = np.full((12, 1, 2, 2), 51, dtype=np.uint8)
    write_arrays(tmp_path / "a.npz", *[(images, labels[np.arange(12) % 3])] * 2)
    loaded = load("a.npz", tmp_path)
    assert loaded.test_labels.tolist() == [1, 0, 2] * 4
    assert (loaded.classes, loaded.mean, loaded.std) == (3, pytest.approx((0.2,)), (1.0,))  # what is constant stays
    assert loaded.fingerprint() != replace(loaded, train_labels=loaded.train_labels.flip(0)).fingerprint()


ONES, LABELS = np.ones((4, 3)), [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("train", "test", "words"),
    [
        ((ONES.astype("u1"), LABELS), (ONES, LABELS), r"training inputs are uint8 of the shape \(4, 3\).*expected N"),
        ((ONES, LABELS), (ONES[:0], []), r"test inputs are float64 of the shape \(0, 3\)"),
        ((ONES, LABELS), (ONES * np.nan, LABELS), "features as finite floats"),
        ((ONES, LABELS), (np.eye(4), LABELS), r"test inputs of shape \(4, 4\) do not match training inputs \(4, 3\)"),
        ((ONES, np.eye(4)), (ONES, LABELS), r"labels float64 of the shape \(4, 4\); expected .* N labels, integers"),
        ((ONES, [2] * 4), (ONES, [2] * 4), "all training examples are of one class, 2"),
        ((ONES, LABELS), (ONES, [0, 1, 9, 2]), r"the test label 9 \(example 2\) is not in training"),
    ],
)
def test_examples_that_cannot_be_meant_are_refused(tmp_path, train, test, words):
    write_arrays(tmp_path / "a.npz", train, test)
    with pytest.raises(ValueError, match=rf"a\.npz.*{words}"):
        load("a.npz", tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("train/class-1/x.png", encode(SMALL[0][0][0])[:40], "class-1/x.png cannot be read as an image"),
        ("train/class-1/x.png", encode(np.zeros((3, 6, 4), "u1")), r"x.png has the shape \(6, 4, 3\); expected"),
        ("train/x.png", encode(SMALL[0][0][0]), r"train/x.png is not in a class folder; expected .*train/CLASS/"),
    ],
)
def test_images_that_do_not_fit_are_named(tmp_path, file, content, words):
    write_class_folders(tmp_path, *SMALL)
    write(tmp_path / file, content)
    with pytest.raises(ValueError, match=words):
        load(str(tmp_path), None)


@pytest.mark.parametrize("function", [load, check])
def test_names_and_folders_that_are_not_there(tmp_path, function):
    (tmp_path / "empty").mkdir()
    for name, folder, words in (
        ("cifar10", None, r"'cifar10' needs the folder.*give --data DIR or set EFFDEG_DATA\.\ncifar10 is published"),
        ("cifar01", None, r"give --data DIR or set EFFDEG_DATA.*mean 'cifar10'.* a .npz file"),
        ("cifar01", tmp_path, "cifar01 does not exist. Did you mean 'cifar10'.*train/CLASS"),
        ("mnist", tmp_path / "absent", "absent should hold data='mnist' but is not a folder"),
        ("cifar10", tmp_path, r"cifar10 was not found: expected data_batch_1, .*train-\*.parquet.*cifar-10-batches-py"),
        ("mnist-cifar", tmp_path, r"mnist was not found: expected train-images-idx3-ubyte, .* with .gz"),
        ("empty", tmp_path, r"empty is in no known layout: expected a folder with train-\*.parquet"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=words):
            function(name, folder)


@pytest.mark.parametrize("damage", [None, lambda content: content[:-100]])
def test_images_are_decoded_once_unless_the_cache_is_damaged(tmp_path, cache, monkeypatch, damage):
    decoded, original = [], labeled._decode
    monkeypatch.setattr(labeled, "_decode", lambda images: decoded.append(1) or original(images))
    write_parquet(tmp_path / "cifar10", *CIFAR)
    check("cifar10", tmp_path)
    assert not decoded
    load("cifar10", tmp_path)
    for kept in cache.iterdir() if damage else ():
        kept.write_bytes(damage(kept.read_bytes()))
    assert_holds(load("cifar10", tmp_path), *CIFAR)
    assert len(decoded) == (6 if damage else 3)
    write_parquet(tmp_path / "cifar10", CIFAR[0], CIFAR[0])
    assert_holds(load("cifar10", tmp_path), CIFAR[0], CIFAR[0])
    monkeypatch.setenv("EFFDEG_CACHE", __file__)  # cannot be written to
    assert_holds(load("cifar10", tmp_path), CIFAR[0], CIFAR[0])


def to_bytes(images):
    return [np.asarray(image).tobytes() for image in images]


def test_mnist_cifar_stacks_zeros_on_automobiles_and_ones_on_trucks(tmp_path):
    mnist = draw(60, (1, 28, 28), 0), draw(30, (1, 28, 28), 1)
    cifar = draw(100, (3, 32, 32), 2), draw(50, (3, 32, 32), 3)
    write_idx(tmp_path / "mnist", *mnist)
    write_binary(tmp_path / "cifar10", *cifar)
    loaded = load("mnist-cifar", tmp_path)
    assert (loaded.classes, loaded.train_inputs.shape[1:]) == (2, (3, 64, 32))
    splits = (loaded.train_inputs, loaded.train_labels), (loaded.test_inputs, loaded.test_labels)
    for (images, labels), (digits, names), (pictures, kinds) in zip(splits, mnist, cifar, strict=True):
        for label, (digit, kind) in enumerate([(0, 1), (1, 9)]):
            upper, lower = images[labels == label].chunk(2, dim=2)
            assert sorted(to_bytes(lower)) == sorted(to_bytes(pictures[kinds == kind]))
            # There are fewer digits than pictures here: the first are used again.
            wanted = np.resize(digits[names == digit], (len(upper), 1, 28, 28)).repeat(3, 1)
            assert sorted(to_bytes(upper)) == sorted(to_bytes(np.pad(wanted, ((0, 0), (0, 0), (2, 2), (2, 2)))))
    own = loaded.test_inputs.chunk(2, dim=2)
    for changed, name in enumerate(("MNIST randomized", "CIFAR randomized")):
        halves = loaded.further_tests[name].chunk(2, dim=2)
        assert torch.equal(halves[1 - changed], own[1 - changed])
        assert sorted(to_bytes(halves[changed])) == sorted(to_bytes(own[changed]))
    assert all(new != old for new, old in zip(to_bytes(halves[1]), to_bytes(own[1]), strict=True))


HUMAN = {
    "aggregate": "aggre_label",
    "random1": "random_label1",
    "random2": "random_label2",
    "random3": "random_label3",
    "worst": "worse_label",
}


def draw_human_labels():
    """Make label sets of CIFAR's training images by their names: each has other wrong labels."""
    clean, rng = CIFAR[0][1], np.random.default_rng(8)
    return {"clean": clean} | {name: np.where(rng.random(20) < 0.4, rng.integers(0, 10, 20), clean) for name in HUMAN}


def write_human_release(folder, labels, moved=False):
    folder.mkdir()
    content = io.BytesIO()
    torch.save({{"clean": "clean_label", **HUMAN}[name]: each for name, each in labels.items()}, content)
    with zipfile.ZipFile(content) as stored, zipfile.ZipFile(folder / "CIFAR-10_human.pt", "w") as written:
        for name in stored.namelist():
            # numpy 1 and numpy 2 name the same function differently; their files must be read by either.
            names = (b"numpy._core.multiarray", b"numpy.core.multiarray")
            part = stored.read(name)
            new, old = (pickle.dumps(each.decode(), protocol=2)[2:-1] for each in names)
            written.writestr(name, part.replace(*names).replace(new, old) if moved else part)


@pytest.mark.parametrize("write_all", [write_human_arrays, write_human_release, partial(write_human_release, moved=1)])
def test_what_people_called_the_images_of_cifar10(tmp_path, write_all):
    write_pickles(tmp_path, *CIFAR)
    with pytest.raises(FileNotFoundError, match=r"cifar10n-worst was not found: expected .*CIFAR-10_human.pt, .*npz"):
        check("cifar10n-worst", tmp_path)
    labels = draw_human_labels()
    write_all(tmp_path / "cifar10n", labels)
    for name in HUMAN:
        check(f"cifar10n-{name}", tmp_path)
        loaded = load(f"cifar10n-{name}", tmp_path)
        assert_holds(replace(loaded, train_labels=loaded.true_labels), *CIFAR)
        np.testing.assert_array_equal(loaded.train_labels, labels[name])
        np.testing.assert_array_equal(loaded.true_labels, labels["clean"])
        shuffled = loaded.shuffle()
        assert sort(shuffled.train_inputs, shuffled.true_labels) == sort(*CIFAR[0])
    assert loaded.fingerprint() != replace(loaded, true_labels=None).fingerprint()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clean": np.roll(CIFAR[0][1], 1)}, "its clean labels differ from those of the training images in "),
        ({"worst": np.full(20, 10)}, "the labels of cifar10n-worst are not 20 numbers from 0 to 9"),
        ({"worst": np.zeros(19)}, "the labels of cifar10n-worst are not 20 numbers from 0 to 9"),
    ],
)
def test_labels_of_other_images_are_refused(tmp_path, changes, words):
    write_pickles(tmp_path, *CIFAR)
    write_human_arrays(tmp_path / "cifar10n", draw_human_labels() | changes)
    with pytest.raises(ValueError, match=rf"cifar10n.npz: {words}"):
        load("cifar10n-worst", tmp_path)


def test_published_labels_run_no_code(tmp_path):
    write_pickles(tmp_path, *CIFAR)
    torch.save({"clean_label": Runs()}, tmp_path / "CIFAR-10_human.pt")
    with pytest.raises(ValueError, match=r"CIFAR-10_human.pt cannot be read as .* CIFAR-10N: it holds something other"):
        load("cifar10n-worst", tmp_path)


@pytest.mark.skipif(not os.environ.get("EFFDEG_DATA"), reason="EFFDEG_DATA names no folder of data sets")
@pytest.mark.parametrize(
    ("name", "fingerprint"),
    [("cifar10", "62dee5fe7d829b6c"), ("mnist", "ce15d6c7e779c9a3"), ("mnist-cifar", "3fe60599936eae5b")],
)
def test_real_data_are_those_that_the_committed_results_were_made_with(monkeypatch, name, fingerprint):
    # The user's own cache: decoding takes ten seconds and more.
    monkeypatch.setenv("EFFDEG_CACHE", USERS_CACHE) if USERS_CACHE else monkeypatch.delenv("EFFDEG_CACHE")
    loaded = load(name, Path(os.environ["EFFDEG_DATA"]))
    assert loaded.fingerprint() == fingerprint


def test_missing_arrays_and_columns_are_named(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=SMALL[0][0], y_train=SMALL[0][1])
    with pytest.raises(ValueError, match=r"a\.npz .*: there is no array x_test, y_test among x_train, y_train"):
        load("a.npz", tmp_path)
    for split in ("train", "test"):
        pq.write_table(pa.table({"img": [b""], "fine": [1]}), tmp_path / f"{split}-0.parquet")
    with pytest.raises(ValueError, match=r"train-0.* no column of labels \(label.*\) among img, fine"):
        load(".", tmp_path)
