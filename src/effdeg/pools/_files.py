"""The files of checkpoints and their names in a table."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from glob import has_magic
from pathlib import Path

from effdeg._utils.files import list_weights

_SUFFIXES = {".ckpt", ".pt", ".pth", ".safetensors"}
File = str | os.PathLike[str]


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
                f"{name}: {file} does not exist.{pattern} weights= takes checkpoints ({', '.join(sorted(_SUFFIXES))}, "
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
    found = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES or _is_model_folder(file))
    if not found:
        within = sorted(str(file) for file in path.glob("*/*") if file.suffix in _SUFFIXES)
        hint = f" Folders in it are not searched: name their files, such as {within[0]}." if within else ""
        raise ValueError(
            f"{path} holds no checkpoints ({', '.join(sorted(_SUFFIXES))}, Hugging Face model folders).{hint}"
        )
    return found


def _is_model_folder(path: Path) -> bool:
    return (path / "config.json").is_file() and bool(list_weights(path))
