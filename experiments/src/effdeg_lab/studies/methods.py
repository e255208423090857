"""Methods by their accuracy: at equal epochs, at equal time, and in the paper's order."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from effdeg_lab.recipe import Recipe, Reported
from effdeg_lab.results import Difference, EqualTime, MethodRuns, Results, Spread
from effdeg_lab.runs import Run
from effdeg_lab.settings import format_setting
from effdeg_lab.studies import Study, StudyFigure
from effdeg_lab.tables import NOTHING, Table, bold_largest
from effdeg_lab.verdicts import Verdict, Word, judge, judge_all

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The paper's letters.
_SIGNS = {"alpha": "α", "rho": "ρ", "weight": "λ", "eta": "η"}
# Where the paper gives no spread, it does not distinguish methods that are closer than this many points: the spreads it
# does give for such networks range from 0.1 to 1.5 points.
_UNSTATED_SPREAD = 1.0
_SPREADS = "±: standard deviation over seeds for accuracies, standard error for effective degrees (ED)."
_INTERVALS = "Differences have 95% intervals; * leaves out zero."
ROUGH = "Times on a CPU are rough: other work on it slows some runs more than others."
_EQUAL_TIME = (
    "At equal time every method is shown by the longest of its finished runs that took 80 to 105% of that time."
)


@dataclass(frozen=True)
class Methods(Study):
    """Compares methods by their accuracy.

    The claim is the paper's order: of every two methods that the paper's numbers distinguish by more than their spread,
    the same one must be ahead here. Where the paper distinguishes none, none may be further apart than its spread.

    Attributes:
        candidate: The method of interest, whose gain over the first is the number that is shown; by default the one
            that the paper has highest.
    """

    candidate: str | None = None
    needs: ClassVar[str | None] = "test_accuracy"

    def claim(self, results: Results) -> Verdict:
        """Judge the paper's order, in the pairs that the paper's numbers distinguish."""
        reported = [each for each in results.methods if each.method.paper]
        done = [each for each in reported if each.runs]
        pairs = list(combinations(sorted(done, key=_reported_mean, reverse=True), 2))
        if not reported:
            return self._judge_gain(results, "no claim")
        if not pairs:
            return self._judge_gain(results, "not decided")
        candidate = self._find_candidate(results)
        # The first of several undecided pairs is the one that is shown.
        pairs.sort(key=lambda pair: {*pair} != {candidate, results.methods[0]})
        apart = [pair for pair in pairs if _reported_mean(pair[0]) - _reported_mean(pair[1]) > _reported_spread(*pair)]
        verdict = judge_all(_judge(results, *pair, above=0.0) for pair in apart)
        if not apart:
            spreads = [_reported_spread(*pair) for pair in pairs]
            verdict = judge_all(
                _judge(results, *pair, above=-spread, below=spread) for pair, spread in zip(pairs, spreads, strict=True)
            )
        incomplete = len(done) < len(reported) and verdict.word == "holds"
        return replace(verdict, word="not decided") if incomplete else verdict

    def tables(self, results: Results) -> list[Table]:
        """Return accuracies at equal epochs, then what each method costs and reaches at equal time."""
        # Runs that shared a device have no times.
        times = [_list_times(results)] if _are_timed(results) else []
        others = list_other_values(results)
        return [_list_accuracies(results), *times, *([others] if others else [])]

    def figures(self, results: Results) -> list[StudyFigure]:
        """Return accuracy along training, the final accuracies, and the effective degree along training."""
        if len(results.done) < 2:
            return []
        tested = tested_on(results).capitalize()
        found = []
        if any(_read_curve(each, "epoch", "test_accuracy") for each in results.done):
            along = "by epochs and by time" if _are_timed(results) else "by epochs"
            caption = f"{tested} accuracy during training, {along}. Thin lines are single seeds."
            found.append(StudyFigure("curves", caption, lambda theme: _plot_curves(results, theme)))
        caption = f"{tested} accuracy, and the paper's where it has one; bars are standard deviations over seeds."
        found.append(StudyFigure("accuracies", caption, lambda theme: _plot_accuracies(results, theme)))
        curves = [_read_curve(each, "epoch", "effective_degree") for each in results.done]
        if any(curve is not None and curve[0].shape[1] > 2 for curve in curves):
            caption = "The effective degree during training, measured more coarsely than in the table."
            found.append(StudyFigure("degrees", caption, lambda theme: _plot_degrees(results, theme)))
        return found

    def numbers(self, results: Results) -> dict[str, Any]:
        """Return accuracies, differences from the first method, times and prices, by method."""
        at = results.equal_time
        found = {}
        for each in results.done:
            spread, difference, degree = each.spread(), results.difference(each), read_degree(each)
            reached = at.found.get(each.method.name) if at else None
            at_time = reached and reached[0].spread()
            found[each.method.name] = {
                "accuracy": spread and asdict(spread),
                "difference": difference and asdict(difference),
                "effective_degree": degree and {"value": degree[0], "stderr": degree[1]},
                "seconds": each.time(),
                "milliseconds_per_step": each.time("milliseconds_per_step"),
                "price": measure_price(results, each),
                "at_equal_time": at_time and reached and asdict(at_time) | {"epochs": reached[1]},
            }
        time = at and {"reference": at.reference.name, "seconds": at.seconds}
        return {"by_method": found, "equal_time": time}

    def headline(self, run: Run) -> str:
        """Return the accuracy."""
        return f"{100 * run.value('test_accuracy'):.2f}%"

    def _find_candidate(self, results: Results) -> MethodRuns:
        return results.find(self.candidate) if self.candidate else max(results.done, key=_reported_mean)

    def _judge_gain(self, results: Results, word: Word) -> Verdict:
        candidate, first = self._find_candidate(results), results.methods[0]
        return replace(_judge(results, candidate, first), word=word)


def _judge(results: Results, one: MethodRuns, other: MethodRuns, **bounds: float) -> Verdict:
    difference = results.difference(one, other)
    if difference is None:
        return Verdict("not decided")
    interval = difference.interval and (100 * difference.interval[0], 100 * difference.interval[1])
    return judge(f"{one.method.title} over {other.method.title}, points:", 100 * difference.value, interval, **bounds)


def _reported_mean(each: MethodRuns) -> float:
    return each.method.paper.mean if each.method.paper else -math.inf


def _reported_spread(one: MethodRuns, other: MethodRuns) -> float:
    """Return the spread of a difference in the paper, in points of percent, or what replaces it."""
    stds = [each.method.paper and each.method.paper.std for each in (one, other)]
    return _UNSTATED_SPREAD if None in stds else math.hypot(*(std or 0.0 for std in stds))


def tested_on(results: Results) -> str:
    """Return what accuracies are of: the ``test`` set, or ``held-out`` training examples."""
    held_out = any(run.settings.get("held_out") for each in results.methods for run in each.runs)
    return "held-out" if held_out else "test"


def measure_price(results: Results, each: MethodRuns) -> float | None:
    """Return the time of a step relative to the first method's; None where the machines differ."""
    first = results.methods[0]
    step, plain = each.time("milliseconds_per_step"), first.time("milliseconds_per_step")
    return None if step is None or plain is None or each.machines != first.machines else step / plain


def read_degree(each: MethodRuns) -> tuple[float, float] | None:
    """Return the mean effective degree and its standard error by the paths measured; None if it was not measured."""
    value = each.spread("effective_degree.value")
    if value is None:
        return None
    errors = each.values("effective_degree.stderr").fillna(0.0)
    return value.mean, math.sqrt(math.fsum(errors**2)) / value.count


def format_points(spread: Spread | Reported) -> str:
    """Write an accuracy in points of percent, as the paper's tables do."""
    scale = 1 if isinstance(spread, Reported) else 100
    return f"{scale * spread.mean:.2f}" + ("" if spread.std is None else f" ± {scale * spread.std:.2f}")


def format_difference(difference: Difference | None) -> str:
    """Write a difference in points of percent, with its interval, and a star if that leaves out zero."""
    if difference is None or difference.interval is None:
        return NOTHING if difference is None else f"{100 * difference.value:+.2f}"
    low, high = (100 * end for end in difference.interval)
    return f"{100 * difference.value:+.2f} ({low:+.2f} to {high:+.2f}){'*' if difference.significant else ''}"


def format_degree(found: tuple[float, float] | None) -> str:
    """Write an effective degree with its standard error, to two decimals or as many as show the error."""
    if found is None:
        return NOTHING
    value, error = found
    smallest = error or abs(value) / 10
    decimals = max(2, math.ceil(-math.log10(smallest))) if smallest else 2
    return f"{value:.{decimals}f} ± {error:.{decimals}f}" if decimals <= 6 else f"{value:.3g} ± {error:.1g}"


def format_duration(seconds: float | None) -> str:
    """Write a time in the unit that suits it."""
    if seconds is None or math.isnan(seconds):
        return NOTHING
    if seconds < 90:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 5400 else f"{seconds / 3600:.3g} h"


def format_values(values: Mapping[str, Any]) -> str:
    """Write settings by the paper's letters."""
    return ", ".join(f"{_SIGNS.get(key, key)} = {format_setting(value)}" for key, value in values.items()) or NOTHING


def list_values(results: Results, each: MethodRuns) -> str:
    """Write the settings that a method is known by: those that are tuned, and those that have a letter in the paper."""
    if not each.runs:
        return NOTHING
    own = results.recipe.resolve(each.method).to_dict()
    fixed = {key: own[key] for key in _SIGNS if key in each.method.changes and key not in each.method.tune}
    return format_values({**(each.values_used or {}), **fixed})


def list_seeds(results: Results, methods: Sequence[MethodRuns]) -> dict[str, list[str]]:
    """Return the column of seeds; none where all methods have the same, which the heading names."""
    if all([run.seed for run in each.runs] == results.seeds for each in results.done):
        return {}
    return {"seeds": [str(len(each.runs) or NOTHING) for each in methods]}


def list_notes(results: Results) -> list[str]:
    """Return the notes of a table of accuracies."""
    found = [_SPREADS]
    if "measure_paths" in results.scale and any(map(read_degree, results.methods)):
        found.append(
            "ED: at the end of training, {measure_paths} paths × {measure_nodes} nodes.".format(**results.scale)
        )
    return found + [f"{each.method.title} failed: {each.failure}" for each in results.methods if each.failure]


def make_table(
    title: str, columns: Mapping[str, Sequence[str]], notes: Iterable[str], bold: Iterable[Any] = ()
) -> Table:
    """Make a table of named columns."""
    return Table(title, tuple(columns), tuple(zip(*columns.values(), strict=True)), tuple(notes), frozenset(bold))


def name_accuracy(results: Results) -> str:
    """Return the head of the column of our accuracies."""
    return "here, %" if tested_on(results) == "test" else "here, held-out, %"


def format_accuracy(each: MethodRuns) -> str:
    """Write the accuracy of a method, or why it has none."""
    spread = each.spread()
    return format_points(spread) if spread else each.state


def _list_accuracies(results: Results) -> Table:
    methods = results.methods
    columns = {"": [each.method.title for each in methods]}
    bold = frozenset[tuple[int, int]]()
    papers = [each.method.paper for each in methods]
    if any(papers):
        bold |= bold_largest([paper.mean if paper else None for paper in papers], len(columns))
        columns[f"{_name_paper(results)}, %"] = [format_points(paper) if paper else NOTHING for paper in papers]
    spreads = [each.spread() for each in methods]
    bold |= bold_largest([spread.mean if spread else None for spread in spreads], len(columns))
    columns[name_accuracy(results)] = [format_accuracy(each) for each in methods]
    differences = [results.difference(each) for each in methods]
    columns[f"against {methods[0].method.title}"] = list(map(format_difference, differences))
    training = [each.spread("train_accuracy") for each in methods]
    columns["training, %"] = [f"{100 * spread.mean:.2f}" if spread else NOTHING for spread in training]
    columns["ED"] = [format_degree(read_degree(each)) for each in methods]
    columns |= list_seeds(results, methods)
    notes = list_notes(results) + ([_INTERVALS] if any(each and each.interval for each in differences) else [])
    return make_table(f"At equal epochs: {results.heading}", columns, notes, bold)


def _list_times(results: Results) -> Table:
    methods, at = results.methods, results.equal_time
    prices = [measure_price(results, each) for each in methods]
    columns = {
        "": [each.method.title for each in methods],
        "values": [list_values(results, each) for each in methods],
        "per epoch": [
            each.state if (time := each.time("seconds_per_epoch")) is None else format_duration(time)
            for each in methods
        ],
        "step": [NOTHING if price is None else f"{price:.2f}×" for price in prices],
        "in all": [format_duration(each.time()) for each in methods],
    }
    title, bold = "What it costs", frozenset[tuple[int, int]]()
    rough = is_rough(results)
    notes = [ROUGH] if rough else []
    if at is not None:
        title += f", and at equal time: {format_duration(at.seconds)}, that of {at.reference.title}"
        found = [at.found.get(each.method.name) for each in methods]
        reached = [pair and pair[0].spread() for pair in found]
        step = results.find(at.reference.name).time("milliseconds_per_step") or 0.0
        cheaper = [each for each in results.done if (each.time("milliseconds_per_step") or 0.0) < step]
        if not rough and all(each.method.name in at.found for each in cheaper):
            bold = bold_largest([spread.mean if spread else None for spread in reached], len(columns))
        columns["at equal time, %"] = [
            format_points(spread) if spread else _explain_no_time(at, each)
            for spread, each in zip(reached, methods, strict=True)
        ]
        columns["in epochs"] = [str(pair[1]) if pair else NOTHING for pair in found]
        notes.append(_EQUAL_TIME)
        if any(each.runs and each.method.name not in at.found for each in methods):
            notes.append(f"To run what is missing: `{_write_equal_time_command(results, at)}`")
    if len(results.machines) > 1:
        columns["device"] = [", ".join(each.machines) or NOTHING for each in methods]
    return make_table(title, columns, notes, bold)


def list_other_values(results: Results) -> Table | None:
    """Return the accuracies of methods that were run with other values than those shown; None if there are none."""
    rows = [
        (each.method.title, format_values(values), format_points(spread), str(spread.count))
        for each in results.methods
        for values, spread in each.also
    ]
    return (
        Table("Run with other values", ("", "values", name_accuracy(results), "seeds"), tuple(rows)) if rows else None
    )


def is_rough(results: Results) -> bool:
    """Return whether times are those of a CPU, which others may have used as well."""
    return any("CPU" in machine for machine in results.machines)


def _explain_no_time(at: EqualTime, each: MethodRuns) -> str:
    longer = at.longer.get(each.method.name)
    return f"took {format_duration(longer.time())}" if longer else "not run"


def write_sweep_command(recipe: Recipe) -> str:
    """Write the command that runs a recipe; the digits come with a package, all other data from a folder."""
    needs_data = recipe.settings.to_dict().get("data", "digits") != "digits"
    return f"effdeg-lab sweep {recipe.name}{' --data DIR' if needs_data else ''}"


def _write_equal_time_command(results: Results, at: EqualTime) -> str:
    """Write the command that runs what is missing, at the scale shown, with the values that were tuned."""
    own, parts = results.recipe.settings.to_dict(), [write_sweep_command(results.recipe), "--runs RUNS --no-tune"]
    if results.seeds != list(results.recipe.seeds):
        parts.append(f"--seeds {','.join(map(str, results.seeds))}")
    parts += [f"--set {name}={format_setting(value)}" for name, value in results.scale.items() if value != own[name]]
    return " ".join([*parts, f"--equal-time {at.reference.name}"])


def _name_paper(results: Results) -> str:
    epochs = results.recipe.settings.to_dict().get("epochs", results.epochs)
    return "paper" if epochs == results.epochs else f"paper ({epochs} epochs)"


def _read_curve(each: MethodRuns, along: str, what: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return what was logged during training, seeds × evaluations; None if it was not."""
    found = []
    for run in each.runs:
        entries = [(entry.get(along), entry.get(what)) for entry in run.metrics]
        values = [(x, y.get("value") if isinstance(y, dict) else y) for x, y in entries]
        found.append([(x, y) for x, y in values if x is not None and y is not None])
    shared = min(map(len, found), default=0)
    if shared == 0:
        return None
    both = np.array([points[-shared:] for points in found], dtype=float)
    return both[..., 0], both[..., 1]


def _draw_curve(axes: "Axes", x: np.ndarray, y: np.ndarray, color: str) -> tuple[float, float]:
    """Draw a mean over seeds and, if there are several, each seed; return the end of the mean."""
    if len(y) > 1:
        axes.plot(x.T, y.T, color=color, lw=0.6, alpha=0.4)
    axes.plot(x.mean(0), y.mean(0), color=color, lw=1.6)
    end = float(x.mean(0)[-1]), float(y.mean(0)[-1])
    axes.plot(*end, "o", color=color, ms=5, zorder=4)
    return end


def _draw_methods(
    axes: "Axes", results: Results, theme: str, along: str, what: str, units: tuple[float, float]
) -> None:
    """Draw what was logged of each method, with its name at the end of its curve; ``units`` scale both axes."""
    from effdeg.plots import THEMES
    from effdeg_lab.figures import Label, colors_of, label_ends

    labels = []
    for each in results.done:
        curve = _read_curve(each, along, what)
        if curve is not None and (along != "seconds" or each.time() is not None):
            color = colors_of(results.recipe, theme)[each.method.name]
            end = _draw_curve(axes, curve[0] / units[0], curve[1] / units[1], color)
            text = (
                f"{each.method.title} {end[1]:.2f}"
                if (along, what) == ("epoch", "test_accuracy")
                else each.method.title
            )
            labels.append(Label(text, *end, color))
    ends = [label.y for label in labels]
    low, high = axes.get_ylim()
    if what == "test_accuracy" and ends:  # show where training ends, not the rise from nothing
        span = max(ends) - min(ends)
        axes.set_ylim(max(low, min(ends) - max(2.5 * span, 4.0)), min(high, max(ends) + max(0.3 * span, 1.0)))
    else:
        axes.set_ylim(0, 1.05 * high)
    axes.set_xlim(0, max((label.x for label in labels), default=1.0) * 1.02)
    axes.grid(color=THEMES[theme].faint, lw=0.6)
    axes.set_axisbelow(True)
    label_ends(axes, labels)


def _plot_curves(results: Results, theme: str) -> "Figure":
    from effdeg.plots import open_figure

    timed = _are_timed(results)
    with open_figure(theme, (11 if timed else 6.2, 3.9)) as (_, figure):
        by_epoch, *by_time = figure.subplots(1, 2 if timed else 1, squeeze=False)[0]
        longest = max(each.time() or 0.0 for each in results.done)
        unit, name = (60.0, "minutes") if longest > 120 else (1.0, "seconds")
        _draw_methods(by_epoch, results, theme, "epoch", "test_accuracy", (1.0, 0.01))
        by_epoch.set(title=f"{tested_on(results)} accuracy, %", xlabel="epoch")
        for axes in by_time:
            _draw_methods(axes, results, theme, "seconds", "test_accuracy", (unit, 0.01))
            axes.set(title="the same by time", xlabel=f"{name} of training on {results.machines[0]}")
    return figure


def _are_timed(results: Results) -> bool:
    """Return whether times are known: those of runs that shared a device are not."""
    return any(each.time() is not None for each in results.done)


def _plot_degrees(results: Results, theme: str) -> "Figure":
    from effdeg.plots import open_figure

    with open_figure(theme, (7.2, 3.6)) as (_, figure):
        axes = figure.subplots()
        _draw_methods(axes, results, theme, "epoch", "effective_degree", (1.0, 1.0))
        axes.set(title="effective degree", xlabel="epoch")
    return figure


def _plot_accuracies(results: Results, theme: str) -> "Figure":
    from effdeg.plots import open_figure
    from effdeg_lab.figures import colors_of

    with open_figure(theme, (8.5, 1.1 + 0.42 * len(results.methods))) as (look, figure):
        axes = figure.subplots()
        colors = colors_of(results.recipe, theme)
        papers = _name_paper(results)
        apart = 0.17 if any(each.method.paper for each in results.methods) else 0.0
        drawn = set()
        for place, each in enumerate(results.methods):
            for kind, (mean, std) in _list_marks(results, each).items():
                height = place + (apart if kind == papers else -apart)
                color = look.ink if kind == papers else colors[each.method.name]
                face = color if kind == "here" else look.ground
                marker = "D" if kind == "at equal time" else "o"
                axes.plot((mean - std, mean + std), (height, height), color=color, lw=1.6, alpha=0.6)
                axes.plot(mean, height, marker, ms=6.5, mew=1.4, mfc=face, mec=color)
                if kind not in drawn:
                    filled = look.ink if kind == "here" else look.ground
                    axes.plot([], [], marker, ms=6, mec=look.ink, mfc=filled, label=kind)
                drawn.add(kind)
            if not each.runs:
                where = axes.get_yaxis_transform()
                axes.text(0.005, place - apart, each.state, transform=where, va="center", fontsize=8, alpha=0.7)
        axes.set_yticks(range(len(results.methods)), [each.method.title for each in results.methods])
        axes.set_ylim(len(results.methods) - 0.5, -0.5)
        axes.margins(x=0.08)
        axes.grid(axis="x", color=look.faint, lw=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(left=False)
        axes.spines["left"].set_visible(False)
        axes.set(title=f"{tested_on(results)} accuracy, %, {results.epochs} epochs")
        figure.legend(loc="outside lower center", ncols=len(drawn), fontsize=8)
    return figure


def _list_marks(results: Results, each: MethodRuns) -> dict[str, tuple[float, float]]:
    """Return the accuracies of a method, with their spreads: the paper's, ours, and at equal time if it has others."""
    found = {}
    if each.method.paper is not None:
        found[_name_paper(results)] = (each.method.paper.mean, each.method.paper.std or 0.0)
    reached = results.equal_time.found.get(each.method.name) if results.equal_time else None
    ours = {"here": each.spread()}
    if reached and reached[1] != results.epochs:
        ours["at equal time"] = reached[0].spread()
    return found | {kind: (100 * spread.mean, 100 * (spread.std or 0.0)) for kind, spread in ours.items() if spread}
