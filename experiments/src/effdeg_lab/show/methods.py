"""Compare methods by their accuracy, at equal epochs and at equal time, with the paper's order."""

import math
from dataclasses import dataclass, replace
from itertools import combinations
from typing import ClassVar

from effdeg_lab.core.recipe import Study, StudyFigure
from effdeg_lab.core.results import MethodRuns, Results
from effdeg_lab.core.runs import Run
from effdeg_lab.show.columns import (
    DEGREE,
    ROUGH,
    MethodTable,
    format_duration,
    format_points,
    is_rough,
    list_notes,
    list_values,
    read_curve,
    tested_on,
    write_sweep_command,
)
from effdeg_lab.show.figures import Figure, Label, add_grid, label_ends, open_figure, plot_seeds, styles_of
from effdeg_lab.show.probabilities import list_scores
from effdeg_lab.show.tables import NOTHING, Table, bold_largest
from effdeg_lab.show.verdicts import Verdict, judge, judge_all

# If the paper gives no spread, methods closer than this many points count as not distinguished: the spreads that it
# does give for such networks range from 0.1 to 1.5 points.
_UNSTATED_SPREAD = 1.0


@dataclass(frozen=True)
class Methods(Study):
    """Compares methods by their accuracy.

    The claim is the paper's order: of any two methods that differ by more than their spread in the paper, the same one
    must be ahead here. If no two do, none may differ by more than that spread here.
    """

    candidate: str | None = None  # whose gain over the first method is shown; by default the best one in the paper
    needs: ClassVar[str | None] = "test_accuracy"

    def claim(self, results: Results) -> Verdict:
        candidate = results.find(self.candidate) if self.candidate else max(results.done, key=_reported_mean)
        reported = [each for each in results.methods if each.method.paper]
        done = sorted((each for each in reported if each.runs), key=_reported_mean, reverse=True)
        if len(done) < 2:
            gain = judge_difference(results, candidate, results.methods[0])
            return replace(gain, word="not decided" if reported else "no claim")
        # The first of several undecided pairs is shown.
        pairs = sorted(combinations(done, 2), key=lambda pair: {*pair} != {candidate, results.methods[0]})
        apart = [pair for pair in pairs if _reported_mean(pair[0]) - _reported_mean(pair[1]) > _reported_spread(*pair)]
        if apart:
            verdict = judge_all(judge_difference(results, *pair, above=0.0) for pair in apart)
        else:
            spreads = [(pair, _reported_spread(*pair)) for pair in pairs]
            verdict = judge_all(
                judge_difference(results, *pair, above=-spread, below=spread) for pair, spread in spreads
            )
        incomplete = len(done) < len(reported) and verdict.word == "holds"
        return replace(verdict, word="not decided") if incomplete else verdict

    def tables(self, results: Results) -> list[Table]:
        times = [_list_times(results)] if _is_timed(results) else []
        return [_list_accuracies(results), *times, *list_all_scores(results)]

    def figures(self, results: Results) -> list[StudyFigure]:
        return [figure for part in results.split() for figure in _list_curves(part)]

    def headline(self, run: Run) -> str:
        return f"{100 * run.value('test_accuracy'):.2f}%"


def _list_curves(results: Results) -> list[StudyFigure]:
    """Return the figure of curves during training; none if there is nothing to compare."""
    curves = [read_curve(each, "epoch", "test_accuracy") for each in results.done]
    if len(results.done) < 2 or all(curve is None for curve in curves):
        return []
    caption = f"{results.point}: {tested_on(results)}" if results.point else tested_on(results).capitalize()
    caption += " accuracy by epochs"
    caption += ", by time" if _is_timed(results) else ""
    caption += ", and effective degree on fewer paths than at the end" if _is_tracked(results) else ""
    caption += "." if len(results.seeds) == 1 else ". Thin lines are single seeds."
    if _has_own_epochs(results) and any(each.method.paper for each in results.done):
        caption += " Hollow squares are the paper's accuracies after as many epochs."
    name = f"curves-{results.point.replace(' ', '-')}".rstrip("-")
    return [StudyFigure(name, caption, lambda theme: _plot_curves(results, theme))]


def judge_difference(
    results: Results,
    one: MethodRuns,
    other: MethodRuns,
    *,
    key: str = "test_accuracy",
    factor: float = 100,
    unit: str = "points",
    **bounds: float,
) -> Verdict:
    """Judge the difference between two methods, by default in points of accuracy on the test set."""
    difference = results.difference(one, other, key=key)
    if difference is None:
        return Verdict("not decided")
    interval = difference.interval and (factor * difference.interval[0], factor * difference.interval[1])
    seeds = " (one seed)" if min(len(each.runs) for each in (one, other)) == 1 else ""
    quantity = f"{one.method.title} minus {other.method.title}, {unit}{seeds}"
    return judge(quantity, factor * difference.value, interval, difference.reason, **bounds)


def _reported_mean(each: MethodRuns) -> float:
    return each.method.paper.mean if each.method.paper else -math.inf


def _reported_spread(one: MethodRuns, other: MethodRuns) -> float:
    """Return the spread of a difference in the paper, in percentage points, or a substitute if it gives none."""
    stds = [each.method.paper and each.method.paper.std for each in (one, other)]
    return _UNSTATED_SPREAD if None in stds else math.hypot(*(std or 0.0 for std in stds))


def _is_timed(results: Results) -> bool:
    """Return whether any runs have times; those that shared a device do not."""
    return any(each.time() is not None for each in results.done)


def _is_tracked(results: Results) -> bool:
    return any(read_curve(each, "epoch", DEGREE) is not None for each in results.done)


def list_all_scores(results: Results) -> list[Table]:
    """Return the scores of probabilities and on corrupted images, also at equal time if those differ."""
    title = f"Probabilities and shifts, {tested_on(results)} examples: {results.heading}"
    tables, at = list_scores(title, results, results.done), results.equal_time
    if at is not None and any(epochs != results.epochs for _, epochs in at.reached.values()):
        title = f"Probabilities and shifts at equal time: {format_duration(at.seconds)}, that of {at.reference.title}"
        methods = [at.reached[each.method.name][0] for each in results.methods if each.method.name in at.reached]
        tables += list_scores(title, results, methods)
    return tables


def _list_accuracies(results: Results) -> Table:
    table, papers = MethodTable(results), [each.method.paper for each in results.methods]
    if any(papers):
        table.add("paper, %", map(format_points, papers))
        table.bold |= bold_largest(papers, 1)
    table.add_accuracies(bold=True)
    table.add_differences(f"against {table.first}")
    training = (each.spread("train_accuracy") for each in results.methods)
    table.add("training, %", (f"{100 * spread.mean:.2f}" if spread else NOTHING for spread in training))
    table.add_degrees()
    if results.varies_epochs:
        table.add("epochs", (str(each.epochs or NOTHING) for each in results.methods))
    table.add_seeds()
    differences = map(results.difference, results.methods)
    intervals = ["Differences have 95% intervals; * excludes zero."]
    notes = list_notes(results) + (intervals if any(each and each.interval for each in differences) else [])
    title = "Accuracy" if results.varies_epochs else "At equal epochs"
    return table.make(f"{title}: {results.heading}", notes)


def _list_times(results: Results) -> Table:
    methods, table, at, rough = results.methods, MethodTable(results), results.equal_time, is_rough(results)
    table.add("values", map(list_values, methods))
    # Runs that shared their device have no time.
    per_epoch = (format_duration(each.time("seconds_per_epoch")) if each.runs else each.state for each in methods)
    table.add("per epoch", per_epoch)
    table.add_prices()
    table.add("in all", (format_duration(each.time()) for each in methods))
    title, notes = "What it costs", [ROUGH] if rough else []
    if at is not None:
        title += f", and at equal time: {format_duration(at.seconds)}, that of {at.reference.title}"
        notes.append("At equal time: the longest of a method's finished runs that took 80 to 105% of that time.")
        timed = [at.reached.get(each.method.name) for each in methods]
        reached = [pair and pair[0].spread() for pair in timed]
        took = {name: f"took {format_duration(each.time())}" for name, each in at.longer.items()}
        absent = [took.get(each.method.name, "not run") for each in methods]
        table.add("at equal time, %", map(format_points, reached, absent))
        table.add("in epochs", (str(pair[0].epochs) if pair else NOTHING for pair in timed))
        steps = {each.method.name: each.time("milliseconds_per_step") or 0.0 for each in results.done}
        missing = [step for name, step in steps.items() if name not in at.reached]
        # No method is the best as long as a cheaper one was not run at equal time.
        if not rough and min(missing, default=math.inf) >= steps[at.reference.name]:
            table.bold |= bold_largest(reached, 5)
        if missing:
            command = f"{write_sweep_command(results.recipe)} --no-tune --equal-time {at.reference.name}"
            notes.append(f"To run what is missing: `{command}`, and `--set` for what differs from the recipe.")
    if len(results.machines) > 1:
        table.add("device", (", ".join(each.machines) or NOTHING for each in methods))
    return table.make(title, notes)


def _has_own_epochs(results: Results) -> bool:
    """Return whether runs have as many epochs as the paper's, so that its accuracies belong in their curves."""
    recipe = results.recipe
    epochs = recipe.paper_epochs or recipe.settings.to_dict().get("epochs", results.epochs)
    return bool(epochs == results.epochs)


def _plot_curves(results: Results, theme: str) -> Figure:
    minutes = max(each.time() or 0.0 for each in results.done) > 120
    time = f"{'minutes' if minutes else 'seconds'} of training on {results.machines[0]}"
    panels = [(f"{tested_on(results)} accuracy, %", "epoch", "epoch", "test_accuracy", (1, 0.01))]
    if _is_timed(results):
        panels.append(("the same by time", time, "seconds", "test_accuracy", (60 if minutes else 1, 0.01)))
    if _is_tracked(results):
        panels.append(("effective degree", "epoch", "epoch", DEGREE, (1, 1)))
    with open_figure(theme, (5.5 * len(panels), 3.9)) as (look, figure):
        for axes, (title, x_title, along, what, units) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            labels = []
            for each in results.done:
                curve, style = read_curve(each, along, what), styles_of(results.recipe, theme)[each.method.name]
                if curve is not None and (along == "epoch" or each.time() is not None):
                    x, y = plot_seeds(axes, curve / units, style)[-1]
                    labels.append(Label(f"{each.method.title} {y:.2f}", x, y, style.color))
                    if what == "test_accuracy" and each.method.paper and _has_own_epochs(results):
                        axes.plot(x, each.method.paper.mean, "s", mec=style.color, mfc=look.ground, zorder=3)
            if what == "test_accuracy" and labels:  # zoom in on the end of training
                low, high = min(label.y for label in labels), max(label.y for label in labels)
                axes.set_ylim(max(axes.get_ylim()[0], low - max(2.5 * (high - low), 4.0)))
            axes.set(title=title, xlabel=x_title)
            add_grid(axes, look)
            label_ends(axes, labels)
    return figure
