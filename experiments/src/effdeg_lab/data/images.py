"""Images in files of any size: in class folders or unpacked from Parquet shards, decoded to bytes of one size."""

import hashlib
import io
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset

from effdeg_lab.data.cache import Buffer, Notes, identify_files, keep_bytes
from effdeg_lab.data.sources import Array, explain_errors

CLIP_SCALE = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
IMAGENET_SCALE = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""The mean and the standard deviation of pixels in [0, 1] that encoders were trained with."""
# The ratio of width to height of a random crop, and the number of crops to try before the whole image is taken.
_RATIOS, _TRIES = (3 / 4, 4 / 3), 10
SUFFIXES = (".jpeg", ".jpg", ".png", ".webp")
_COLUMNS = ("image", "img")
_ROWS = 256  # rows of a table to read at a time


@dataclass(frozen=True, eq=False)
class StoredImages:
    """Encoded images of any size in files, with their labels; any process can read any image."""

    root: Path  # their folder, or one file that all images of some shards were copied into
    names: Array  # of the images, as bytes; in a folder, their relative paths
    labels: Array
    places: Array | None = None  # in a copy: the first byte and the size of each image, its shard and its row there
    shards: tuple[Path, ...] = ()  # what was copied

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, chosen: "slice | Array") -> "StoredImages":
        places = None if self.places is None else self.places[chosen]
        return replace(self, names=self.names[chosen], labels=self.labels[chosen], places=places)

    def list_names(self) -> list[str]:
        return [os.fsdecode(name) for name in self.names]

    def relabel(self, labels: Sequence[int]) -> "StoredImages":
        return replace(self, labels=np.array(labels, dtype=np.int64))

    def read(self, index: int) -> bytes:
        if self.places is None:
            return self._locate(index).read_bytes()
        start, size = map(int, self.places[index, :2])
        with self.root.open("rb") as stream:
            stream.seek(start)
            return stream.read(size)

    @contextmanager
    def open(self, index: int) -> Iterator[Image.Image]:
        """Open an image; an error that occurs while it is read names it."""
        try:
            with Image.open(io.BytesIO(self.read(index))) as image:
                yield image
        except Exception as error:  # files can be broken in many ways
            unknown = isinstance(error, UnidentifiedImageError)  # its message is about an object in memory
            reason = "it is in no known format" if unknown else str(error) or type(error).__name__
            raise ValueError(f"{self.describe(index)} cannot be read as an image: {reason}.") from error

    def describe(self, index: int) -> str:
        if self.places is None:
            return str(self._locate(index))
        shard, row = map(int, self.places[index, 2:])
        return f"{os.fsdecode(self.names[index])} in row {row} of {self.shards[shard]}"

    def hash(self) -> str:
        digest = hashlib.sha256("\n".join(self.list_names()).encode("utf-8", "surrogateescape"))
        digest.update(np.ascontiguousarray(self.labels, dtype="<i8").data)
        return digest.hexdigest()

    def identify(self) -> list[object]:
        """Return a part of a cache key that changes when one of the images is replaced."""
        if self.places is None:
            return [*identify_files(map(self._locate, range(len(self))))]
        return [*identify_files(self.shards), hashlib.sha256(self.places.tobytes()).hexdigest()]

    def _locate(self, index: int) -> Path:
        return self.root / os.fsdecode(self.names[index])


def store_folders(root: Path, labels: Mapping[str, int]) -> StoredImages:
    images = [(f"{folder}/{name}", label) for folder, label in labels.items() for name in list_images(root / folder)]
    return store_names(root, [name for name, _ in images], [label for _, label in images])


def list_classes(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(each.name for each in entries if each.is_dir() and not each.name.startswith("."))


def list_images(folder: Path) -> list[str]:
    """List the names of the images in a folder, if it exists, without hidden files, such as macOS's ``._NAME``."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:  # fast: there may be a thousand folders of a thousand images
        names = (each.name for each in entries)
        return sorted(name for name in names if name.lower().endswith(SUFFIXES) and not name.startswith("."))


def store_names(folder: Path, names: Sequence[str], labels: Sequence[int]) -> StoredImages:
    return StoredImages(folder, _encode(names), np.array(labels, dtype=np.int64))


def _encode(names: Sequence[str]) -> Array:
    """Return names in one array; a million strings would be slow to send to other processes."""
    return np.array([os.fsencode(name) for name in names], dtype=np.bytes_)


def store_tables(
    files: Sequence[Path], what: str = "a Parquet file of images", *, labeled: bool = True
) -> StoredImages:
    """Unpack the images of Parquet shards into the cache: a shard cannot be read one image at a time.

    Images without a column of labels have the label 0; ``what`` names the shards in errors.
    """

    def make(notes: Notes) -> Iterator[Buffer]:
        names, labels, places, start = list[str](), list[int](), list[tuple[int, ...]](), 0
        for shard, file in enumerate(files):
            for row, (content, name, label) in enumerate(read_rows(file, what, labeled)):
                names.append(name)
                labels.append(label)
                places.append((start, len(content), shard, row))
                start += len(content)
                yield content
        notes |= {"names": _encode(names), "labels": np.array(labels, dtype=np.int64)}
        notes["places"] = np.array(places, dtype=np.int64).reshape(-1, 4)

    size = sum(file.stat().st_size for file in files)
    key = ["unpacked with rows", identify_files(files), *([] if labeled else ["without labels"])]
    file, notes = keep_bytes(key, f"the images of {files[0].parent}", make, size=size)
    return StoredImages(file, notes["names"], notes["labels"], notes["places"], tuple(files))


def read_rows(file: Path, what: str, labeled: bool) -> Iterator[tuple[bytes, str, int]]:
    """Yield the bytes, the name and the label of every image in a Parquet file as on the Hugging Face hub."""
    with explain_errors(file, what):
        table = pq.ParquetFile(file)
        names = table.schema_arrow.names
        column = next((name for name in _COLUMNS if name in names), None)
        if column is None or (labeled and "label" not in names):
            expected = f"image (or img){' and label' if labeled else ''}"
            raise ValueError(f"it has the columns {', '.join(names)}; expected {expected}.")
        row = 0
        for batch in table.iter_batches(_ROWS, columns=[column, *(["label"] if labeled else [])]):
            cells = batch.column(column).to_pylist()
            labels = batch.column("label").to_pylist() if labeled else [0] * len(cells)
            for cell, label in zip(cells, labels, strict=True):
                if cell is None or label is None:
                    raise ValueError(f"row {row} has no image or no label.")
                yield cell["bytes"] or b"", cell.get("path") or f"row {row} of {file.name}", label
                row += 1


@dataclass(frozen=True)
class Crop:
    """Cuts off a border, resizes the short side bicubically and keeps the center: bytes, 3 × size × size.

    CLIP uses ``Crop(224)``, DeiT ``Crop(224, short=256)``. The result is that of torchvision's Resize and CenterCrop
    with Pillow images.
    """

    size: int
    short: int | None = None  # the short side before cropping; by default the size
    border: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.size <= (self.short or self.size):
            raise ValueError(f"size={self.size}, short={self.short}: expected 1 <= size <= short.")

    def __call__(self, image: Image.Image) -> Tensor:
        image = image.convert("RGB")
        if self.border:
            image = image.crop((self.border, self.border, image.width - self.border, image.height - self.border))
        short, sides = self.short or self.size, image.size
        shape = [short if side == min(sides) else int(short * side / min(sides)) for side in sides]
        image = image.resize((shape[0], shape[1]), Image.Resampling.BICUBIC)
        left, top = (round((side - self.size) / 2) for side in image.size)
        cut = image.crop((left, top, left + self.size, top + self.size))
        return torch.from_numpy(np.array(cut)).permute(2, 0, 1).contiguous()


class Images(Dataset[Tensor]):
    """Images in files, decoded on access unless they are kept decoded; the name is that of the set, for errors."""

    def __init__(self, stored: StoredImages, crop: Crop, name: str, kept: Tensor | None = None) -> None:
        self.stored, self.crop, self.name, self.kept = stored, crop, name, kept

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, index: int) -> Tensor:
        if self.kept is not None:
            return self.kept[index]
        with self.stored.open(index) as image:
            return self.crop(image)

    def take(self, places: Sequence[int] | np.ndarray) -> "Images":
        return Images(self.stored[np.asarray(places)], self.crop, self.name)

    def keep(self) -> "Images":
        """Return the images, decoded once for code that reads them again and again."""
        return Images(self.stored, self.crop, self.name, self.decode())

    def decode(self) -> Tensor:
        """Return all images, N × 3 × size × size, decoded in as many threads as there are cores."""
        decoded = torch.empty(len(self), 3, self.crop.size, self.crop.size, dtype=torch.uint8)
        with ThreadPoolExecutor() as threads:  # Pillow releases Python's lock
            for index, image in enumerate(threads.map(self.__getitem__, range(len(self)))):
                decoded[index] = image
        return decoded

    def decode_once(self) -> tuple[Tensor, Tensor]:
        """Return all images as :meth:`decode` does, kept in the cache for the next time, and their labels."""

        def make(_: Notes) -> Iterator[Buffer]:
            yield self.decode().numpy().data

        shape = (len(self), 3, self.crop.size, self.crop.size)
        key = ["decoded", asdict(self.crop), self.stored.identify()]
        file, _ = keep_bytes(key, f"the images of {self.name}", make, size=math.prod(shape), verify=True)
        # Copy on write: torch warns about a read-only map.
        return torch.from_numpy(np.memmap(file, np.uint8, "c", shape=shape)), torch.from_numpy(self.stored.labels)


def decode_by_path(
    name: str, files: list[Path], what: str, get_label: Callable[[str], int | None], pixels: int
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return a test set of the images in Parquet shards whose path has a label; none without such images."""
    if not files:
        return {}
    stored = store_tables(files, what, labeled=False)
    labels = list(map(get_label, stored.list_names()))
    chosen = [place for place, label in enumerate(labels) if label is not None]
    images = stored[np.array(chosen, dtype=np.int64)].relabel([label for label in labels if label is not None])
    return {name: Images(images, Crop(pixels), name).decode_once()} if chosen else {}


def draw_boxes_to_crop(count: int, size: tuple[int, int], scale: float, **options: Any) -> tuple[Tensor, ...]:
    """Draw the top, left, height and width of a crop for each of some images, in whole pixels.

    As in torchvision: the share of the area is uniform between ``scale`` and 1, the logarithm of the ratio of width to
    height is uniform, and so is the place. An image for which no drawn crop fits is left whole. ``options`` are those
    of ``torch.rand``: a device or a generator.
    """
    height, width = size
    low, high = (math.log(ratio) for ratio in _RATIOS)
    area = height * width * (scale + (1 - scale) * torch.rand(count, _TRIES, **options))
    ratio = torch.exp(low + (high - low) * torch.rand(count, _TRIES, **options))
    across, down = torch.round(torch.sqrt(area * ratio)), torch.round(torch.sqrt(area / ratio))
    fits = (across >= 1) & (across <= width) & (down >= 1) & (down <= height)
    # The first try that fits: argmax returns the first of equal values.
    first, found = fits.int().argmax(1, keepdim=True), fits.any(1)
    across = torch.where(found, across.gather(1, first)[:, 0], width)
    down = torch.where(found, down.gather(1, first)[:, 0], height)
    places = torch.rand(2, count, **options)
    top, left = torch.floor(places[0] * (height - down + 1)), torch.floor(places[1] * (width - across + 1))
    return top, left, down, across
