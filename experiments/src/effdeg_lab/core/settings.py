"""The settings of a run: a frozen dataclass of plain values, changed by name and known by its hash."""

import difflib
import hashlib
import json
import math
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

MOST_NODES = 10_000  # on a path; more are a mistake that fills the memory


def setting(
    default: Any,
    about: str = "",
    *,
    scale: bool = False,
    named: bool = True,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    smoke: float | Callable[[Any], Any] | None = None,
) -> Any:
    """Declare a field of :class:`Settings`, with bounds that a value of None satisfies.

    Args:
        default: Its default value.
        about: What it is, in a few words, for ``effdeg-lab show``.
        scale: It makes a run longer or larger, not different: runs that differ in it belong to one method.
        named: Whether it is part of the names of runs.
        least: Its smallest value.
        above: What it must be greater than.
        most: Its largest value.
        smoke: Its largest value in smoke tests, or a function that returns its value there.
    """
    metadata = {"about": about, "scale": scale, "named": named, "bounds": (least, above, most), "smoke": smoke}
    return field(default=default, metadata=metadata)


def unnamed(default: Any, about: str, **bounds: Any) -> Any:
    """Declare a field of scale that is not part of the names of runs."""
    return setting(default, about, scale=True, named=False, **bounds)


def _read_defaults(kind: Any) -> dict[str, Any]:
    return {each.name: json.loads(json.dumps(each.default)) for each in fields(kind) if each.default is not MISSING}


# Both are slow, and planning makes settings by the thousand.
_get_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)
_get_defaults: Callable[[Any], dict[str, Any]] = cache(_read_defaults)


@dataclass(frozen=True)
class Settings:
    """Everything that decides how a run ends. Subclass it as a frozen dataclass of plain values.

    Values are checked and converted by the fields' annotations: ``int``, ``float``, ``bool``, ``str``, ``None``,
    ``Literal`` and ``tuple[X, ...]``. Give every field a default, so that runs made before the field existed can still
    be read, and override :meth:`check` to refuse bad combinations.
    """

    seed: int = setting(0, "decides everything that is random", scale=True, least=0, most=2**32 - 1)

    def __post_init__(self) -> None:
        hints = _get_hints(type(self))
        for each in fields(self):
            value = _convert(each.name, getattr(self, each.name), hints[each.name])
            if value is not None:
                _check_bounds(each.name, value, *each.metadata.get("bounds", (None, None, None)))
            object.__setattr__(self, each.name, value)
        self.check()

    def check(self) -> None:
        """Raise ``ValueError`` if the values do not fit together."""

    def stack_key(self) -> str | None:
        """Return what is equal for runs that can be trained together; None for a run that is trained alone."""
        return None

    def identify_data(self, folder: Path | None) -> str | None:  # noqa: ARG002
        """Return the fingerprint of the data in this folder that a run would be made with; None if it is not known."""
        return None

    def change(self, changes: Mapping[str, Any]) -> Self:
        """Return the settings with some values changed."""
        for key in changes:
            self._check_name(key)
        return replace(self, **changes)

    def parse(self, assignments: Iterable[str]) -> dict[str, Any]:
        """Read what a user typed, ``key=value`` each, as values for :meth:`change`."""
        changes = {}
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            if not equals:
                raise ValueError(f"--set {assignment} has no value: write --set {key}=VALUE.")
            self._check_name(key)
            changes[key] = _parse(key, text, _get_hints(type(self))[key])
        return changes

    def to_dict(self) -> dict[str, Any]:
        """Return the values as JSON has them: lists instead of tuples."""
        return json.loads(json.dumps(asdict(self)))

    @property
    def hash(self) -> str:
        """What tells runs apart, a hash of the class and of all values that are not the field's default."""
        return self.hash_values(self.to_dict())

    @classmethod
    def hash_values(cls, stored: Mapping[str, Any]) -> str:
        """Return the :attr:`hash` of settings that :meth:`to_dict` gave, perhaps before there were newer fields."""
        defaults = cls.complete({})
        own = {key: value for key, value in stored.items() if value != defaults.get(key, MISSING)}
        text = json.dumps({"kind": cls.kind_name(), "settings": own}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @classmethod
    def kind_name(cls) -> str:
        """Return the name of the class in files of runs, with its module unless that is part of the lab.

        Two experiments of your own may well have classes of the same name that are trained differently.
        """
        return cls.__name__ if cls.__module__.startswith("effdeg_lab.") else f"{cls.__module__}.{cls.__name__}"

    @classmethod
    def complete(cls, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return stored values, with the defaults of fields that are newer than they are."""
        return _get_defaults(cls) | dict(stored)

    @classmethod
    def describe(cls) -> dict[str, str]:
        """Return what each field is, by name, with the words that it may be."""
        described = {}
        for each in fields(cls):
            words = ", ".join(choice for choice in _get_choices(_get_hints(cls)[each.name]) if isinstance(choice, str))
            described[each.name] = ": ".join(filter(None, (each.metadata.get("about", ""), words)))
        return described

    @classmethod
    def shrink(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values at the scale of a smoke test, as :func:`setting` declares it for some fields."""
        smoke = {each.name: each.metadata.get("smoke") for each in fields(cls)}
        if not any(smoke.values()):
            text = "declare what makes it short, as in setting(…, smoke=2)."
            raise ValueError(f"{cls.__name__} has no smoke test: {text}")
        shrunk = dict(values)
        for name, value in values.items():
            most = smoke.get(name)
            if callable(most):
                shrunk[name] = most(value)
            elif most is not None and value is not None:
                shrunk[name] = min(value, most)
        return shrunk

    @classmethod
    def scale_names(cls) -> list[str]:
        """List the fields of scale, without the seed."""
        return [each.name for each in fields(cls) if each.metadata.get("scale") and each.name != "seed"]

    def _check_name(self, key: str) -> None:
        names = [each.name for each in fields(self)]
        if key not in names:
            raise ValueError(f"{key!r} is not a setting. {suggest(key, names, command='effdeg-lab show RECIPE')}")


def suggest(name: str, options: Iterable[str], *, command: str = "") -> str:
    """Name the options that are close to a misspelled name; if none is, the command that shows all, or all of them."""
    options = list(dict.fromkeys(options))
    initials = "".join(word[:1] for word in name.split("_"))  # learning_rate for lr
    close = [initials] if initials in options else difflib.get_close_matches(name, options, n=3, cutoff=0.5)
    if close:
        return f"Did you mean {' or '.join(map(repr, close))}?"
    return f"See {command}." if command else f"Choose from: {', '.join(map(repr, options))}."


def check_fit(nodes: int, degree: int, *, least_degree: int = 0, prefix: str = "") -> None:
    """Raise unless this many nodes determine a polynomial of this degree; a prefix belongs to both settings' names."""
    if degree < least_degree:
        raise ValueError(f"{prefix}degree={degree} is too small: it must be at least {least_degree}.")
    if nodes < degree + 1:
        raise ValueError(
            f"{prefix}nodes={nodes} cannot determine a polynomial of {prefix}degree={degree}, which has {degree + 1} "
            f"coefficients. Use {prefix}nodes={degree + 1} or more, or a lower {prefix}degree."
        )


def check_pairs(pairs: float, batch: int, *, what: str = "a batch") -> None:
    """Raise unless a batch has two examples for a path to join, and this share of it is at least one path."""
    if batch < 2:
        raise ValueError(f"{what} has only one example, and regularizer=ed joins two by a path: make it larger.")
    if pairs * batch < 0.5:
        raise ValueError(f"pairs={pairs:g} of a batch of {batch} rounds to no path: use pairs={1 / batch:.2g} or more.")


def format_setting(value: Any) -> str:
    """Write a value as ``--set`` takes it."""
    if isinstance(value, list | tuple):
        return ",".join(map(format_setting, value)) or "none"
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _get_choices(hint: Any) -> list[Any]:
    """List the types and values that an annotation allows."""
    if get_origin(hint) in (Union, types.UnionType):
        return [choice for part in get_args(hint) for choice in _get_choices(part)]
    return list(get_args(hint)) if get_origin(hint) is Literal else [hint]


def _parse(key: str, text: str, hint: Any) -> Any:
    if get_origin(hint) is tuple:
        parts = [] if text.lower() == "none" else [part.strip() for part in text.split(",") if part.strip()]
        return tuple(_parse(key, part, get_args(hint)[0]) for part in parts)
    choices, word = _get_choices(hint), text.lower()
    value: Any = text
    if type(None) in choices and word in {"none", ""}:
        return None
    if bool in choices and word in {"true", "false", "yes", "no"}:
        return word in {"true", "yes"}
    for kind in (float, int):
        if kind in choices:
            try:
                value = kind(text)
            except ValueError:
                continue
    return _convert(key, value, hint)


def _convert(key: str, value: Any, hint: Any) -> Any:
    if get_origin(hint) is tuple and isinstance(value, list | tuple):
        return tuple(_convert(key, each, get_args(hint)[0]) for each in value)
    choices = _get_choices(hint)
    if isinstance(value, bool | str | None):
        if type(value) in choices or value in choices:
            return value
    elif isinstance(value, Integral) and int in choices:
        return int(value)
    elif isinstance(value, Real) and float in choices and math.isfinite(value):
        return float(value) + 0.0  # -0.0 equals 0.0, but would have another hash
    words = [choice for choice in choices if isinstance(choice, str)]
    names = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text", type(None): "none"}
    expected = f"{key} must be {' or '.join(names.get(choice, 'a tuple') for choice in choices)}."
    raise ValueError(f"{key}={value} is not possible: {suggest(str(value), words) if words else expected}")


def _check_bounds(key: str, value: Any, least: float | None, above: float | None, most: float | None) -> None:
    low = f"at least {least}" if least is not None and value < least else ""
    low = f"above {above}" if above is not None and value <= above else low
    words = f"at most {most}" if most is not None and value > most else low
    if words:
        raise ValueError(f"{key}={format_setting(value)} is out of range: it must be {words}.")
