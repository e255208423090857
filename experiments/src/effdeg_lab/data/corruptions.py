"""Corrupted test images of CIFAR-10: from the archive CIFAR-10-C, or made with ``imagecorruptions``."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from effdeg_lab.data.labeled import Corrupted, read_tables
from effdeg_lab.data.sources import Array, explain_errors, find_shards

KINDS = (
    *("gaussian_noise", "shot_noise", "impulse_noise"),
    *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness"),
    *("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
"""The 15 corruptions of Hendrycks and Dietterich (2019): noise, blur, weather and digital."""
_SEVERITIES, _SEVERITY = 5, 3  # how many the archive has, and the one used: all would take five times as long


def find_corrupted(folder: Path) -> Callable[[], Corrupted | None]:
    """Find corrupted images in ``CIFAR-10-C`` or ``cifar10-c`` in the data folder; load None without these folders.

    The files are ``KIND.npy`` and ``labels.npy`` as in the archive, of which severity 3 is used, or
    ``KIND-SEVERITY-*.parquet`` with columns of images and labels, all of one severity.
    """
    place = next((folder / name for name in ("CIFAR-10-C", "cifar10-c") if (folder / name).is_dir()), None)
    if place is None:
        return lambda: None
    if any(place.glob("*.npy")):
        if missing := [f"{name}.npy" for name in (*KINDS, "labels") if not (place / f"{name}.npy").is_file()]:
            raise FileNotFoundError(f"{place} is incomplete: {', '.join(missing)} is missing.")
        return lambda: _read_archive(place)
    names = re.compile(rf"(?:{'|'.join(KINDS)})-([1-5])-.*\.parquet")
    matches = (names.fullmatch(file.name) for file in place.iterdir())
    severities = sorted({match[1] for match in matches if match})
    if len(severities) != 1:
        raise ValueError(
            f"{place} should hold corrupted test images of CIFAR-10 but has those of severity "
            f"{' and '.join(severities) or 'none'}: expected KIND.npy and labels.npy of the archive CIFAR-10-C, or "
            f"KIND-SEVERITY-*.parquet of one severity, for each KIND of {', '.join(KINDS)}."
        )
    shards = {kind: find_shards(place, f"{kind}-{severities[0]}") for kind in KINDS}

    def load() -> Corrupted:
        return Corrupted(int(severities[0]), {kind: _read_shards(files) for kind, files in shards.items()})

    return load


def _read_shards(files: Sequence[Path]) -> tuple[Tensor, Tensor]:
    images, labels = read_tables(files)
    with explain_errors(files[0], "corrupted images of CIFAR-10"):
        return _check(images, labels)


def _read_archive(place: Path) -> Corrupted:
    images = dict[str, tuple[Tensor, Tensor]]()
    with explain_errors(place / "labels.npy", "labels of CIFAR-10-C"):
        labels = np.load(place / "labels.npy")
    for kind in KINDS:
        with explain_errors(place / f"{kind}.npy", "images of CIFAR-10-C"):
            # Mapped, so that pixels are read when used; copy-on-write, as torch warns about read-only arrays.
            pixels = np.load(place / f"{kind}.npy", mmap_mode="c")
            count, rest = divmod(len(pixels), _SEVERITIES)
            if len(pixels) != len(labels) or rest:
                raise ValueError(
                    f"it has {len(pixels):,} images, and labels.npy has {len(labels):,} labels; expected equally many, "
                    f"with {_SEVERITIES} severities one after the other."
                )
            used = slice((_SEVERITY - 1) * count, _SEVERITY * count)
            images[kind] = _check(pixels[used].transpose(0, 3, 1, 2), labels[used])
    return Corrupted(_SEVERITY, images)


def _check(images: Array, labels: Array) -> tuple[Tensor, Tensor]:
    is_images = images.dtype == np.uint8 and images.shape[1:] == (3, 32, 32) and len(images) > 0
    is_labels = labels.dtype.kind in "iu" and labels.shape == images.shape[:1] and {*labels.tolist()} <= {*range(10)}
    if not is_images or not is_labels:
        raise ValueError(
            f"the images are {images.dtype} of the shape {images.shape}, their labels {labels.dtype} of the shape "
            f"{labels.shape}; expected N images of 3 × 32 × 32 bytes (uint8), and N labels from 0 to 9."
        )
    return torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))
