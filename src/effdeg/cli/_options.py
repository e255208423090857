"""The options that commands share, and what they mean together."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape

# torch is imported by the functions that need it: the help of a command should not wait for it.
if TYPE_CHECKING:
    import torch

_SAMPLING = "How the paths are drawn and fitted"
_RUNNING = "How the model is run"
_DATA = "How the data are read"

Data = Annotated[
    str,
    typer.Option(
        help="Examples: [bold].npy .npz .pt .safetensors .parquet[/] or a folder of images. No labels are needed. "
        "Bytes (uint8) are divided by 255.",
        show_default=False,
    ),
]
Paths = Annotated[int, typer.Option(help="Paths between random pairs of examples.", rich_help_panel=_SAMPLING)]
Nodes = Annotated[int, typer.Option(help="Points on each path.", rich_help_panel=_SAMPLING)]
Degree = Annotated[int, typer.Option(help="Highest degree of the fit.", rich_help_panel=_SAMPLING)]
Basis = Annotated[Literal["chebyshev", "legendre"], typer.Option(help="Polynomials.", rich_help_panel=_SAMPLING)]
Sampling = Annotated[
    Literal["cosine", "chebyshev", "uniform"], typer.Option(help="Where the points lie.", rich_help_panel=_SAMPLING)
]
Output = Annotated[
    Literal["softmax", "identity", "sigmoid"],
    typer.Option(help="What of the output is fitted.", rich_help_panel=_SAMPLING),
]
Components = Annotated[
    int | None, typer.Option(help="Principal components of the outputs to keep.", rich_help_panel=_SAMPLING)
]
At = Annotated[
    str | None, typer.Option(help="Layer at which the paths live, for token ids.", rich_help_panel=_SAMPLING)
]
Tolerance = Annotated[
    float | None, typer.Option(help="Stop at this relative standard error, e.g. 0.02.", rich_help_panel=_SAMPLING)
]
Seed = Annotated[
    int, typer.Option(help="Determines pairs and points, and weights that a model draws.", rich_help_panel=_SAMPLING)
]
BatchSize = Annotated[int | None, typer.Option(help="Points per forward pass.", rich_help_panel=_RUNNING)]
Device = Annotated[
    str | None, typer.Option(help="Where to run; a GPU if there is one.", rich_help_panel=_RUNNING, show_default=False)
]
Dtype = Annotated[
    Literal["float64", "float32", "bfloat16", "float16"] | None,
    typer.Option(help="Precision to run in; the model's own if not given.", rich_help_panel=_RUNNING),
]
Key = Annotated[str | None, typer.Option(help="Which array or column of the file.", rich_help_panel=_DATA)]
Size = Annotated[
    int | None, typer.Option(help="Resize images to N × N pixels.", metavar="N", min=1, rich_help_panel=_DATA)
]
Mean = Annotated[
    str, typer.Option(help="Subtract from images in [0, 1], by channel, e.g. 0.49,0.48,0.45.", rich_help_panel=_DATA)
]
Std = Annotated[str, typer.Option(help="Then divide images by, e.g. 0.25,0.24,0.26.", rich_help_panel=_DATA)]
Plot = Annotated[Path | None, typer.Option(help="Draw a figure into this file (.png, .pdf, .svg).")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print everything as JSON instead of a table.")]


def pick_device(name: str | None) -> "torch.device":
    """Return the device asked for, or a GPU if there is one."""
    import torch

    from effdeg._models.inference import check_device

    check_device(name)
    return torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))


def pick_dtype(name: str | None) -> "torch.dtype | None":
    """Return the precision of this name."""
    import torch

    return getattr(torch, name) if name else None


def check_plot(file: Path | None) -> None:
    """Raise, before any work, if a figure cannot be drawn."""
    check_target("--plot", file, {".png", ".pdf", ".svg"})
    if file is not None:
        check_figures()


def check_figures() -> None:
    """Raise if there is no matplotlib to draw with, saying how to get it."""
    import effdeg.plots  # noqa: F401


def check_target(option: str, file: Path | None, suffixes: set[str]) -> None:
    """Raise, before any work, if a result could not be written."""
    if file is None:
        return
    if file.suffix not in suffixes:
        raise ValueError(f"{option} {file}: expected a file that ends in {' or '.join(sorted(suffixes))}.")
    if file.is_dir():
        raise ValueError(f"{option} {file}: this is a folder; expected the name of a file.")
    if not file.absolute().parent.is_dir():
        raise ValueError(f"{option} {file}: the folder {file.parent} does not exist.")
    check_writable(option, file.absolute().parent)


def check_writable(option: str, folder: Path) -> None:
    """Raise, before any work, if no file can be written into a folder."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"{option}: no file can be written into {folder}: {error.strerror}.") from error


def write(file: Path, writer: Callable[[Path], object], console: Console) -> None:
    """Write a result that has been printed already; an error names the file, which the system's may not."""
    try:
        writer(file)
    except OSError as error:
        raise OSError(
            f"{file} could not be written: {error.strerror or error}. The result above is complete."
        ) from error
    console.print(escape(f"written: {file}"))
