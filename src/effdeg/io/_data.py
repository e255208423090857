"""Examples from files of arrays or tensors, tables, and folders of images, read without running any code in them."""

import io
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import Dataset

from effdeg._adapters.examples import LABELS
from effdeg._utils.checks import check_count, pluralize, shorten
from effdeg._utils.imports import require

IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".pgm", ".ppm"}

_SCALED = "bytes scaled to [0, 1]"
_CHANNELS = {1, 3, 4}
_GRAY = {"1", "L", "LA"}  # Pillow's modes without colors


class LoadedData(NamedTuple):
    """Examples from a file or folder, as :func:`load_data` returns them.

    Attributes:
        inputs: A tensor, a dict of tensors, or a data set of images.
        source: The file or folder.
        preprocessing: What was done to the examples, in words; None if nothing was.

    Example:
        >>> import torch
        >>> from effdeg.io import LoadedData
        >>> LoadedData(torch.zeros(5, 3), "zeros.npy", None).inputs.shape
        torch.Size([5, 3])
    """

    inputs: Any
    source: str
    preprocessing: str | None


@dataclass(frozen=True)
class ImageOptions:
    """Preprocessing of images: resizing, then (pixels in [0, 1] - mean) / std, channel by channel.

    Attributes:
        size: Resize images to this many pixels in height and width; None leaves them as they are.
        mean: One number, or one for each channel.
        std: One positive number, or one for each channel.

    Raises:
        TypeError: If ``size`` is no integer, or ``mean`` or ``std`` no tuple of numbers.
        ValueError: If ``size`` or ``std`` is not positive, or a number is not finite.

    Example:
        >>> from PIL import Image
        >>> from effdeg.io import ImageOptions
        >>> white = Image.new("RGB", (8, 6), "white")
        >>> pixels = ImageOptions(size=4, mean=(0.5,), std=(0.25,))(white)
        >>> pixels.shape, pixels.unique()
        (torch.Size([3, 4, 4]), tensor([2.]))
    """

    size: int | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.size is not None:
            check_count("size", self.size, least=1)
        for name, values in {"mean": self.mean, "std": self.std}.items():
            try:
                numbers = tuple(map(float, values))
            except (TypeError, ValueError):
                raise TypeError(f"{name}={values!r} must be a tuple of numbers, such as (0.5,).") from None
            if not all(map(math.isfinite, numbers)):
                raise ValueError(f"{name}={_list(numbers)}: expected finite numbers.")
            object.__setattr__(self, name, numbers)
        if not all(value > 0 for value in self.std):
            raise ValueError(f"std={_list(self.std)}: images are divided by it, so it must be positive.")

    @property
    def changes(self) -> list[str]:
        """What is done beyond scaling bytes, in words."""
        named = {"size": self.size, "mean": _list(self.mean), "std": _list(self.std)}
        return [f"{name} {value}" for name, value in named.items() if value not in {None, ""}]

    def __call__(self, image: Any) -> Tensor:
        """Turn a Pillow image, gray or RGB, into a channels × height × width tensor."""
        if self.size is not None:
            image = image.resize((self.size, self.size))
        pixels = torch.from_numpy(np.array(image))
        return self._normalize(_scale(pixels[None] if pixels.dim() == 2 else pixels.permute(2, 0, 1)))

    def apply_to_array(self, images: Tensor, path: Path) -> Tensor:
        """Preprocess an array, N × channels × height × width, in the same way as Pillow images."""
        if (hint := describe_channels_last(images, path)) is not None:
            raise ValueError(hint)
        if images.dim() != 4 or not (images.dtype == torch.uint8 or images.is_floating_point()):
            raise ValueError(
                f"size=, mean= and std= are for images: bytes (uint8) or floats of the shape N × channels × height × "
                f"width. {path} holds {str(images.dtype).removeprefix('torch.')} of the shape {tuple(images.shape)}."
            )
        low, high = images.min().item(), images.max().item()
        if images.is_floating_point() and (self.mean or self.std) and (low < 0 or high > 1):
            warnings.warn(
                f"mean= and std= are usually those of pixels in [0, 1], but the pixels of {path} lie between "
                f"{low:.3g} and {high:.3g}.",
                stacklevel=2,
            )
        if self.size is not None:
            # The filter that Pillow uses; bytes are rounded and clipped as Pillow's are.
            images = interpolate(images, (self.size, self.size), mode="bicubic", antialias=True)
        return self._normalize(_scale(images))

    def _normalize(self, pixels: Tensor) -> Tensor:
        named, channels = {"mean": self.mean or (0.0,), "std": self.std or (1.0,)}, pixels.shape[-3]
        for name, values in named.items():
            if len(values) not in {1, channels}:
                raise ValueError(f"{name}= has {len(values)} values, the images have {channels} channels.")
            if max(values) > 1 and bool((pixels >= 0).all() & (pixels <= 1).all()):
                raise ValueError(
                    f"{name}={_list(values)}: the pixels lie in [0, 1], so this seems to be for pixels "
                    "from 0 to 255. Divide it by 255."
                )
        mean, std = (torch.tensor(values, dtype=pixels.dtype).view(-1, 1, 1) for values in named.values())
        return (pixels - mean) / std


def _list(numbers: tuple[float, ...]) -> str:
    return ",".join(map(str, numbers))


def load_data(source: str | Path, *, key: str | None = None, images: ImageOptions | None = None) -> LoadedData:
    """Load examples from a file or folder, as inputs for :func:`effdeg.measure`.

    Bytes (uint8) are scaled to [0, 1], except for those of masks and ids, by name, among several arrays; labels next to
    the examples are left out. No code in a file is run. Images, ``.parquet`` and ``.safetensors`` need the extra
    ``files``.

    Args:
        source: ``.npy``, ``.npz``, ``.pt`` or ``.safetensors`` with the examples first; ``.parquet`` with images as the
            Hugging Face hub stores them, with numbers, or with lists of numbers of one length; or a folder of images.
        key: The array or column to take from a file with several (by default all, by name).
        images: Preprocessing of images, also of those in an N × channels × height × width array.

    Returns:
        The examples, where they come from, and what was done to them.

    Raises:
        FileNotFoundError: If there is no such file or folder.
        ValueError: If the file cannot be read, holds no examples, holds pickled objects, or has no array ``key``.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from effdeg.io import load_data
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/x.npz", images=np.zeros((5, 1, 8, 8), np.uint8), labels=np.arange(5))
        ...     data = load_data(f"{folder}/x.npz")
        >>> data.inputs.shape, data.preprocessing
        (torch.Size([5, 1, 8, 8]), 'bytes scaled to [0, 1], labels left out')
    """
    path, images = Path(source), images or ImageOptions()
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    if path.is_dir():
        if key is not None:
            raise ValueError(f"key={key!r} is for files with several arrays or columns; {path} is a folder of images.")
        inputs, done = _load_folder(path, images)
    elif path.suffix == ".parquet":
        inputs, done = _load_parquet(path, key, images)
    elif path.suffix in _READERS:
        stored, labeled = _pick(read_file(path, _READERS[path.suffix]), key, path)
        inputs, done = _prepare(stored, path, images)
        done += ["labels left out"] if labeled else []
    else:
        known = ", ".join([*_READERS, ".parquet"])
        raise ValueError(f"{path} has the suffix {path.suffix!r}; supported are {known} and folders of images.")
    return LoadedData(inputs, str(source) if key is None else f"{source}, key {key}", ", ".join(done) or None)


def load_labels(source: str | Path) -> Tensor | None:
    """Return the labels next to the examples of a file, which :func:`load_data` leaves out; None if it has none."""
    path, labels = Path(source), {}
    if path.suffix == ".parquet":
        table = read_parquet(path)
        labels = {name: table.column(name).to_numpy().copy() for name in table.column_names if name in LABELS}
    elif path.suffix in _READERS:
        _, labels = _split(read_file(path, _READERS[path.suffix]))
    if len(labels) > 1:
        raise ValueError(f"{path} has several kinds of labels, {', '.join(labels)}: keep the one that is meant.")
    return next((_as_tensor(value, path, name) for name, value in labels.items()), None)


def describe_channels_last(inputs: Any, path: str | Path) -> str | None:
    """Describe what to do about images of the layout N × height × width × channels; return None for other examples."""
    is_image = isinstance(inputs, Tensor) and inputs.dim() == 4
    if not is_image or inputs.shape[3] not in _CHANNELS or min(inputs.shape[1:3]) <= max(_CHANNELS):
        return None
    return (
        f"{path} seems to hold images as N × height × width × channels, {tuple(inputs.shape)}; models in PyTorch "
        "usually take N × channels × height × width. To convert an array x: x.transpose(0, 3, 1, 2) in numpy, "
        "x.permute(0, 3, 1, 2) in torch."
    )


def _get_mode(image: Any) -> str:
    """Return the mode of a Pillow image; raise if its pixels are not bytes, to which Pillow would clip them."""
    mode = str(image.mode)
    if mode == "F" or mode.startswith("I"):
        raise ValueError(
            f"its pixels are not bytes (Pillow's mode {mode}, as of 16-bit images). Save the pixels as an array of "
            "floats, scaled as the model expects them, in a .npy file."
        )
    return mode


class ImageList(Dataset[Tensor]):
    """Images that are decoded on access: all of them RGB if one has colors or a palette, else all gray.

    Transparency is left out. Images of one bit are gray.

    Attributes:
        sources: Their files, or the bytes of their files; None where a table has an empty cell.

    Example:
        >>> import io
        >>> from PIL import Image
        >>> from effdeg.io import ImageList, ImageOptions
        >>> stream = io.BytesIO()
        >>> Image.new("L", (4, 3)).save(stream, "png")
        >>> images = ImageList([stream.getvalue()], ImageOptions(), "a table")
        >>> len(images), tuple(images[0].shape), images.describe(0)
        (1, (1, 3, 4), 'image 0 of a table')
    """

    def __init__(self, sources: Sequence[bytes | Path | None], options: ImageOptions, name: str) -> None:
        self.sources, self._options, self._name = sources, options, name
        self._pillow = require("PIL.Image", extra="files", purpose="reading images")
        # Only headers are read, and only up to the first image with colors.
        gray = all(self._open(index, _get_mode) in _GRAY for index in range(len(sources)))
        self._mode = "L" if gray else "RGB"

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> Tensor:
        def convert(image: Any) -> Any:
            _get_mode(image)
            # Pillow warns if a palette with transparency is converted to RGB at once.
            return (image.convert("RGBA") if image.mode == "P" else image).convert(self._mode)

        return self._options(self._open(index, convert))

    def describe(self, index: int) -> str:
        """Name an image by its file, or by its number in a table."""
        source = self.sources[index]
        return str(source) if isinstance(source, Path) else f"image {index} of {self._name}"

    def _open(self, index: int, use: Callable[[Any], Any]) -> Any:
        source, where = self.sources[index], self.describe(index)
        if source is None:
            raise ValueError(f"{where} is missing: its cell holds no bytes of an image.")
        try:
            with self._pillow.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
                return use(image)
        except self._pillow.UnidentifiedImageError as error:
            raise ValueError(f"{where} cannot be read as an image: Pillow does not know its format.") from error
        except Exception as error:  # Pillow raises many kinds for damaged files
            raise ValueError(f"{where} cannot be read as an image: {error}") from error


def read_file(path: Path, reader: Callable[[Path], Any]) -> Any:
    """Read a file with a reader; errors, except for a missing package, name the file."""
    try:
        return reader(path)
    except ImportError:
        raise
    except Exception as error:
        raise ValueError(f"{path} cannot be read as {path.suffix}: {error}") from error


def read_safetensors(path: Path) -> Any:
    return require("safetensors.torch", extra="files", purpose="a .safetensors file").load_file(path)


def read_parquet(path: Path) -> Any:
    return read_file(path, require("pyarrow.parquet", extra="files", purpose="a .parquet file").read_table)


def read_torch(path: Path, *, expected: str) -> Any:
    """Return what ``torch.save`` wrote, if that is tensors in plain containers; else say to save ``expected``."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # asks to file an issue for pickles that torch did not write
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # torch's own message recommends weights_only=False, which runs whatever the file says.
        found = re.search(r"GLOBAL (\S+)", str(error))
        if "TorchScript" in str(error):
            raise ValueError(
                f"{path} holds a TorchScript module. Save tensors: torch.save({expected}, file)."
            ) from error
        if found is None:
            raise ValueError(f"{path} is not a file that torch.save wrote, or it is damaged.") from error
        if found[1].endswith(".BatchEncoding"):  # a tokenizer's output
            expected = f"dict({expected})"
        elif found[1].startswith("numpy.") and expected == "examples":
            expected = "torch.from_numpy(examples)"
        raise ValueError(
            f"{path} holds a pickled {found[1]}, not tensors alone. Pickled objects are not read, since they can run "
            f"any code. Save the tensors instead: torch.save({expected}, file)."
        ) from error


def _read_numpy(path: Path) -> Any:
    try:
        loaded = np.load(path, allow_pickle=False)
        return dict(loaded) if isinstance(loaded, Mapping) else loaded
    except ValueError as error:
        if "pickle" not in str(error):
            raise
        # numpy's own message recommends allow_pickle=True, which runs whatever the file says.
        raise ValueError(
            "it is damaged, or holds pickled objects, which are not read, since they can run any code. Save arrays of "
            "numbers instead: numpy.save(file, array.astype('float32'))."
        ) from error


_READERS: dict[str, Callable[[Path], Any]] = {
    ".npy": _read_numpy,
    ".npz": _read_numpy,
    ".pt": partial(read_torch, expected="examples"),
    ".pth": partial(read_torch, expected="examples"),
    ".safetensors": read_safetensors,
}


def _prepare(inputs: Any, path: Path, images: ImageOptions) -> tuple[Any, list[str]]:
    """Return a tensor or a dict of them with bytes scaled and images preprocessed, and what was done."""
    several = isinstance(inputs, dict)
    if images.changes and several:
        raise ValueError(f"size=, mean= and std=: {path} holds {', '.join(inputs)}; choose the images with key=.")
    named = inputs if several else {"": inputs}
    for name, tensor in named.items():
        if tensor.dtype == torch.uint8 and ("mask" in name.lower() or name.lower().endswith("ids")):  # no pixels
            named = named | {name: tensor.long()}
    pixels = [tensor for tensor in named.values() if tensor.dtype == torch.uint8]
    done = [*images.changes, *([_SCALED] if pixels else [])]
    if any(tensor.numel() and int(tensor.max()) == 1 for tensor in pixels):
        warnings.warn(
            f"{path} holds bytes of 0 and 1, and bytes are divided by 255. If the model takes 0 and 1, save floats.",
            stacklevel=3,
        )
    if several:
        return {name: _scale(tensor) for name, tensor in named.items()}, done
    if images.changes:
        return images.apply_to_array(inputs, path), done
    if (hint := describe_channels_last(inputs, path)) is not None:
        warnings.warn(hint, stacklevel=3)
    return _scale(inputs), done


def _load_folder(folder: Path, options: ImageOptions) -> tuple[ImageList, list[str]]:
    # Hidden files, such as the ._00.png of macOS, are no images.
    shown = [file for file in folder.rglob("*") if not any(p.startswith(".") for p in file.relative_to(folder).parts)]
    files = sorted(file for file in shown if file.suffix.lower() in IMAGES and not file.is_dir())
    left_out = [file for file in shown if file.suffix.lower() not in IMAGES and not file.is_dir()]
    others = shorten(sorted({file.suffix for file in left_out if file.suffix}), 6)
    if not files:
        held = f"; it holds {others}" if others else ""
        raise ValueError(f"{folder} holds no images ({', '.join(sorted(IMAGES))}){held}.")
    note = f"{pluralize(len(left_out), 'file')} left out{f' ({others})' if others else ''}"
    return ImageList(files, options, str(folder)), [*options.changes, _SCALED, *([note] if left_out else [])]


def _load_parquet(path: Path, key: str | None, options: ImageOptions) -> tuple[Any, list[str]]:
    table = read_parquet(path)
    types = require("pyarrow.types", extra="files", purpose="a .parquet file")
    if table.num_rows == 0:
        raise ValueError(f"{path} holds no examples: it has no rows.")
    if key is not None and key not in table.column_names:
        raise ValueError(f"{path} has no column {key!r}; it has {', '.join(table.column_names)}.")
    # The index of a table of pandas, which it writes as a column, is no feature.
    index = (table.schema.pandas_metadata or {}).get("index_columns", [])
    fields = [field for field in table.schema if key == field.name or (key is None and field.name not in index)]
    images = [field.name for field in fields if _holds_images(field.type, types)]
    if len(images) > 1:
        raise ValueError(f"{path} has images in {shorten(images)}. Choose the examples: key={images[0]!r}.")
    if images:
        cells = table.column(images[0]).to_pylist()
        stored = [cell["bytes"] if isinstance(cell, dict) else cell for cell in cells]
        return ImageList(stored, options, str(path)), [*options.changes, _SCALED]
    numbers = [field for field in fields if _holds_numbers(field.type, types)]
    names = [field.name for field in numbers if key is not None or field.name not in LABELS]
    if not names:
        raise ValueError(f"{path} has neither images nor numbers in {key or ', '.join(table.column_names)}.")
    lists = [field.name for field in numbers if field.name in names and hasattr(field.type, "value_type")]
    if lists and len(lists) < len(names):
        others = [name for name in names if name not in lists]
        raise ValueError(
            f"{path} has lists of numbers in {shorten(lists)} and single numbers in {shorten(others)}. Choose the "
            f"examples: key={lists[0]!r}."
        )
    columns = f"columns {shorten(names, 6)}"
    if lists:
        stacked = {name: _stack_lists(table.column(name), name, path) for name in lists}
        inputs, done = _prepare(stacked if len(lists) > 1 else stacked[lists[0]], path, options)
        return inputs, [columns, *done]
    if options.changes:
        raise ValueError(f"size=, mean= and std= are for images; {path} has none, but numbers in {shorten(names, 6)}.")
    values = np.stack([_as_numbers(table.column(name)) for name in names], axis=1)
    return _scale(torch.from_numpy(values)).float(), [columns, *([_SCALED] if values.dtype == np.uint8 else [])]


def _holds_images(kind: Any, types: Any) -> bool:
    """Return whether a column holds images: their bytes, or, as the hub stores them, a struct of bytes and path."""
    if types.is_struct(kind):
        return any(kind.field(index).name == "bytes" for index in range(kind.num_fields))
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _holds_numbers(kind: Any, types: Any) -> bool:
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
    return bool(types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind))


def _stack_lists(column: Any, name: str, path: Path) -> Tensor:
    """Return a column of lists of one length, maybe nested, as a tensor with the rows first."""
    values, shape = column.combine_chunks(), [len(column)]
    while hasattr(values.type, "value_type"):
        lengths = values.value_lengths().unique().to_pylist()
        if values.null_count:
            raise ValueError(f"column {name!r} of {path} has {pluralize(values.null_count, 'empty cell')}.")
        if len(lengths) > 1:
            raise ValueError(
                f"column {name!r} of {path} has lists of unequal lengths, {shorten(list(map(str, lengths)))}, and no "
                "straight line joins them. Pad or cut them to one length."
            )
        shape.append(lengths[0])
        values = values.flatten()
    return torch.from_numpy(_as_numbers(values).copy()).reshape(shape)


def _as_numbers(values: Any) -> "np.ndarray[Any, Any]":
    """Return a column as an array; empty cells become NaN, which a measurement refuses."""
    array: np.ndarray[Any, Any] = values.to_numpy(zero_copy_only=False)
    return array.astype(float) if array.dtype == object else array  # flags with empty cells are objects


def _split(stored: Any) -> tuple[Any, dict[str, Any]]:
    """Return the inputs among what a file holds, alone or by name, and the labels by name."""
    if isinstance(stored, Mapping):
        named = {str(name): value for name, value in stored.items()}
        labels = {name: named.pop(name) for name in [*named] if name in LABELS}
        return named, labels
    if not (isinstance(stored, tuple | list) and len(stored) == 2 and all(isinstance(each, Tensor) for each in stored)):
        return stored, {}
    inputs, other = stored
    # The second can only be the labels of the first if it is one number per example.
    shapes = {inputs.shape[:1], (*inputs.shape[:1], 1)}
    if inputs.dim() < 2 or inputs.shape == other.shape or other.shape not in shapes:
        return stored, {}
    return inputs, {"labels": other}


def _pick(stored: Any, key: str | None, path: Path) -> tuple[Any, bool]:
    """Return the inputs among what a file holds, a tensor or a dict of them, and whether labels were left out."""
    inputs, labels = _split(stored)
    if key is not None:
        named = inputs | labels if isinstance(stored, Mapping) else {}
        if key not in named:
            names = ", ".join(map(str, stored)) if isinstance(stored, Mapping) else "one unnamed array"
            raise ValueError(f"{path} has no array {key!r}; it has {names}.")
        return _as_tensor(named[key], path), False
    if not isinstance(stored, Mapping):
        return _as_tensor(inputs, path), bool(labels)
    if not inputs:
        raise ValueError(f"{path} holds no examples: it has {', '.join(labels) or 'nothing'}.")
    tensors = {name: _as_tensor(value, path, name) for name, value in inputs.items()}
    return tensors if len(tensors) > 1 else next(iter(tensors.values())), bool(labels)


def _as_tensor(value: Any, path: Path, name: str = "") -> Tensor:
    if isinstance(value, np.ndarray) and value.dtype.kind in "buifc":
        # torch has neither long doubles nor the byte order of other machines.
        native = np.float64 if value.dtype == np.longdouble else value.dtype.newbyteorder("=")
        return torch.from_numpy(value.astype(native, copy=False))
    if isinstance(value, Tensor):
        return value
    if isinstance(value, tuple | list) and value and all(isinstance(each, Tensor) for each in value):
        raise ValueError(
            f"{path} holds a {type(value).__name__} of {len(value)} tensors. Save one tensor with the examples first: "
            "torch.save(torch.stack(list), file) if each is one example, torch.save(torch.cat(list), file) if each "
            "is a batch; or a dict of tensors by name, if they are different inputs of the model."
        )
    kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a value of type {type(value).__name__}"
    where = f" under {name!r}; choose the examples with key=" if name else "; expected numbers with the examples first"
    raise ValueError(f"{path} holds {kind}{where}.")


def _scale(tensor: Tensor) -> Tensor:
    return tensor.float() / 255 if tensor.dtype == torch.uint8 else tensor
