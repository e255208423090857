"""``effdeg demo``: train, pick and measure on real data, in a minute."""

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
    """Train networks on 50 labeled digits, pick one without labels, and compare plain training, mixup and ED.

    Writes a folder with figures, checkpoints and a small HTML page.
    """
    check_figures()
    make_folder(out, "--out: the demonstration")
    check_writable("--out", out)
    from effdeg.demo._experiment import STAGES, run
    from effdeg.demo._page import pick_command, write_page

    done = count()
    with progress_bar("demo", STAGES, enabled=not (json or quiet)) as update:
        outcome = run(seed=seed, report=lambda stage: update(next(done), stage))
        update(STAGES)
    page = out / "index.html"
    console = Console(soft_wrap=True, highlight=False, quiet=json)
    if json:
        print_json({"page": str(page), **outcome.to_dict()})
    for each in (*outcome.describe_pick(), *outcome.describe_penalty()):
        console.print(escape(f"• {each}"))
    command = pick_command(out, _find_program())
    write(page, lambda _: write_page(outcome, out, command), console)
    console.print("To pick again, from the saved networks:")
    console.print(escape(f"  {command}"))


def _find_program() -> str:
    """Return how this program was called, for a command that a reader can paste."""
    if shutil.which("effdeg"):
        return "effdeg"
    called = Path(sys.argv[0])
    return "python -m effdeg" if called.name == "__main__.py" else os.path.relpath(called)
