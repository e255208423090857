"""Files of tensors, read without running any code in them."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from effdeg._utils.optional import require


def read_as(path: Path, reader: Callable[[Path], Any]) -> Any:
    """Return what a reader makes of a file; its errors, but for a missing package, name the file."""
    try:
        return reader(path)
    except ImportError:
        raise
    except Exception as error:
        raise ValueError(f"{path} cannot be read as {path.suffix}: {error}") from error


def read_safetensors(path: Path) -> Any:
    """Return the tensors of a file by name."""
    return require("safetensors.torch", extra="files", purpose="a .safetensors file").load_file(path)


def read_torch(path: Path, *, expected: str) -> Any:
    """Return what a file of ``torch.save`` holds, if that is tensors in plain containers.

    Args:
        path: The file.
        expected: What to save instead, as Python code, for the message of the error.

    Returns:
        What was saved.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # asks to file an issue for pickles that torch did not write
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # torch's own message recommends weights_only=False, which runs whatever the file says.
        found = re.search(r"GLOBAL (\S+)", str(error))
        if found is None:
            raise ValueError(f"{path} is not a file that torch.save wrote, or it is damaged.") from error
        raise ValueError(
            f"{path} holds a pickled {found[1]}, not tensors alone. Pickled objects are not read, since they can run "
            f"any code. Save the tensors instead: torch.save({expected}, file)."
        ) from error
