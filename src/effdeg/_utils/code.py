"""Code that users name as ``package.module:name``."""

import importlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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
        if here in sys.path:
            sys.path.remove(here)


def find_code(source: str) -> Any:
    """Return what ``package.module:name`` names, among installed packages and in the working directory."""
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
            raise ValueError(
                f"{source!r}: there is no Python module {error.name!r} here or among the installed packages."
            ) from error
        own = {__file__, importlib.__file__}
        frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename not in own]
        frames = [each for each in frames if not each.filename.startswith("<")]
        # The message of a syntax error has its place already.
        place = f" by {frames[-1].filename}, line {frames[-1].lineno}," if frames else ""
        error.add_note(f"Raised{place} while {name!r} was imported.")
        raise
