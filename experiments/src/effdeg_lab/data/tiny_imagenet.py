"""Tiny-ImageNet as published, and further images of its classes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from effdeg_lab.data.images import decode_by_path
from effdeg_lab.data.labeled import Labeled, make_labeled, read_tables
from effdeg_lab.data.sources import HUB, DataSet, Size, explain_errors, find_shards


def find_tiny_imagenet(folder: Path, _: int | None = None) -> Callable[[], Labeled]:
    """Find Tiny-ImageNet, 100,000 images of 64 pixels in 200 classes, tested on its 10,000 validation images.

    It is in ``tiny-imagenet`` or ``tiny``, as on the Hugging Face hub: ``train-*.parquet``, and ``val-*.parquet`` or
    ``valid-*.parquet``. Pixels are scaled to [-1, 1], as by ViT's authors. Further test images of its classes, from
    ImageNet's validation set, may be in ``val5``.
    """
    places = [folder / name for name in ("tiny-imagenet", "tiny")]
    place = next((each for each in places if any(each.glob("train-*.parquet"))), None)
    if place is None:
        raise FileNotFoundError(
            f"tiny-imagenet was not found: expected train-*.parquet and val-*.parquet in {places[0]} or {places[1]}."
        )
    train = find_shards(place, "train")
    test = find_shards(place, "valid" if any(place.glob("valid-*.parquet")) else "val")
    load_further = _find_val5(folder / "val5", place / "classes.tsv")

    def load() -> Labeled:
        scale = (0.5,) * 3, (0.5,) * 3
        data = make_labeled(f"tiny-imagenet in {place}", read_tables(train), read_tables(test), scale)
        return replace(data.shuffle(), shifted=load_further(data.train_inputs.shape[-1]))

    return load


def _find_val5(folder: Path, names: Path) -> Callable[[int], dict[str, tuple[Tensor, Tensor]]]:
    """Find ``val-*.parquet`` with images of ImageNet, of which those of Tiny-ImageNet's classes are used.

    The ``path`` of an image is ``WNID/FILE``. Each line of ``names``, a file in Tiny-ImageNet's folder, has the number
    of a class, a tab and its WordNet id. Without the folder, nothing is loaded.
    """
    files = find_shards(folder, "val") if folder.is_dir() else []
    if files and not names.is_file():
        raise FileNotFoundError(f"{names} is missing: {folder} needs the number and the WordNet id of each class.")

    def load(pixels: int) -> dict[str, tuple[Tensor, Tensor]]:
        if not files:
            return {}
        with explain_errors(names, "a table of numbers and WordNet ids"):
            rows = [line.split("\t") for line in names.read_text(encoding="utf-8").splitlines()]
            numbers = {wnid: int(number) for number, wnid, *_ in rows}
        what = "a Parquet file of ImageNet's validation images"
        images = decode_by_path("val5", files, what, lambda path: numbers.get(path.split("/")[0]), pixels)
        if not images:
            raise ValueError(f"{folder} has no images of the classes in {names}: expected paths {rows[0][1]}/FILE, ….")
        return images

    return load


_SOURCE = f"zh-plus/tiny-imagenet {HUB} (its files in DIR/tiny-imagenet)"
DATA_SETS = {"tiny-imagenet": DataSet(find_tiny_imagenet, _SOURCE, Size(100_000, 10_000, (3, 64, 64), 200))}
