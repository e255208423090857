"""``effdeg compare``: which of several models is the simplest, without labels."""

from dataclasses import asdict, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import effdeg
from effdeg.cli import _options as o
from effdeg.cli._output import check_plot, print_json, print_notes, print_table, write_plot

if TYPE_CHECKING:
    from effdeg.io import LoadedData

_LABEL_FREE = "confidence, entropy, nuclear_norm or disagreement"


@o.unbundle
def compare(
    models: o.Models,
    data: o.Data,
    *,
    weights: Annotated[
        list[Path] | None, o.option(help="One for each model; or several, or a folder of them, for one model.")
    ] = None,
    normalized: Annotated[bool, typer.Option(help="Compare the normalized effective degree.")] = False,
    proxies: Annotated[
        list[str] | None,
        o.option("--proxy", help=f"Another proxy, such as {_LABEL_FREE}; repeat for several. Labels are in the file."),
    ] = None,
    proxy_examples: o.ProxyExamples = 2048,
    path_options: o.PathOptions,
    partners: o.Partners = None,
    fit_options: o.FitOptions,
    device_options: o.DeviceOptions,
    read_options: o.ReadOptions,
    plot: o.Plot = None,
    quiet: o.Quiet = False,
    json: o.Json = False,
) -> None:
    """Rank models by their effective degree on the same paths, and report which differences are significant.

    No labels are needed. Among models that fit the same training data equally well, a simpler one often generalizes
    better, but not always: if you have labels, check.
    """
    check_plot(plot)
    named = match_models(models, weights or [], path_options.seed)
    settings = {**asdict(path_options), **asdict(fit_options), **device_options.settings()}
    settings["partners"] = o.parse_changes(partners)
    examples = read_options.load(data)
    loaded = {name: each.load() for name, each in named.items()}
    with o.prepare_run(named.values(), examples) as first:
        comparison = effdeg.compare(
            loaded,
            _add_labels(examples, proxies or []),
            normalized=normalized,
            proxies=proxies or (),
            proxy_examples=proxy_examples,
            progress=not (json or quiet),
            **settings,
        )
    if not first:
        return
    measurements = {name: named[name].record(each, examples) for name, each in comparison.measurements.items()}
    comparison = replace(comparison, measurements=measurements)
    console = Console(quiet=json)
    if json:
        print_json(comparison.to_dict())
    print_table(console, f"{comparison.describe()}, simplest first", comparison.rows())
    console.print(escape(comparison.conclude()), highlight=False)
    count = measurements[comparison.ranking[0]].settings.examples
    console.print(escape(f"data: {examples.source}, {count} examples ({examples.preprocessing or 'as they are'})"))
    if proxies:
        console.print("±: standard error")
    else:
        console.print(f"other measures that need no labels: --proxy {_LABEL_FREE}")
    print_notes(console, comparison.warnings())
    write_plot(plot, comparison.plot, console)


def match_models(models: list[str], weights: list[Path], seed: int) -> dict[str, o.NamedModel]:
    """Match models and weights: one each, or many weights for one model; names are as short as possible."""
    from effdeg.pools._pool import SUFFIXES, list_files

    if weights:  # a shell gives --weights only the first of the files that runs/*.pt stands for
        more = [name for name in models[1:] if Path(name).suffix in SUFFIXES and Path(name).is_file()]
        models, weights = [name for name in models if name not in more], [*weights, *map(Path, more)]
    names = full = models
    if len(models) == 1:
        if missing := [path for path in weights if not path.exists()]:
            raise FileNotFoundError(f"{missing[0]} does not exist.")
        weights = [file for path in weights for file in list_files(path)]
    if len(models) == 1 and len(weights) > 1:
        models = models * len(weights)
        names, full = [file.stem for file in weights], [str(file) for file in weights]
    if weights and len(weights) != len(models):
        given = f"{len(models)} models and {len(weights)} weights"
        raise ValueError(f"{given}: give one weights file per model, or several for one model.")
    if len(models) < 2:
        raise ValueError("a comparison needs at least two models, or one model and two --weights.")
    for longer in (full, [f"{name} ({number})" for number, name in enumerate(full, start=1)]):
        if len(set(names)) < len(names):
            names = longer
    named = (o.NamedModel(*each, seed) for each in zip_longest(models, weights))
    return dict(zip(names, named, strict=True))


def _add_labels(data: "LoadedData", proxies: list[str]) -> Any:
    """Return the examples as a data set with the labels in their file; without them if no proxy needs any."""
    from torch.utils.data import StackDataset

    from effdeg.proxies._registry import check_names, find_needs

    check_names(proxies)
    needing = [name for name in proxies if "labels" in find_needs(name)]
    if not needing:
        return data.inputs
    labels = o.read_labels(data.source, f"--proxy {needing[0]}: --data")
    named = isinstance(data.inputs, dict)
    return StackDataset(**data.inputs, labels=labels) if named else StackDataset(data.inputs, labels)
