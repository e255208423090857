"""Decode images in separate processes to one size, cropped at random by the seed, the epoch and the index.

An image that cannot be read is reported by name and replaced by the next one, so that batches keep their size.
"""

import importlib
import io
import math
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from effdeg_lab.core.progress import progress_bar
from effdeg_lab.data.cache import Buffer, Notes, keep_bytes
from effdeg_lab.data.image_files import ImageSet, StoredImages
from effdeg_lab.data.layouts import Labeled

Box = tuple[float, float, float, float]  # left, top, right, bottom
Key = tuple[int, int]  # an epoch and the index of an image
Decoder = Literal["pillow", "torchvision"]
CHUNK = 32
"""The number of images that a process decodes at a time: small, so that the first batch is ready soon."""
_AHEAD = 4  # chunks that each process decodes in advance
_MOST_BROKEN = 0.01
_MOST_IN_A_ROW = 100
_RATIOS = (3 / 4, 4 / 3)
# The usual test crop: resize the short side to 256 pixels, keep the central 224.
_MARGIN = 256 / 224


def draw_crop(width: int, height: int, least: float, random: np.random.Generator) -> Box:
    """Draw the box of a random resized crop, as for Inception: an area, and an aspect ratio from 3/4 to 4/3."""
    for _ in range(10):
        area = width * height * random.uniform(least, 1.0)
        ratio = math.exp(random.uniform(math.log(_RATIOS[0]), math.log(_RATIOS[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(random.integers(width - w + 1)), int(random.integers(height - h + 1))
            return left, top, left + w, top + h
    # Fall back to the largest central box with a permitted ratio.
    w, h = min(width, round(height * _RATIOS[1])), min(height, round(width / _RATIOS[0]))
    return (width - w) // 2, (height - h) // 2, (width + w) // 2, (height + h) // 2


def find_center(width: int, height: int, margin: float = _MARGIN) -> Box:
    """Return the central square whose side is the image's short side divided by ``margin``."""
    side = min(width, height) / margin
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def decode_with_pillow(content: bytes, size: int, choose: Callable[[int, int], Box]) -> Tensor:
    """Decode the part of an image in a box, resized to ``size`` pixels a side, bilinear with antialiasing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some images of ImageNet have broken EXIF data
        with Image.open(io.BytesIO(content)) as image:
            width, height = image.size
            left, top, right, bottom = choose(width, height)
            # Decode a JPEG at 1/2, 1/4 or 1/8 of its size if the box still has enough pixels.
            image.draft("RGB", (math.ceil(size * width / (right - left)), math.ceil(size * height / (bottom - top))))
            x, y = image.width / width, image.height / height
            box = left * x, top * y, min(right * x, image.width), min(bottom * y, image.height)
            resized = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box)
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1).contiguous()


def decode_with_torchvision(content: bytes, size: int, choose: Callable[[int, int], Box]) -> Tensor:
    """Do the same with torchvision: without decoding at a reduced size, and with the box rounded to whole pixels."""
    from torchvision.io import ImageReadMode, decode_image  # type: ignore[import-not-found,unused-ignore]

    image = decode_image(torch.frombuffer(bytearray(content), dtype=torch.uint8), mode=ImageReadMode.RGB)
    left, top, right, bottom = map(round, choose(image.shape[2], image.shape[1]))
    part = image[None, :, top:bottom, left:right]
    return torch.nn.functional.interpolate(part, (size, size), mode="bilinear", antialias=True)[0]


DECODERS: Mapping[str, Callable[[bytes, int, Callable[[int, int], Box]], Tensor]] = {
    "pillow": decode_with_pillow,
    "torchvision": decode_with_torchvision,
}


def check_decoder(name: Decoder) -> None:
    """Raise unless a decoder can be imported; otherwise the worker processes would report every image as broken."""
    try:
        importlib.import_module({"pillow": "PIL.Image", "torchvision": "torchvision.io"}[name])
    except Exception as error:  # a torchvision built for another torch may raise anything
        raise ValueError(f"decoder={name} cannot be used here: {error}. Install it, or use pillow.") from error


class Chunk(NamedTuple):
    """Images of one size, N × 3 × size × size bytes, their labels, and the broken images that were replaced."""

    images: Tensor
    labels: Tensor
    broken: list[tuple[str, str]]  # name and reason


class Crops(Dataset[tuple[Tensor, int, list[tuple[str, str]]]]):
    """Stored images, each decoded on access: a random crop if ``least`` is given, else the center.

    Args:
        images: The stored images.
        size: Pixels a side.
        seed: Determines the random crops, together with the epoch and the index.
        least: The smallest share of an image's area that a random crop may cover.
        margin: Without ``least``, the short side of an image divided by the side of the crop.
        decoder: The library that decodes.
    """

    def __init__(
        self,
        images: StoredImages,
        size: int,
        *,
        seed: int = 0,
        least: float | None = None,
        margin: float = _MARGIN,
        decoder: Decoder = "pillow",
    ) -> None:
        self.images, self.size, self._decode = images, size, DECODERS[decoder]
        self._seed, self._least, self._margin = seed, least, margin

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: Key) -> tuple[Tensor, int, list[tuple[str, str]]]:
        epoch, index = key
        broken = list[tuple[str, str]]()
        while len(broken) < min(_MOST_IN_A_ROW, len(self)):
            try:
                return self._read(epoch, index), int(self.images.labels[index]), broken
            except UnidentifiedImageError:  # its message is about an object in memory
                broken.append((self.images.describe(index), "it is in no known format"))
                index = (index + 1) % len(self)
            except Exception as error:  # files can be broken in many ways
                broken.append((self.images.describe(index), str(error) or type(error).__name__))
                index = (index + 1) % len(self)
        raise ValueError(f"{len(broken)} images in a row cannot be read; the first is {': '.join(broken[0])}.")

    def _read(self, epoch: int, index: int) -> Tensor:
        content = self.images.read(index)
        if not content:
            raise ValueError("it is empty")

        def choose(width: int, height: int) -> Box:
            if self._least is None:
                return find_center(width, height, self._margin)
            return draw_crop(width, height, self._least, np.random.default_rng([self._seed, epoch, index]))

        return self._decode(content, self.size, choose)


def check_first(crops: Crops) -> None:
    """Raise if a tenth of the first images cannot be read, which would else be noticed after hours of training."""
    count = min(CHUNK, len(crops))
    broken = [each for index in range(count) for each in crops[0, index][2]]
    names = dict.fromkeys(name for name, _ in broken)
    if len(names) > max(1, count // 10):
        raise ValueError(
            f"{len(names)} of the first {count} images cannot be read: {', '.join([*names][:3])}, … The first error: "
            f"{broken[0][1]}. Remove them, or download them again."
        )


class Broken:
    """The images of a split that could not be read: each is reported once, and more than 1% are an error."""

    def __init__(self, total: int) -> None:
        self.most, self.names = max(1, int(_MOST_BROKEN * total)), list[str]()

    def report(self, broken: Iterable[tuple[str, str]]) -> None:
        """Warn of newly found broken images; raise if there are too many in all."""
        for name, reason in broken:
            if name not in self.names:
                self.names.append(name)
                text = f"{name} cannot be read as an image, and another is used instead: {reason}"
                warnings.warn(text, RuntimeWarning, stacklevel=2)
        if len(self.names) > self.most:
            raise ValueError(
                f"{len(self.names)} images cannot be read, which is more than {_MOST_BROKEN:.0%} of them: "
                f"{', '.join([*self.names[:5], *['…'] * (len(self.names) > 5)])}. Remove them, or download them again."
            )


def read_crops(crops: Crops, keys: Iterable[Sequence[Key]], *, decoders: int, pinned: bool = False) -> Iterator[Chunk]:
    """Decode chunks of images in order, in advance, in ``decoders`` processes; with 0, in this process."""
    options: dict[str, Any] = {}
    if decoders:
        # Not a fork of this process: threads and CUDA contexts do not survive a fork.
        context = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
        context.set_forkserver_preload([__name__])  # imports torch once for all processes
        options["multiprocessing_context"] = context
        options["prefetch_factor"] = _AHEAD
        options["worker_init_fn"] = _prepare_process
    loader = DataLoader(
        crops,
        batch_sampler=keys,  # type: ignore[arg-type]  # any iterable of lists
        num_workers=decoders,
        collate_fn=_join,
        pin_memory=pinned,
        generator=torch.Generator(),  # otherwise it would advance torch's global generator and change training
        **options,
    )
    try:
        yield from loader
    except RuntimeError as error:
        if "exited unexpectedly" not in str(error):
            raise
        raise OSError(
            "a process that decodes images has died, perhaps because memory ran out: set EFFDEG_DECODERS to fewer than "
            f"{decoders}. The same command continues the run."
        ) from error


def split_keys(epoch: int, indices: Tensor) -> list[list[Key]]:
    """Return the keys of images in chunks; one process decodes a chunk."""
    return [[(epoch, index) for index in part] for part in map(Tensor.tolist, torch.split(indices, CHUNK))]


def count_decoders(device: torch.device) -> int:
    """Return the number of decoding processes per training process: ``EFFDEG_DECODERS``, or its share of the cores."""
    if given := os.environ.get("EFFDEG_DECODERS"):
        if not given.isdecimal():
            raise ValueError(f"EFFDEG_DECODERS={given} is not possible: expected a number of processes, 0 or more.")
        return int(given)
    if device.type != "cuda":
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def decode_all(
    data: ImageSet,
    size: int,
    *,
    decoders: int,
    margin: float = _MARGIN,
    train_margin: float = 1.0,
    decoder: Decoder = "pillow",
    progress: bool,
) -> Labeled:
    """Decode a whole data set once, and cache it: the center of every image, ``size`` pixels a side.

    By default, training images keep their whole short side, because they are cropped later; test images do not.
    """
    splits = (("training", data.train, train_margin), ("test", data.test, margin))
    tensors, broken = list[tuple[Tensor, Tensor]](), set[str]()
    for name, images, kept in splits:
        crops = Crops(images, size, margin=kept, decoder=decoder)
        file, notes = _keep_pixels(crops, name, [size, kept, decoder], decoders=decoders, progress=progress)
        # Copy-on-write, as torch warns about read-only arrays.
        pixels = np.memmap(file, np.uint8, "c", shape=(len(images), 3, size, size))
        tensors.append((torch.from_numpy(pixels), torch.from_numpy(notes["labels"])))
        broken.update(notes["broken"][:, 0].tolist())
    return Labeled(*tensors[0], *tensors[1], data.classes, data.mean, data.std, broken_images=len(broken))


def _keep_pixels(crops: Crops, name: str, how: list[Any], *, decoders: int, progress: bool) -> tuple[Any, Notes]:
    count = len(crops)

    def make(notes: Notes) -> Iterator[Buffer]:
        broken, found, labels = Broken(count), list[tuple[str, str]](), list[Tensor]()
        with progress_bar(f"decoding {name} images", count, enabled=progress) as update:
            done = 0
            for chunk in read_crops(crops, split_keys(0, torch.arange(count)), decoders=decoders):
                broken.report(chunk.broken)
                found += chunk.broken
                labels.append(chunk.labels)
                yield chunk.images.numpy().data
                update(done := done + len(chunk.labels))
        notes |= {"labels": torch.cat(labels).numpy(), "broken": np.array(found, dtype=np.str_).reshape(-1, 2)}

    key = ["pixels", *how, crops.images.identify()]
    what = f"{count} {name} images of {crops.size} pixels a side"
    file, notes = keep_bytes(key, what, make, size=count * 3 * crops.size**2, verify=True)
    Broken(count).report(notes["broken"].tolist())  # also in runs that find the images in the cache
    return file, notes


def _join(samples: list[tuple[Tensor, int, list[tuple[str, str]]]]) -> Chunk:
    images, labels, broken = zip(*samples, strict=True)
    return Chunk(torch.stack(images), torch.tensor(labels), [each for some in broken for each in some])


def _prepare_process(_: int) -> None:
    """Ignore Ctrl-C and SIGTERM, which terminals and schedulers send to all processes; end with the parent instead."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # torch's own watchdog watches the fork server, which lives as long as this process.
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
