"""What commands share: options, declared once, and the devices, files and runs that they stand for."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

# torch is imported by the functions that need it: the help of a command should not wait for it.
if TYPE_CHECKING:
    import torch

    from effdeg_lab.core.recipe import Recipe
    from effdeg_lab.core.runs import Run

RUNS = Path("effdeg-runs")
RECIPES = "of **effdeg-lab list**, or your own as **package.module:RECIPE**"
Name = Annotated[str, Argument(help=f"A recipe {RECIPES}.", show_default=False)]
Runs = Annotated[Path, Option(metavar="DIR", envvar="EFFDEG_RUNS", help="The folder where runs are kept.")]
Changes = Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help="A changed setting; may be repeated.")]
KeptRuns = Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help="Use only runs with this setting.")]
Data = Annotated[Path | None, Option(metavar="DIR", envvar="EFFDEG_DATA", help="The folder that holds the data sets.")]
Device = Annotated[str | None, Option(help="Where to run; a GPU if there is one.")]
Smoke = Annotated[
    bool,
    Option("--smoke", help="Seconds on a CPU: tiny networks on made-up data, kept apart in **smoke** of the folder."),
]
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


def open_recipe(name: str, runs: Path, *, smoke: bool) -> "tuple[Recipe, Path]":
    """Find a recipe and the folder of its runs; those of a smoke test have a folder of their own."""
    from effdeg_lab.core.recipe import SMOKE, find_recipe

    recipe = find_recipe(f"{name.removesuffix(SMOKE)}{SMOKE}" if smoke else name)
    return recipe, runs / "smoke" if recipe.smoke else runs


def prepare(recipe: "Recipe", runs: Path, data: Path | None, device: str | None) -> "tuple[Path | None, torch.device]":
    """Return the data folder and the device of runs: for smoke tests made-up data and by default the CPU."""
    if not recipe.smoke:
        return data, pick_device(device)
    from effdeg_lab.models.made_up import make_up

    settings = [recipe.resolve(method, point) for method in recipe.methods for point in recipe.points()]
    names = [str(getattr(each, key, "")) for each in settings for key in ("data", "model")]
    return make_up(names, runs / ".data"), pick_device(device or "cpu")


def read_runs(folder: Path) -> "list[Run]":
    """Return the runs of a folder; raise if there are none."""
    from effdeg_lab.core.runs import RunFolder

    runs = RunFolder(folder).read() if folder.is_dir() else []
    if not runs:
        raise ValueError(
            f"--runs {folder}: {'it holds no runs' if folder.is_dir() else 'there is no such folder'}. Name the folder "
            f"in which run or sweep kept its runs (by default {RUNS}, where you started it)."
        )
    return runs
