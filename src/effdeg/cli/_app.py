"""The command ``effdeg``."""

import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from effdeg._utils.imports import importing_from_here
from effdeg._version import __version__
from effdeg.cli._compare import compare
from effdeg.cli._demo import demo
from effdeg.cli._measure import measure
from effdeg.cli._output import print_to_stderr, use_spellings
from effdeg.cli._pick import pick
from effdeg.cli._pool import pool
from effdeg.cli._rank import rank

app = typer.Typer(
    name="effdeg",
    help="How simple is the function my network has learned? The effective degree of any PyTorch model.",
    epilog="The paper's experiments are a separate package: effdeg-lab.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # fills paragraphs
)


class _PoolCommand(TyperCommand):
    """Says what to write instead of several values after one option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if "unexpected extra argument" in str(error):
                error.message += ". For several checkpoints, repeat --weights or name their folder."  # type: ignore[attr-defined]
            raise


for _command in (pick, measure, compare, pool, rank, demo):
    app.command(cls=_PoolCommand if _command is pool else None)(_command)


_state = {"traceback": False}
_PLAIN = (ValueError, TypeError, OSError, ImportError)
"""Errors whose messages are written for users; others come from a model's own code, and their type is shown too."""


def _show_version(given: bool) -> None:
    if given:
        print(f"effdeg {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001  (its callback does the work)
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show the traceback of an error.")] = False,
) -> None:
    _state["traceback"] = traceback
    group: Any = context.command
    parameters = group.commands[context.invoked_subcommand].params
    options = [each for each in parameters if each.opts[0].startswith("--") and not each.is_flag]
    use_spellings({each.name: each.opts[0] for each in options})


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. An error is printed as one clear sentence, with a traceback only under ``--traceback``."""
    try:
        with warnings.catch_warnings(), importing_from_here():
            warnings.showwarning = _show_warning
            app(arguments, prog_name="effdeg")
    except Exception as error:
        if _state["traceback"]:
            raise
        print_to_stderr(str(error), "[bold red]error:[/] ")
        for note in getattr(error, "__notes__", ()):
            print_to_stderr(note)
        if not isinstance(error, _PLAIN):
            origin = "probably raised by the model's own code; effdeg --traceback … shows where"
            print_to_stderr(f"({type(error).__name__}, {origin})", "[dim]")
        raise SystemExit(2) from error


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print_to_stderr(" ".join(str(message).split()), "[bold yellow]warning:[/] ")
