"""``effdeg compare``: which of several models is the simplest, without labels."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import effdeg
from effdeg._utils.files import write_figure
from effdeg.cli import _options as o
from effdeg.cli._output import check_plot, print_json, print_notes, write

if TYPE_CHECKING:
    from effdeg._models.inference import Model

_LABEL_FREE = "confidence, entropy, nuclear_norm or disagreement"


@o.unbundle
def compare(
    models: Annotated[
        list[str],
        o.argument(help="Two or more models, each as for **effdeg measure**; or one from code and several --weights."),
    ],
    data: o.Data,
    *,
    weights: Annotated[
        list[Path] | None, o.option(help="One for each model; or several, or a folder of them, for one model.")
    ] = None,
    normalized: Annotated[bool, typer.Option(help="Compare the normalized effective degree.")] = False,
    proxy: Annotated[
        list[str] | None,
        o.option(help=f"Also list this measure, such as {_LABEL_FREE} (with the other models); repeat for several."),
    ] = None,
    path_options: o.PathOptions,
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
    if proxy:
        _check_proxies(proxy)
    named = _match(models, weights or [], path_options.seed)
    settings = {**asdict(path_options), **asdict(fit_options), **device_options.settings()}
    examples = read_options.load(data)
    loaded = {name: each.load() for name, each in named.items()}
    with o.prepare_run(named.values(), examples) as first:
        shown = not (json or quiet)
        tables = _evaluate(loaded, examples.inputs, proxy, settings) if proxy else {}
        found = effdeg.compare(loaded, examples.inputs, normalized=normalized, progress=shown, **settings)
    if not first:
        return
    measurements = {name: named[name].record(each, examples) for name, each in found.measurements.items()}
    comparison = effdeg.Comparison(measurements, normalized)
    console = Console(quiet=json)
    if json:
        results = {name: table.to_dict()["results"] for name, table in tables.items()}
        print_json(comparison.to_dict() | ({"proxies": results} if proxy else {}))
    console.print(_make_table(comparison, console.width // 6))
    if tables:
        console.print(_make_proxy_table(comparison, tables))
    console.print(_describe_simplest(comparison))
    count = measurements[comparison.ranking[0]].settings.examples
    console.print(escape(f"data: {examples.source}, {count} examples ({examples.preprocessing or 'as they are'})"))
    if not tables:
        console.print(f"other measures that need no labels: --proxy {_LABEL_FREE}")
    print_notes(console, comparison.warnings())
    if plot is not None:
        write(plot, partial(write_figure, comparison.plot()), console)


def _match(models: list[str], weights: list[Path], seed: int) -> dict[str, o.NamedModel]:
    """Match models and weights: one each, or many weights for one model; names are as short as possible."""
    from effdeg.pools._files import list_files

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
    found = (o.NamedModel(*each, seed) for each in zip_longest(models, weights))
    return dict(zip(names, found, strict=True))


def _check_proxies(names: list[str]) -> None:
    from effdeg.proxies._registry import needs_labels

    effdeg.proxies.check_names(names)
    if needing := [name for name in names if needs_labels(name)]:
        raise ValueError(f"--proxy {needing[0]} needs labels, and a comparison uses none; see effdeg pool --train.")


def _evaluate(
    models: Mapping[str, "Model"], inputs: Any, names: list[str], settings: Mapping[str, Any]
) -> dict[str, "effdeg.proxies.Table"]:
    """Evaluate the proxies of each model; some compare it with the others."""
    from effdeg.measure._comparison import naming

    options = {name: settings[name] for name in effdeg.proxies.RunOptions.__annotations__ if name in settings}
    found = {}
    for name, model in models.items():
        others = [other for other in models.values() if other is not model]
        with naming(name):
            found[name] = effdeg.proxies.evaluate(model, inputs, names=names, others=others or None, **options)
    return found


def _make_table(comparison: "effdeg.Comparison", name_width: int) -> Table:
    from effdeg._utils.statistics import format_interval

    table = Table(title=escape(f"{comparison.describe()}, simplest first"), title_justify="left")
    for column in ("", "model", "value", "95% interval", "above the simplest", "significant"):
        table.add_column(column, overflow="fold", no_wrap=column == "value")
    apart = comparison.above_simplest()
    for rank, (name, measured) in enumerate(comparison.measurements.items(), start=1):
        value = measured.estimate(normalized=comparison.normalized)[0]
        interval = format_interval(*measured.interval(normalized=comparison.normalized))
        row = [str(rank), escape(_break(name, name_width)), f"{value:.4g}", interval]
        if (difference := apart.get(name)) is not None:
            row.append(f"{difference.value:.3g} ({format_interval(*difference.interval)})")
            row.append("yes" if difference.significant else "no")
        else:
            row += ["", ""]
        table.add_row(*row)
    return table


def _break(name: str, width: int) -> str:
    """Break a long name between its words, since rich would break it anywhere."""
    lines = [""]
    for word in re.findall(r"[^-_/]*[-_/]?", name):
        if lines[-1] and len(lines[-1] + word) > width:
            lines.append("")
        lines[-1] += word
    return "\n".join(lines)


def _make_proxy_table(comparison: "effdeg.Comparison", tables: Mapping[str, "effdeg.proxies.Table"]) -> Table:
    """Make a table of its own for proxies: next to the intervals there is no room for them."""
    table = Table(title="other measures (±: standard error)", title_justify="left")
    proxies = list(tables[comparison.ranking[0]])
    for column in ("model", *proxies):
        table.add_column(column.replace("_", "\n"), overflow="fold")
    for name in comparison.ranking:
        table.add_row(escape(name), *(tables[name][proxy].estimate for proxy in proxies))
    return table


def _describe_simplest(comparison: "effdeg.Comparison") -> str:
    best = f"[bold]{escape(comparison.ranking[0])}[/]"
    others = {escape(name): difference for name, difference in comparison.above_simplest().items()}
    same = [name for name, difference in others.items() if difference.identical]
    unclear = [name for name, difference in others.items() if not difference.significant and name not in same]
    said = []
    if same:
        said.append(f"{best} has the same value as {', '.join(same)} on every path: they may be the same model.")
    if unclear:
        said.append(f"{best} is not distinguishable from {', '.join(unclear)}; more --paths may distinguish them.")
    return "\n".join(said) or f"The simplest is {best}, significantly so (paired, simultaneous 95% intervals)."
