"""Models from code, from Hugging Face folders, and from exported programs."""

import copy
import inspect
import logging
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Set
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present as consume_prefix

from effdeg._adapters.inference import Model
from effdeg._utils.checks import pluralize, shorten
from effdeg._utils.imports import find_code, importing_from_here, require
from effdeg.io._data import read_file, read_safetensors, read_torch

_NESTED = ("state_dict", "model_state_dict", "model")


def load_model(source: str, weights: str | Path | None = None) -> Model:
    """Load a model from code, from a Hugging Face folder, or from an exported program.

    A missing file raises ``FileNotFoundError``. Hugging Face folders need the extra ``huggingface``,
    ``.safetensors`` weights the extra ``files``.

    Args:
        source: ``package.module:callable`` (a module, or anything that returns one when called without arguments), a
            Hugging Face model folder, or a ``torch.export`` program in a ``.pt2`` file.
        weights: Weights for a model from code, in a ``.safetensors``, ``.pt``, ``.pth`` or ``.ckpt`` file, or a Hugging
            Face model folder. No code in them is run.

    Returns:
        The model.

    Raises:
        ValueError: If there is no such code, it does not return a model, or the weights do not fit it.

    Example:
        >>> from effdeg.io import load_model
        >>> load_model("torch.nn:Identity")
        Identity()
    """
    path, source = Path(source), str(source)
    if path.suffix == ".pt2" or path.is_dir():
        if weights is not None:
            raise ValueError(f"{source} has its own weights; weights= is for a model given as package.module:callable.")
        return _load_exported(path) if path.suffix == ".pt2" else _load_huggingface(path)
    if ":" not in source:
        weighted = path.suffix in {".pt", ".pth", ".ckpt", ".safetensors", ".bin"}
        advice = f" For a file of weights, also give the code of its model: weights={source!r}." if weighted else ""
        raise ValueError(
            f"{source!r} is not a model: expected package.module:callable, a Hugging Face model folder, or a .pt2 file "
            f"of torch.export.{advice}"
        )
    model = _load_code(source)
    if weights is not None:
        if not isinstance(model, nn.Module):
            raise ValueError(f"{source} is a {type(model).__name__}, not an nn.Module, so it cannot take weights.")
        model = _copy(model, source)
        load_weights(model, Path(weights))
    return model


def load_weights(model: nn.Module, file: Path) -> None:
    """Load the weights of a file into a model; raise if they do not fit, with the differences."""
    state = _read_weights(file)
    expected = model.state_dict()
    _drop_prefix(state, expected.keys(), file)
    floating = {name for name, each in expected.items() if isinstance(each, Tensor) and each.is_floating_point()}
    integers = [
        f"{name} in {str(weight.dtype).removeprefix('torch.')}"
        for name, weight in state.items()
        if name in floating and isinstance(weight, Tensor) and not (weight.is_floating_point() or weight.is_complex())
    ]
    if integers:
        raise ValueError(
            f"{file} holds integers where {type(model).__name__} has floating-point weights ({shorten(integers)}), as "
            "quantized weights are. Their scales would be lost: save the weights in floating point, dequantized."
        )
    try:
        model.load_state_dict(state)
    except Exception as error:
        problems = str(error)
        with suppress(Exception):  # if the model's own hooks refuse the weights, their message is better
            problems = _describe_misfits(model, state) or problems
        raise ValueError(f"{file} does not fit {type(model).__name__}: {problems}.") from error


def _drop_prefix(state: dict[str, Any], own: Set[str], file: Path) -> None:
    """Drop the prefix that wrappers such as DDP and Lightning put before names: that of most of the model's.

    What else is in the file, such as the weights of a loss, is dropped with a warning.
    """
    if own & state.keys():
        return
    starts = ((name, dot.end()) for name in state for dot in re.finditer(r"\.", name))
    found = Counter(name[:start] for name, start in starts if name[start:] in own).most_common(2)
    if not found or (len(found) == 2 and found[0][1] == found[1][1]):
        return
    prefix = found[0][0]
    others = [name for name in state if not name.startswith(prefix)]
    for name in others:
        del state[name]
    consume_prefix(state, prefix)
    if left_out := [name for name in others if name != "n_averaged"]:  # the counter of AveragedModel
        warnings.warn(
            f"{file} has the weights of the model under {prefix!r}; others are left out ({shorten(left_out)}).",
            stacklevel=2,
        )


def _describe_misfits(model: nn.Module, state: dict[str, Any]) -> str:
    own = model.state_dict()
    shapes = {
        name: f"{name} is {tuple(state[name].shape)} in the file and {tuple(own[name].shape)} in the model"
        for name in sorted(own.keys() & state.keys())
        if isinstance(own[name], Tensor) and isinstance(state[name], Tensor) and own[name].shape != state[name].shape
    }
    # Only load_state_dict knows what is missing: it fills in what old checkpoints did not have.
    judged = model.load_state_dict({name: state[name] for name in state.keys() - shapes.keys()}, strict=False)
    missing, unexpected = set(judged.missing_keys) - shapes.keys(), set(judged.unexpected_keys)
    problems = []
    for keys, here, there in ((missing, "model", "file"), (unexpected, "file", "model")):
        # load_state_dict calls BatchNorm's counters unexpected, but never missing.
        if names := sorted(name for name in keys if not name.endswith("num_batches_tracked")):
            count = f"{pluralize(len(names), 'weight')} of the {here} {'is' if len(names) == 1 else 'are'}"
            problems.append(f"{count} not in the {there} ({shorten(names)})")
    if shapes:
        problems.append(f"{len(shapes)} shapes differ ({'; '.join(list(shapes.values())[:3])})")
    return ", ".join(problems)


def _copy(model: nn.Module, source: str) -> nn.Module:
    """Copy a model before it gets weights: the same code may return the same object for others."""
    try:
        return copy.deepcopy(model)
    except Exception as error:
        if (another := _load_code(source)) is not model:
            assert isinstance(another, nn.Module)
            return another
        raise ValueError(
            f"{source} is a single model, which is copied before it gets weights, but cannot be: {error} Give a "
            "function that makes a new one."
        ) from error


def _load_code(source: str) -> Model:
    found = find_code(source)
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        kind = type(found).__name__
        raise ValueError(f"{source!r} is a {kind}; expected an nn.Module or something that returns one.")
    _check_factory(source, found)
    with importing_from_here():
        model = found()
    if not callable(model):
        raise ValueError(f"{source!r}() returned {type(model).__name__}; expected an nn.Module or another callable.")
    return model  # type: ignore[no-any-return]


def _check_factory(source: str, factory: Any) -> None:
    required: list[str] = []
    with suppress(ValueError):  # some builtins have no signature
        parameters = inspect.signature(factory).parameters.values()
        variadic = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
        required = [each.name for each in parameters if each.default is each.empty and each.kind not in variadic]
    if not required:
        return
    module, _, name = source.partition(":")
    raise ValueError(
        f"{source} is called without arguments and must return the model, but {name} needs {', '.join(required)}. "
        f"Write a function without arguments into {module}, such as def make(): return {name}(…), or, if {name} is the "
        f"model itself, def make(): return {name}; then give {module}:make."
    )


def _load_huggingface(folder: Path) -> Model:
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is a folder without config.json, so not a Hugging Face model.")
    transformers = require("transformers", extra="huggingface", purpose="a Hugging Face model folder")
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    names = config.architectures or []
    if not names or not hasattr(transformers, names[0]):
        raise ValueError(f"{folder}/config.json names no architecture that transformers has: {names or 'none'}.")
    bars = transformers.utils.logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()  # one for each checkpoint of a pool
    try:
        return getattr(transformers, names[0]).from_pretrained(folder, local_files_only=True)  # type: ignore[no-any-return]
    except OSError as error:
        raise ValueError(f"{folder} cannot be loaded as {names[0]}: {error}") from error
    finally:
        if shown:
            bars.enable_progress_bar()


def _load_exported(file: Path) -> Model:
    _check_file(file)
    logger = logging.getLogger("torch.export")
    disabled, logger.disabled = logger.disabled, True  # it logs a traceback before raising
    try:
        program = torch.export.load(file)
    except Exception as error:
        raise ValueError(f"{file} is not a program that torch.export saved, or it is damaged: {error}.") from error
    finally:
        logger.disabled = disabled
    return program.module()


def _read_weights(file: Path) -> dict[str, Any]:
    if file.is_dir():
        # Through transformers, which saves some weights under other names than the model has.
        loaded: Any = _load_huggingface(file)
        state: dict[str, Any] = loaded.state_dict()
        return state
    _check_file(file)
    if file.suffix in {".npy", ".npz"}:
        raise ValueError(f"{file} holds arrays of numpy, not weights by name; expected .safetensors, .pt or .ckpt.")
    is_safetensors = file.suffix == ".safetensors"
    stored = read_file(file, read_safetensors) if is_safetensors else read_torch(file, expected="model.state_dict()")
    return _find_state(stored, file)


def _find_state(stored: Any, file: Path) -> dict[str, Any]:
    """Return the state dict in what was saved, which may have others next to it, such as averaged weights."""
    if _is_state(stored):
        return stored
    if not isinstance(stored, Mapping):
        raise ValueError(f"{file} holds {type(stored).__name__}, not weights by name (a state dict).")
    found = {key: value for key, value in stored.items() if _is_state(value) and value}
    named = [key for key in _NESTED if isinstance(stored.get(key), Mapping)][:1] or list(found)
    if len(named) != 1:
        what, keys = "several sets of weights", named
        if not found:
            keys = [key for key, value in stored.items() if not isinstance(value, Tensor)]
            what = "more than weights" if len(keys) < len(stored) else "no weights by name (a state dict)"
        raise ValueError(
            f"{file} holds {what}: {shorten(list(map(str, keys)))}. Save the weights alone: "
            "torch.save(model.state_dict(), file)."
        )
    key = named[0]
    # A loss or a metric has fewer.
    others = [repr(each) for each, state in found.items() if each != key and len(state) >= len(stored[key])]
    if others:
        warnings.warn(
            f"{file} has weights in {key!r} and in {shorten(others)}: those in {key!r} are measured. To "
            f"measure others, save them alone: torch.save(torch.load(file)[{others[0]}], new_file).",
            stacklevel=2,
        )
    return _find_state(stored[key], file)


def _is_state(stored: Any) -> TypeGuard[dict[str, Any]]:
    # Besides tensors a state dict may hold the extra state that some modules keep.
    return isinstance(stored, dict) and all(
        isinstance(name, str) and (isinstance(value, Tensor) or name.endswith("_extra_state"))
        for name, value in stored.items()
    )


def _check_file(file: Path) -> None:
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist.")
