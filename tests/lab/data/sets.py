"""Tiny data sets of random images, and writers of the layouts in which people have them."""

import gzip
import io
import pickle
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

import effdeg.demo

DIGITS = Path(effdeg.demo.__file__).parent / "digits.npz"


def examples(count, shape, seed, classes=10):
    """Draw images, channels first, that all classes share out."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, *shape), dtype=np.uint8), rng.permutation(np.arange(count) % classes)


def png(image):
    """Encode an image whose channels come first."""
    stream = io.BytesIO()
    Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(stream, "PNG")
    return stream.getvalue()


def write_parquet(file, images, labels, column="img"):
    cells = [{"bytes": png(image), "path": None} for image in images]
    pq.write_table(pa.table({column: cells, "label": labels}), file)


def write_cifar10_parquet(folder, train, test):
    """Two parts of training examples, as the hub divides them."""
    folder.mkdir(exist_ok=True, parents=True)
    half = len(train[0]) // 2
    write_parquet(folder / "train-00000-of-00002.parquet", train[0][:half], train[1][:half])
    write_parquet(folder / "train-00001-of-00002.parquet", train[0][half:], train[1][half:])
    write_parquet(folder / "test-00000-of-00001.parquet", *test)


def cifar10_batches(train, test):
    """Five equal batches and the test batch, by name."""
    parts = zip(*(np.array_split(each, 5) for each in train), strict=True)
    return {**{f"data_batch_{number}": part for number, part in enumerate(parts, 1)}, "test_batch": test}


def write_cifar10_pickles(folder, train, test):
    folder.mkdir(exist_ok=True, parents=True)
    for name, (images, labels) in cifar10_batches(train, test).items():
        batch = {b"batch_label": name.encode(), b"labels": labels.tolist(), b"data": images.reshape(len(images), -1)}
        (folder / name).write_bytes(pickle.dumps({**batch, b"filenames": [b"a.png"] * len(images)}, protocol=2))


def write_cifar10_binary(folder, train, test):
    folder.mkdir(exist_ok=True, parents=True)
    for name, (images, labels) in cifar10_batches(train, test).items():
        rows = [bytes([label]) + image.tobytes() for image, label in zip(images, labels, strict=True)]
        (folder / f"{name}.bin").write_bytes(b"".join(rows))


def write_mnist(folder, train, test, *, zipped):
    folder.mkdir(exist_ok=True, parents=True)
    for name, (images, labels) in {"train": train, "t10k": test}.items():
        pictures = struct.pack(">IIII", 2051, len(images), 28, 28) + images.tobytes()
        classes = struct.pack(">II", 2049, len(labels)) + labels.astype(np.uint8).tobytes()
        for kind, stored in (("images-idx3-ubyte", pictures), ("labels-idx1-ubyte", classes)):
            file = folder / f"{name}-{kind}"
            if zipped:
                file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(stored))
            else:
                file.write_bytes(stored)


def write_folders(folder, train, test):
    for split, (images, labels) in {"train": train, "test": test}.items():
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            (folder / split / f"class-{label}").mkdir(exist_ok=True, parents=True)
            (folder / split / f"class-{label}" / f"{number}.png").write_bytes(png(image))


def assert_holds(loaded, train, test):
    """Raise unless these examples were loaded, in this order."""
    assert_equal(loaded.train_inputs, loaded.train_labels, train)
    assert_equal(loaded.test_inputs, loaded.test_labels, test)


def assert_equal(inputs, labels, expected):
    np.testing.assert_array_equal(inputs.numpy(), expected[0])
    np.testing.assert_array_equal(labels.numpy(), expected[1])
    assert inputs.is_contiguous()
    assert labels.numpy().dtype == np.int64


def by_contents(inputs, labels):
    """Sort examples by their bytes, whatever order they came in."""
    rows = [(np.asarray(each).tobytes(), int(label)) for each, label in zip(inputs, labels, strict=True)]
    return sorted(rows)
