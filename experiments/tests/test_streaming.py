"""Images in files: three layouts, decoding in other processes, training and resuming in the middle of an epoch."""

import io
import os
import shutil
import tarfile
from functools import partial
from pathlib import Path

import engine_runs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from engine_runs import assert_same_end, break_off, carry_out, carry_out_stopped
from PIL import Image

from effdeg_lab.data import check, decoding, load
from effdeg_lab.data.decoding import Crops, count_decoders, draw_crop, find_center, read_crops
from effdeg_lab.engine.streaming import make_examples

CLASSES, TRAIN, TEST = 10, 13, 3  # images of each class
CPU = torch.device("cpu")
small = partial(
    engine_runs.small,
    data="imagenet",
    limit=None,
    batch=40,
    epochs=2,
    pixels=16,
    crop_scale=0.3,
    augment="resized-crop-flip",
    regularizer="ed",
)


def draw_jpeg(label, number):
    """Draw a JPEG whose color tells its class, in one of several sizes, wide and high."""
    rng = np.random.default_rng([label, number])
    size = (40 + 8 * (number % 3), 48 - 6 * (number % 4))
    color = np.array([25 * label, 255 - 25 * label, 128])
    pixels = np.clip(color + rng.normal(0, 20, (*size, 3)), 0, 255).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def write_folders(folder, images):
    for split, rows in images.items():
        for label, number, content in rows:
            file = folder / split / f"n{label:08d}" / f"n{label:08d}_{number}.JPEG"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)


def write_tars(folder, images):
    folder.mkdir(parents=True)
    for split, rows in images.items():
        for shard, part in enumerate((rows[: len(rows) // 2], rows[len(rows) // 2 :])):
            with tarfile.open(folder / f"imagenet1k-{split}-{shard:04d}.tar", "w") as tar:
                for label, number, content in part:
                    for suffix, stored in (("jpg", content), ("cls", b"%d" % label), ("json", b"{}")):
                        member = tarfile.TarInfo(f"n{label:08d}_{number}.{suffix}")
                        member.size = len(stored)
                        tar.addfile(member, io.BytesIO(stored))


def write_tables(folder, images):
    folder.mkdir(parents=True)
    for split, rows in images.items():
        for shard, part in enumerate((rows[: len(rows) // 2], rows[len(rows) // 2 :])):
            cells = [{"bytes": content, "path": f"n{label:08d}_{number}.JPEG"} for label, number, content in part]
            name = {"val": "validation"}.get(split, split)
            table = pa.table({"image": cells, "label": [label for label, _, _ in part]})
            pq.write_table(table, folder / f"{name}-{shard:05d}-of-00002.parquet")


LAYOUTS = {"imagenet": write_folders, "imagenet/data": write_tables}


@pytest.fixture(scope="module")
def images():
    """Return the label, the number and the bytes of every image of both splits, in the order of their names."""
    counts = {"train": TRAIN, "val": TEST}
    return {
        split: [
            (label, n, draw_jpeg(label, 100 * (split == "val") + n))
            for label in range(CLASSES)
            for n in range(10, 10 + count)
        ]
        for split, count in counts.items()
    }


@pytest.fixture
def folder(tmp_path, images, monkeypatch):
    monkeypatch.setenv("EFFDEG_CACHE", str(tmp_path / "cache"))
    write_folders(tmp_path / "data" / "imagenet", images)
    return tmp_path / "data"


def read_all(stored):
    return [(stored.read(index), int(stored.labels[index])) for index in range(len(stored))]


@pytest.mark.parametrize(
    ("place", "write"),
    [
        ("imagenet", write_folders),
        ("ILSVRC/Data/CLS-LOC", write_folders),
        ("imagenet", write_tars),
        ("imagenet/data", write_tables),
        ("", write_tables),
    ],
)
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
    with pytest.raises(FileNotFoundError, match=r"val has no folders of classes, and .*LOC_val_solution.csv"):
        check("imagenet", tmp_path)
    (tmp_path / "LOC_val_solution.csv").write_text("\n".join(lines))
    found = load("imagenet", tmp_path).test
    assert sorted(read_all(found)) == sorted((content, label) for label, _, content in images["val"])


def test_bad_layouts_are_refused_with_what_is_wrong(tmp_path, images, monkeypatch):
    monkeypatch.setenv("EFFDEG_CACHE", str(tmp_path / "cache"))
    with pytest.raises(FileNotFoundError, match=r"imagenet was not found: expected train/CLASS/\*.JPEG and val/"):
        check("imagenet", tmp_path)
    write_folders(tmp_path / "imagenet", {"train": images["train"], "val": [(77, 1, images["val"][0][2])]})
    with pytest.raises(ValueError, match=r"val/n00000077 is the folder of a class that is not trained on"):
        load("imagenet", tmp_path)
    for split in ("train", "val"):
        (tmp_path / f"{split}-0.tar").write_bytes(b"not a tar" * 100)
    shutil.rmtree(tmp_path / "imagenet")
    with pytest.raises(ValueError, match=r"train-0.tar cannot be read as an uncompressed tar"):
        load("imagenet", tmp_path)
    (tmp_path / "train-0.tar").unlink()
    write_tables(tmp_path / "imagenet", {"train": images["train"], "val": [(-1, 1, b""), (3, 2, b"")]})
    with pytest.raises(ValueError, match=r"n-0000001_1.JPEG in .* has the label -1; training has 10"):
        load("imagenet", tmp_path)
    (tmp_path / "imagenet" / "train-00001-of-00002.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=r"is incomplete: 1 of 2 train-\*.parquet"):
        check("imagenet", tmp_path)


def test_crops_have_the_area_the_ratio_and_the_place_of_inceptions():
    random = np.random.default_rng(0)
    boxes = np.array([draw_crop(300, 200, 0.08, random) for _ in range(4000)])
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    assert boxes.min() >= 0
    assert boxes[:, 2].max() <= 300
    assert boxes[:, 3].max() <= 200
    share, ratio = width * height / 60_000, np.log(width / height)
    assert 0.07 < share.min() < 0.1
    assert abs(ratio).max() < np.log(4 / 3) + 0.03
    # Of areas that always fit, the share is uniform, and so is the logarithm of the ratio.
    few = share < 0.5
    assert share[few].mean() == pytest.approx(0.29, abs=0.01)
    assert (ratio[few].mean(), ratio[few].std()) == pytest.approx((0.0, np.log(4 / 3) / 3**0.5), abs=0.02)
    left = boxes[few, 0] / (300 - width[few])
    assert (left.mean(), left.std()) == pytest.approx((0.5, 1 / 12**0.5), abs=0.02)
    # Of a strip nothing fits but the middle.
    assert draw_crop(400, 30, 0.9, random) == (180, 0, 220, 30)
    assert find_center(256, 320) == (16, 48, 240, 272)


@pytest.mark.parametrize("decoder", ["pillow", "torchvision"])
def test_a_crop_is_the_resized_part_of_the_image(decoder):
    if decoder == "torchvision":
        try:
            import torchvision.io  # noqa: F401
        except Exception:
            pytest.skip("torchvision cannot be imported")
    across, down = np.meshgrid(np.linspace(0, 1, 640), np.linspace(0, 1, 480))
    smooth = np.stack([across, down, 1 - across], axis=-1)
    stream = io.BytesIO()
    Image.fromarray((255 * smooth).astype(np.uint8)).save(stream, "JPEG", quality=98)
    box = (100, 50, 420, 290)
    found = decoding.DECODERS[decoder](stream.getvalue(), 32, lambda width, height: box)
    assert found.shape == (3, 32, 32)
    assert found.dtype == torch.uint8
    # The centers of the pixels of the crop, in the image: nothing is shifted by decoding at a reduced size.
    x, y = (100 + (np.arange(32) + 0.5) * 10) / 640, (50 + (np.arange(32) + 0.5) * 7.5) / 480
    expected = np.stack([np.tile(x, (32, 1)), np.tile(y[:, None], (1, 32)), np.tile(1 - x, (32, 1))])
    np.testing.assert_allclose(found.numpy() / 255, expected, atol=0.012)


def test_gray_images_and_pngs_become_rgb(tmp_path):
    for image in (Image.new("L", (30, 20), 7), Image.new("RGBA", (30, 20), (7, 7, 7, 255)), Image.new("CMYK", (9, 9))):
        stream = io.BytesIO()
        image.save(stream, "PNG" if image.mode != "CMYK" else "JPEG")
        found = decoding.decode_with_pillow(stream.getvalue(), 8, find_center)
        assert found.shape == (3, 8, 8)
        assert found.unique().tolist() == ([255] if image.mode == "CMYK" else [7])


def decode_batches(folder, decoders, keys, least=0.2):
    crops = Crops(load("imagenet", folder).train, 12, seed=3, least=least)
    return list(read_crops(crops, keys, decoders=decoders))


def test_processes_decode_the_same_as_none_in_the_same_order(folder):
    state = torch.get_rng_state()
    keys = [[(0, 5), (0, 1)], [(0, 2)], [(1, 5), (1, 100), (0, 5)]]
    alone, again, others = (decode_batches(folder, decoders, keys) for decoders in (0, 0, 2))
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


def run_streamed(folder, runs, settings, **given):
    return carry_out(runs, settings, data=folder, **given)


def test_two_runs_and_one_that_is_resumed_in_an_epoch_end_alike(tmp_path, folder):
    settings = small()
    whole, again = (run_streamed(folder, tmp_path / name, settings) for name in ("whole", "again"))
    assert_same_end(whole, again)
    read = []
    with pytest.MonkeyPatch.context() as patch:
        locate = decoding.Crops.__getitem__
        patch.setattr(decoding.Crops, "__getitem__", lambda self, key: read.append(key) or locate(self, key))
        with break_off(step=5):  # three steps make an epoch
            run_streamed(folder, tmp_path / "broken", settings)
        del read[:]
        broken = run_streamed(folder, tmp_path / "broken", settings)
    assert_same_end(whole, broken)
    # The checkpoint is that of step 4: the second batch of the second epoch is the first to be read, after the two
    # images on which the network is checked.
    order = torch.randperm(CLASSES * TRAIN, generator=torch.Generator().manual_seed(1))
    assert read[2:42] == [(1, index) for index in order[40:80].tolist()]
    carry_out_stopped(tmp_path / "stopped", settings, 2, data=folder)
    assert_same_end(whole, run_streamed(folder, tmp_path / "stopped", settings))
    for entry in (*whole.run.metrics, whole.run.summary):
        assert entry["images_per_second"] > 0
        assert 0 < entry["waited"] < 1
    assert whole.summary["broken_images"] == 0
    assert whole.metrics[-1]["train_accuracy"] > 0.2


def test_a_streamed_step_is_that_of_the_same_images_on_the_device(tmp_path, folder):
    """Without random crops, an epoch of streamed images is one of the same images as a resident set."""
    settings = small(augment="none", regularizer="plain")
    streamed = run_streamed(folder, tmp_path / "streamed", settings)
    data = load("imagenet", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "_MARGIN", 1.0)  # what a resident training image is cut to
        examples = make_examples(data, settings.change({"resident": True}), CPU)
    images = make_examples(data, settings, CPU)
    torch.testing.assert_close(examples.test.labels, images.test.labels)
    assert streamed.environment["data"] == data.fingerprint()
    order = torch.randperm(CLASSES * TRAIN, generator=torch.Generator().manual_seed(0))
    batches = images.read(iter([(0, order[:40]), (0, order[40:80])]), 40)
    for first in (0, 40):
        x, y = images.batch(*next(batches))
        expected = images.normalize(images.train.inputs[order[first : first + 40]])
        assert torch.equal(x, expected)
        assert torch.equal(y, images.train.labels[order[first : first + 40]])
