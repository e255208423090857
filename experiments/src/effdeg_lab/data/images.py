"""Images in files of any size, decoded when they are needed, as bytes of one size."""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from effdeg_lab.data.cache import Buffer, Notes, keep_bytes
from effdeg_lab.data.image_files import StoredImages, store_tables

CLIP_SCALE = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
IMAGENET_SCALE = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""The mean and the standard deviation of pixels in [0, 1] that encoders were trained with."""
# The ratio of width to height of a random crop, and the number of crops to try before the whole image is taken.
_RATIOS, _TRIES = (3 / 4, 4 / 3), 10


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
        """Turn a Pillow image into bytes, channels first."""
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
    """Images in files, decoded on access; the name is that of the set, for errors."""

    def __init__(self, stored: StoredImages, crop: Crop, name: str) -> None:
        self.stored, self.crop, self.name = stored, crop, name

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, index: int) -> Tensor:
        with self.stored.open(index) as image:
            return self.crop(image)

    def take(self, places: Sequence[int] | np.ndarray) -> "Images":
        """Return some of the images."""
        return Images(self.stored[np.asarray(places)], self.crop, self.name)

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


class KeptImages(Images):
    """Images that are decoded once, for code that reads them again and again."""

    def __init__(self, images: Images) -> None:
        super().__init__(images.stored, images.crop, images.name)
        self._kept = images.decode()

    def __getitem__(self, index: int) -> Tensor:
        return self._kept[index]


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
