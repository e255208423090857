"""What a proxy gives: one number, its error bar where it is an estimate, and how it was made."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from effdeg._utils.checks import suggest
from effdeg._utils.files import replace_nonfinite
from effdeg._utils.statistics import format_estimate


@dataclass(frozen=True)
class Result:
    """The value of a proxy for one model.

    Attributes:
        name: Which proxy it is.
        value: Its value.
        stderr: The standard error where the value is an estimate from random draws or from examples, else None.
        settings: What it was made with.
    """

    name: str
    value: float
    stderr: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in self.settings.items())
        return f"{self.name}  {self.estimate}" + (f"  ({settings})" if settings else "")

    @property
    def estimate(self) -> str:
        """The value with its error bar, to be read."""
        return format_estimate(self.value, self.stderr)


@dataclass(frozen=True, repr=False)
class Table(Mapping[str, Result]):
    """The proxies of one model by name.

    Attributes:
        results: The results, in the order in which they were asked for.
        skipped: Proxies that were not asked for by name and do not apply to this model, with the reason.
    """

    results: Mapping[str, Result]
    skipped: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Result:
        if name in self.results:
            return self.results[name]
        if name in self.skipped:
            raise KeyError(f"{name!r} was skipped: {self.skipped[name]}")
        raise KeyError(f"{name!r} is not in this table. {suggest(name, self.results)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def row(self) -> dict[str, float]:
        """Return the values by name: one row of a table that :func:`effdeg.ranking.rank` takes."""
        return {name: result.value for name, result in self.results.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and names."""
        results = {
            name: {"value": result.value, "stderr": result.stderr, "settings": result.settings}
            for name, result in self.results.items()
        }
        return {"results": replace_nonfinite(results), "skipped": dict(self.skipped)}

    def __str__(self) -> str:
        width = max((len(name) for name in (*self.results, *self.skipped)), default=0)
        lines = [f"{name:<{width}}  {result.estimate}" for name, result in self.results.items()]
        lines += [f"{name:<{width}}  skipped: {reason}" for name, reason in self.skipped.items()]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Table({len(self.results)} proxies, {len(self.skipped)} skipped)"
