"""Measure many models: here, one after another, or on Ray.

What measures them is a dataclass with ``measure(source, update)``, a ``device`` and a number of ``workers``.
"""

import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from effdeg._adapters.inference import Device, check_device
from effdeg._utils.distributed import rank_and_size
from effdeg._utils.imports import require
from effdeg._utils.progress import Update, ignore, progress_bar

_TIMEOUT = 10.0  # seconds
_ADVICE = (
    "Use the address of a running cluster, as ray status shows it, ray='auto' on one of its machines, or ray='local' "
    "for this machine alone."
)

Outcomes = Iterator[tuple[str, Any]]
"""By the keys of what was measured: the measures, or why there are none, a string."""


def run_all(
    measurer: Any, sources: Mapping[str, Any], *, ray: str | None, model: object, device: Device, title: str = ""
) -> Outcomes:
    """Measure each source of a model, by its name, here or on Ray, with a progress bar of this title, if any."""
    with progress_bar(title, len(sources), enabled=bool(title and sources)) as update:
        outcomes = _run_here(measurer, sources, update)
        if ray is not None and sources:
            outcomes = _run_on_ray(measurer, sources, ray, _find_gpu(model, device))
        for number, (name, outcome) in enumerate(outcomes, start=1):
            yield name, outcome
            update(number, name)


def _run_here(measurer: Any, sources: Mapping[str, Any], update: Update) -> Outcomes:
    for number, (name, source) in enumerate(sources.items()):
        update(number, name)
        yield name, _measure_one(measurer, source, lambda share, number=number: update(number + share))


def _run_on_ray(measurer: Any, sources: Mapping[str, Any], address: str, device: str | None) -> Outcomes:
    """Measure each source in a task of Ray, in any order; the measurer with its examples is sent only once."""
    ray: Any = _import_ray()
    connects = not ray.is_initialized()
    if connects:
        try:
            ray.init(address=address, log_to_driver=False, include_dashboard=False if address == "local" else None)
        except ConnectionError as error:  # with advice that is for other programs
            raise ValueError(f"ray={address!r} finds no running cluster. {_ADVICE}") from error
    pending: dict[Any, str] = {}
    try:
        needed = {"CPU": 1 + measurer.workers, "GPU": int(device is not None)}
        for kind, number in needed.items():
            if (there := ray.cluster_resources().get(kind, 0)) < number:
                raise ValueError(f"ray={address!r} has {there:g} {kind}s, and a checkpoint needs {number}.")
        run = ray.remote(num_cpus=needed["CPU"], num_gpus=needed["GPU"], max_retries=0)(_measure_one)
        shared = ray.put(replace(measurer, device=device))
        pending = {run.remote(shared, source): key for key, source in sources.items()}
        while pending:
            (ready,), _ = ray.wait(list(pending))
            key = pending.pop(ready)
            try:
                yield key, ray.get(ready)
            except ray.exceptions.RayError as error:  # errors of the model come back as values: its process died
                yield key, f"its process died: {str(error).strip().splitlines()[0]}"
    finally:
        for task in pending:
            ray.cancel(task)
        if connects:
            ray.shutdown()


def _import_ray() -> Any:
    return require("ray", extra="ray", purpose="measuring a pool on several machines (ray=)")


def check_place(work: str, device: Device, address: str | None) -> None:
    """Raise unless there is one process, and the device, or Ray at its address."""
    if rank_and_size()[1] > 1:
        raise ValueError(work)
    if address is None:
        check_device(device)
        return
    _import_ray()
    # Ray itself would wait for minutes for a cluster that does not answer, or say little.
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon and address not in {"auto", "local"}:
        raise ValueError(f"ray={address!r} is not an address. {_ADVICE}")
    try:
        if colon and port.isdigit():  # not auto, local
            socket.create_connection((host.strip("[]"), int(port)), timeout=_TIMEOUT).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f"ray={address!r} does not answer ({error}). {_ADVICE}") from error


def _find_gpu(model: Any, device: Device) -> str | None:
    """Return the kind of device that a task of Ray runs on, which has only the GPUs that Ray gave it; None for CPUs."""
    places = (weight.device for weight in getattr(model, "parameters", list)())
    kind = torch.device(device if device is not None else next(places, "cpu")).type
    return None if kind == "cpu" else kind


def _measure_one(measurer: Any, source: Any, update: Update = ignore) -> Any:
    """Return the measures of a model, or why there are none."""
    try:
        return measurer.measure(source, update)
    except Exception as error:
        return " ".join(str(error).split()) or type(error).__name__
