"""Examples that do not fit on the device: decoded ahead of the steps, and copied to the device while a step runs."""

import time
from collections.abc import Generator, Iterable, Iterator
from itertools import cycle

import torch
from torch import Tensor

from effdeg_lab.core.runs import get_rank_and_size
from effdeg_lab.data import ImageSet, Labeled
from effdeg_lab.data.decoding import CHUNK, Chunk, Crops, count_decoders, read_crops, split_keys
from effdeg_lab.engine.augment import RESIZED, augment_crops
from effdeg_lab.engine.examples import DeviceExamples, Split, add_border, count_examples, crop_batch
from effdeg_lab.engine.settings import Training
from effdeg_lab.engine.step import State
from effdeg_lab.models import get_margin


def make_examples(data: Labeled | ImageSet, settings: Training, device: torch.device) -> DeviceExamples:
    """Put the examples of a run on the device or, where they are images in files, prepare to stream them."""
    if isinstance(data, Labeled):
        return DeviceExamples(data, settings, device)
    check_stored(settings)
    assert settings.pixels is not None
    _, count = count_examples(len(data.train), settings)
    settings.check_steps(settings.epochs * (count // settings.batch))
    for crops in (Crops(images, settings.pixels) for images in (data.train, data.test)):
        for index in range(min(CHUNK, len(crops))):  # what cannot be read is noticed before hours of training
            crops[0, index]
    return StreamedExamples(data, settings, device)


def check_stored(settings: Training) -> None:
    if settings.pixels is None:
        raise ValueError(f"{settings.data} has images of many sizes: set pixels, such as pixels=224.")
    if settings.labeled is not None or settings.unlabeled_batch:
        raise ValueError(f"labeled and unlabeled_batch are not for {settings.data}, whose images are all labeled.")


class StreamedSplit(Split):
    """The center of images in files, decoded on every access.

    Processes that train together share the work: each yields a part of the chunks, but loads all images.
    """

    _crops: Crops

    def __init__(self, crops: Crops, labels: Tensor) -> None:
        vars(self).update(labels=labels, _crops=crops)  # a split is frozen

    @property
    def inputs(self) -> Tensor:
        """All of them, as bytes on the device."""
        return self.load().inputs

    def first(self, count: int) -> "StreamedSplit":
        return StreamedSplit(self._crops, self.labels[:count])

    def load(self) -> Split:
        parts = zip(*self._read(torch.arange(len(self)), CHUNK), strict=True)
        return Split(*map(torch.cat, parts))

    def chunks(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and labels of this process's share in parts."""
        rank, processes = get_rank_and_size()
        return self._read(torch.arange(rank, len(self), processes), size)

    def _read(self, indices: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        device = self.labels.device
        keys = (chunk for part in torch.split(indices, size) for chunk in split_keys(0, part))
        decoders = min(count_decoders(device), len(indices) // CHUNK)  # a few images are not worth a process
        chunks = read_crops(self._crops, keys, decoders=decoders, pinned=device.type == "cuda")
        for part in group(chunks, size):
            yield join(part, device)


class StreamedExamples(DeviceExamples):
    """Examples that stay in files. Only a batch of them is on the device, and the next one on its way there.

    Random resized crops are cut out when images are decoded, so that all images of a batch have one size; everything
    else is done to batches on the device.
    """

    def __init__(self, data: ImageSet, settings: Training, device: torch.device) -> None:
        assert settings.pixels is not None
        kept, self.count = count_examples(len(data.train), settings)
        self.classes, self.shape = data.classes, (3, settings.pixels, settings.pixels)
        self.further_tests, self.shifted, self.truth, self.corrupted = {}, {}, None, None
        self.waited, self._pixels, self._augment = 0.0, True, settings.augment
        self._side = None  # images are decoded at their final size
        self._device, self._decoders = device, count_decoders(device)
        self._set_scale(data, settings, device)
        size, margin = settings.pixels, get_margin(settings.model)
        splits = {"train": data.train[: self.count], "test": data.train[kept:] if settings.held_out else data.test}
        self.train, self.test = (
            StreamedSplit(Crops(images, size, margin=margin), torch.from_numpy(images.labels).to(device))
            for images in splits.values()
        )
        least = settings.crop_scale if settings.augment in RESIZED else None
        self._crops = Crops(splits["train"], size, seed=settings.seed, least=least, margin=margin)

    def batch(self, images: Tensor, labels: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Return images that were decoded for training, augmented on the device and normalized, with their labels."""
        if self._augment in RESIZED:
            images = augment_crops(images, self._augment)
        else:
            places = torch.arange(len(images), device=images.device)
            images = crop_batch(add_border(images, self._augment), places, self._augment)
        return self.normalize(images), labels

    def allocate(self, size: int) -> tuple[Tensor, Tensor]:
        images = torch.zeros(size, *self.shape, dtype=torch.uint8, device=self._device)
        return images, torch.zeros(size, dtype=torch.int64, device=self._device)

    def read(self, plan: Iterable[tuple[int, Tensor]], size: int) -> Generator[tuple[Tensor, ...]]:
        """Yield the batches of a plan, epochs and indices of ``size`` examples each, decoded ahead.

        Each must be used before the next one is requested: its memory on a GPU is used again.
        """
        on_gpu = self._device.type == "cuda"
        keys = (chunk for epoch, indices in plan for chunk in split_keys(epoch, indices))
        parts = group(read_crops(self._crops, keys, decoders=self._decoders, pinned=on_gpu), size)
        return self._send(parts, size) if on_gpu else self._wait(parts)

    def state(self) -> State:
        """Return the state to keep in a checkpoint: the time that steps waited."""
        return {"waited": self.waited}

    def restore(self, state: State | None) -> None:
        self.waited = 0.0 if state is None else state["waited"]

    def _wait(self, parts: Iterator[list[Chunk]]) -> Generator[tuple[Tensor, ...]]:
        while True:
            since = time.perf_counter()
            part = next(parts, None)
            self.waited += time.perf_counter() - since
            if part is None:
                return
            yield join(part, self._device)

    def _send(self, parts: Iterator[list[Chunk]], size: int) -> Generator[tuple[Tensor, ...]]:
        """Copy batches to the GPU on a stream of its own, so that one is on its way while a step uses another."""
        slots = [Slot(self.allocate(size)) for _ in range(2)]
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._device))
        for number, slot in enumerate(cycle(slots)):
            if number >= len(slots):
                self.waited += slot.empty()
            stream = torch.cuda.current_stream(self._device)
            slot.asked.record(stream)  # the GPU gets here when it has finished the step before
            if (part := next(parts, None)) is None:
                return
            with torch.cuda.stream(side):
                slot.fill(part)
            stream.wait_stream(side)
            slot.ready.record(stream)
            yield slot.batch
            slot.used.record(stream)  # the step that uses it is queued by now


class Slot:
    """A place for one batch on a GPU, and when it was asked for, ready and used."""

    def __init__(self, batch: tuple[Tensor, Tensor]) -> None:
        self.batch = batch
        self.asked, self.ready, self.used = (torch.cuda.Event(enable_timing=True) for _ in range(3))  # type: ignore[no-untyped-call]

    def empty(self) -> float:
        """Wait until its batch has been used; return how many seconds the GPU waited for it."""
        self.used.synchronize()
        return float(self.asked.elapsed_time(self.ready)) / 1e3

    def fill(self, part: list[Chunk]) -> None:
        images, labels = self.batch
        sizes = [len(chunk.labels) for chunk in part]
        for chunk, x, y in zip(part, torch.split(images, sizes), torch.split(labels, sizes), strict=True):
            x.copy_(chunk.images, non_blocking=True)
            y.copy_(chunk.labels, non_blocking=True)


def group(chunks: Iterator[Chunk], size: int) -> Iterator[list[Chunk]]:
    """Collect chunks until they have ``size`` images together; the last may have fewer."""
    part = list[Chunk]()
    for chunk in chunks:
        part.append(chunk)
        if sum(len(each.labels) for each in part) >= size:
            yield part
            part = []
    if part:
        yield part


def join(part: list[Chunk], device: torch.device) -> tuple[Tensor, Tensor]:
    """Put the images and labels of chunks together on a device."""
    images, labels = zip(*part, strict=True)
    return tuple(torch.cat([each.to(device, non_blocking=True) for each in some]) for some in (images, labels))  # type: ignore[return-value]
