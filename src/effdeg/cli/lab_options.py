"""The options that the commands of the lab share, and how they write settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

RUNS = Path("effdeg-runs")

Name = Annotated[
    str,
    typer.Argument(
        help="A recipe of [bold]effdeg lab list[/], or your own as [bold]package.module:RECIPE[/].", show_default=False
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; once for each.", show_default=False),
]
Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", envvar="EFFDEG_DATA", help="The folder that holds the data sets.", show_default=False),
]
Runs = Annotated[Path, typer.Option(metavar="DIR", envvar="EFFDEG_RUNS", help="The folder where runs are kept.")]
Device = Annotated[str | None, typer.Option(help="Where to run; a GPU if there is one.", show_default=False)]


def assignments(values: Mapping[str, Any]) -> str:
    """Write settings side by side."""
    return ", ".join(f"{key}={shown(value)}" for key, value in values.items())


def shown(value: Any) -> str:
    """Write a value as --set takes it, exactly."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "none"
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value)
