"""Images in files: three layouts, decoding in other processes, training and resuming in the middle of an epoch."""

import errno
import io
import os
import shutil
from functools import partial
from pathlib import Path

import engine_runs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from engine_runs import assert_same_end, break_off, carry_out, stop_in
from PIL import Image

from effdeg_lab.core.runs import StoppedError
from effdeg_lab.data import Labeled, check, decoding, load
from effdeg_lab.data import images as image_files
from effdeg_lab.data.decoding import Crops, count_decoders, find_center, read_crops
from effdeg_lab.engine import evaluation
from effdeg_lab.engine.streaming import StreamedExamples
from effdeg_lab.models.made_up import draw_jpeg, write_folders

pytestmark = pytest.mark.filterwarnings("ignore:data=imagenet has 10 classes")
CLASSES, TRAIN, TEST = 10, 13, 3  # images of each class
CPU = torch.device("cpu")
SMALL = {"data": "imagenet", "limit": None, "batch": 40, "epochs": 2, "pixels": 16, "crop_scale": 0.3}
small = partial(engine_runs.small, **SMALL, augment="resized-crop-flip", regularizer="ed")


def write_tables(folder, images):
    folder.mkdir(parents=True)
    for split, rows in images.items():
        for shard, part in enumerate((rows[: len(rows) // 2], rows[len(rows) // 2 :])):
            cells = [{"bytes": content, "path": f"n{label:08d}_{number}.JPEG"} for label, number, content in part]
            name = {"val": "validation"}.get(split, split)
            table = pa.table({"image": cells, "label": [label for label, _, _ in part]})
            pq.write_table(table, folder / f"{name}-{shard:05d}-of-00002.parquet")


def draw_images():
    """Return the label, the number and the bytes of every image of both splits, in the order of their names."""
    numbers = {"train": range(10, 10 + TRAIN), "val": range(50, 50 + TEST)}
    return {
        split: [(label, number, draw_jpeg(label, number)) for label in range(CLASSES) for number in each]
        for split, each in numbers.items()
    }


@pytest.fixture(scope="module")
def images():
    return draw_images()


@pytest.fixture
def folder(tmp_path, images, monkeypatch):
    monkeypatch.setenv("EFFDEG_CACHE", str(tmp_path / "cache"))
    write_folders(tmp_path / "data" / "imagenet", images)
    return tmp_path / "data"


def read_all(stored):
    return [(stored.read(index), int(stored.labels[index])) for index in range(len(stored))]


@pytest.mark.parametrize(("place", "write"), [("ILSVRC/Data/CLS-LOC", write_folders), ("", write_tables)])
def test_every_layout_gives_the_same_images_in_the_same_order(tmp_path, images, folder, monkeypatch, place, write):
    expected = load("imagenet", folder)
    other = tmp_path / "other" / place
    write(other, images) if place else write(tmp_path / "other", images)
    check("imagenet", tmp_path / "other")
    for _ in range(2):  # the second time from the cache
        found = load("imagenet", tmp_path / "other")
        assert found.classes == CLASSES
        for split in ("train", "test"):
            assert read_all(getattr(found, split)) == read_all(getattr(expected, split))
    name = found.train.describe(0)
    assert Path(os.fsdecode(expected.train.names[0])).stem in name
    assert sorted(read_all(found.train)) == sorted((content, label) for label, _, content in images["train"])
    # A fair sample is first: in sorted order the first 26 would be of two classes.
    assert len({*found.train.labels[: 2 * TRAIN].tolist()}) > 5


def test_kaggles_validation_images_have_their_classes_in_a_table(tmp_path, images):
    place = tmp_path / "ILSVRC" / "Data" / "CLS-LOC"
    write_folders(place, {"train": images["train"]})
    (place / "val").mkdir()
    lines = ["ImageId,PredictionString"]
    for place_in_order, (label, _, content) in enumerate(images["val"][::-1]):
        (place / "val" / f"ILSVRC2012_val_{place_in_order:08d}.JPEG").write_bytes(content)
        lines.append(f"ILSVRC2012_val_{place_in_order:08d},n{label:08d} 1 2 3 4 n{label:08d} 5 6 7 8")
    with pytest.raises(FileNotFoundError, match=r"val has no class folders, and .*LOC_val_solution.csv"):
        check("imagenet", tmp_path)
    (tmp_path / "LOC_val_solution.csv").write_text("\n".join(lines))
    found = load("imagenet", tmp_path).test
    assert sorted(read_all(found)) == sorted((content, label) for label, _, content in images["val"])


def test_bad_layouts_are_refused_with_what_is_wrong(tmp_path, images, monkeypatch):
    monkeypatch.setenv("EFFDEG_CACHE", str(tmp_path / "cache"))
    with pytest.raises(FileNotFoundError, match=r"imagenet was not found: expected train/CLASS/\*.JPEG and val/"):
        check("imagenet", tmp_path)
    write_folders(tmp_path / "imagenet", {"train": images["train"], "val": [(77, 1, images["val"][0][2])]})
    with pytest.raises(ValueError, match=r"val/n00000077 is the folder of a class that is not in training"):
        load("imagenet", tmp_path)
    shutil.rmtree(tmp_path / "imagenet")
    write_tables(
        tmp_path / "imagenet", {"train": [row for row in images["train"] if row[0] != 4], "val": images["val"]}
    )
    with pytest.raises(ValueError, match=r"expected images of two or more classes, numbered from 0"):
        load("imagenet", tmp_path)
    shutil.rmtree(tmp_path / "imagenet")
    write_tables(tmp_path / "imagenet", {"train": images["train"], "val": [(-1, 1, b""), (3, 2, b"")]})
    with pytest.raises(ValueError, match=r"_1.JPEG in row 0 of .*validation-00000-of-00002.parquet has the label -1"):
        load("imagenet", tmp_path)


def test_empty_class_folders_are_named_and_hidden_files_skipped(tmp_path, images):
    place = tmp_path / "imagenet"
    write_folders(place, images)
    whole = load("imagenet", tmp_path)
    (place / "train" / "n00000000" / "._n00000000_10.JPEG").write_bytes(b"of macOS")
    for split in ("train", "val"):
        (place / split / ".ipynb_checkpoints").mkdir()
    assert load("imagenet", tmp_path).fingerprint() == whole.fingerprint()
    (place / "train" / "n99999999").mkdir()  # it would have the last number
    with pytest.raises(ValueError, match=r"train/n99999999 has no images \(.jpeg, .*\): remove it"):
        load("imagenet", tmp_path)


def test_a_process_that_died_is_explained(folder, monkeypatch):
    class Loader:
        def __init__(self, *_, **__):
            pass

        def __iter__(self):
            raise RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly")

    monkeypatch.setattr(decoding, "DataLoader", Loader)
    with pytest.raises(OSError, match="perhaps because memory ran out: set EFFDEG_DECODERS to fewer than 4"):
        next(read_crops(Crops(load("imagenet", folder).train, 8), [[(0, 0)]], decoders=4))


def test_random_crops_differ_and_the_center_has_a_margin(folder):
    crops = Crops(load("imagenet", folder).train, 12, seed=3, least=0.08)
    assert len({bytes(crops[epoch, 7][0].numpy()) for epoch in range(20)}) == 20
    assert find_center(256, 320) == (16, 48, 240, 272)


def test_a_crop_is_the_resized_part_of_the_image():
    across, down = np.meshgrid(np.linspace(0, 1, 640), np.linspace(0, 1, 480))
    smooth = np.stack([across, down, 1 - across], axis=-1)
    stream = io.BytesIO()
    Image.fromarray((255 * smooth).astype(np.uint8)).save(stream, "JPEG", quality=98)
    box = (100, 50, 420, 290)
    found = decoding.decode(Image.open(stream), 32, lambda width, height: box)
    # The centers of the pixels of the crop, in the image: nothing is shifted by decoding at a reduced size.
    x, y = (100 + (np.arange(32) + 0.5) * 10) / 640, (50 + (np.arange(32) + 0.5) * 7.5) / 480
    expected = np.stack([np.tile(x, (32, 1)), np.tile(y[:, None], (1, 32)), np.tile(1 - x, (32, 1))])
    np.testing.assert_allclose(found.numpy() / 255, expected, atol=0.012)


def test_gray_images_and_pngs_become_rgb(tmp_path):
    for image in (Image.new("L", (30, 20), 7), Image.new("RGBA", (30, 20), (7, 7, 7, 255)), Image.new("CMYK", (9, 9))):
        stream = io.BytesIO()
        image.save(stream, "PNG" if image.mode != "CMYK" else "JPEG")
        found = decoding.decode(Image.open(stream), 8, find_center)
        assert found.shape == (3, 8, 8)
        assert found.unique().tolist() == ([255] if image.mode == "CMYK" else [7])


def test_a_process_decodes_the_same_as_none_in_the_same_order(folder):
    state = torch.get_rng_state()
    keys = [[(0, 5), (0, 1)], [(0, 2)], [(1, 5), (1, 100), (0, 5)]]
    crops = Crops(load("imagenet", folder).train, 12, seed=3, least=0.2)
    alone, again, others = (list(read_crops(crops, keys, decoders=decoders)) for decoders in (0, 0, 1))
    for one, two, three in zip(alone, again, others, strict=True):
        assert torch.equal(one.images, two.images)
        assert torch.equal(one.images, three.images)
        assert torch.equal(one.labels, three.labels)
    assert torch.equal(alone[0].images[0], alone[2].images[2])
    assert not torch.equal(alone[0].images[0], alone[2].images[0])  # another epoch, another crop
    assert torch.equal(torch.get_rng_state(), state)  # which decides how training goes on


def test_how_many_processes_decode(monkeypatch):
    monkeypatch.delenv("EFFDEG_DECODERS", raising=False)
    assert count_decoders(CPU) == 0
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16), raising=False)
    assert count_decoders(torch.device("cuda")) == 16
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert count_decoders(torch.device("cuda")) == 2
    monkeypatch.setenv("EFFDEG_DECODERS", "5")
    assert count_decoders(torch.device("cuda")) == count_decoders(CPU) == 5
    monkeypatch.setenv("EFFDEG_DECODERS", "many")
    with pytest.raises(ValueError, match="EFFDEG_DECODERS=many is not possible"):
        count_decoders(CPU)


def test_a_run_that_is_resumed_in_an_epoch_ends_like_one_that_is_not(tmp_path, folder):
    settings = small(augment="resized-crop-flip-randaugment")
    whole, read = carry_out(tmp_path / "whole", settings, data=folder), []
    with pytest.MonkeyPatch.context() as patch:
        locate = Crops.__getitem__
        patch.setattr(Crops, "__getitem__", lambda self, key: read.append(key) or locate(self, key))
        with break_off(step=5):  # three steps make an epoch
            carry_out(tmp_path / "broken", settings, data=folder)
        del read[:]
        # It is stopped again when it is trained.
        with stop_in(evaluation, "score_test") as asked, pytest.raises(StoppedError):
            carry_out(tmp_path / "broken", settings, data=folder, asked_to_stop=asked)
    broken = carry_out(tmp_path / "broken", settings, data=folder)
    assert_same_end(whole, broken)
    # The checkpoint is that of step 4: the second batch of the second epoch is the first to be read, after the first
    # images of both splits and the two on which the network is checked.
    order = torch.randperm(CLASSES * TRAIN, generator=torch.Generator().manual_seed(1))
    checked = decoding.CHUNK + CLASSES * TEST + 2
    assert read[checked : checked + 40] == [(1, index) for index in order[40:80].tolist()]
    for entry in (*whole.run.metrics, whole.run.summary):
        assert entry["images_per_second"] > 0
        assert 0 < entry["waited"] < 1
    assert whole.metrics[-1]["train_accuracy"] > 0.2


def test_without_random_crops_a_streamed_run_is_that_of_the_set_on_the_device(tmp_path, folder, monkeypatch):
    settings, data = small(augment="crop-flip", epochs=1), load("imagenet", folder)
    streamed = carry_out(tmp_path / "streamed", settings, data=folder)
    examples = StreamedExamples(data, settings, CPU)
    train, test = examples.train.load(), examples.test.load()
    decoded = Labeled(train.inputs, train.labels, test.inputs, test.labels, data.classes, data.mean, data.std)
    monkeypatch.setattr("effdeg_lab.engine.classify.load", lambda *_: decoded)
    resident = carry_out(tmp_path / "resident", settings, data=folder)
    assert resident.metrics == streamed.metrics
    assert resident.summary == streamed.summary
    sizes = {"train_examples": CLASSES * TRAIN, "test_examples": CLASSES * TEST, "classes": CLASSES}
    assert {**streamed.summary, **sizes} == streamed.summary


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pixels": None}, "imagenet has images of many sizes: set pixels"),
        ({"limit": 131}, "limit=131 is more than the 130 training examples"),
        ({"warm_up_steps": 7}, "warm_up_steps=7 is more than the 6 steps of this run"),
        ({"labeled": 100}, "labeled and unlabeled_batch are not for imagenet"),
    ],
)
def test_settings_that_do_not_fit_images_in_files(tmp_path, folder, monkeypatch, changes, words):
    monkeypatch.setattr(decoding, "read_crops", lambda *_, **__: pytest.fail("it decoded images"))
    with pytest.raises(ValueError, match=words):
        carry_out(tmp_path / "runs", small(regularizer="plain").change(changes), data=folder)


@pytest.mark.parametrize(("split", "content"), [("train", b""), ("train", None), ("val", b"<html>")])
def test_an_image_that_cannot_be_read_is_named_before_training(tmp_path, folder, monkeypatch, split, content):
    data = load("imagenet", folder)
    stored = data.train if split == "train" else data.test
    file = Path(stored.describe(3))
    file.write_bytes(file.read_bytes()[:300] if content is None else content)
    monkeypatch.setattr(decoding, "read_crops", lambda *_, **__: pytest.fail("it decoded all images"))
    with pytest.raises(ValueError, match=rf"{file.name} cannot be read as an image: "):
        carry_out(tmp_path, small(), data=folder)


class FullDisk(io.FileIO):
    """Takes some bytes, and no more."""

    left = 20_000

    def write(self, content):
        self.left -= memoryview(content).nbytes
        if self.left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(content)


def test_a_full_disk_leaves_nothing_behind(tmp_path, images, monkeypatch):
    cache, opened = tmp_path / "cache" / "data", Path.open
    monkeypatch.setenv("EFFDEG_CACHE", str(tmp_path / "cache"))
    write_tables(tmp_path / "imagenet", images)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda self, *how: (FullDisk if self.suffix == ".partial" else opened)(self, *how))
        with pytest.raises(OSError, match=r"the images of .*imagenet .*No space left on device. It takes .* GB: free"):
            load("imagenet", tmp_path)
    # An error of what makes the bytes is not one of the cache.
    with monkeypatch.context() as patch:
        died = OSError("the network drive is gone")
        patch.setattr(image_files, "read_rows", lambda *_: (_ for _ in ()).throw(died))
        with pytest.raises(OSError, match=r"^the network drive is gone$"):
            load("imagenet", tmp_path)
    assert {file.suffix for file in cache.iterdir()} <= {".lock"}
    assert len(load("imagenet", tmp_path).train) == CLASSES * TRAIN
