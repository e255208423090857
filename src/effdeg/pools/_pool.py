"""Pools of trained models: many checkpoints of one architecture, measured one at a time."""

import copy
import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from glob import has_magic
from pathlib import Path
from typing import Any

import torch
from torch import nn

from effdeg._adapters.arguments import ItemReader
from effdeg._adapters.inference import check_runnable
from effdeg._adapters.paths import Sampling
from effdeg._adapters.settings import PathSettings
from effdeg._utils.checks import check_count, pluralize, shorten
from effdeg._utils.files import check_target, checksum, list_weights
from effdeg._utils.progress import progress_bar
from effdeg.functional._conditioning import describe_ill_conditioning, warn_if_ill_conditioned
from effdeg.io._models import load_weights
from effdeg.measuring._measurement import describe_rounding
from effdeg.pools._checkpoint import NOTES, CheckpointMeasurer
from effdeg.pools._identity import LabeledExamples, hash_text, list_numbers
from effdeg.pools._runners import Outcomes, check_place, run_all
from effdeg.pools._table import FORMAT, PoolRows, PoolTable, lock_table, predictions_file

_CHECKED = 16  # checkpoints of a table that is continued
SUFFIXES = {".ckpt", ".pt", ".pth", ".safetensors"}
File = str | os.PathLike[str]


def measure_pool(
    model: nn.Module,
    weights: Iterable[File] | Mapping[str, File],
    data: Any,
    *,
    train: Any = None,
    proxies: str | Iterable[str] = (),
    components: int | Iterable[int] = (),
    paths: int = 400,
    nodes: int = 200,
    degree: int = 40,
    sampling: Sampling = "cosine",
    at: str | None = None,
    seed: int = 0,
    proxy_examples: int = 2048,
    batch_size: int | None = None,
    workers: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    out: File | None = None,
    progress: bool = False,
) -> PoolRows:
    """Measure many checkpoints of one model, and return one row for each: the table of a pool.

    A row has the effective degree of the probabilities (``effective_degree``) and the normalized one of the logits
    (``effective_degree_normalized``), as in the paper, with their standard errors (``effective_degree_stderr``,
    …); ``total_variation`` and ``decision_regions`` of the same paths; proxies that need only predictions,
    ``confidence``, ``entropy``, ``nuclear_norm`` and ``disagreement``; the requested proxies; and, where there are
    labels, ``train_accuracy``, ``test_accuracy`` and their difference, the ``gap``. All models share their paths.
    :func:`effdeg.pools.rank` takes the rows or the file.

    ``disagreement`` is the share of examples for which the checkpoint and another of the table predict different
    classes, averaged over the others (NaN if there are none). It changes as checkpoints are added.

    One checkpoint is in memory at a time. With ``out``, every row is written as soon as it is measured, and a later
    call with the same settings measures only what is missing, by the SHA-256 of the checkpoints. A checkpoint that
    cannot be measured is left out with a warning. Other warnings are the notes of :meth:`effdeg.Measurement.warnings`,
    and those on suspicious accuracies, once for all checkpoints.

    Args:
        model: The architecture. Checkpoints are loaded into a copy of it.
        weights: Files of weights (``.pt``, ``.pth``, ``.ckpt``, ``.safetensors``) or Hugging Face model folders, or
            folders with several of them; a mapping gives them names, which are otherwise those of the files.
        data: Examples that the models were not trained on, in any form that :func:`effdeg.proxies.evaluate` reads,
            such as ``(inputs, labels)``, or inputs alone. Paths join them, and proxies that need no labels use them.
        train: Training examples with labels. Proxies that need labels use them, or else ``data``.
        proxies: Names of further proxies, such as ``"sharpness@0.05"``; see :func:`effdeg.proxies.names`. The loss is
            cross entropy.
        components: Numbers of principal components to also reduce the outputs to. Each has columns of its own, such as
            ``effective_degree@3``, from the same forward passes.
        paths: The number of paths.
        nodes: The number of points on each path.
        degree: The highest degree of the fitted polynomials.
        sampling: ``"cosine"``, ``"chebyshev"`` or ``"uniform"`` nodes.
        at: The name of a layer at whose output the paths lie, as in :func:`effdeg.measure`.
        seed: Determines the paths, and the examples for proxies.
        proxy_examples: The number of examples for proxies, drawn from ``data`` or ``train``.
        batch_size: Points per forward pass; by default 1024, on the CPU 256.
        workers: Background processes that load the examples for accuracies, if reading them is slow.
        device: Run the models there; by default where ``model`` is.
        dtype: Run the models in this precision.
        out: The ``.csv`` file of the table, next to which ``….settings.json`` and ``….predictions.npz`` are written.
            Columns that were added to it are kept, and so are rows of checkpoints that are not among ``weights``.
        progress: Show a progress bar.

    Returns:
        The rows of the checkpoints, in their order, as a list of dicts; ``.to_frame()`` makes a data frame of them.

    Raises:
        ValueError: If a setting is out of range, a proxy does not apply, ``train`` has no labels or holds the examples
            of ``data``, ``out`` has rows of other settings, another model or code, or is being written, or no
            checkpoint could be measured.
        TypeError: If the model is not an ``nn.Module``, or the data cannot be read.
        FileNotFoundError: If there is no such checkpoint.

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
        >>> print(*list(rows[0])[5:-1])
        total_variation decision_regions confidence entropy nuclear_norm disagreement parameter_norm test_accuracy
    """
    files, target = name_checkpoints(weights), None if out is None else Path(out)
    check_target("out=", target, {".csv"})
    path_settings = PathSettings(paths=paths, nodes=nodes, sampling=sampling, at=at, seed=seed)
    check_count("workers", workers, least=0)
    check_runnable(model, device=device, dtype=dtype)
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; checkpoints are loaded into an nn.Module.")
    check_place("a pool is measured by one process, not under torchrun.", device)
    loaded = copy.deepcopy(model)
    read_item = ItemReader(loaded)
    measurer = CheckpointMeasurer(
        model=loaded,
        data=LabeledExamples(data, "data", read_item),
        train=LabeledExamples.read(train, "train", read_item),
        paths=path_settings,
        degree=degree,
        components=(components,) if isinstance(components, int) else tuple(components),
        proxies=(proxies,) if isinstance(proxies, str) else tuple(proxies),
        proxy_examples=proxy_examples,
        dtype=dtype,
        batch_size=batch_size,
        workers=workers,
        device=device,
    )
    measurer.check_labels()
    warn_if_ill_conditioned(sampling, nodes, degree, stacklevel=2)
    rounding = describe_rounding(_name_precision(model) if dtype is None else str(dtype).removeprefix("torch."))
    if rounding:
        warnings.warn(rounding, stacklevel=2)
    with lock_table(target):
        columns = [name for name in measurer.try_out() if name != NOTES]
        table = PoolTable(target, _describe(measurer), columns)
        names = _name_by_checksum(files, progress=progress)
        _continue_table(table, names, files, measurer)
        missing = {digest: same for digest, same in names.items() if not table.has(digest)}
        sources = {same[0]: files[same[0]].absolute() for same in missing.values()}
        outcomes = run_all(measurer, sources, title="checkpoints" if progress else "")
        notes = _add_missing(table, missing, outcomes)
        table.write()  # rows may have been deleted, which others disagreed with
    if not files.keys() & table.rows.keys():
        raise ValueError(f"no checkpoint could be measured ({pluralize(len(files), 'file')}); warnings say why.")
    rows = PoolRows(table.rows[name] for name in files if name in table.rows)
    said = {rounding, describe_ill_conditioning(sampling, nodes, degree)}
    new = {name: [note for note in every if note not in said] for name, every in notes.items()}
    for note in (*_summarize(new), *_note_swapped(rows, measurer)):
        warnings.warn(note, stacklevel=2)
    return rows


def _name_precision(model: nn.Module) -> str | None:
    floating = (weight.dtype for weight in model.parameters() if weight.is_floating_point())
    return next((str(dtype).removeprefix("torch.") for dtype in floating), None)


def _describe(measurer: CheckpointMeasurer) -> dict[str, Any]:
    seed, model = measurer.paths.seed, measurer.model
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if torch.is_tensor(tensor)}
    layers = re.sub(r" at 0x[0-9a-f]+", "", repr(model))  # less the addresses of functions
    return {
        "format": FORMAT,
        "model": hash_text(repr((layers, sorted(shapes.items()), _name_precision(model), list_numbers(model)))),
        "data": measurer.data.fingerprint(seed),
        "train": measurer.train and measurer.train.fingerprint(seed),
        **measurer.settings,
    }


def _name_by_checksum(files: Mapping[str, Path], *, progress: bool) -> dict[str, list[str]]:
    """Return the names of the checkpoints by their checksums; one that cannot be read is left out with a warning."""
    names: dict[str, list[str]] = {}
    with progress_bar("checksums", len(files), enabled=progress) as update:
        for number, (name, file) in enumerate(files.items(), start=1):
            try:
                names.setdefault(checksum(*list_weights(file)), []).append(name)
            except OSError as error:
                link = f", a link to {file.readlink()}" if file.is_symlink() else ""
                warnings.warn(f"{name} is not measured: {file}{link}: {error.strerror}", stacklevel=3)
            update(number, name)
    return names


def _continue_table(
    table: PoolTable, names: Mapping[str, list[str]], files: Mapping[str, Path], measurer: CheckpointMeasurer
) -> None:
    """Drop, check, and rename or copy the rows of a table; raise if they were measured with another model."""
    given = {name: digest for digest, same in names.items() for name in same}
    changed = [name for name, digest in given.items() if table.rows.get(name, {}).get("sha256", digest) != digest]
    if changed:
        warnings.warn(f"measured again, since the weights have changed: {', '.join(changed)}", stacklevel=3)
    for name in changed:
        table.drop(name)
    kept = [digest for digest in names if table.has(digest)]
    for digest in kept[:: -(-len(kept) // _CHECKED) or 1]:
        load_weights(measurer.model, files[names[digest][0]])
        measurer.check_model(next(iter(table.find(digest))), table.read_outputs(digest))
    if not kept and any(row["sha256"] not in names for row in table.rows.values()):
        warnings.warn(
            f"{table.file} has rows, but of none of the checkpoints in weights=, so nothing shows whether the model's "
            "code is still that of these rows. Give one of their checkpoints, too.",
            stacklevel=3,
        )
    for digest, same in names.items():
        missing = [name for name in same if name not in table.rows]
        known = list(table.find(digest))
        renamed = [name for name in known if name not in files]
        for old, new in zip(renamed, missing, strict=False):
            table.rename(old, new)
        if known and len(missing) > len(renamed):
            table.copy(next(iter(table.find(digest))), missing[len(renamed) :])


def _add_missing(table: PoolTable, missing: Mapping[str, list[str]], outcomes: Outcomes) -> dict[str, list[str]]:
    """Add checkpoints, by their checksums, as they are measured; return the notes on each."""
    if table.file and (again := [name for same in missing.values() for name in same if name in table.rows]):
        lost = predictions_file(table.file)
        warnings.warn(f"measured again, since {lost} lacks their predictions: {', '.join(again)}", stacklevel=3)
    notes: dict[str, list[str]] = {}
    digests = {same[0]: digest for digest, same in missing.items()}
    for name, measures in outcomes:
        digest, same = digests[name], missing[digests[name]]
        if isinstance(measures, str):
            table.write()  # without the row that it may have had before its weights changed
            warnings.warn(f"{', '.join(same)} left out: {measures}", stacklevel=3)
        else:
            table.add(same, digest, measures)
            notes |= dict.fromkeys(same, measures[NOTES])
    return notes


def _summarize(notes: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Return the notes on models, each once, with the models, if these are not all, and the highest percentage."""
    shares: dict[str, dict[str, int]] = {}
    for model, every in notes.items():
        for note in every:
            share = re.search(r"\d+(?=%)", note)
            models = shares.setdefault(re.sub(r"\d+%", "%", note), {})
            models[model] = max(models.get(model, 0), int(share[0]) if share else 0)
    for note, models in shares.items():
        highest = max(models.values())
        most = f"{'up to ' if min(models.values()) < highest else ''}{highest}%"
        some = f" ({shorten([*models], 5)})" if len(models) < len(notes) else ""
        yield f"for {len(models)} of {pluralize(len(notes), 'model')}{some}: {note.replace('%', most)}"


def _note_swapped(rows: PoolRows, measurer: CheckpointMeasurer) -> Iterator[str]:
    """Return a note if all test accuracies are above the training accuracies, by more than they vary with examples."""
    if measurer.train is None or not measurer.data.has_labels:
        return
    gaps = [row["gap"] for row in rows]
    margin = 1 / math.sqrt(min(len(measurer.data), len(measurer.train)))  # two standard errors, at most
    if max(gaps) < 0 and sum(gaps) / len(gaps) < -margin:
        yield "every model is better on data= than on train=, which it was trained on: are the two swapped?"


def name_checkpoints(weights: Iterable[File] | Mapping[str, File]) -> dict[str, Path]:
    """Return the files of checkpoints by name; without given names, by the shortest that differ."""
    if isinstance(weights, str | os.PathLike):
        weights = [weights]
    if isinstance(weights, Mapping):
        named = {str(name): _to_path(file) for name, file in weights.items()}
    else:
        files = list(dict.fromkeys(file for path in weights for file in list_files(_to_path(path))))
        names = [file.name if file.is_dir() else file.stem for file in files]
        counts = Counter(names)
        named = {name if counts[name] == 1 else str(file): file for name, file in zip(names, files, strict=True)}
    if not named:
        raise ValueError("weights= names no checkpoints.")
    for name, file in named.items():
        if file.is_symlink() and not file.exists():
            continue  # left out with a warning, as one that cannot be read
        if not file.exists():
            pattern = " Patterns are not expanded." if has_magic(str(file)) else ""
            raise FileNotFoundError(
                f"{name}: {file} does not exist.{pattern} weights= takes checkpoints ({', '.join(sorted(SUFFIXES))}, "
                "Hugging Face model folders), and folders of them."
            )
        if not (file.is_file() or _is_model_folder(file)):
            raise FileNotFoundError(f"{name}: {file} is neither a file nor a Hugging Face model folder.")
    return named


def _to_path(file: object) -> Path:
    if not isinstance(file, str | os.PathLike):
        raise TypeError(
            f"weights= holds a {type(file).__name__}; expected names of files. Save weights with "
            "torch.save(model.state_dict(), file)."
        )
    return Path(file)


def list_files(path: Path) -> list[Path]:
    """Return the checkpoints in a folder, or the path itself if it is one."""
    if not path.is_dir() or _is_model_folder(path):
        return [path]
    found = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES or _is_model_folder(file))
    if not found:
        within = sorted(str(file) for file in path.glob("*/*") if file.suffix in SUFFIXES)
        hint = f" Folders in it are not searched: name their files, such as {within[0]}." if within else ""
        raise ValueError(
            f"{path} holds no checkpoints ({', '.join(sorted(SUFFIXES))}, Hugging Face model folders).{hint}"
        )
    return found


def _is_model_folder(path: Path) -> bool:
    return (path / "config.json").is_file() and bool(list_weights(path))
