"""Which code made a run: a hash that formatting, comments and docstrings do not change."""

import ast
import hashlib
import inspect
import sys
from collections.abc import Iterable
from functools import cache, partial
from types import ModuleType
from typing import Any

_NOT_HASHED = {"effdeg", "effdeg_lab", *sys.stdlib_module_names}
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def hash_code(objects: Iterable[Any]) -> str | None:
    """Return a hash of functions and classes, and of what they use of their own modules; None if nothing is hashed.

    Other modules that they import do not count, nor does the lab itself, whose version is in a run's environment.
    """
    texts = []
    for each in objects:
        while isinstance(each, partial):
            each = each.func
        for part in inspect.getmro(each) if inspect.isclass(each) else [each]:
            named = part if hasattr(part, "__qualname__") else type(part)
            module = sys.modules.get(named.__module__)
            if module is not None and named.__module__.partition(".")[0] not in _NOT_HASHED:
                texts.append(_write_used(_parse(module), named.__qualname__.partition(".")[0]))
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16] if texts else None


@cache  # read once: a long sweep goes on with the code that it has imported
def _parse(module: ModuleType) -> list[tuple[set[str], set[str], str]]:
    """Return the names that each statement of a module binds, those it uses, and its normalized text."""
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):  # it is not in a file
        return []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, *_DEFINITIONS)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    statements = []
    for statement in tree.body:
        nodes = list(ast.walk(statement))
        used = {node.id for node in nodes if isinstance(node, ast.Name)}
        bound = {statement.name} if isinstance(statement, _DEFINITIONS) else set[str]()
        if not bound:
            bound |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
            bound |= {node.asname or node.name.partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
            bound |= {node.name for node in nodes if isinstance(node, _DEFINITIONS)}
        statements.append((bound, used, ast.unparse(statement)))
    return statements


def _write_used(statements: list[tuple[set[str], set[str], str]], name: str) -> str:
    """Join the statements that a name depends on, and those that bind nothing; all of them if it is not bound."""
    kept, names = {place for place, (bound, _, _) in enumerate(statements) if not bound}, {name}
    if not any(name in bound for bound, _, _ in statements):
        kept |= {*range(len(statements))}
    while more := {place for place, (bound, _, _) in enumerate(statements) if bound & names} - kept:
        kept |= more
        names |= {used for place in more for used in statements[place][1]}
    return "\n".join(statements[place][2] for place in sorted(kept))
