"""Packages that only some files need."""

import importlib
from types import ModuleType


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import an optional package, or say how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{purpose} needs {module.split('.')[0]}: pip install 'effdeg[{extra}]'") from error
