"""Pools of trained models: many checkpoints of one architecture, measured one at a time or on Ray."""

import copy
import hashlib
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from effdeg._models.inference import Device, check_device, check_runnable
from effdeg._models.paths import Sampling
from effdeg._models.settings import PathSettings
from effdeg._utils.checks import check_count, pluralize
from effdeg._utils.distributed import rank_and_size
from effdeg._utils.files import checksum, list_weights
from effdeg._utils.imports import require
from effdeg._utils.progress import progress_bar
from effdeg.functional._conditioning import warn_if_ill_conditioned
from effdeg.io._models import load_weights
from effdeg.pools._checkpoint import CheckpointMeasurer, LabelledExamples, RowSettings
from effdeg.pools._table import PoolTable, Row

_SUFFIXES = {".pt", ".pth", ".safetensors"}
File = str | os.PathLike[str]


def measure_pool(
    model: nn.Module,
    weights: Iterable[File] | Mapping[str, File],
    data: Any,
    *,
    train: Any = None,
    labelled: Any = None,
    proxies: Iterable[str] = (),
    components: Iterable[int] = (),
    paths: int = 400,
    nodes: int = 200,
    degree: int = 40,
    sampling: Sampling = "cosine",
    at: str | None = None,
    seed: int = 0,
    proxy_examples: int = 2048,
    reference: File | None = None,
    batch_size: int | None = None,
    workers: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    ray: str | None = None,
    out: File | None = None,
    progress: bool = False,
) -> list[Row]:
    """Measure many checkpoints of one model, and return one row for each: the table of a pool.

    A row has the effective degree of the probabilities (``effective_degree``) and the normalized one of the logits
    (``effective_degree_normalized``), as in the paper; the proxies asked for; and, where there are labels,
    ``train_accuracy``, ``test_accuracy`` and their difference, the ``gap``. All models share their paths.
    :func:`effdeg.ranking.rank` takes the rows or the file.

    One checkpoint is in memory at a time. With ``out``, every row is written as soon as it is there, and a later call
    with the same settings measures only what is missing: rows are known by the SHA-256 of their checkpoints, so that a
    file that was changed is measured again, and two files with the same weights only once. A checkpoint that is
    damaged, does not fit the model or cannot be measured is left out with a warning.

    Args:
        model: The architecture. Checkpoints are loaded into a copy of it.
        weights: Files of weights (``.pt``, ``.pth``, ``.safetensors``) or Hugging Face model folders, or folders with
            several of them; a mapping gives them names, which are otherwise those of the files.
        data: Examples that the models were not trained on, in any form that :func:`effdeg.proxies.evaluate` reads,
            such as ``(inputs, labels)``, or inputs alone. Paths join them, and proxies without labels use them.
        train: Examples with labels that the models were trained on. Proxies that need labels use them, or else
            ``data``.
        labelled: More examples with labels that the models were not trained on, for ``thresholded_confidence``.
        proxies: Names of proxies, such as ``"sharpness@0.05"``; see :func:`effdeg.proxies.names`. The loss is cross
            entropy.
        components: Numbers of principal components to which the outputs are also reduced. Each has columns of its own,
            such as ``effective_degree@3``, from the same forward passes.
        paths: The number of paths.
        nodes: The number of points on each path.
        degree: The highest degree of the fitted polynomials.
        sampling: ``"cosine"``, ``"chebyshev"`` or ``"uniform"`` nodes.
        at: The name of a layer at whose output the paths lie, instead of the inputs; for token ids.
        seed: Determines the paths, and the examples for proxies.
        proxy_examples: The number of examples for proxies, drawn from ``data`` or ``train``.
        reference: The weights that training began with, for the proxy ``distance``.
        batch_size: Points per forward pass; by default 1024, on the CPU 256.
        workers: Processes that read the examples for accuracies ahead, for data that are slow to read.
        device: Run the models there; by default where ``model`` is.
        dtype: Run the models in this precision.
        ray: Distribute the checkpoints over a Ray cluster: its address, ``"auto"``, or ``"local"`` for the cores of
            this machine. All machines must see the weights by the same path. On ``"cuda"`` each checkpoint has a GPU.
        out: The ``.csv`` file of the table. Its settings are written next to it, as ``….settings.json``.
        progress: Show a progress bar.

    Returns:
        The rows of the checkpoints, in the order in which they were given: ``model``, the measures, and ``sha256``.

    Raises:
        ValueError: If a setting is out of range, a proxy does not apply, ``train`` or ``labelled`` has no labels, two
            checkpoints have the same name, ``out`` holds rows with other settings, or no checkpoint could be measured.
        TypeError: If the model is not an ``nn.Module``, or the data cannot be read.
        FileNotFoundError: If there is no such checkpoint.
        ImportError: If ``ray`` is given and Ray is not installed.

    Example:
        >>> import effdeg, tempfile, torch
        >>> x, y = torch.randn(40, 5), torch.arange(40) % 3
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for seed in range(4):
        ...         torch.save(torch.nn.Linear(5, 3).state_dict(), f"{folder}/seed{seed}.pt")
        ...     rows = effdeg.measure_pool(
        ...         torch.nn.Linear(5, 3), [folder], (x, y), proxies=["parameter_norm"], paths=20, degree=10
        ...     )
        >>> [row["model"] for row in rows]
        ['seed0', 'seed1', 'seed2', 'seed3']
        >>> list(rows[0])
        ['model', 'effective_degree', 'effective_degree_normalized', 'parameter_norm', 'test_accuracy', 'sha256']
    """
    files = name_checkpoints(weights)
    target = _check_target(out)
    path_settings = PathSettings(paths=paths, nodes=nodes, sampling=sampling, at=at, seed=seed)
    settings = RowSettings(
        paths=path_settings,
        degree=degree,
        components=tuple(components),
        proxies=(proxies,) if isinstance(proxies, str) else tuple(proxies),
        proxy_examples=proxy_examples,
        dtype=dtype,
    )
    check_count("workers", workers, least=0)
    _check_run(model, dtype=dtype, device=device, ray=ray)
    warn_if_ill_conditioned(sampling, nodes, degree, stacklevel=2)
    own = copy.deepcopy(model)
    if ray is not None:
        device = _find_gpu(model, device)
        own = own.cpu()
    measurer = CheckpointMeasurer(
        model=own,
        data=LabelledExamples(data, "data"),
        train=_read_labelled(train, "train"),
        labelled=_read_labelled(labelled, "labelled"),
        reference=None if reference is None else _read_reference(own, Path(reference)),
        settings=settings,
        batch_size=batch_size,
        workers=workers,
        device=device,
    )
    # With Ray, it is other machines that have the device.
    columns = (measurer if ray is None else replace(measurer, device=None)).try_out()
    table = PoolTable(target, _describe(measurer, reference), columns)
    _fill(table, files, measurer, ray=ray, progress=progress)
    return [table.rows[name] for name in files if name in table.rows]


def name_checkpoints(weights: Iterable[File] | Mapping[str, File]) -> dict[str, Path]:
    """Return the files of checkpoints by name; without given names, by the shortest that differ."""
    if isinstance(weights, str | os.PathLike):
        weights = [weights]
    if isinstance(weights, Mapping):
        named = {str(name): Path(file) for name, file in weights.items()}
    else:
        files = list(dict.fromkeys(file for path in weights for file in _list_files(Path(path))))
        names = [file.name if file.is_dir() else file.stem for file in files]
        named = dict(zip(names if len(set(names)) == len(names) else map(str, files), files, strict=True))
    if not named:
        raise ValueError("weights= names no checkpoints.")
    for name, file in named.items():
        if not (file.is_file() or _is_model_folder(file)):
            raise FileNotFoundError(f"{name}: {file} is neither a file nor a Hugging Face model folder.")
    return named


def _list_files(path: Path) -> list[Path]:
    if not path.is_dir() or _is_model_folder(path):
        return [path]
    found = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES or _is_model_folder(file))
    if not found:
        raise ValueError(f"{path} holds no checkpoints ({', '.join(sorted(_SUFFIXES))}, Hugging Face model folders).")
    return found


def _is_model_folder(path: Path) -> bool:
    return (path / "config.json").is_file() and bool(list_weights(path))


def _find_checksum(path: Path) -> str:
    return checksum(*(list_weights(path) if path.is_dir() else [path]))


def _check_target(out: File | None) -> Path | None:
    if out is None:
        return None
    file = Path(out)
    if file.suffix != ".csv":
        raise ValueError(f"out={str(out)!r} must end in .csv.")
    if not file.absolute().parent.is_dir():
        raise ValueError(f"out={str(out)!r}: the folder {file.parent} does not exist.")
    return file


def _check_run(model: object, *, dtype: torch.dtype | None, device: Device, ray: str | None) -> None:
    if rank_and_size()[1] > 1:
        raise ValueError("a pool is measured by one process, not under torchrun. Use ray= to distribute checkpoints.")
    check_runnable(model, device=None, dtype=dtype)
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; checkpoints are loaded into an nn.Module.")
    if ray is None:
        check_device(device)
    else:
        _import_ray()


def _find_gpu(model: nn.Module, device: Device) -> str | None:
    """Return the kind of device that a task of Ray runs on, which has only the GPUs that Ray gave it; None for CPUs."""
    own = next((each.device for each in model.parameters()), torch.device("cpu"))
    kind = torch.device(device).type if device is not None else own.type
    return None if kind == "cpu" else kind


def _read_labelled(data: Any, name: str) -> LabelledExamples | None:
    if data is None:
        return None
    examples = LabelledExamples(data, name)
    if not examples.has_labels:
        raise ValueError(f"{name}= holds no labels: give (inputs, labels), or a Dataset or DataLoader of such pairs.")
    return examples


def _read_reference(model: nn.Module, file: Path) -> dict[str, torch.Tensor]:
    start = copy.deepcopy(model)
    load_weights(start, file)
    return start.state_dict()


def _describe(measurer: CheckpointMeasurer, reference: File | None) -> dict[str, Any]:
    """Describe what all rows of a table must have in common."""
    seed, model = measurer.settings.paths.seed, measurer.model
    data = {name: getattr(measurer, name) for name in ("data", "train", "labelled")}
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if torch.is_tensor(tensor)}
    return {
        "model": {
            "class": type(model).__name__,
            "parameters": sum(each.numel() for each in model.parameters()),
            "hash": hashlib.sha256(repr(sorted(shapes.items())).encode()).hexdigest()[:16],
        },
        **{name: None if each is None else each.fingerprint(seed) for name, each in data.items()},
        "reference": None if reference is None else _find_checksum(Path(reference)),
        **measurer.settings.to_dict(),
    }


def _fill(
    table: PoolTable, files: Mapping[str, Path], measurer: CheckpointMeasurer, *, ray: str | None, progress: bool
) -> None:
    """Measure the checkpoints that are not in the table yet."""
    names: dict[str, list[str]] = {}  # by checksum
    with progress_bar("checksums", len(files), enabled=progress) as update:
        for number, (name, file) in enumerate(files.items(), start=1):
            names.setdefault(_find_checksum(file), []).append(name)
            update(number, name)
    changed = [name for digest, same in names.items() for name in same if table.is_stale(name, digest)]
    if changed:
        warnings.warn(f"measured again, since the weights have changed: {', '.join(changed)}", stacklevel=3)
        table.drop(changed)
    waiting: dict[str, Path] = {}
    for digest, same in names.items():
        known = table.find(digest)
        if known is None:
            waiting[digest] = files[same[0]].absolute()
        elif missing := [name for name in same if name not in table.rows]:
            if known["model"] not in files:
                table.drop([known["model"]])  # the file was renamed
            table.add(missing, digest, known)
    if not waiting:
        return
    reason = ""
    done = _run_here(measurer, waiting) if ray is None else _run_on_ray(measurer, waiting, ray)
    with progress_bar("checkpoints", len(waiting), enabled=progress) as update:
        for number, (digest, measures) in enumerate(done, start=1):
            if isinstance(measures, str):
                reason = measures
                warnings.warn(f"{', '.join(names[digest])} left out: {reason}", stacklevel=3)
            else:
                table.add(names[digest], digest, measures)
            update(number, names[digest][0])
    if not files.keys() & table.rows.keys():
        raise ValueError(f"no checkpoint could be measured ({pluralize(len(files), 'file')}). The last one: {reason}")


def _measure(measurer: CheckpointMeasurer, file: Path) -> dict[str, float] | str:
    """Return the measures of a checkpoint, or why there are none."""
    try:
        return measurer.measure(file)
    except Exception as error:
        return " ".join(str(error).split()) or type(error).__name__


def _run_here(measurer: CheckpointMeasurer, files: Mapping[str, Path]) -> Iterator[tuple[str, dict[str, float] | str]]:
    return ((digest, _measure(measurer, file)) for digest, file in files.items())


def _run_on_ray(
    measurer: CheckpointMeasurer, files: Mapping[str, Path], address: str
) -> Iterator[tuple[str, dict[str, float] | str]]:
    """Measure each checkpoint in a task of Ray, in any order; the model and the examples are sent only once."""
    ray: Any = _import_ray()
    connects = not ray.is_initialized()
    if connects:
        ray.init(address=address, log_to_driver=False, include_dashboard=False if address == "local" else None)
    pending: dict[Any, str] = {}
    try:
        needed = {"CPU": 1 + measurer.workers, "GPU": int(measurer.device is not None)}
        for kind, number in needed.items():
            if (there := ray.cluster_resources().get(kind, 0)) < number:
                raise ValueError(f"ray={address!r} has {there:g} {kind}s, and a checkpoint needs {number}.")
        task = ray.remote(num_cpus=needed["CPU"], num_gpus=needed["GPU"], max_retries=0)(_measure)
        shared = ray.put(measurer)
        pending = {task.remote(shared, file): digest for digest, file in files.items()}
        while pending:
            (ready,), _ = ray.wait(list(pending))
            digest = pending.pop(ready)
            try:
                yield digest, ray.get(ready)
            except ray.exceptions.RayError as error:  # errors of the model come back as values: its process died
                yield digest, f"its process died: {str(error).strip().splitlines()[0]}"
    finally:
        for each in pending:
            ray.cancel(each)
        if connects:
            ray.shutdown()


def _import_ray() -> Any:
    return require("ray", extra="ray", purpose="measuring a pool on several machines (ray=)")
