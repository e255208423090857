"""How many images per second a step of ViT-S/16 on ImageNet trains on, plain and with the penalty, and its memory.

Images are random ones on the device. Within the step they are cropped, flipped and, by the strong recipe, changed by
RandAugment, as in training, but not decoded; ``decoding_speed`` measures that. One case trains on JPEGs as large as
ImageNet's, from decoding to the step.
"""

import gc
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn.functional import interpolate

from benchmarks.engine import prepare_step, run_loop
from benchmarks.streaming import draw_photos
from benchmarks.timing import Record, device, interleaved
from effdeg_lab.core.recipe import find_recipe
from effdeg_lab.data import ImageSet, Labeled
from effdeg_lab.engine import Training
from effdeg_lab.engine.classify import make_network, make_task
from effdeg_lab.engine.examples import DeviceExamples
from effdeg_lab.engine.streaming import make_examples

STEPS, REPEATS, STREAMED_STEPS = 5, 5, 60


class Case(NamedTuple):
    """A training step of one of the paper's two recipes."""

    recipe: str  # original or strong
    batch: int  # of one GPU
    source: str = "device"  # of the images; photos are in files


# The batch of the paper on one GPU, and on each of eight.
CASES = {f"{recipe}-{batch}": Case(recipe, batch) for batch in (1024, 128) for recipe in ("strong", "original")}
CASES |= {"strong-1024-photos": Case("strong", 1024, source="photos")}
# To try it on a CPU.
TRIALS = {
    "strong-8": Case("strong", 8),
    "original-8": Case("original", 8),
    "strong-8-photos": Case("strong", 8, "photos"),
}
SMALL = {"model": "vit-mu16-mean-sincos", "dropout": 0.0}


def imagenet_throughput(variants: Collection[str] = ()) -> Iterator[Record]:
    """Time steps of ViT-S/16 on images of 224 pixels by both recipes; on a CPU those of a very small network.

    Yields a record for each case, since one takes about a minute to compile.

    Args:
        variants: The names of the cases to time, such as ``strong-1024``; by default all.
    """
    cases = CASES if device().type == "cuda" else TRIALS
    if unknown := [name for name in variants if name not in cases]:
        raise ValueError(f"{', '.join(unknown)}: not a variant of imagenet_throughput, which has {', '.join(cases)}.")
    for name in variants or cases:
        rows = [{"variant": name, **_measure(cases[name], method)} for method in ("plain", "ed")]
        plain, ed = (row.get("milliseconds") for row in rows)
        # Steps on images in files may wait for these, which is not the penalty's share.
        if plain and ed and cases[name].source == "device":
            rows[1] |= {"ratio": ed / plain, "share": 1 - plain / ed}
        yield {"name": "images per second of ViT-S/16 on ImageNet", "rows": rows}


def _measure(case: Case, method: str) -> Record:
    """Return the speed and the memory of a step, or why there is none: it may not fit."""
    on_gpu, recipe = device().type == "cuda", find_recipe(f"imagenet-vit-{case.recipe}")
    # The images of the benchmark have the right size already, and there are too few for the warm-up.
    changes = {"pixels": None, "warm_up_steps": None, "batch": case.batch, "epochs": 1}
    settings = recipe.resolve(recipe.method(method), changes | ({} if on_gpu else SMALL))
    assert isinstance(settings, Training)
    row: Record = {"method": method, **case._asdict()}
    pixels = 224 if on_gpu else 32
    try:
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        row |= (_time if case.source == "device" else _stream)(settings, pixels)
    except torch.OutOfMemoryError as error:
        row["error"] = f"out of memory: {str(error).splitlines()[0]}"
    finally:
        gc.collect()
        torch.cuda.empty_cache()
    return row


def _time(settings: Training, pixels: int) -> Record:
    examples = _make_examples(settings, pixels)
    with prepare_step(settings, examples) as step:
        (seconds,) = interleaved(lambda: [step() for _ in range(STEPS)], repeats=REPEATS)
    return _describe(settings, pixels, seconds / STEPS)


def _stream(settings: Training, pixels: int) -> Record:
    """Train on images in files; return also the share of time that the GPU waited for them."""
    count = STREAMED_STEPS * settings.batch
    with tempfile.TemporaryDirectory() as folder:
        photos = draw_photos(Path(folder), count)
        data = ImageSet(photos, photos[:2], 1000, (0.5,) * 3, (0.5,) * 3)
        settings = settings.change({"pixels": pixels, "limit": count})
        examples = make_examples(data, settings, device())
        model = make_network(settings, examples, device()).train()
        # The first decoding processes of a program take seconds to start, which matters in so short a training.
        for _ in examples.train.first(1024).chunks(1024):
            pass
        # An evaluation would decode all images again.
        loop = run_loop(replace(make_task(settings, examples, model), evaluate=lambda *_: {}), settings)
    waited = loop.measure_speed()["waited"]
    return _describe(settings, pixels, loop.seconds / STREAMED_STEPS) | {"waited": waited}


def _describe(settings: Training, pixels: int, seconds: float) -> Record:
    """Return what was measured of a step, given its time."""
    return {
        "model": settings.model,
        "pixels": pixels,
        "milliseconds": 1e3 * seconds,
        "images_per_second": settings.batch / seconds,
        "peak_GiB": torch.cuda.max_memory_allocated() / 2**30 if device().type == "cuda" else None,
    }


def _make_examples(settings: Training, pixels: int) -> DeviceExamples:
    generator = torch.Generator().manual_seed(0)
    # Smooth as photographs are: how long a histogram takes depends on how often a value occurs.
    coarse = 255 * torch.rand(settings.batch, 3, 8, 8, generator=generator).to(device())
    images = interpolate(coarse, (pixels, pixels), mode="bilinear").byte()
    labels = torch.randint(1000, (settings.batch,), generator=generator)
    scale = (0.5,) * 3, (0.5,) * 3
    return DeviceExamples(Labeled(images, labels, images[:2], labels[:2], 1000, *scale), settings, device())
