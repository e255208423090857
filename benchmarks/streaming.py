"""How fast images in files are decoded for training, by number of processes."""

import io
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.timing import Record
from effdeg_lab.data.decoding import Crops, read_crops, split_keys
from effdeg_lab.data.images import StoredImages

# ImageNet's images are 500 × 375 pixels more often than not, and 110 kB on average.
SIZE, FILES, IMAGES, PIXELS = (375, 500), 64, 2048, 224


def decoding_speed() -> Record:
    """Decode random resized crops of images like ImageNet's, in this process and in others."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    counts = [0, *(count for count in (1, 2, 4, 8, 16, 32, 64) if count < cores), cores]
    with tempfile.TemporaryDirectory() as folder:
        images = draw_photos(Path(folder), FILES)
        rows = [
            {"decoder": "pillow", "processes": count, "images_per_second": _time(images, count)} for count in counts
        ]
    return {
        "name": "images decoded per second",
        "detail": f"random resized crops of {PIXELS} pixels from JPEGs of {SIZE[1]} × {SIZE[0]}, on {cores} cores",
        "rows": rows,
    }


def _time(images: StoredImages, count: int) -> float:
    """Return images per second from the first chunk on: before it, processes start."""
    keys = split_keys(0, torch.arange(IMAGES) % FILES)
    chunks = read_crops(Crops(images, PIXELS, least=0.08), keys, decoders=count)
    next(chunks)
    start = time.perf_counter()
    done = sum(len(chunk.labels) for chunk in chunks)
    return done / (time.perf_counter() - start)


def draw_photos(folder: Path, count: int) -> StoredImages:
    """Write JPEGs of clouds and noise, about as large as photographs; return ``count`` of them, with repeats."""
    rng, names = np.random.default_rng(0), [f"{number}.JPEG" for number in range(FILES)]
    for name in names:
        coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        cloud = np.asarray(coarse.resize(SIZE[::-1], Image.Resampling.BICUBIC), dtype=np.float64)
        stream = io.BytesIO()
        Image.fromarray(np.clip(cloud + rng.normal(0, 12, cloud.shape), 0, 255).astype(np.uint8)).save(
            stream, "JPEG", quality=90
        )
        (folder / name).write_bytes(stream.getvalue())
    listed = np.resize(np.array([name.encode() for name in names]), count)
    return StoredImages(folder, listed, np.zeros(count, dtype=np.int64))
