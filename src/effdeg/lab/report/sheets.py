"""The tables of a report, as heads and cells of text; how they are set is another matter."""

from collections.abc import Sequence
from dataclasses import dataclass

from effdeg.lab.matches import settings_of
from effdeg.lab.recipe import Reported
from effdeg.lab.report.blocks import Block
from effdeg.lab.report.lines import Line, machine_of, seed_of, value_in
from effdeg.lab.report.notes import scale_notes, settings_apart, strength_notes
from effdeg.lab.report.pool import ModelPool
from effdeg.lab.report.prices import LIMIT, best_buy, full_line, price_list
from effdeg.lab.report.result import Result
from effdeg.lab.report.spread import Spread
from effdeg.lab.report.wording import duration, gain, listed, percent, points, seeds, strengths
from effdeg.lab.settings import to_dict
from effdeg.ranking import Statistic

NOTHING = "–"


@dataclass(frozen=True)
class Sheet:
    """A table.

    Attributes:
        title: What it shows.
        head: The heads of its columns; the first column names the lines.
        rows: Their cells.
        notes: What a reader should know, in sentences.
        strong: The rows and columns of the cells that stand out.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    strong: frozenset[tuple[int, int]] = frozenset()


def block_sheets(block: Block) -> list[Sheet]:
    """Give the tables of a block."""
    if block.pool is not None:
        return [_scores(block, block.pool)]
    if block.recipe.shows == "prices":
        return [_prices(block)]
    return [_accuracies(block), _times(block)]


def heading(block: Block) -> str:
    """Say what was done: epochs, seeds and machines."""
    parts = [f"{block.epochs} epochs"]
    if block.seeds:
        parts.append(f"{'seed' if len(block.seeds) == 1 else 'seeds'} {', '.join(map(str, block.seeds))}")
    return ", ".join([*parts, *block.machines])


def further(result: Result) -> list[str]:
    """Say what else was run, which has no table of its own."""
    found = []
    for block in result.further:
        for line in block.done:
            given = f", {strengths(line.strengths)}" if line.strengths else ""
            accuracy = points(Spread.of(list(line.accuracies.values())))
            time = NOTHING if line.seconds is None else duration(line.seconds)
            found.append(
                f"{line.row.title}, {block.epochs} epochs{given}: {accuracy}% "
                f"({seeds(len(line.runs))}, {time}, {listed(line.machines)})"
            )
    return found


def tuning_sheet(result: Result) -> Sheet | None:
    """Show what was tried to tune the lines, and what was chosen; None if nothing was tuned."""
    rows: list[tuple[str, ...]] = []
    strong: set[tuple[int, int]] = set()
    for row in result.recipe.rows:
        choice = result.tuning.get(row.name)
        for tried, score in choice.tried if choice else []:
            if choice and tried == choice.changes:
                strong |= {(len(rows), 1), (len(rows), 2)}
            rows.append((row.title, strengths(tried), percent(score)))
    if not rows:
        return None
    epochs = sorted({choice.epochs for choice in result.tuning.values()})
    held_out = result.recipe.tuning["held_out"]
    title = f"Tuning on {held_out:,} held-out training examples, {listed(list(map(str, epochs)))} epochs"
    return Sheet(title, ("line", "strength", "held-out accuracy"), tuple(rows), strong=frozenset(strong))


def runs_sheet(result: Result) -> Sheet:
    """List the runs: what they are called, how they differ from their line, and where they were done."""
    rows = []
    places = [row.name for row in result.recipe.rows]
    ordered = sorted(
        result.runs, key=lambda each: (places.index(each[0]), value_in(each[1], "epochs"), seed_of(each[1]))
    )
    for name, run in ordered:
        row = result.recipe.row(name)
        own, found = result.recipe.resolved(row, {}), settings_of(run, type(result.recipe.settings))
        versions = [f"{key} {run.environment[key]}" for key in ("torch", "python", "effdeg") if key in run.environment]
        rows.append((
            run.folder.name,
            row.title,
            str(seed_of(run)),
            "; ".join(settings_apart(to_dict(own), found)) or NOTHING,
            percent(value_in(run, "test_accuracy")),
            duration(value_in(run, "seconds")),
            machine_of(run),
            ", ".join(versions),
        ))
    head = ("run", "line", "seed", "differs from the recipe", "accuracy", "time", "device", "versions")
    return Sheet("By line, epochs and seed", head, tuple(rows))


def _accuracies(block: Block) -> Sheet:
    first = block.lines[0].row.title
    columns: dict[str, list[str]] = {"": [line.row.title for line in block.lines]}
    strong = frozenset[tuple[int, int]]()
    if any(line.row.paper for line in block.lines):
        strong |= _largest([line.row.paper.mean if line.row.paper else None for line in block.lines], len(columns))
        columns["paper, %"] = [_reported(line.row.paper) for line in block.lines]
    strong |= _largest([line.accuracy.mean if line.accuracy else None for line in block.lines], len(columns))
    columns["here, %"] = [points(line.accuracy) if line.accuracy else line.state for line in block.lines]
    differences = [block.difference(line) for line in block.lines]
    columns[f"against {first}"] = [gain(each) if each else NOTHING for each in differences]
    columns["training, %"] = [
        NOTHING if line.train_accuracy is None else f"{100 * line.train_accuracy:.2f}" for line in block.lines
    ]
    columns["effective degree"] = [_degree(line) for line in block.lines]
    columns["seeds"] = [", ".join(map(str, line.accuracies)) or NOTHING for line in block.lines]
    notes = []
    if any(each and each.interval for each in differences):
        notes.append("Spreads are standard deviations over seeds. Differences have 95% intervals; * leaves out zero.")
    rows = tuple(zip(*columns.values(), strict=True))
    return Sheet(f"At equal epochs: {heading(block)}", tuple(columns), rows, (*notes, *scale_notes(block)), strong)


def _times(block: Block) -> Sheet:
    at = block.equal_time
    title = "What it costs"
    head = ["", "strength", "per epoch", "step", "in all"]
    if at is not None:
        title += f", and at equal time: {duration(at.seconds)}, that of {block.line(at.reference).row.title}"
        head += ["at equal time, %", "in epochs"]
    several = len(block.machines) > 1
    head += ["device"] * several
    rows = []
    for line in block.lines:
        price = block.price(line)
        cells = [
            strengths(line.strengths) if line.runs and line.strengths else NOTHING,
            line.state if line.seconds_per_epoch is None else duration(line.seconds_per_epoch),
            NOTHING if price is None else f"{price:.2f}×",
            NOTHING if line.seconds is None else duration(line.seconds),
        ]
        if at is not None:
            accuracy = at.accuracy(line.row.name)
            cells += [points(accuracy) if accuracy else "not run", str(at.epochs(line.row.name) or NOTHING)]
        cells += [listed(line.machines) or NOTHING] * several
        rows.append((line.row.title, *cells))
    strong = frozenset[tuple[int, int]]()
    notes = strength_notes(block)
    if at is not None:
        means = [at.accuracy(line.row.name) for line in block.lines]
        strong = _largest([each.mean if each else None for each in means], 5)
        notes.append(
            "At equal time every line is shown by the longest of its finished runs that took 80 to 105% of that time; "
            "where there is none, it was not run."
        )
    return Sheet(title, tuple(head), tuple(rows), tuple(notes), strong)


def _prices(block: Block) -> Sheet:
    full, best = full_line(block), best_buy(block)
    head = ("", "step", "here, %", "share of the full gain", "effective degree", "strength", "seeds")
    rows: list[tuple[str, ...]] = []
    strong: set[tuple[int, int]] = set()
    for priced in price_list(block):
        line = priced.line
        if best is not None and line is best.line:
            strong |= {(len(rows), column) for column in range(4)}
        rows.append((
            line.row.title + " ★" * (best is not None and line is best.line),
            NOTHING if priced.price is None else f"{priced.price:.2f}×",
            points(line.accuracy) if line.accuracy else line.state,
            NOTHING if priced.share is None else f"{priced.share:.0%}",
            _degree(line),
            strengths(line.strengths) if line.runs and line.strengths else NOTHING,
            ", ".join(map(str, line.accuracies)) or NOTHING,
        ))
    notes = [
        f"The step is relative to that of {block.lines[0].row.title}, averaged over all of training; the full gain is "
        f"that of “{full.row.title}”.",
        *([f"★ The most accurate at {LIMIT} times the plain step or less."] if best else []),
        *strength_notes(block),
        *scale_notes(block),
    ]
    return Sheet(f"By price: {heading(block)}", head, tuple(rows), tuple(notes), frozenset(strong))


def _scores(block: Block, pool: ModelPool) -> Sheet:
    head = ("measure", "Pearson", "Spearman", "Kendall", "Ψ")
    rows: list[tuple[str, ...]] = []
    strong: set[tuple[int, int]] = set()
    notes: list[str] = []
    if pool.ranking is not None:
        papers = {score.measure for score in pool.best.values()}
        for score in pool.ranking.scores.values():
            if score.measure in papers:
                strong.add((len(rows), 0))
            found = (score.pearson, score.spearman, score.kendall, score.psi)
            rows.append((score.measure, *map(_statistic, found)))
        notes = [
            "In bold the paper's four measures, each in the variant and at the radius with the highest Pearson "
            "correlation, as in the paper.",
            pool.ranking.legend().partition(";")[0].removesuffix(".") + "; Ψ: granulated Kendall.",
            *(note.removeprefix("note: ") for note in pool.ranking.warnings()),
        ]
        gaps = [row["gap"] for row in pool.table]
        notes.append(f"Gaps go from {percent(min(gaps))} to {percent(max(gaps))}.")
        if pool.inert:
            notes.append(
                f"{listed(pool.inert)} {'has' if len(pool.inert) == 1 else 'have'} less than 1% of the gap's variance: "
                "models that differ there alone are resampled together."
            )
        notes += [f"{advantage}." for advantage in pool.advantages()]
    if len(pool.table) < pool.complete:
        notes.insert(0, f"{len(pool.table)} of {pool.complete} models were run.")
    title = f"{len(pool.table)} models: {heading(block)}" if pool.table else "not run"
    return Sheet(
        title, head, tuple(rows) or (("not run", *[NOTHING] * 4),), (*notes, *scale_notes(block)), frozenset(strong)
    )


def _degree(line: Line) -> str:
    return NOTHING if line.effective_degree is None else "{:.3g} ± {:.1g}".format(*line.effective_degree)


def _statistic(statistic: Statistic | None) -> str:
    return NOTHING if statistic is None else str(statistic).replace(" to ", "…")


def _reported(paper: Reported | None) -> str:
    if paper is None:
        return NOTHING
    return f"{paper.mean:.2f}" + ("" if paper.std is None else f" ± {paper.std:.2f}")


def _largest(values: Sequence[float | None], column: int) -> frozenset[tuple[int, int]]:
    known = [value for value in values if value is not None]
    return frozenset((row, column) for row, value in enumerate(values) if known[1:] and value == max(known))
