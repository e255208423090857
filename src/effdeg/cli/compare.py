"""``effdeg compare``: which of several models is the simplest, without labels."""

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import effdeg
from effdeg.cli import options as o
from effdeg.distributed import process_group, rank_and_size
from effdeg.inference import Model
from effdeg.io import load_model


def compare(
    models: Annotated[
        list[str],
        typer.Argument(
            help="Two or more models, each as for [bold]effdeg measure[/]; or one from code and several --weights.",
            show_default=False,
        ),
    ],
    data: o.Data,
    weights: Annotated[
        list[Path] | None,
        typer.Option(help="Weights, once for each model; or several for one model.", show_default=False),
    ] = None,
    normalized: Annotated[bool, typer.Option(help="Compare the normalized effective degree.")] = False,
    paths: o.Paths = 400,
    nodes: o.Nodes = 200,
    degree: o.Degree = 40,
    basis: o.Basis = "chebyshev",
    sampling: o.Sampling = "cosine",
    output: o.Output = "softmax",
    components: o.Components = None,
    at: o.At = None,
    seed: o.Seed = 0,
    batch_size: o.BatchSize = None,
    device: o.Device = None,
    dtype: o.Dtype = None,
    key: o.Key = None,
    size: o.Size = None,
    mean: o.Mean = "",
    std: o.Std = "",
    plot: o.Plot = None,
    json: o.Json = False,
) -> None:
    """Rank models by their effective degree on the same paths, and say which differences are real.

    Of models trained on the same data, the simplest is the one most likely to generalize. No labels are needed.
    """
    o.check_plot(plot)
    candidates = _candidates(models, weights or [])
    settings: dict[str, Any] = {
        "paths": paths,
        "nodes": nodes,
        "degree": degree,
        "basis": basis,
        "sampling": sampling,
        "output": output,
        "components": components,
        "at": at,
        "seed": seed,
        "batch_size": batch_size,
        "device": o.pick_device(device),
        "dtype": o.pick_dtype(dtype),
    }
    examples = o.read_examples(data, key=key, size=size, mean=mean, std=std)
    loaded: dict[str, Model] = {name: load_model(*candidate) for name, candidate in candidates.items()}
    with process_group():
        comparison = effdeg.compare(loaded, examples, normalized=normalized, progress=not json, **settings)
        if rank_and_size()[0] > 0:
            return
    if plot is not None:
        comparison.plot().savefig(plot)
    if json:
        print(json_module.dumps(comparison.to_dict()))
        return
    console = Console()
    console.print(_table(comparison))
    console.print(_verdict(comparison))
    if plot is not None:
        console.print(f"written: {plot}")


def _candidates(models: list[str], weights: list[Path]) -> dict[str, tuple[str, Path | None]]:
    """Match models and weights: one each, or many weights for one model; the names are as short as they can be."""
    if len(models) == 1 and len(weights) > 1:
        pairs: list[tuple[str, Path | None]] = [(models[0], file) for file in weights]
        names = [file.stem for file in weights]
        full = [str(file) for file in weights]
    elif weights and len(weights) != len(models):
        raise ValueError(
            f"{len(models)} models and {len(weights)} weights: give one for each, or several for one model."
        )
    else:
        pairs = [(model, weights[index] if weights else None) for index, model in enumerate(models)]
        names = full = models
    if len(pairs) < 2:
        raise ValueError("a comparison needs at least two models, or one model and two --weights.")
    if len(set(names)) < len(names):
        names = full
    if len(set(names)) < len(names):
        names = [f"{name} ({number})" for number, name in enumerate(names, start=1)]
    return dict(zip(names, pairs, strict=True))


def _table(comparison: effdeg.Comparison) -> Table:
    what = "normalized effective degree" if comparison.normalized else "effective degree"
    table = Table(title=f"{what}, simplest first", title_justify="left")
    for column in ("", "model", "value", "95% interval", "above the simplest", "significant"):
        table.add_column(column)
    apart = comparison.above_simplest()
    for rank, (name, measured) in enumerate(comparison.measurements.items(), start=1):
        value = measured.estimate(normalized=comparison.normalized)[0]
        row = [str(rank), name, f"{value:.4g}", _span(measured.interval(normalized=comparison.normalized))]
        if name in apart:
            difference = apart[name]
            row += [f"{difference.value:.3g} ({_span(difference.interval)})", "yes" if difference.significant else "no"]
        table.add_row(*row)
    return table


def _span(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.3g} … {interval[1]:.3g}"


def _verdict(comparison: effdeg.Comparison) -> str:
    best = comparison.ranking[0]
    rivals = [name for name, difference in comparison.above_simplest().items() if not difference.significant]
    if not rivals:
        return f"The simplest is [bold]{best}[/], significantly so (paired, all intervals holding together at 95%)."
    return f"[bold]{best}[/] is not distinguishable from {', '.join(rivals)}; more --paths may tell them apart."
