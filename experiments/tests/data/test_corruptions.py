"""Corrupted test images in both layouts: read back as they were written, used at the end of a run, and refused."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from engine_runs import carry_out, make_pictures, small
from test_data import CIFAR, cache, write_binary  # noqa: F401 (a fixture)

from effdeg_lab.data import check, load
from effdeg_lab.data.corruptions import KINDS
from effdeg_lab.data.labeled import Corrupted
from effdeg_lab.engine import classify
from effdeg_lab.models.made_up import draw, encode

# Five severities of six images each, the labels those of one severity five times.
LABELS = np.tile(draw(6, (), 7)[1], 5)
IMAGES = {kind: draw(30, (3, 32, 32), seed)[0] for seed, kind in enumerate(KINDS)}


def write_archive(folder):
    folder.mkdir()
    np.save(folder / "labels.npy", LABELS.astype(np.uint8))
    for kind, images in IMAGES.items():
        np.save(folder / f"{kind}.npy", images.transpose(0, 2, 3, 1))
    np.save(folder / "saturate.npy", np.zeros(3))  # not one of the fifteen


def write_tables(folder, severity=2):
    folder.mkdir(exist_ok=True)
    for kind, images in IMAGES.items():
        for part in (0, 1):
            chosen = slice(12 + 3 * part, 15 + 3 * part)
            cells = [{"bytes": encode(image), "path": ""} for image in images[chosen]]
            columns = {"image": cells, "label": LABELS[chosen], "corruption": [kind] * 3, "severity": [severity] * 3}
            pq.write_table(pa.table(columns), folder / f"{kind}-{severity}-0000{part}-of-00002.parquet")


@pytest.mark.parametrize(
    ("place", "write", "severity"), [("CIFAR-10-C", write_archive, 3), ("cifar10-c", write_tables, 2)]
)
def test_both_layouts_are_read_and_do_not_change_the_data_set(tmp_path, place, write, severity):
    write_binary(tmp_path, *CIFAR)
    alone = load("cifar10", tmp_path)
    write(tmp_path / place)
    check("cifar10", tmp_path)
    loaded = load("cifar10", tmp_path)
    assert alone.corrupted is None
    assert loaded.fingerprint() == alone.fingerprint()
    assert loaded.corrupted.severity == severity
    assert tuple(loaded.corrupted.images) == KINDS
    for kind, (images, labels) in loaded.corrupted.images.items():
        np.testing.assert_array_equal(images, IMAGES[kind][12:18])
        np.testing.assert_array_equal(labels, LABELS[12:18])
        assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)


def save(file, array):
    return lambda folder: np.save(folder / file, array)


def truncate(file):
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:5000])


@pytest.mark.parametrize(
    ("write", "damage", "words"),
    [
        (write_archive, lambda folder: (folder / "fog.npy").unlink(), r"incomplete: fog\.npy is missing"),
        (write_archive, truncate("snow.npy"), r"snow\.npy cannot be read as images of CIFAR-10-C: "),
        (write_archive, save("snow.npy", np.zeros((29, 32, 32, 3), "u1")), r"it has 29 images, and labels\.npy has 30"),
        (write_archive, save("snow.npy", np.zeros((30, 32, 32, 3))), r"snow\.npy .* float64 of the shape \(6, 3, 32"),
        (write_archive, save("labels.npy", np.full(30, 10)), "labels from 0 to 9"),
        (write_tables, lambda folder: (folder / "frost-2-00001-of-00002.parquet").unlink(), r"1 of 2 frost-2-\*"),
        (write_tables, truncate("frost-2-00000-of-00002.parquet"), "frost-2-00000.* cannot be read as a Parquet"),
        (write_tables, lambda folder: write_tables(folder, 3), "of severity 2 and 3: expected .* of one severity"),
        (lambda folder: folder.mkdir(), lambda folder: None, r"of severity none: expected KIND\.npy and labels\.npy"),
    ],
)
def test_incomplete_and_damaged_files_are_named(tmp_path, write, damage, words):
    write_binary(tmp_path, *CIFAR)
    write(tmp_path / "cifar10-c")
    damage(tmp_path / "cifar10-c")
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        load("cifar10", tmp_path)


def test_a_run_ends_with_the_accuracy_on_each_corruption(tmp_path, monkeypatch):
    pictures = make_pictures()
    clean = pictures.test_inputs, pictures.test_labels
    # The network looks at the upper half alone, and finds the wrong class where that is swapped.
    swapped = pictures.test_inputs[:20].flip(0), pictures.test_labels[:20]
    corrupted = Corrupted(4, {"none": clean, "swapped": swapped})
    given = replace(pictures, corrupted=corrupted)
    monkeypatch.setattr(classify, "load", lambda *_: given)
    done = carry_out(tmp_path / "with", small(limit=None, epochs=2))
    assert done.summary["corrupted"] == {"none": done.summary["test_accuracy"], "swapped": 0.0}
    assert done.summary["corrupted_accuracy"] == done.summary["test_accuracy"] / 2 == 0.5
    assert (done.summary["corrupted_severity"], done.summary["corrupted_images"]) == (4, 70)
    held_out = carry_out(tmp_path / "tuning", small(limit=None, held_out=100, epochs=1))
    assert not any(key.startswith("corrupted") for key in held_out.summary)
    monkeypatch.setattr(classify, "load", lambda *_: pictures)
    without = carry_out(tmp_path / "without", small(limit=None, epochs=2))
    assert without.summary == {key: done.summary[key] for key in without.summary}
    assert without.environment["data"] == done.environment["data"]
