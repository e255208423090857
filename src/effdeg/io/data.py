"""Examples from array files, tables, and folders of images."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from effdeg.examples import LABELS
from effdeg.io.optional import require

IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".pgm", ".ppm"}


@dataclass(frozen=True)
class ImageOptions:
    """What is done to images: resizing, then (pixels in [0, 1] - mean) / std, channel by channel."""

    size: int | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __call__(self, image: Any) -> Tensor:
        """Turn a Pillow image, grey or RGB, into a channels × height × width tensor."""
        if self.size is not None:
            image = image.resize((self.size, self.size))
        pixels = torch.from_numpy(np.array(image, dtype=np.float32) / 255)
        pixels = pixels[None] if pixels.dim() == 2 else pixels.permute(2, 0, 1)
        mean, std = (self._channels(name, len(pixels)) for name in ("mean", "std"))
        return (pixels - mean) / std

    def _channels(self, name: str, channels: int) -> Tensor:
        given = getattr(self, name) or ((0.0,) if name == "mean" else (1.0,))
        if len(given) not in {1, channels}:
            raise ValueError(f"--{name} has {len(given)} values, the images have {channels} channels.")
        return torch.tensor(given).view(-1, 1, 1)


def load_data(source: str | Path, *, key: str | None = None, images: ImageOptions | None = None) -> Any:
    """Load examples from a file or folder, as inputs for :func:`effdeg.measure`.

    Args:
        source: ``.npy``, ``.npz``, ``.pt`` or ``.safetensors`` with the examples first; ``.parquet`` with images as the
            Hugging Face hub stores them or with numeric columns; or a folder of images, searched through.
        key: Which array of a file with several (else all of them, by name), or which column of images.
        images: What is done to images.

    Returns:
        A tensor, a dict of tensors, or a data set of images. Arrays of bytes are scaled to [0, 1], as images are.
    """
    path, images = Path(source), images or ImageOptions()
    if path.is_dir():
        return _folder(path, images)
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist.")
    if path.suffix == ".parquet":
        return _parquet(path, key, images)
    if path.suffix not in _READERS:
        known = ", ".join([*_READERS, ".parquet"])
        raise ValueError(f"{path} has the suffix {path.suffix!r}; known are {known} and folders of images.")
    if images != ImageOptions():
        raise ValueError(f"--size, --mean and --std are for images (.parquet, a folder), not for the arrays of {path}.")
    return _pick(_read(path, _READERS[path.suffix]), key, path)


class ImageList(Dataset[Tensor]):
    """Images that are decoded when they are asked for: all of them grey if the first one is, else all RGB."""

    def __init__(self, stored: Sequence[bytes | Path], options: ImageOptions, name: str) -> None:
        self._stored, self._options, self._name = stored, options, name
        self._pillow = require("PIL.Image", extra="files", purpose="reading images")
        self._mode = "L" if self._open(0, lambda image: image.mode) == "L" else "RGB"

    def __len__(self) -> int:
        return len(self._stored)

    def __getitem__(self, index: int) -> Tensor:
        image: Tensor = self._open(index, lambda image: self._options(image.convert(self._mode)))
        return image

    def _open(self, index: int, use: Callable[[Any], Any]) -> Any:
        stored = self._stored[index]
        try:
            with self._pillow.open(io.BytesIO(stored) if isinstance(stored, bytes) else stored) as image:
                return use(image)
        except OSError as error:
            where = stored if isinstance(stored, Path) else f"image {index} of {self._name}"
            raise ValueError(f"{where} cannot be read as an image: {error}") from error


def _folder(folder: Path, options: ImageOptions) -> ImageList:
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in IMAGES)
    if not files:
        raise ValueError(f"{folder} holds no images ({', '.join(sorted(IMAGES))}).")
    return ImageList(files, options, str(folder))


def _parquet(path: Path, key: str | None, options: ImageOptions) -> Any:
    types = require("pyarrow", extra="files", purpose="a .parquet file").types
    table = _read(path, require("pyarrow.parquet", extra="files", purpose="a .parquet file").read_table)
    if key is not None and key not in table.column_names:
        raise ValueError(f"{path} has no column {key!r}; it has {', '.join(table.column_names)}.")
    images = [field.name for field in table.schema if _holds_images(field.type, types)]
    if key in images or (key is None and images):
        cells = table.column(key or images[0]).to_pylist()
        return ImageList([cell["bytes"] if isinstance(cell, dict) else cell for cell in cells], options, str(path))
    numbers = [field.name for field in table.schema if types.is_floating(field.type) or types.is_integer(field.type)]
    names = [key] if key in numbers else [name for name in numbers if name not in LABELS] if key is None else []
    if not names:
        raise ValueError(f"{path} has neither images nor numbers in {key or ', '.join(table.column_names)}.")
    columns = [table.column(name).to_numpy() for name in names]
    return torch.from_numpy(np.stack(columns, axis=1).astype(np.float32))


def _holds_images(kind: Any, types: Any) -> bool:
    """Tell whether a column holds images: their bytes, or, as the hub stores them, a struct of bytes and path."""
    if types.is_struct(kind):
        return any(kind.field(index).name == "bytes" for index in range(kind.num_fields))
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _read(path: Path, reader: Callable[[Path], Any]) -> Any:
    try:
        return reader(path)
    except ImportError:
        raise
    except Exception as error:
        raise ValueError(f"{path} cannot be read as {path.suffix}: {error}") from error


def _safetensors(path: Path) -> Any:
    return require("safetensors.torch", extra="files", purpose="a .safetensors file").load_file(path)


def _torch(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


_READERS: dict[str, Callable[[Path], Any]] = {
    ".npy": lambda path: np.load(path, allow_pickle=False),
    ".npz": lambda path: dict(np.load(path, allow_pickle=False)),
    ".pt": _torch,
    ".pth": _torch,
    ".safetensors": _safetensors,
}


def _pick(loaded: Any, key: str | None, path: Path) -> Any:
    if key is not None:
        if not isinstance(loaded, dict) or key not in loaded:
            names = ", ".join(map(str, loaded)) if isinstance(loaded, dict) else "one unnamed array"
            raise ValueError(f"{path} has no array {key!r}; it has {names}.")
        loaded = loaded[key]
    if isinstance(loaded, dict):
        inputs = {name: _scaled(value) for name, value in loaded.items() if name not in LABELS}
        return inputs if len(inputs) > 1 else next(iter(inputs.values()), None)
    # torch.save((inputs, labels)) is a pair, not two inputs.
    return _scaled(loaded[0] if isinstance(loaded, tuple | list) and loaded else loaded)


def _scaled(array: Any) -> Any:
    tensor = torch.from_numpy(array) if isinstance(array, np.ndarray) else array
    return tensor.float() / 255 if isinstance(tensor, Tensor) and tensor.dtype == torch.uint8 else tensor
