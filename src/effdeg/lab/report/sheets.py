"""The tables of a report."""

import math
from collections.abc import Sequence
from typing import Any

from effdeg.lab.matches import settings_of
from effdeg.lab.recipe import Recipe, Reported
from effdeg.lab.report.blocks import Block
from effdeg.lab.report.equal_time import EqualTime
from effdeg.lab.report.lines import Line, machine_of, seed_of, value_in
from effdeg.lab.report.notes import scale_notes, settings_apart, spread_notes, strength_notes
from effdeg.lab.report.pool import REFERENCE, ModelPool
from effdeg.lab.report.pool_notes import pool_notes
from effdeg.lab.report.prices import LIMIT, best_buy, full_line, price_list
from effdeg.lab.report.result import RecipeResult
from effdeg.lab.report.sheet import NOTHING, Sheet
from effdeg.lab.report.spread import Spread
from effdeg.lab.report.time_notes import equal_time_notes, rough_notes
from effdeg.lab.report.wording import degree, duration, gain, listed, percent, points, seeds, strengths
from effdeg.lab.settings import to_dict
from effdeg.lab.store import Record
from effdeg.ranking import Statistic


def block_sheets(block: Block) -> list[Sheet]:
    """Return the tables of a block."""
    if block.pool is not None:
        return [_scores(block, block.pool)]
    if block.recipe.study is not None:
        return block.recipe.study.sheets(block) if block.done else []
    if block.recipe.shows == "prices":
        return [_prices(block)]
    # Runs that shared a GPU have no times.
    timed = not block.done or any(line.seconds is not None for line in block.done)
    return [_accuracies(block), *([_times(block)] if timed else [])]


def heading(block: Block) -> str:
    """Describe what was done: epochs, seeds and machines."""
    parts = [f"{block.epochs} epochs"] if block.epochs else []
    if block.seeds:
        parts.append(f"{'seed' if len(block.seeds) == 1 else 'seeds'} {', '.join(map(str, block.seeds))}")
    return ", ".join([*parts, *block.machines])


def further(result: RecipeResult) -> list[str]:
    """Describe what else was run, which has no table of its own."""
    found = []
    for block in result.further:
        for line in block.done:
            given = f", {strengths(line.given)}" if line.given else ""
            accuracy = points(Spread.of(list(line.accuracies.values())))
            time = NOTHING if line.seconds is None else duration(line.seconds)
            found.append(
                f"{line.row.title}, {block.epochs} epochs{given}: {accuracy}% "
                f"({seeds(len(line.runs))}, {time}, {listed(line.machines)})"
            )
    return found


def tuning_sheet(result: RecipeResult) -> Sheet | None:
    """Show what was tried to tune the lines, and what was chosen; None if nothing was tuned."""
    rows: list[tuple[str, ...]] = []
    strong: set[tuple[int, int]] = set()
    for row in result.recipe.rows:
        choice = result.tuning.get(row.name)
        for tried, score in choice.tried if choice else []:
            if choice and tried == choice.changes:
                strong |= {(len(rows), 1), (len(rows), 3)}
            rows.append((row.title, strengths(tried), str(choice.epochs if choice else NOTHING), percent(score)))
    if not rows:
        return None
    title = f"Tuning on {result.recipe.tuning['held_out']:,} held-out training examples"
    return Sheet(title, ("line", "strength", "epochs", "held-out accuracy"), tuple(rows), strong=frozenset(strong))


def runs_sheet(result: RecipeResult) -> Sheet:
    """List the runs, those that tuned too: what they are called, how they differ from their line, where they ran."""
    rows = []
    places = [row.name for row in result.recipe.rows]
    marked = [(*each, "") for each in result.runs] + [(*each, " (tuning)") for each in result.tuning_runs]
    ordered = sorted(
        marked, key=lambda each: (places.index(each[0]), each[2], value_in(each[1], "epochs"), seed_of(each[1]))
    )
    for name, run, mark in ordered:
        row = result.recipe.row(name)
        own = result.recipe.resolved(row, result.recipe.tuning if mark else {})
        found = settings_of(run, type(result.recipe.settings))
        versions = [f"{key} {run.environment[key]}" for key in ("torch", "python", "effdeg") if key in run.environment]
        rows.append((
            run.folder.name,
            row.title + mark,
            str(seed_of(run)),
            "; ".join(settings_apart(to_dict(own), found)) or NOTHING,
            _score(result.recipe, run),
            NOTHING if math.isnan(seconds := value_in(run, "seconds")) else duration(seconds),
            machine_of(run),
            ", ".join(versions),
        ))
    head = ("run", "line", "seed", "differs from the recipe", "result", "time", "device", "versions")
    return Sheet("By line, epochs and seed", head, tuple(rows))


def _score(recipe: Recipe[Any], run: Record) -> str:
    return recipe.study.score(run) if recipe.study else percent(value_in(run, "test_accuracy"))


def _accuracies(block: Block) -> Sheet:
    first = block.lines[0].row.title
    columns: dict[str, list[str]] = {"": [line.row.title for line in block.lines]}
    strong = frozenset[tuple[int, int]]()
    if any(line.row.paper for line in block.lines):
        strong |= _largest([line.row.paper.mean if line.row.paper else None for line in block.lines], len(columns))
        columns[f"{block.paper}, %"] = [_reported(line.row.paper) for line in block.lines]
    strong |= _largest([line.accuracy.mean if line.accuracy else None for line in block.lines], len(columns))
    columns[_here(block)] = [_accuracy(line) for line in block.lines]
    differences = [block.difference(line) for line in block.lines]
    columns[f"against {first}"] = [gain(each) if each else NOTHING for each in differences]
    columns["training, %"] = [
        NOTHING if line.train_accuracy is None else f"{100 * line.train_accuracy:.2f}" for line in block.lines
    ]
    columns["ED"] = [_degree(line) for line in block.lines]
    columns |= _seeds(block, block.lines)
    notes = spread_notes(block)
    if any(each and each.interval for each in differences):
        notes.append("Differences have 95% intervals; * leaves out zero.")
    rows = tuple(zip(*columns.values(), strict=True))
    return Sheet(f"At equal epochs: {heading(block)}", tuple(columns), rows, (*notes, *scale_notes(block)), strong)


def _times(block: Block) -> Sheet:
    at = block.equal_time
    title = "What it costs"
    columns: dict[str, list[str]] = {
        "": [line.row.title for line in block.lines],
        "strength": [strengths(line.given) or NOTHING for line in block.lines],
        "per epoch": [
            line.state if line.seconds_per_epoch is None else duration(line.seconds_per_epoch) for line in block.lines
        ],
        "step": [_price(block.price(line)) for line in block.lines],
        "in all": [NOTHING if line.seconds is None else duration(line.seconds) for line in block.lines],
    }
    strong = frozenset[tuple[int, int]]()
    notes = [*strength_notes(block), *rough_notes(block)]
    if at is not None:
        reference = block.line(at.reference)
        title += f", and at equal time: {duration(at.seconds)}, that of {reference.row.title}"
        accuracies = [at.accuracy(line.row.name) for line in block.lines]
        cheaper = [line for line in block.done if _cheaper(line, reference)]
        if not block.rough and all(line.row.name in at.lines for line in cheaper):
            strong = _largest([each.mean if each else None for each in accuracies], len(columns))
        columns["at equal time, %"] = [
            points(accuracy) if accuracy else _no_equal_time(at, line)
            for accuracy, line in zip(accuracies, block.lines, strict=True)
        ]
        columns["in epochs"] = [str(at.epochs(line.row.name) or NOTHING) for line in block.lines]
        notes += equal_time_notes(block, at)
    if len(block.machines) > 1:
        columns["device"] = [listed(line.machines) or NOTHING for line in block.lines]
    return Sheet(title, tuple(columns), tuple(zip(*columns.values(), strict=True)), tuple(notes), strong)


def _prices(block: Block) -> Sheet:
    listing, best = price_list(block), best_buy(block)
    lines = [priced.line for priced in listing]
    stars = [" ★" * (best is not None and line is best.line) for line in lines]
    columns: dict[str, list[str]] = {
        "": [line.row.title + star for line, star in zip(lines, stars, strict=True)],
        "step": [_price(priced.price) for priced in listing],
        _here(block): [_accuracy(line) for line in lines],
        "share of the full gain": [NOTHING if each.share is None else f"{each.share:.0%}" for each in listing],
        "ED": [_degree(line) for line in lines],
        "strength": [strengths(line.given) or NOTHING for line in lines],
        **_seeds(block, lines),
    }
    notes = [
        f"The step is relative to that of {block.lines[0].row.title}, averaged over all of training; the full gain is "
        f"that of “{full_line(block).row.title}”.",
        *([f"★ The most accurate at {LIMIT} times the plain step or less."] if best else []),
        *spread_notes(block),
        *strength_notes(block),
        *rough_notes(block),
        *scale_notes(block),
    ]
    strong = frozenset(
        (row, column) for row, star in enumerate(stars) if star and not block.rough for column in range(4)
    )
    rows = tuple(zip(*columns.values(), strict=True))
    return Sheet(f"By price: {heading(block)}", tuple(columns), rows, tuple(notes), strong)


def _scores(block: Block, pool: ModelPool) -> Sheet:
    head = ("measure", "Pearson", "given training", "Spearman", "Kendall", "Ψ")
    scores = list(pool.ranking.scores.values()) if pool.ranking else []
    papers = {score.measure for score in pool.best.values()}
    rows = tuple(
        (
            "training accuracy (for reference)" if score.measure == REFERENCE else score.measure,
            _statistic(score.pearson),
            NOTHING if (left := pool.given_training.get(score.measure)) is None else f"{left:z.2f}",
            *map(_statistic, (score.spearman, score.kendall, score.psi)),
        )
        for score in scores
    )
    strong = frozenset((row, 0) for row, score in enumerate(scores) if score.measure in papers)
    title = f"{len(pool.table)} models: {heading(block)}" if pool.table else "not run"
    notes = (*pool_notes(pool), *scale_notes(block))
    return Sheet(title, head, rows or (("not run", *[NOTHING] * 5),), notes, strong, frozenset({3, 5}))


def _no_equal_time(at: EqualTime, line: Line) -> str:
    longer = at.longer.get(line.row.name)
    return f"took {duration(longer.seconds)}" if longer and longer.seconds else "not run"


def _cheaper(line: Line, reference: Line) -> bool:
    return (line.milliseconds_per_step or 0.0) < (reference.milliseconds_per_step or 0.0)


def _seeds(block: Block, lines: Sequence[Line]) -> dict[str, list[str]]:
    """Return the column of seeds; none where all lines have the same, which the heading names."""
    if all(list(line.accuracies) == block.seeds for line in block.done):
        return {}
    return {"seeds": [str(len(line.runs) or NOTHING) for line in lines]}


def _here(block: Block) -> str:
    return "here, %" if block.tested_on == "test" else "here, held-out, %"


def _accuracy(line: Line) -> str:
    return points(line.accuracy) if line.accuracy else line.state


def _price(price: float | None) -> str:
    return NOTHING if price is None else f"{price:.2f}×"


def _degree(line: Line) -> str:
    return NOTHING if line.effective_degree is None else degree(line.effective_degree)


def _statistic(statistic: Statistic | None) -> str:
    return NOTHING if statistic is None else str(statistic).replace(" to ", "…")


def _reported(paper: Reported | None) -> str:
    if paper is None:
        return NOTHING
    return f"{paper.mean:.2f}" + ("" if paper.std is None else f" ± {paper.std:.2f}")


def _largest(values: Sequence[float | None], column: int) -> frozenset[tuple[int, int]]:
    known = [value for value in values if value is not None]
    return frozenset((row, column) for row, value in enumerate(values) if known[1:] and value == max(known))
