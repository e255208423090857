"""The command ``effdeg-lab``. Commands import what they need, so that ``--help`` does not wait for torch."""

import warnings
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from typer import Option

from effdeg_lab.cli._campaign import campaign
from effdeg_lab.cli._recipes import list_recipes, show
from effdeg_lab.cli._results import clip_pool, report, soup, table
from effdeg_lab.cli._running import run, sweep
from effdeg_lab.cli._runs import curve, status

__all__ = ["app", "main"]

app = typer.Typer(
    name="effdeg-lab",
    help="Run the paper's experiments: recipes, runs, sweeps, tables and a report.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # fills paragraphs
)
app.command("list")(list_recipes)
for _command in (show, run, sweep, campaign, status, curve, table, clip_pool, soup, report):
    app.command()(_command)

_traceback = False


@app.callback()
def _options(traceback: Annotated[bool, Option("--traceback", help="Show the traceback of an error.")] = False) -> None:
    global _traceback
    _traceback = traceback


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. An error is printed as one clear sentence, with a traceback only under ``--traceback``."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)

    def warn(message: Warning | str, *_: object, **__: object) -> None:
        console.print(f"[bold yellow]warning:[/] {escape(' '.join(str(message).split()))}")

    try:
        with warnings.catch_warnings():
            warnings.showwarning = warn
            app(arguments, prog_name="effdeg-lab")
    except Exception as error:
        if _traceback:
            raise
        console.print(f"[bold red]error:[/] {escape(str(error))}")
        for note in getattr(error, "__notes__", ()):
            console.print(escape(note))
        if not isinstance(error, ValueError | TypeError | OSError | ImportError):  # not a message written for users
            console.print(f"[dim]({type(error).__name__}; effdeg-lab --traceback … shows where)[/]")
        raise SystemExit(2) from error
