"""``effdeg demo``: measure, compare and train on real data, in under two minutes."""

import os
import shutil
import sys
from itertools import count
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from effdeg._utils.files import check_writable, make_folder
from effdeg._utils.progress import progress_bar
from effdeg.cli import _options as o
from effdeg.cli._output import check_figures, print_json, write


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write into.")] = Path("effdeg-demo"),
    seed: Annotated[int, typer.Option(help="Seed of the labeled digits, the networks and the paths.")] = 0,
    quiet: o.Quiet = False,
    json: o.Json = False,
) -> None:
    """Train networks on 50 labeled digits: which one to trust, and can they be trained to be simpler?

    Writes a folder with figures, checkpoints and a small HTML page.
    """
    check_figures()
    make_folder(out, "--out: the demonstration")
    check_writable("--out", out)
    from effdeg.demo._experiments import QUESTION, STAGES, apply_penalty, select_network
    from effdeg.demo._page import compare_command, write_page

    done = count()
    with progress_bar("demo", STAGES, enabled=not (json or quiet)) as update:
        selection = select_network(seed=seed, report=lambda stage: update(next(done), stage))
        effect = apply_penalty(seed=seed, report=lambda stage: update(next(done), stage))
        update(STAGES)
    page = out / "index.html"
    console = Console(soft_wrap=True, highlight=False, quiet=json)
    if json:
        findings = [*selection.findings(), *effect.findings()]
        found = {"findings": findings, "page": str(page), "penalty": effect.to_dict(), **selection.comparison.to_dict()}
        print_json(found)
    first, second = (escape("\n".join(f"• {each}" for each in part.findings())) for part in (selection, effect))
    console.print(f"{first}\n{QUESTION}\n{second}")
    command = compare_command(out, _find_program())
    write(page, lambda _: write_page(selection, effect, out, command), console)
    console.print("To repeat the comparison from the saved checkpoints:")
    console.print(escape(f"  {command}"))


def _find_program() -> str:
    """Return how this program was called, for a command that a reader can paste."""
    if shutil.which("effdeg"):
        return "effdeg"
    called = Path(sys.argv[0])
    return "python -m effdeg" if called.name == "__main__.py" else os.path.relpath(called)
