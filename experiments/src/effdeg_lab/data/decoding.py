"""Decode images in separate processes to one size, cropped at random by the seed, the epoch and the index."""

import math
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from effdeg_lab.core.signals import end_with_parent
from effdeg_lab.data.images import StoredImages, draw_boxes_to_crop

Box = tuple[float, float, float, float]  # left, top, right, bottom
Key = tuple[int, int]  # an epoch and the index of an image
CHUNK = 32
"""The number of images that a process decodes at a time: small, so that the first batch is ready soon."""
_AHEAD = 4  # chunks that each process decodes in advance
# The usual test crop: resize the short side to 256 pixels, keep the central 224.
_MARGIN = 256 / 224


def find_center(width: int, height: int, margin: float = _MARGIN) -> Box:
    side = min(width, height) / margin
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def decode(image: Image.Image, size: int, choose: Callable[[int, int], Box]) -> Tensor:
    """Decode the part of an image in a box, resized to ``size`` pixels a side, bilinear with antialiasing."""
    width, height = image.size
    left, top, right, bottom = choose(width, height)
    # Decode a JPEG at 1/2, 1/4 or 1/8 of its size if the box still has enough pixels.
    image.draft("RGB", (math.ceil(size * width / (right - left)), math.ceil(size * height / (bottom - top))))
    x, y = image.width / width, image.height / height
    box = left * x, top * y, min(right * x, image.width), min(bottom * y, image.height)
    resized = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box)
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1).contiguous()


class Chunk(NamedTuple):
    images: Tensor
    labels: Tensor


class Crops(Dataset[tuple[Tensor, int]]):
    """Stored images, each decoded on access to ``size`` pixels a side.

    With ``least``, they are random crops of at least this share of an image's area, which depend on the seed, the epoch
    and the index; else centers, whose side is the short side of the image divided by ``margin``.
    """

    def __init__(
        self, images: StoredImages, size: int, *, seed: int = 0, least: float | None = None, margin: float = _MARGIN
    ) -> None:
        self.images, self.size = images, size
        self._seed, self._least, self._margin = seed, least, margin

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: Key) -> tuple[Tensor, int]:
        epoch, index = key

        def choose(width: int, height: int) -> Box:
            if self._least is None:
                return find_center(width, height, self._margin)
            (state,) = np.random.SeedSequence([self._seed, epoch, index]).generate_state(1)
            generator = torch.Generator().manual_seed(int(state))
            boxes = draw_boxes_to_crop(1, (height, width), self._least, generator=generator)
            top, left, down, across = (int(each) for each in boxes)
            return left, top, left + across, top + down

        with self.images.open(index) as image:
            return decode(image, self.size, choose), int(self.images.labels[index])


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


def _join(samples: list[tuple[Tensor, int]]) -> Chunk:
    images, labels = zip(*samples, strict=True)
    return Chunk(torch.stack(images), torch.tensor(labels))


def _prepare_process(_: int) -> None:
    """Ignore Ctrl-C and SIGTERM, which terminals and schedulers send to all processes; end with the parent instead."""
    warnings.simplefilter("ignore")  # some images of ImageNet have broken EXIF data
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()  # torch's own watchdog watches the fork server, which lives as long as this process
