"""Models from code, from Hugging Face folders, and from exported programs."""

import importlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from effdeg._checks import suggest
from effdeg.inference import Model
from effdeg.io.optional import require

_NESTED = ("state_dict", "model_state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.", "model.")


def load_model(source: str, weights: str | Path | None = None) -> Model:
    """Load a model.

    Args:
        source: ``package.module:callable`` (a module, or anything that returns one when called without arguments), a
            Hugging Face model folder, or a ``torch.export`` program in a ``.pt2`` file.
        weights: Weights for a model from code, in a ``.safetensors``, ``.pt`` or ``.pth`` file. Read without running
            any code that may be in it.

    Returns:
        The model.
    """
    path = Path(source)
    if path.suffix == ".pt2" or path.is_dir():
        if weights is not None:
            raise ValueError(f"{source} brings its own weights; --weights is for a model package.module:callable.")
        return _exported(path) if path.suffix == ".pt2" else _huggingface(path)
    if ":" not in source:
        raise ValueError(
            f"{source!r} is not a model: expected package.module:callable, a Hugging Face model folder, or a .pt2 file "
            "of torch.export."
        )
    model = _from_code(source)
    if weights is not None:
        if not isinstance(model, nn.Module):
            raise ValueError(f"{source} is a {type(model).__name__}, not an nn.Module, so it cannot take weights.")
        fill(model, Path(weights))
    return model


def fill(model: nn.Module, file: Path) -> None:
    """Fill a model with the weights of a file, or say what does not fit."""
    state = _read_weights(file)
    own = model.state_dict()
    # Wrappers such as DDP, torch.compile and Lightning put a prefix before every name, and may be nested.
    while not own.keys() & state.keys() and (prefix := _common_prefix(state)):
        state = {name.removeprefix(prefix): value for name, value in state.items()}
    missing, unexpected = own.keys() - state.keys(), state.keys() - own.keys()
    shapes = {
        name: f"{name} is {tuple(state[name].shape)} in the file and {tuple(own[name].shape)} in the model"
        for name in own.keys() & state.keys()
        if state[name].shape != own[name].shape
    }
    problems = [
        *([f"{len(missing)} weights of the model are not in the file ({_some(missing)})"] if missing else []),
        *([f"{len(unexpected)} weights of the file are not in the model ({_some(unexpected)})"] if unexpected else []),
        *(
            [f"{len(shapes)} shapes differ ({'; '.join(shapes[name] for name in sorted(shapes)[:3])})"]
            if shapes
            else []
        ),
    ]
    if problems:
        raise ValueError(f"{file} does not fit {type(model).__name__}: {', '.join(problems)}.")
    model.load_state_dict(state)


def find_code(source: str) -> Any:
    """Find what ``package.module:name`` names, among installed packages and where the user stands."""
    module_name, _, attribute = source.partition(":")
    # As with python -m, code is looked for where its user stands, also when the model imports more of it later.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise ValueError(
            f"{source!r}: there is no Python module {error.name!r} here or among the installed ones."
        ) from error
    if not hasattr(module, attribute):
        names = [name for name in vars(module) if not name.startswith("_")]
        raise ValueError(f"{source!r}: {module_name} has no {attribute!r}. {suggest(attribute, names)}")
    return getattr(module, attribute)


def _from_code(source: str) -> Model:
    found = find_code(source)
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise ValueError(
            f"{source!r} is a {type(found).__name__}; expected an nn.Module or something that returns one."
        )
    model = found()
    if not callable(model):
        raise ValueError(f"{source!r}() returned {type(model).__name__}; expected an nn.Module or another callable.")
    return model  # type: ignore[no-any-return]


def _huggingface(folder: Path) -> Model:
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is a folder without config.json, so not a Hugging Face model.")
    transformers = require("transformers", extra="huggingface", purpose="a Hugging Face model folder")
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    names = config.architectures or []
    if not names or not hasattr(transformers, names[0]):
        raise ValueError(f"{folder}/config.json names no architecture that this transformers knows: {names or 'none'}.")
    try:
        return getattr(transformers, names[0]).from_pretrained(folder, local_files_only=True)  # type: ignore[no-any-return]
    except OSError as error:
        raise ValueError(f"{folder} cannot be loaded as {names[0]}: {error}") from error


def _exported(file: Path) -> Model:
    _check_file(file)
    try:
        program = torch.export.load(file)
    except Exception as error:
        raise ValueError(f"{file} is not a program that torch.export saved: {error}") from error
    inputs = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    batches = [inputs[name].meta["val"].shape[0] for name in program.graph_signature.user_inputs if name in inputs]
    if any(isinstance(batch, int) for batch in batches):
        raise ValueError(
            f"{file} was exported for a batch of exactly {batches[0]}. Export it for any batch: "
            "torch.export.export(model, (example,), dynamic_shapes=({0: torch.export.Dim('batch')},))"
        )
    return program.module()


def _read_weights(file: Path) -> dict[str, Tensor]:
    _check_file(file)
    try:
        if file.suffix == ".safetensors":
            stored: Any = require("safetensors.torch", extra="files", purpose="a .safetensors file").load_file(file)
        else:
            stored = torch.load(file, map_location="cpu", weights_only=True)
    except ImportError:
        raise
    except Exception as error:
        raise ValueError(f"{file} cannot be read as weights: {error}") from error
    for key in _NESTED:
        if isinstance(stored, Mapping) and isinstance(stored.get(key), Mapping):
            stored = stored[key]
    if not isinstance(stored, Mapping) or not all(isinstance(value, Tensor) for value in stored.values()):
        raise ValueError(f"{file} holds {type(stored).__name__}, not weights by name (a state dict).")
    return dict(stored)


def _common_prefix(names: Iterable[str]) -> str | None:
    return next((prefix for prefix in _PREFIXES if all(name.startswith(prefix) for name in names)), None)


def _check_file(file: Path) -> None:
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist.")


def _some(names: set[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:3]) + (", …" if len(shown) > 3 else "")
