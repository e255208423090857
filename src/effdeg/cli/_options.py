"""The options that commands share, declared once in bundles, and the devices, models and examples they stand for."""

import random
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial, wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from effdeg._utils.checks import shorten
from effdeg._utils.files import checksum, list_weights
from effdeg.cli._output import print_to_stderr

# torch is imported by the functions that need it: the help of a command should not wait for it.
if TYPE_CHECKING:
    from effdeg._adapters.inference import Model
    from effdeg.io import LoadedData
    from effdeg.measuring import Measurement

argument = partial(typer.Argument, show_default=False)
option = partial(typer.Option, show_default=False)
_fitted = partial(typer.Option, rich_help_panel="How the paths are drawn and fitted")
_run = partial(typer.Option, rich_help_panel="How the model is run")
_read = partial(typer.Option, rich_help_panel="How the data are read")

Models = Annotated[
    list[str],
    argument(help="Two or more models, each as for **effdeg measure**; or one from code and several --weights."),
]
Data = Annotated[
    str,
    option(
        help="Examples: **.npy .npz .pt .safetensors .parquet** or a folder of images. No labels are needed. "
        "Bytes (uint8) are divided by 255."
    ),
]
Degree = Annotated[int, _fitted(help="Highest degree of the fit.")]
Partners = Annotated[
    list[str] | None,
    _fitted(
        help="Join each example with its changed copy instead of another example: **mirror**, **shift(4)**, "
        "**mirror+shift(4)**, …; repeat to draw one for each path.",
        metavar="CHANGE",
        show_default=False,
    ),
]
Tolerance = Annotated[float | None, _fitted(help="Stop at this relative standard error, e.g. 0.02.")]
ProxyExamples = Annotated[int, typer.Option(help="Number of examples for proxies.")]
Plot = Annotated[Path | None, typer.Option(help="Save a figure to this file (.png, .pdf, .svg).")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print everything as JSON instead of a table.")]


@dataclass(frozen=True)
class PathOptions:
    """The settings of the paths, under the names of :func:`effdeg.measure`'s arguments."""

    paths: Annotated[int, _fitted(help="Paths between random pairs of examples.")] = 400
    nodes: Annotated[int, _fitted(help="Points on each path.")] = 200
    sampling: Annotated[Literal["cosine", "chebyshev", "uniform"], _fitted(help="Where the points lie.")] = "cosine"
    at: Annotated[str | None, _fitted(help="Layer whose outputs the paths join, for token ids.")] = None
    seed: Annotated[int, _fitted(help="Seed of the pairs, the points and any weights that the model's code draws.")] = 0


def parse_changes(names: list[str] | None) -> list[Any] | None:
    from effdeg import changes

    return [changes.parse(each) for each in names or ()] or None


@dataclass(frozen=True)
class FitOptions:
    """The settings of the fit, under the names of :func:`effdeg.measure`'s arguments."""

    degree: Degree = 40
    basis: Annotated[Literal["chebyshev", "legendre"], _fitted(help="Polynomial basis of the fit.")] = "chebyshev"
    output: Annotated[Literal["softmax", "identity", "sigmoid"], _fitted(help="Function of the outputs.")] = "softmax"
    components: Annotated[int | None, _fitted(help="Principal components of the outputs to keep.")] = None


@dataclass(frozen=True)
class DeviceOptions:
    """Where and how a model is run, under the names of :func:`effdeg.measure`'s arguments."""

    batch_size: Annotated[int | None, _run(help="Points per forward pass.")] = None
    device: Annotated[str | None, _run(help="Where to run; a GPU if there is one.", show_default=False)] = None
    dtype: Annotated[
        Literal["float64", "float32", "bfloat16", "float16"] | None,
        _run(help="Precision to run in; the model's own if not given."),
    ] = None

    def settings(self) -> dict[str, Any]:
        """Return the arguments of :func:`effdeg.measure`."""
        import torch

        from effdeg._adapters.inference import check_device

        check_device(self.device)
        device = torch.device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        dtype = getattr(torch, self.dtype) if self.dtype else None
        return {"batch_size": self.batch_size, "device": device, "dtype": dtype}


@dataclass(frozen=True)
class ReadOptions:
    """How examples are read from files."""

    key: Annotated[str | None, _read(help="The array or column to read.")] = None
    size: Annotated[int | None, _read(help="Resize images to N × N pixels.", metavar="N", min=1)] = None
    mean: Annotated[str, _read(help="Subtract this from images in [0, 1], per channel, e.g. 0.49,0.48,0.45.")] = ""
    std: Annotated[str, _read(help="Then divide by this, e.g. 0.25,0.24,0.26.")] = ""

    def load(self, source: str) -> "LoadedData":
        from effdeg.io import ImageOptions, load_data

        images = ImageOptions(self.size, _parse_numbers("mean", self.mean), _parse_numbers("std", self.std))
        if bool(images.mean) != bool(images.std):
            raise ValueError("--mean and --std belong together: give both.")
        return load_data(source, key=self.key, images=images)

    def load_labeled(self, source: str | None, option: str) -> Any:
        """Read the examples of an option, if it is given, with the labels that they must have."""
        return None if source is None else pair_with_labels(self.load(source).inputs, read_labels(source, option))


def read_labels(source: str, option: str | None = None) -> Any:
    """Return the labels next to the examples of a file; raise if an option needs them and there are none."""
    from effdeg._adapters.examples import LABELS
    from effdeg.io._data import load_labels

    labels = load_labels(source)
    if labels is None and option is not None:
        raise ValueError(
            f"{option} {source} holds no labels. Give a .npz, .pt, .safetensors or .parquet file with an array or "
            f"column of labels next to the examples, called {' or '.join(sorted(LABELS))}."
        )
    return labels


def pair_with_labels(inputs: Any, labels: Any) -> Any:
    from torch import Tensor
    from torch.utils.data import Dataset, StackDataset

    if isinstance(inputs, Dataset):
        return inputs if labels is None else StackDataset(inputs, labels)
    # A dict may have an entry whose name is one of labels.
    return inputs if labels is None and isinstance(inputs, Tensor) else (inputs, labels)


def unbundle(command: Callable[..., None]) -> Callable[..., None]:
    """Declare the fields of each bundle, a parameter whose type is a dataclass, as options of a command."""
    parameters = signature(command).parameters.values()
    bundles: dict[str, Any] = {each.name: each.annotation for each in parameters if is_dataclass(each.annotation)}
    options: list[Parameter] = []
    for parameter in parameters:
        declared = signature(bundles[parameter.name]).parameters.values() if parameter.name in bundles else [parameter]
        options += [option.replace(kind=Parameter.KEYWORD_ONLY) for option in declared]

    @wraps(command)
    def run(**given: Any) -> None:
        for name, bundle in bundles.items():
            given[name] = bundle(**{field.name: given.pop(field.name) for field in fields(bundle)})
        command(**given)

    run.__signature__ = signature(command).replace(parameters=options)  # type: ignore[attr-defined]
    return run


@dataclass(frozen=True)
class NamedModel:
    """A model as it was given on the command line."""

    source: str
    weights: Path | None
    seed: int

    def load(self) -> "Model":
        """Load the model; weights that its code draws are the same every time."""
        import numpy as np
        import torch

        from effdeg.io import load_model

        seed = self.seed % 2**32  # numpy's range
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        return load_model(self.source, self.weights)

    def weights_files(self) -> list[Path]:
        """Return the files that the weights come from; none if the model's code makes them."""
        path = self.weights or Path(self.source)
        return list_weights(path) if self.weights or path.is_dir() or path.suffix == ".pt2" else []

    def record(self, measured: "Measurement", data: "LoadedData") -> "Measurement":
        """Return a measurement whose settings record the data and the weights."""
        files = self.weights_files()
        settings = replace(
            measured.settings,
            data=data.source,
            preprocessing=data.preprocessing,
            weights=str(self.weights or self.source) if files else f"as {self.source} makes them with seed {self.seed}",
            weights_sha256=checksum(*files) if files else None,
        )
        return replace(measured, settings=settings)


@contextmanager
def prepare_run(models: Collection[NamedModel], data: "LoadedData") -> Iterator[bool]:
    """Join the processes of ``torchrun``, warn about untrained models, explain errors; yield whether to report."""
    from effdeg._adapters.spaces import KEYWORDS
    from effdeg._utils.distributed import process_group, rank_and_size
    from effdeg.io._data import describe_channels_last

    with process_group():
        first = rank_and_size()[0] == 0
        if first:
            _print_notes(models, data)
        try:
            yield first
        except (RuntimeError, TypeError, ValueError) as error:
            if isinstance(data.inputs, dict):
                error.__notes__ = [note for note in getattr(error, "__notes__", ()) if note != KEYWORDS]
                names = list(data.inputs)
                error.add_note(
                    f"{data.source} holds several arrays, which the model gets by name: {shorten(names, 6)}. To read "
                    f"one of them alone: --key {names[0]}."
                )
            elif (hint := describe_channels_last(data.inputs, data.source)) is not None:
                error.add_note(hint)
            raise


def _print_notes(models: Collection[NamedModel], data: "LoadedData") -> None:
    """Print notes on untrained models and preprocessing, on the error stream, so that --json shows them as well."""
    seeds = {model.source: model.seed for model in models if not model.weights_files()}
    if seeds:
        one = len(seeds) == 1
        what = "is measured as its code returns it" if one else "are measured as their code returns them"
        print_to_stderr(
            f"note: no --weights: {', '.join(seeds)} {what} with --seed {next(iter(seeds.values()))}, untrained unless "
            "that code loads trained weights.",
            "[yellow]",
        )
    ignored = [model.source for model in models if Path(model.source, "preprocessor_config.json").is_file()]
    if ignored and "mean" not in (data.preprocessing or ""):
        print_to_stderr(
            f"note: the preprocessor_config.json of {', '.join(ignored)} is not applied: give its image_mean and "
            "image_std as --mean and --std, unless the data are preprocessed already.",
            "[yellow]",
        )


def _parse_numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"--{name} {text!r} is not a list of numbers such as 0.49,0.48,0.45.") from None
