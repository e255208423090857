"""``effdeg demo``: the main job on real data, in under two minutes."""

import json as json_module
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from effdeg._progress import progress_bar
from effdeg.cli import options as o


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("effdeg-demo"),
    seed: Annotated[int, typer.Option(help="Determines the labelled digits, the networks and the paths.")] = 0,
    json: o.Json = False,
) -> None:
    """Train networks on 50 labelled digits: which one to trust, and can they be trained to be simpler?

    Writes a folder with figures, checkpoints and a small HTML page.
    """
    o.check_plot(Path("figure.png"))
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; give a folder.")
    from effdeg.demo import contest, story
    from effdeg.demo.page import compare_command, write_page

    first, second = story.stages(), contest.stages()
    with progress_bar("demo", first + second, enabled=not json) as update:
        told = story.tell(seed=seed, report=lambda doing, done: update(done, doing))
        held = contest.hold(seed=seed, report=lambda doing, done: update(first + done, doing))
        update(first + second, "drawing")
        page = write_page(told, held, out)
    findings = [*told.findings(), *held.findings()]
    if json:
        found = {"findings": findings, "page": str(page), "contest": held.to_dict(), **told.comparison.to_dict()}
        print(json_module.dumps(found))
        return
    console = Console(soft_wrap=True, highlight=False)
    for sentence in findings:
        console.print(f"• {sentence}")
    console.print(f"\nLook at [bold]{page}[/]. To repeat the comparison from the saved checkpoints:")
    console.print(f"  {compare_command(out, _program())}")


def _program() -> str:
    """Give the words with which this program was called, for a command that a reader can paste."""
    if shutil.which("effdeg"):
        return "effdeg"
    called = Path(sys.argv[0])
    return "python -m effdeg" if called.name == "__main__.py" else os.path.relpath(called)
