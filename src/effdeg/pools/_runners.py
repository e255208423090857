"""Measure many models, one after another.

What measures them is a dataclass with ``measure(source, update)``.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from effdeg._adapters.inference import Device, check_device
from effdeg._utils.distributed import rank_and_size
from effdeg._utils.progress import progress_bar

Outcomes = Iterator[tuple[str, Any]]
"""By the keys of what was measured: the measures, or why there are none, a string."""


def run_all(measurer: Any, sources: Mapping[str, Any], *, title: str = "") -> Outcomes:
    """Measure each source of a model, by its name, with a progress bar of this title, if any."""
    with progress_bar(title, len(sources), enabled=bool(title and sources)) as update:
        for number, (name, source) in enumerate(sources.items()):
            update(number, name)
            try:
                outcome = measurer.measure(source, lambda share, number=number: update(number + share))
            except Exception as error:
                outcome = " ".join(str(error).split()) or type(error).__name__
            yield name, outcome
            update(number + 1, name)


def check_place(work: str, device: Device) -> None:
    """Raise unless there is one process, and the device."""
    if rank_and_size()[1] > 1:
        raise ValueError(work)
    check_device(device)
