"""The settings of a run: a frozen dataclass, changed by ``key=value``, kept as JSON and known by its hash."""

import hashlib
import json
import math
import types
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from functools import cache
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

from effdeg._utils.checks import suggest

# Evaluating annotations is slow, and a report makes settings by the thousand.
_type_hints = cache(get_type_hints)
# Marks a field that is younger than runs that are to be found again.
NEWER = {"newer": True}


class RunSettings(Protocol):
    """Any frozen dataclass of plain values: everything that decides how a run ends.

    One field is required: ``seed``. Those that tune or run for equal time have ``epochs`` too. None may be called
    ``kind``. A field that is added when there are runs already is marked ``metadata=NEWER``: at its default, it leaves
    their names as they are.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def seed(self) -> int:
        """Which of several runs that are otherwise alike."""


S = TypeVar("S", bound=RunSettings)


def changed(settings: S, changes: Mapping[str, Any]) -> S:
    """Change some settings, checking every name and type.

    Args:
        settings: The settings.
        changes: New values by name.

    Returns:
        The changed settings.
    """
    hints = _type_hints(type(settings))
    checked = {}
    for key, value in changes.items():
        check_key(settings, key)
        checked[key] = _as_type(key, value, hints[key])
    return replace(settings, **checked)


def checked_fields(settings: RunSettings) -> dict[str, Any]:
    """Return all settings by name, each checked and converted by its type hint, as :func:`changed` does."""
    hints = _type_hints(type(settings))
    return {each.name: _as_type(each.name, getattr(settings, each.name), hints[each.name]) for each in fields(settings)}


def parsed(settings: RunSettings, assignments: Iterable[str], *, option: str = "--set") -> dict[str, Any]:
    """Read what a user typed, ``key=value`` each, as values of the settings' types.

    Args:
        settings: The settings that are to be changed.
        assignments: What was typed.
        option: Behind which option, for errors.

    Returns:
        Values by name, for :func:`changed`.
    """
    hints = _type_hints(type(settings))
    changes = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise ValueError(f"{option} {assignment} has no value: write it as {option} {key}=VALUE.")
        check_key(settings, key)
        changes[key] = _parse(key, text, hints[key])
    return changes


def check_key(settings: RunSettings, key: str) -> None:
    """Raise unless this is the name of a setting."""
    names = [each.name for each in fields(settings)]
    if key not in names:
        raise ValueError(f"{key!r} is not a setting. {suggest(key, names)}")


def to_dict(settings: RunSettings) -> dict[str, Any]:
    """Return the settings as JSON knows them."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(settings)))
    return plain


def identity(settings: RunSettings) -> dict[str, Any]:
    """Return what a run is known by: its settings as JSON knows them, less newer ones at their default."""
    unchanged = {
        each.name
        for each in fields(settings)
        if each.metadata.get("newer") and getattr(settings, each.name) == each.default
    }
    return {key: value for key, value in to_dict(settings).items() if key not in unchanged}


def digest(settings: RunSettings) -> str:
    """Return the name of the run with these settings: the beginning of their hash."""
    if "kind" in settings.__dataclass_fields__:
        raise TypeError(f"{type(settings).__name__} has a field called kind, where its own name goes: rename it.")
    text = json.dumps({"kind": type(settings).__name__, **identity(settings)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(settings: RunSettings, other: RunSettings) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which two of a kind differ, with both values."""
    one, two = to_dict(settings), to_dict(other)
    return {key: (one[key], two[key]) for key in one if one[key] != two[key]}


def _choices(hint: Any) -> list[Any]:
    """List the types and values that a hint allows."""
    if get_origin(hint) in (Union, types.UnionType):
        return [choice for part in get_args(hint) for choice in _choices(part)]
    return list(get_args(hint)) if get_origin(hint) is Literal else [hint]


def _parse(key: str, text: str, hint: Any) -> Any:
    if get_origin(hint) is tuple:
        parts = [] if text.lower() == "none" else [part.strip() for part in text.split(",") if part.strip()]
        return tuple(_parse(key, part, get_args(hint)[0]) for part in parts)
    choices = _choices(hint)
    if type(None) in choices and text.lower() in {"none", ""}:
        return None
    if bool in choices and text.lower() in {"true", "false", "yes", "no"}:
        return text.lower() in {"true", "yes"}
    for kind in (int, float):
        if kind in choices:
            try:
                number = kind(text)
            except ValueError:
                continue
            return _finite(key, number) if isinstance(number, float) else number
    if str in choices or text in choices:
        return text
    raise ValueError(f"{key}={text} is not possible: {_wanted(key, text, choices)}")


def _as_type(key: str, value: Any, hint: Any) -> Any:
    if get_origin(hint) is tuple:
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise TypeError(f"{key}={value!r} is not possible: several names are expected, in a tuple.")
        return tuple(_as_type(key, each, get_args(hint)[0]) for each in value)
    choices = _choices(hint)
    if value is None and type(None) in choices:
        return None
    if isinstance(value, str) and (str in choices or value in choices):
        return value
    if isinstance(value, bool):
        if bool in choices:
            return value
    elif isinstance(value, Integral) and int in choices:
        return int(value)
    elif isinstance(value, Real) and float in choices:
        return _finite(key, float(value))
    raise TypeError(f"{key}={value!r} is not possible: {_wanted(key, value, choices)}")


def _finite(key: str, number: float) -> float:
    if not math.isfinite(number):
        raise ValueError(f"{key}={number} is not possible: {key} must be a finite number.")
    return number + 0.0  # -0.0, which equals 0.0, would have another digest


def _wanted(key: str, value: Any, choices: list[Any]) -> str:
    words = [choice for choice in choices if isinstance(choice, str)]
    if words:
        return suggest(str(value), words)
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "none"}
    return f"{key} is {' or '.join(names[choice] for choice in choices)}."
