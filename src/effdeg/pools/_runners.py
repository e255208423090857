"""Measure the checkpoints of a pool: here, one after another, or on Ray."""

import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from effdeg._adapters.inference import Device
from effdeg._utils.imports import require

_TIMEOUT = 10.0  # seconds
_ADVICE = (
    "Use the address of a running cluster, as ray status shows it, ray='auto' on one of its machines, or ray='local' "
    "for this machine alone."
)

Outcomes = Iterator[tuple[str, Any]]
"""By the keys of what was measured: the measures, or why there are none, a string."""


def run_here(measurer: Any, sources: Mapping[str, Any]) -> Outcomes:
    """Measure one checkpoint after another."""
    return ((key, measure_one(measurer, source)) for key, source in sources.items())


def run_on_ray(measurer: Any, sources: Mapping[str, Any], address: str, device: str | None) -> Outcomes:
    """Measure each checkpoint in a task of Ray, in any order; the measurer with its examples is sent only once.

    The measurer is a dataclass with a ``device`` and a number of ``workers``, and measures a source of a model.

    Raises:
        ValueError: If the cluster does not answer, or lacks what a task needs.
    """
    ray: Any = import_ray()
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
        task = ray.remote(num_cpus=needed["CPU"], num_gpus=needed["GPU"], max_retries=0)(measure_one)
        shared = ray.put(replace(measurer, device=device))
        pending = {task.remote(shared, source): key for key, source in sources.items()}
        while pending:
            (ready,), _ = ray.wait(list(pending))
            key = pending.pop(ready)
            try:
                yield key, ray.get(ready)
            except ray.exceptions.RayError as error:  # errors of the model come back as values: its process died
                yield key, f"its process died: {str(error).strip().splitlines()[0]}"
    finally:
        for each in pending:
            ray.cancel(each)
        if connects:
            ray.shutdown()


def import_ray() -> Any:
    """Import Ray, or raise and say how to install it."""
    return require("ray", extra="ray", purpose="measuring a pool on several machines (ray=)")


def check_address(address: str) -> None:
    """Raise unless a Ray cluster answers at its address: Ray itself would wait for minutes, or say little."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon and address not in {"auto", "local"}:
        raise ValueError(f"ray={address!r} is not an address. {_ADVICE}")
    if not (colon and port.isdigit()):  # auto, local
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_TIMEOUT).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f"ray={address!r} does not answer ({error}). {_ADVICE}") from error


def find_gpu(model: Any, device: Device) -> str | None:
    """Return the kind of device that a task of Ray runs on, which has only the GPUs that Ray gave it; None for CPUs."""
    own = next((each.device for each in getattr(model, "parameters", list)()), torch.device("cpu"))
    kind = torch.device(device).type if device is not None else own.type
    return None if kind == "cpu" else kind


def measure_one(measurer: Any, source: Any, *more: Any) -> Any:
    """Return the measures of a checkpoint, or why there are none."""
    try:
        return measurer.measure(source, *more)
    except Exception as error:
        return " ".join(str(error).split()) or type(error).__name__
