"""Files of ``torch.save``, read without running any code in them."""

import re
import warnings
from pathlib import Path
from typing import Any

import torch


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
