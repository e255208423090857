"""Code that users name as ``package.module:name``, and packages that only some functions need."""

import importlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from effdeg._utils.checks import suggest


@contextmanager
def importing_from_here() -> Iterator[None]:
    """Find modules in the working directory while the block runs, as ``python -m`` does."""
    here = str(Path.cwd())
    if here in sys.path:
        yield
        return
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(here)


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import an optional package, or raise an error that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{purpose} needs {module.split('.')[0]}: {describe_install(extra)}") from error


def describe_install(extra: str, package: str = "effdeg") -> str:
    """Describe how to install what an extra needs, beside a wheel or in an environment of a clone.

    Example:
        >>> from effdeg.io import describe_install
        >>> describe_install("plots")
        "pip install 'effdeg[plots]'"
    """
    return f"pip install '{package}[{extra}]'"


def find_code(source: str) -> Any:
    """Return the object that ``package.module:name`` stands for.

    The module is in the working directory or installed. An error that it raises passes, with a note on where it arose.

    Raises:
        ValueError: If this is not such a name, or there is no such module or no such object in it.

    Example:
        >>> from effdeg.io import find_code
        >>> find_code("math:tau")
        6.283185307179586
    """
    module_name, _, attribute = source.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")) or module_name.endswith(".py"):
        path = Path(module_name.removesuffix(".py"))
        likely = ".".join(part for part in path.parts if part.isidentifier())
        raise ValueError(
            f"{source!r}: {module_name!r} is not the name of a Python module. Name modules as in an import, relative "
            f"to the working directory: {likely or 'package.module'}:{attribute or 'name'}."
        )
    module = _import(module_name, source)
    if not hasattr(module, attribute):
        names = [name for name in vars(module) if not name.startswith("_")]
        raise ValueError(f"{source!r}: {module_name} has no {attribute!r}. {suggest(attribute, names)}")
    return getattr(module, attribute)


def _import(name: str, source: str) -> Any:
    try:
        with importing_from_here():
            return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            where = "here or among the installed packages"
            raise ValueError(f"{source!r}: there is no Python module {error.name!r} {where}.") from error
        here = (__file__, importlib.__file__, "<")
        frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(here)]
        # The message of a syntax error already has its location.
        place = f" by {frames[-1].filename}, line {frames[-1].lineno}," if frames else ""
        error.add_note(f"Raised{place} while {name!r} was imported.")
        raise
