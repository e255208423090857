"""``effdeg demo``: the main job on real data, in under two minutes."""

import json as json_module
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from effdeg._utils.files import make_folder
from effdeg._utils.progress import progress_bar
from effdeg.cli import _options as o


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("effdeg-demo"),
    seed: Annotated[int, typer.Option(help="Determines the labelled digits, the networks and the paths.")] = 0,
    quiet: o.Quiet = False,
    json: o.Json = False,
) -> None:
    """Train networks on 50 labelled digits: which one to trust, and can they be trained to be simpler?

    Writes a folder with figures, checkpoints and a small HTML page.
    """
    o.check_figures()
    make_folder(out, "--out: the demonstration")
    o.check_writable("--out", out)
    from effdeg.demo import _contest as contest
    from effdeg.demo import _story as story
    from effdeg.demo._page import compare_command, write_page

    first, second = story.stages(), contest.stages()
    with progress_bar("demo", first + second, enabled=not (json or quiet)) as update:
        told = story.tell(seed=seed, report=lambda doing, done: update(done, doing))
        held = contest.hold(seed=seed, report=lambda doing, done: update(first + done, doing))
        update(first + second)
    page = out / "index.html"
    console = Console(soft_wrap=True, highlight=False, quiet=json)
    if json:
        findings = [*told.findings(), *held.findings()]
        found = {"findings": findings, "page": str(page), "contest": held.to_dict(), **told.comparison.to_dict()}
        print(json_module.dumps(found))
    for sentence in told.findings():
        console.print(f"• {escape(sentence)}")
    console.print(contest.QUESTION)
    for sentence in held.findings():
        console.print(f"• {escape(sentence)}")
    o.write(page, lambda _: write_page(told, held, out), console)
    console.print("To repeat the comparison from the saved checkpoints:")
    console.print(escape(f"  {compare_command(out, _program())}"))


def _program() -> str:
    """Return the words with which this program was called, for a command that a reader can paste."""
    if shutil.which("effdeg"):
        return "effdeg"
    called = Path(sys.argv[0])
    return "python -m effdeg" if called.name == "__main__.py" else os.path.relpath(called)
