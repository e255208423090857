"""Encoded images that stay in their files, in class folders, or are unpacked from Parquet shards."""

import hashlib
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from PIL import Image, UnidentifiedImageError

from effdeg_lab.data.cache import Buffer, Notes, identify_files, keep_bytes
from effdeg_lab.data.layouts import Array, explain_errors

SUFFIXES = (".jpeg", ".jpg", ".png", ".webp")
_COLUMNS = ("image", "img")
_ROWS = 256  # rows of a table to read at a time


@dataclass(frozen=True, eq=False)
class StoredImages:
    """Encoded images of any size in files, with their labels; any process can read any image."""

    files: tuple[Path, ...]  # one folder of images, or shards
    names: Array  # of the images, as bytes; in a folder, their relative paths
    labels: Array
    places: Array | None = None  # in shards, the shard of each image, its first byte and its size
    # For messages, if the files are copies: what was copied, and for each image the number of its shard and its row.
    shards: tuple[Path, ...] = ()
    rows: Array | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, chosen: "slice | Array") -> "StoredImages":
        places, rows = (None if each is None else each[chosen] for each in (self.places, self.rows))
        return replace(self, names=self.names[chosen], labels=self.labels[chosen], places=places, rows=rows)

    def list_names(self) -> list[str]:
        """Return the names as text."""
        return [os.fsdecode(name) for name in self.names]

    def relabel(self, labels: Sequence[int]) -> "StoredImages":
        """Return the images with other labels."""
        return replace(self, labels=np.array(labels, dtype=np.int64))

    def read(self, index: int) -> bytes:
        """Return the bytes of an image."""
        if self.places is None:
            return self._locate(index).read_bytes()
        shard, start, size = map(int, self.places[index])
        with self.files[shard].open("rb") as stream:
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
        """Return where an image is, for messages."""
        if self.places is None:
            return str(self._locate(index))
        name = os.fsdecode(self.names[index])
        if self.rows is None:
            return f"{name} in {self.files[int(self.places[index, 0])]}"
        shard, row = map(int, self.rows[index])
        return f"{name} in row {row} of {self.shards[shard]}"

    def hash(self) -> str:
        """Return a hash of the names and labels, in order."""
        digest = hashlib.sha256("\n".join(self.list_names()).encode("utf-8", "surrogateescape"))
        digest.update(np.ascontiguousarray(self.labels, dtype="<i8").data)
        return digest.hexdigest()

    def identify(self) -> list[object]:
        """Return a part of a cache key that changes when one of the images is replaced."""
        if self.places is None:
            return [*identify_files(map(self._locate, range(len(self))))]
        return [*identify_files(self.shards or self.files), hashlib.sha256(self.places.tobytes()).hexdigest()]

    def _locate(self, index: int) -> Path:
        return self.files[0] / os.fsdecode(self.names[index])


def store_folders(root: Path, labels: Mapping[str, int]) -> StoredImages:
    """Return the images in the folders of classes, which have these labels, folder by folder."""
    images = [(f"{folder}/{name}", label) for folder, label in labels.items() for name in list_images(root / folder)]
    return store_names(root, [name for name, _ in images], [label for _, label in images])


def list_classes(folder: Path) -> list[str]:
    """List the folders in a folder, without hidden ones."""
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
    """Return the images of a folder with these names and labels."""
    return StoredImages((folder,), _encode(names), np.array(labels, dtype=np.int64))


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
        names, labels, sizes = list[str](), list[int](), list[int]()
        for file in files:
            for content, name, label in read_rows(file, what, labeled):
                names.append(name)
                labels.append(label)
                sizes.append(len(content))
                yield content
        ends = np.cumsum(sizes, dtype=np.int64)
        places = np.column_stack([np.zeros_like(ends), ends - sizes, np.array(sizes, dtype=np.int64)])
        notes |= {"names": _encode(names), "labels": np.array(labels, dtype=np.int64), "places": places}

    size = sum(file.stat().st_size for file in files)
    key = ["unpacked", identify_files(files), *([] if labeled else ["without labels"])]
    file, notes = keep_bytes(key, f"the images of {files[0].parent}", make, size=size)
    counts = [pq.ParquetFile(each).metadata.num_rows for each in files]
    rows = np.column_stack([np.repeat(np.arange(len(files)), counts), np.concatenate([*map(np.arange, counts)])])
    return StoredImages((file,), notes["names"], notes["labels"], notes["places"], tuple(files), rows)


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
