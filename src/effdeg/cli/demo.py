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
    """Train two networks on 50 labelled digits and find out, without labels, which one to trust.

    Writes a folder with figures, the two checkpoints and a small HTML page.
    """
    o.check_plot(Path("figure.png"))
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; give a folder.")
    from effdeg.demo.page import compare_command, write_page
    from effdeg.demo.story import stages, tell

    with progress_bar("demo", stages(), enabled=not json) as update:
        story = tell(seed=seed, report=lambda doing, done: update(done, doing))
        update(stages(), "drawing")
        page = write_page(story, out)
    if json:
        print(json_module.dumps({"findings": story.findings(), "page": str(page), **story.comparison.to_dict()}))
        return
    console = Console(soft_wrap=True, highlight=False)
    for sentence in story.findings():
        console.print(f"• {sentence}")
    console.print(f"\nLook at [bold]{page}[/]. To repeat the comparison from the saved checkpoints:")
    console.print(f"  {compare_command(out, _program())}")


def _program() -> str:
    """Give the words with which this program was called, for a command that a reader can paste."""
    if shutil.which("effdeg"):
        return "effdeg"
    called = Path(sys.argv[0])
    return "python -m effdeg" if called.name == "__main__.py" else os.path.relpath(called)
