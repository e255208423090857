"""``effdeg rank``: how well measures rank a pool of models by how they generalize."""

import json as json_module
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from effdeg import ranking
from effdeg._checks import check_choice
from effdeg.cli import options as o


def rank(
    table: Annotated[
        Path,
        typer.Argument(
            help="[bold].csv[/] or [bold].parquet[/], one row per model: hyperparameters, measures and the gap.",
            show_default=False,
        ),
    ],
    target: Annotated[str, typer.Option(help="The column to predict; larger is worse.")] = "gap",
    by: Annotated[list[str] | None, typer.Option(help="A hyperparameter; once for each.", show_default=False)] = None,
    measure: Annotated[
        list[str] | None,
        typer.Option(
            help="A measure, once for each; a leading minus (-margin) turns it round. Every column of numbers if none.",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Test every other measure against this one.", show_default=False)
    ] = None,
    resamples: Annotated[int, typer.Option(help="Resamples of the models, for the intervals.")] = 2000,
    seed: Annotated[int, typer.Option(help="Determines the resamples.")] = 0,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Where to draw the figure (.png, .pdf, .svg); TABLE-ranking.png if not given, none with --json.",
            show_default=False,
        ),
    ] = None,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Draw no figure.")] = False,
    json: o.Json = False,
) -> None:
    """Rank measures by how well they order models by their generalization gap.

    Correlations come with their 95% intervals. With the hyperparameters (--by), measures are also judged among models
    that differ in one of them alone.
    """
    if plot is not None and no_plot:
        raise ValueError("--plot and --no-plot exclude each other.")
    if plot is None and not no_plot and not json:
        plot = Path(f"{table.stem}-ranking.png")
    o.check_plot(plot)
    ranked = ranking.rank(
        table, target=target, measures=measure or None, hyperparameters=by or (), resamples=resamples, seed=seed
    )
    tested = _tested(ranked, against)
    if plot is not None:
        ranked.plot().savefig(plot)
    if json:
        print(json_module.dumps(ranked.to_dict() | {"comparisons": [asdict(advantage) for advantage in tested]}))
        return
    console = Console(highlight=False)
    _print(console, f"{len(ranked.pool)} models, measures of {target}, best first", ranked.rows())
    varied = [score for score in ranked.scores.values() if score.psi_by_axis]
    if varied:
        head = ["measure", *(f"Ψ: {axis}" for axis in varied[0].psi_by_axis), "most wrong at"]
        rows = [
            [
                score.measure,
                *(f"{psi.value:z.2f}" for psi in score.psi_by_axis.values()),
                str(score.worst_environment or "–"),
            ]
            for score in varied
        ]
        _print(console, "among models that differ in one hyperparameter alone", [head, *rows])
    console.print(f"[dim]{ranked.legend()}[/]")
    for note in ranked.warnings():
        console.print(f"[yellow]{escape(note)}[/]")
    if len(tested) > 1:
        console.print("[dim]Each test stands alone: of many, some p values are small by chance.[/]")
    for advantage in tested:
        console.print(escape(f"{advantage}."))
    if plot is not None:
        console.print(f"written: {plot}")


def _tested(ranked: ranking.Ranking, against: str | None) -> list[ranking.Advantage]:
    """Test every measure against a given one, or the best against the runner-up."""
    defined = [name for name, score in ranked.scores.items() if score.undefined is None]
    if against is None:
        return [ranked.compare(*defined[:2])] if len(defined) > 1 else []
    check_choice("--against", against, defined)
    return [ranked.compare(name, against) for name in defined if name != against]


def _print(console: Console, title: str, rows: list[list[str]]) -> None:
    """Print a table: on a narrow screen with intervals below their numbers, and what is then too wide is not cut."""
    if _width(rows) > console.width:
        rows = [[cell.replace(" (", "\n(") for cell in row] for row in rows]
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in rows[0]:
        table.add_column(escape(name), no_wrap=True)
    for row in rows[1:]:
        table.add_row(*map(escape, row))
    Console(highlight=False, width=max(console.width, _width(rows))).print(table)


def _width(rows: list[list[str]]) -> int:
    longest = [max(len(line) for cell in column for line in cell.split("\n")) for column in zip(*rows, strict=True)]
    return sum(longest) + 2 * len(longest) + 2
