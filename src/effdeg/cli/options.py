"""The options that commands share, and what they mean together."""

from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer

from effdeg.io import ImageOptions, load_data

_SAMPLING = "How the paths are drawn and fitted"
_RUNNING = "How the model is run"
_DATA = "How the data are read"

Data = Annotated[
    str,
    typer.Option(
        help="Examples: [bold].npy .npz .pt .safetensors .parquet[/] or a folder of images. No labels are needed.",
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
Seed = Annotated[int, typer.Option(help="Determines pairs and points.", rich_help_panel=_SAMPLING)]
BatchSize = Annotated[int | None, typer.Option(help="Points per forward pass.", rich_help_panel=_RUNNING)]
Device = Annotated[
    str | None, typer.Option(help="Where to run; a GPU if there is one.", rich_help_panel=_RUNNING, show_default=False)
]
Dtype = Annotated[
    Literal["float64", "float32", "bfloat16", "float16"] | None,
    typer.Option(help="Precision to run in; the model's own if not given.", rich_help_panel=_RUNNING),
]
Key = Annotated[str | None, typer.Option(help="Which array or column of the file.", rich_help_panel=_DATA)]
Size = Annotated[int | None, typer.Option(help="Resize images to this many pixels.", rich_help_panel=_DATA)]
Mean = Annotated[str, typer.Option(help="Subtract from images, e.g. 0.49,0.48,0.45.", rich_help_panel=_DATA)]
Std = Annotated[str, typer.Option(help="Divide images by, e.g. 0.25,0.24,0.26.", rich_help_panel=_DATA)]
Plot = Annotated[Path | None, typer.Option(help="Draw a figure into this file (.png, .pdf, .svg).")]
Json = Annotated[bool, typer.Option("--json", help="Print everything as JSON instead of a table.")]


def read_examples(data: str, *, key: str | None, size: int | None, mean: str, std: str) -> Any:
    """Read the examples as the options say."""
    return load_data(data, key=key, images=ImageOptions(size, _numbers("mean", mean), _numbers("std", std)))


def pick_device(name: str | None) -> torch.device:
    """Choose the device asked for, or a GPU if there is one."""
    device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"--device {name} was asked for, but this machine has no CUDA GPU that torch can use.")
    return device


def pick_dtype(name: str | None) -> torch.dtype | None:
    """Turn the name of a precision into it."""
    return getattr(torch, name) if name else None


def check_plot(file: Path | None) -> None:
    """Raise, before any work, if a figure cannot be drawn."""
    check_target("--plot", file, {".png", ".pdf", ".svg"})
    if file is not None:
        import effdeg.plots  # noqa: F401  (says how to get matplotlib if it is absent)


def check_target(option: str, file: Path | None, suffixes: set[str]) -> None:
    """Raise, before any work, if a result could not be written."""
    if file is None:
        return
    if file.suffix not in suffixes:
        raise ValueError(f"{option} {file}: expected a file that ends in {' or '.join(sorted(suffixes))}.")
    if not file.absolute().parent.is_dir():
        raise ValueError(f"{option} {file}: the folder {file.parent} does not exist.")


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"--{name} {text!r} is not a list of numbers such as 0.49,0.48,0.45.") from None
