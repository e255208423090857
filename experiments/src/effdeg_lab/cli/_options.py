"""What commands share: options, declared once, and the devices, files and runs that they stand for."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

# torch is imported by the functions that need it: the help of a command should not wait for it.
if TYPE_CHECKING:
    import torch

    from effdeg_lab.runs import Run

RUNS = Path("effdeg-runs")
RECIPES = "of **effdeg-lab list**, or your own as **package.module:RECIPE**"
Name = Annotated[str, Argument(help=f"A recipe {RECIPES}.", show_default=False)]
Runs = Annotated[Path, Option(metavar="DIR", envvar="EFFDEG_RUNS", help="The folder where runs are kept.")]
Changes = Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help="A changed setting; may be repeated.")]
KeptRuns = Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help="Use only runs with this setting.")]
Data = Annotated[Path | None, Option(metavar="DIR", envvar="EFFDEG_DATA", help="The folder that holds the data sets.")]
Device = Annotated[str | None, Option(help="Where to run; a GPU if there is one.")]
Json = Annotated[bool, Option("--json", help="Print JSON, for programs.")]


def pick_device(name: str | None) -> "torch.device":
    """Return the named device; without a name, a GPU if there is one."""
    import torch

    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise ValueError(f"--device {name} is not a device: write cpu, cuda or cuda:1.") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"--device {name} is not supported: write cpu, cuda or cuda:1.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"--device {name} was asked for, but torch finds no such device on this machine.")
    return device


def read_runs(folder: Path) -> "list[Run]":
    """Return the runs of a folder; raise if there are none."""
    from effdeg_lab.runs import RunFolder

    found = RunFolder(folder).read() if folder.is_dir() else []
    if not found:
        raise ValueError(
            f"--runs {folder}: {'it holds no runs' if folder.is_dir() else 'there is no such folder'}. Name the folder "
            f"in which run or sweep kept its runs (by default {RUNS}, where you started it)."
        )
    return found
