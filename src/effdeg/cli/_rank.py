"""``effdeg rank``: how well measures rank a pool of models by generalization."""

import re
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from effdeg._utils.files import write_figure
from effdeg.cli import _options as o
from effdeg.cli._output import check_plot, print_json, print_notes, print_table, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from effdeg import pools


@dataclass(frozen=True)
class RankOptions:
    """Which columns to rank and how, under the names of :func:`pools.rank`'s arguments."""

    target: Annotated[
        str, typer.Option(help="The column to predict; larger is worse. A leading minus reverses it.")
    ] = "gap"
    hyperparameters: Annotated[list[str] | None, o.option("--by", help="A hyperparameter; repeat for several.")] = None
    clusters: Annotated[
        list[str] | None,
        o.option(
            "--cluster",
            help="Resample models with equal values of this hyperparameter together; repeat for several. Default: all.",
        ),
    ] = None
    measures: Annotated[
        list[str] | None,
        o.option(
            "--measure",
            help="A measure to rank; a leading minus (-margin) reverses it; repeat for several. Default: all columns "
            "of numbers, reversed where effdeg knows that larger is better.",
        ),
    ] = None
    strata: Annotated[
        list[str] | None,
        o.option("--within", help="Rank within each value of this column, such as a recipe, and over all of them."),
    ] = None
    variants: Annotated[
        list[str] | None,
        o.option(help="Correct the best of several variants for the choice: NAME=PATTERN, as in 'sharpness=sharp*'."),
    ] = None
    fit: Annotated[
        float | None, o.option(help="Leave out models whose train_accuracy is below this, such as 0.99.")
    ] = None
    resamples: Annotated[int, typer.Option(help="Resamples of the models, for the intervals; 100 or more.")] = 2000


@o.unbundle
def rank(
    table: Annotated[
        Path, o.argument(help="**.csv** or **.parquet**, one row per model: hyperparameters, measures, the gap.")
    ],
    *,
    options: RankOptions,
    plot: Annotated[
        Path | None,
        o.option(
            help="Save a figure to this file (.png, .pdf, .svg). With --within, one figure per stratum, whose name is "
            "added."
        ),
    ] = None,
    json: o.Json = False,
) -> None:
    """Rank measures by how well they order models by their generalization gap.

    Correlations have intervals. With hyperparameters (--by), measures are also scored among models that differ in
    only one of them. With --within, models are compared only within strata.
    """
    check_plot(plot)
    from effdeg import pools

    given = {name: value for name, value in asdict(options).items() if value not in (None, [])}
    if options.variants:
        given["variants"] = _read_variants(options.variants)
    ranked = pools.rank(table, **given)
    if not any(each.pool.measures for each in (ranked, *ranked.strata.values())):
        reasons = [f"{name} is {reason.partition(':')[0]}" for name, reason in ranked.pool.undefined.items()]
        raise ValueError(
            f"no measure in {table} can be ranked: {'; '.join(reasons)}. A correlation needs numbers that differ."
        )
    console = Console(highlight=False, quiet=json)
    if json:
        print_json(ranked.to_dict())
    for title, rows in ranked.tables():
        print_table(console, title, rows)
    console.print(f"[dim]{ranked.legend()}[/]")
    print_notes(console, ranked.warnings())
    if plot is not None:
        for file, figure in _plot(ranked, plot).items():
            write(file, partial(write_figure, figure), console)


def _read_variants(texts: list[str]) -> dict[str, list[str]]:
    families: dict[str, list[str]] = {}
    for text in texts:
        family, equals, pattern = text.partition("=")
        if not (family and equals and pattern):
            raise ValueError(f"--variants {text}: expected NAME=PATTERN, such as 'sharpness=sharpness@*'.")
        families.setdefault(family, []).append(pattern)
    return families


def _plot(ranked: "pools.Ranking", file: Path) -> "dict[Path, Figure]":
    """Make the figures: one, or one for each stratum, whose name is added to the file's."""
    if not ranked.strata:
        return {file: ranked.plot()}
    figures = ranked.plot_strata()
    slugs = [re.sub(r"[^\w.=+-]+", "-", stratum) for stratum in figures]
    # Names that differ only in characters that a file name cannot have are numbered.
    slugs = [slug if slugs.count(slug) == 1 else f"{slug}-{index}" for index, slug in enumerate(slugs, 1)]
    return {file.with_stem(f"{file.stem}-{slug}"): each for slug, each in zip(slugs, figures.values(), strict=True)}
