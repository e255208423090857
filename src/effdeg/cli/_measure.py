"""``effdeg measure``: the effective degree of one model."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import effdeg
from effdeg._utils.files import check_target
from effdeg.cli import _options as o
from effdeg.cli._output import check_plot, print_json, print_notes, print_table, write, write_plot


@o.unbundle
def measure(
    model: Annotated[
        str,
        o.argument(
            help="**package.module:callable** (called without arguments, it returns the model), a Hugging Face "
            "model folder, or a torch.export **.pt2** file."
        ),
    ],
    data: o.Data,
    *,
    weights: Annotated[Path | None, o.option(help="Weights of a model from code (.safetensors, .pt, .ckpt).")] = None,
    path_options: o.PathOptions,
    partners: o.Partners = None,
    fit_options: o.FitOptions,
    tolerance: o.Tolerance = None,
    device_options: o.DeviceOptions,
    read_options: o.ReadOptions,
    save: Annotated[Path | None, typer.Option(help="Save the measurement to this file (.json).")] = None,
    plot: o.Plot = None,
    quiet: o.Quiet = False,
    json: o.Json = False,
) -> None:
    """Measure the effective degree of a model, with its error bar.

    No labels are needed. Low means simple: along the straight line between two examples, the model's output changes
    like a polynomial of low degree.
    """
    check_plot(plot)
    check_target("--save", save, {".json"})
    if plot is not None and tolerance is not None:
        raise ValueError("--plot keeps the outputs of all --paths, so it cannot be combined with --tolerance.")
    running = {**asdict(path_options), **device_options.settings(), "progress": not (json or quiet)}
    running["partners"] = o.parse_changes(partners)
    fit = asdict(fit_options)
    examples = read_options.load(data)
    named = o.NamedModel(model, weights, path_options.seed)
    loaded = named.load()
    with o.prepare_run([named], examples) as first:
        if plot is None:
            measured = effdeg.measure(loaded, examples.inputs, **fit, **running, tolerance=tolerance)
        else:
            trace = effdeg.trace(loaded, examples.inputs, **running)
            measured = trace.fit(**fit)
    if not first:
        return
    measured = named.record(measured, examples)
    console = Console(quiet=json)
    if json:
        print_json(measured.to_dict())
    print_table(console, model, measured.rows())
    console.print("±: standard error")
    print_notes(console, measured.warnings())
    if save is not None:
        write(save, measured.save, console)
    write_plot(plot, lambda: trace.plot(**fit), console)
