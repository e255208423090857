"""The command ``effdeg``."""

import warnings
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from effdeg.cli import compare, demo, lab, measure, rank
from effdeg.version import __version__

app = typer.Typer(
    name="effdeg",
    help="How simple is the function my network has learned? The effective degree of any PyTorch model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("measure")(measure.measure)
app.command("compare")(compare.compare)
app.command("rank")(rank.rank)
app.command("demo")(demo.demo)
app.add_typer(lab.group)


_state = {"traceback": False}
# None of ours: the own code of a model or a recipe failed, and the message may say little by itself.
_FOREIGN = (RuntimeError, AssertionError, LookupError, SyntaxError)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"effdeg {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[  # noqa: ARG001  (its callback does the work)
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where in the code an error arose.")] = False,
) -> None:
    _state["traceback"] = traceback


def main() -> None:
    """Run a command; a mistake ends with one clear sentence, with a traceback only if it is asked for."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            app(prog_name="effdeg")
    except (ValueError, TypeError, OSError, ImportError, *_FOREIGN) as error:
        if _state["traceback"]:
            raise
        console = Console(stderr=True, soft_wrap=True, highlight=False)
        console.print(f"[bold red]error:[/] {escape(str(error))}")
        if isinstance(error, _FOREIGN):
            kind = type(error).__name__
            console.print(f"[dim]({kind}, of a model or recipe most likely; effdeg --traceback … shows where)[/]")
        raise SystemExit(2) from error


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Show a warning as people read it, in one line, without the code that it arose in."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(f"[bold yellow]warning:[/] {escape(' '.join(str(message).split()))}")
