"""``effdeg measure``: the effective degree of one model."""

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


def measure(
    model: Annotated[
        str,
        typer.Argument(
            help="[bold]package.module:callable[/] (called without arguments, it returns the model), a Hugging Face "
            "model folder, or a torch.export [bold].pt2[/] file.",
            show_default=False,
        ),
    ],
    data: o.Data,
    weights: Annotated[
        Path | None, typer.Option(help="Weights for package.module:callable (.safetensors, .pt).", show_default=False)
    ] = None,
    paths: o.Paths = 400,
    nodes: o.Nodes = 200,
    degree: o.Degree = 40,
    basis: o.Basis = "chebyshev",
    sampling: o.Sampling = "cosine",
    output: o.Output = "softmax",
    components: o.Components = None,
    at: o.At = None,
    tolerance: o.Tolerance = None,
    seed: o.Seed = 0,
    batch_size: o.BatchSize = None,
    device: o.Device = None,
    dtype: o.Dtype = None,
    key: o.Key = None,
    size: o.Size = None,
    mean: o.Mean = "",
    std: o.Std = "",
    save: Annotated[Path | None, typer.Option(help="Keep the measurement (.json, .safetensors).")] = None,
    plot: o.Plot = None,
    quiet: o.Quiet = False,
    json: o.Json = False,
) -> None:
    """Measure the effective degree of a model, with its error bar.

    No labels are needed. Low means simple: along the straight line between two examples, the model's output changes
    like a polynomial of low degree.
    """
    o.check_plot(plot)
    o.check_target("--save", save, {".json", ".safetensors"})
    if plot is not None and tolerance is not None:
        raise ValueError("--plot keeps the outputs of all --paths, so it does not go with --tolerance.")
    from effdeg._utils.distributed import process_group, rank_and_size

    where: dict[str, Any] = {"device": o.pick_device(device), "dtype": o.pick_dtype(dtype), "batch_size": batch_size}
    route: dict[str, Any] = {"paths": paths, "nodes": nodes, "sampling": sampling, "at": at, "seed": seed}
    fit: dict[str, Any] = {"degree": degree, "basis": basis, "output": output, "components": components}
    examples = Data.read(data, key=key, size=size, mean=mean, std=std)
    candidate = Candidate(model, weights, seed)
    loaded = candidate.load()
    with process_group(), examples.explaining():
        progress, first = not (json or quiet), rank_and_size()[0] == 0
        if first:
            warn_if_untrained(candidate)
        if plot is None:
            running = {**route, **where, "tolerance": tolerance, "progress": progress}
            measured = effdeg.measure(loaded, examples.inputs, **fit, **running)
        else:
            trace = effdeg.trace(loaded, examples.inputs, **route, **where, progress=progress)
            measured = trace.fit(**fit)
    if not first:
        return
    measured = record(measured, candidate, examples)
    console = Console(quiet=json)
    if json:
        print(json_module.dumps(measured.to_dict()))
    console.print(_table(model, measured))
    print_notes(console, measured.warnings())
    if save is not None:
        o.write(save, measured.save, console)
    if plot is not None:
        o.write(plot, partial(write_figure, trace.plot(**fit)), console)


def _table(name: str, measured: "effdeg.Measurement") -> Table:
    from effdeg._utils.statistics import format_estimate, format_interval

    settings = measured.settings
    table = Table(title=escape(name), show_header=False, title_justify="left")
    for normalized, label in ((False, "effective degree"), (True, "normalized")):
        estimate = format_estimate(*measured.estimate(normalized=normalized))
        interval = format_interval(*measured.interval(normalized=normalized))
        table.add_row(label, f"[bold]{estimate}[/]", f"95% interval {interval}")
    table.add_row(
        "paths",
        f"{len(measured.per_path)} × {settings.nodes} nodes",
        f"{settings.sampling}, at {settings.at or 'the inputs'}",
    )
    table.add_row(
        "fit", f"{settings.basis} degree {settings.degree}", f"misses {measured.residual:.2g} of the variation"
    )
    table.add_row("fitted", escape(settings.describe_outputs()), escape(settings.model))
    table.add_row("data", escape(settings.data or ""), f"{settings.examples} examples")
    if settings.preprocessing:
        table.add_row("preprocessing", escape(settings.preprocessing))
    checksum = settings.weights_sha256
    table.add_row("weights", escape(settings.weights or ""), f"SHA-256 {checksum[:12]}…" if checksum else "")
    return table
