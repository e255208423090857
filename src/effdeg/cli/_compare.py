"""``effdeg compare``: which of several models is the simplest, without labels."""

import json as json_module
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import effdeg
from effdeg._utils.files import write_figure
from effdeg.cli import _options as o
from effdeg.cli._subject import Candidate, Data, record, warn_if_untrained
from effdeg.cli._wording import print_notes


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
    quiet: o.Quiet = False,
    json: o.Json = False,
) -> None:
    """Rank models by their effective degree on the same paths, and say which differences are real.

    No labels are needed. Among models that fit the same training data equally well, a simpler one often generalizes
    better, but not always: where there are labels to check with, check.
    """
    o.check_plot(plot)
    from effdeg._utils.distributed import process_group, rank_and_size

    candidates = {name: Candidate(*each, seed) for name, each in _candidates(models, weights or []).items()}
    where: dict[str, Any] = {"device": o.pick_device(device), "dtype": o.pick_dtype(dtype), "batch_size": batch_size}
    route: dict[str, Any] = {"paths": paths, "nodes": nodes, "sampling": sampling, "at": at, "seed": seed}
    fit: dict[str, Any] = {"degree": degree, "basis": basis, "output": output, "components": components}
    examples = Data.read(data, key=key, size=size, mean=mean, std=std)
    loaded = {name: candidate.load() for name, candidate in candidates.items()}
    with process_group(), examples.explaining():
        first = rank_and_size()[0] == 0
        if first:
            warn_if_untrained(*candidates.values())
        running = {**route, **fit, **where, "progress": not (json or quiet)}
        found = effdeg.compare(loaded, examples.inputs, normalized=normalized, **running)
    if not first:
        return
    measurements = {name: record(each, candidates[name], examples) for name, each in found.measurements.items()}
    comparison = effdeg.Comparison(measurements, normalized)
    console = Console(quiet=json)
    if json:
        print(json_module.dumps(comparison.to_dict()))
    console.print(_table(comparison))
    console.print(_verdict(comparison))
    count = measurements[comparison.ranking[0]].settings.examples
    console.print(escape(f"data: {examples.source}, {count} examples ({examples.preprocessing or 'as they are'})"))
    print_notes(console, comparison.warnings())
    if plot is not None:
        o.write(plot, partial(write_figure, comparison.plot()), console)


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


def _table(comparison: "effdeg.Comparison") -> Table:
    from effdeg._utils.statistics import format_interval

    what = "normalized effective degree" if comparison.normalized else "effective degree"
    table = Table(title=f"{what}, simplest first", title_justify="left")
    for column in ("", "model", "value", "95% interval", "above the simplest", "significant"):
        table.add_column(column)
    apart = comparison.above_simplest()
    for rank, (name, measured) in enumerate(comparison.measurements.items(), start=1):
        value = measured.estimate(normalized=comparison.normalized)[0]
        interval = format_interval(*measured.interval(normalized=comparison.normalized))
        row = [str(rank), escape(name), f"{value:.4g}", interval]
        if name in apart:
            difference = apart[name]
            row += [
                f"{difference.value:.3g} ({format_interval(*difference.interval)})",
                "yes" if difference.significant else "no",
            ]
        table.add_row(*row)
    return table


def _verdict(comparison: "effdeg.Comparison") -> str:
    best = escape(comparison.ranking[0])
    others = [escape(name) for name, difference in comparison.above_simplest().items() if not difference.significant]
    if not others:
        return f"The simplest is [bold]{best}[/], significantly so (paired, all intervals holding together at 95%)."
    return f"[bold]{best}[/] is not distinguishable from {', '.join(others)}; more --paths may tell them apart."
