"""Fine-tuned text classifiers: scores over many seeds, on all of dev and on the half not used to choose epochs."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from effdeg_lab.core.recipe import Study, StudyFigure
from effdeg_lab.core.results import Difference, MethodRuns, Results, Spread
from effdeg_lab.core.runs import Run
from effdeg_lab.show.columns import (
    ROUGH,
    count_seeds,
    format_difference,
    format_points,
    format_price,
    is_rough,
    make_table,
    measure_price,
    tested_on,
)
from effdeg_lab.show.figures import name_rows, open_figure, styles_of
from effdeg_lab.show.methods import judge_difference
from effdeg_lab.show.tables import NOTHING, Table, bold_largest
from effdeg_lab.show.verdicts import Verdict, judge_all

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class FineTuned(Study):
    """Compares methods by the score of fine-tuned classifiers, paired by seed.

    The claim is that the best method in the paper is ahead of all others that it reports, with 95% intervals above
    zero.
    """

    task: str  # as the paper calls it
    metric: str  # the name of the score
    needs: ClassVar[str | None] = "score"

    def claim(self, results: Results) -> Verdict:
        """Judge the lead of the best method in the paper."""
        reported = [(each.method.paper.mean, each) for each in results.methods if each.method.paper]
        reported.sort(key=lambda pair: -pair[0])
        (_, first), *others = reported
        return judge_all(judge_difference(results, first, other, above=0.0) for _, other in others)

    def tables(self, results: Results) -> list[Table]:
        """Return scores on all examples, with costs, and on the half not used to choose epochs."""
        return [self._list_scores(results), self._list_halves(results)]

    def figures(self, results: Results) -> list[StudyFigure]:
        """Plot the scores of all seeds, and the differences from the first method."""
        first = results.methods[0].method.title
        caption = (
            f"{self._name(results)}: {self.metric} on {_name_examples(results)}. Left: small dots are seeds, sorted "
            "within each row; large dots are means with 95% intervals."
        )
        caption += " Dotted: the most frequent class." if any(map(_count_failed, results.done)) else ""
        caption += f" Right: difference from {first}, paired by seed; filled where the 95% interval excludes zero."
        return [StudyFigure("seeds", caption, lambda theme: self._plot(results, theme))]

    def headline(self, run: Run) -> str:
        """Return the score."""
        return f"{self.metric} {100 * run.value('score'):.2f}%"

    def _name(self, results: Results) -> str:
        """Name the task and the encoder."""
        encoders = dict.fromkeys(Path(run.settings["model"]).name for each in results.done for run in each.runs)
        return ", ".join([self.task, *encoders])

    def _list_scores(self, results: Results) -> Table:
        methods, first = [each for each in results.methods if each.state != "not run"], results.methods[0]
        papers = [each.method.paper for each in methods]
        spreads = [each.spread("score") for each in methods]
        columns = {
            "": [each.method.title for each in methods],
            "paper, %": [f"{paper.mean:.2f}" if paper else NOTHING for paper in papers],
            "here, %": [format_points(spread, each.state) for spread, each in zip(spreads, methods, strict=True)],
            "best, %": [f"{100 * each.values('score').max():.2f}" if each.runs else NOTHING for each in methods],
            "failed": [f"{_count_failed(each)} of {len(each.runs)}" if each.runs else NOTHING for each in methods],
            f"against {first.method.title}": [
                format_difference(results.difference(each, key="score")) for each in methods
            ],
        }
        # The recipe's number of seeds is only for its own settings.
        planned = "" if results.changes else f"of the recipe's {len(results.recipe.seeds)} "
        notes = [
            f"After the last epoch, on {_name_examples(results)}; {count_seeds(results)} {planned}seeds. ±: standard "
            "deviation over seeds. Failed: not above what the most frequent class scores.",
            f"Differences have 95% intervals, paired by seed; * excludes zero{_describe_exceptions(results)}.",
            *_describe_paper(methods),
            *_describe_best(methods, _name_examples(results)),
        ]
        if any(each.time() is not None for each in methods):
            columns["step, ms"] = [_format_step(results, each) for each in methods]
            notes.append(
                f"Step: of runs that had the device to themselves; in brackets, against {first.method.title}'s."
            )
            notes += [ROUGH] if is_rough(results) else []
        notes += results.failures
        absent = [each.method.title for each in results.methods if each not in methods]
        notes += [f"Not run: {'; '.join(absent)}."] if absent else []
        title = f"{self._name(results)}: {self.metric}, {results.heading}"
        largest = bold_largest(_keep_complete(spreads), 2)
        return make_table(title, columns, notes, bold_largest(papers, 1) | largest)

    def _list_halves(self, results: Results) -> Table:
        methods, first, bold = results.done, results.methods[0].method, frozenset[tuple[int, int]]()
        columns = {"": [each.method.title for each in methods]}
        for when, read in (("last epoch", lambda run: run.value("score_to_report")), ("chosen epoch", read_chosen)):
            scores = {each.method.name: _read_all(each, read) for each in methods}
            plain = scores.get(first.name)
            spreads = [Spread.of(each.values()) if each else None for each in scores.values()]
            bold |= bold_largest(_keep_complete(spreads), len(columns))
            columns[f"{when}, %"] = list(map(format_points, spreads))
            columns[f"{when}, against {first.title}"] = [
                format_difference(Difference.of(each, plain) if each and plain and name != first.name else None)
                for name, each in scores.items()
            ]
        notes = (
            f"On every second example of {_name_examples(results)}. Chosen: the epoch with the highest score on the "
            "other half, the first of several; of a second stage, among its own epochs.",
        )
        return make_table(f"{self._name(results)}: {self.metric} on the half to report", columns, notes, bold)

    def _plot(self, results: Results, theme: str) -> "Figure":
        methods = results.done
        others = [each.name for each in results.recipe.methods if each.changes.get("regularizer") != "ed"]
        styles = styles_of(results.recipe, theme, others)
        with open_figure(theme, (11, 1.4 + 0.45 * len(methods))) as (look, figure):
            left, right = figure.subplots(1, 2, width_ratios=(3, 2))
            for place, each in enumerate(methods):
                color, scores = styles[each.method.name].color, each.values("score")
                heights = place + (np.linspace(0.32, -0.32, len(scores)) if len(scores) > 1 else np.zeros(1))
                left.plot(100 * np.sort(scores), heights, "o", ms=3.5, color=color, alpha=0.5, mew=0)
                mean = Difference.of(dict(scores), dict.fromkeys(scores.index, 0.0))
                _plot_mean(left, place, mean, color, color)
                difference = results.difference(each, key="score")
                if difference is not None:
                    low, high = difference.interval or (-math.inf, math.inf)
                    _plot_mean(right, place, difference, color, look.ground if low <= 0 <= high else color)
            if any(map(_count_failed, methods)):
                left.axvline(100 * methods[0].runs[0].value("dev_majority"), color=look.ink, ls=":", lw=1)
            right.axvline(0, color=look.ink, ls=":", lw=1)
            for axes in (left, right):
                name_rows(axes, look, [each.method.title for each in methods])
            right.tick_params(labelleft=False)
            left.set(title=f"{self.metric}, %")
            right.set(title=f"difference from {results.methods[0].method.title}, points")
        return figure


def count_exceptions(several: Iterable[Results], *, at_once: bool) -> tuple[int, int, int]:
    """Count the differences from the first method: all, those above zero, and those below, by 95% intervals.

    With ``at_once``, intervals hold for all differences at once (Bonferroni); otherwise for each by itself.
    """
    pairs = [
        [dict(each.values("score")), dict(results.methods[0].values("score"))]
        for results in several
        for each in results.done
        if results.methods[0].runs and each is not results.methods[0]
    ]
    comparisons = len(pairs) if at_once else 1
    found = [Difference.of(*pair, comparisons=comparisons).interval or (-math.inf, math.inf) for pair in pairs]
    return len(pairs), sum(low > 0 for low, _ in found), sum(high < 0 for _, high in found)


def read_chosen(run: Run) -> float:
    """Return the score on the half to report, after the epoch that was best on the half to choose by."""
    scored = [entry for entry in _last_stage(run) if entry.get("score_to_choose") is not None]
    return max(scored, key=lambda entry: entry["score_to_choose"])["score_to_report"] if scored else math.nan


def _read_best(run: Run) -> float:
    return max((entry["score"] for entry in _last_stage(run) if "score" in entry), default=math.nan)


def _last_stage(run: Run) -> list[dict[str, Any]]:
    return run.metrics[-run.settings["epochs"] :]


def _read_all(each: MethodRuns, read: Callable[[Run], float]) -> dict[int, float]:
    """Read a number from every run, by seed; empty if a run lacks it."""
    found = {run.seed: read(run) for run in each.runs}
    return {} if any(map(math.isnan, found.values())) else found


def _count_failed(each: MethodRuns) -> int:
    """Count the runs that score no better than predicting the most frequent class."""
    return sum(run.value("score") <= run.value("dev_majority") for run in each.runs)


def _describe_paper(methods: Iterable[MethodRuns]) -> list[str]:
    """Return a note on the paper's numbers, if there are any."""
    known = ", ".join(f"{each.method.title} {each.method.paper}" for each in methods if each.method.paper)
    return [f"Paper: BERT-base, 9 seeds; {known}."] if known else []


def _describe_best(methods: Iterable[MethodRuns], examples: str) -> list[str]:
    """Return a note on the best epochs, if epochs were scored."""
    scores = {each.method.title: _read_all(each, _read_best) for each in methods}
    known = "; ".join(f"{title} {100 * Spread.of(each.values()).mean:.2f}" for title, each in scores.items() if each)
    return [f"After the best epoch of each run, chosen by the same examples of {examples}: {known}."] if known else []


def _describe_exceptions(results: Results) -> str:
    """Describe how many differences exclude zero, if there are several."""
    (count, *alone), (_, *at_once) = (count_exceptions([results], at_once=each) for each in (False, True))
    return (
        f": {sum(alone)} of {count} here, where chance alone gives 1 in 20. With intervals that hold for all at once "
        f"(Bonferroni): {sum(at_once)}"
        if count > 1
        else ""
    )


def _format_step(results: Results, each: MethodRuns) -> str:
    step, price = each.time("milliseconds_per_step"), measure_price(results, each)
    if step is None:
        return NOTHING
    return f"{step:,.1f}" + ("" if price is None else f" ({format_price(price)})")


def _keep_complete(spreads: Sequence[Spread | None]) -> list[Spread | None]:
    """Leave out means over fewer seeds than others have: they may be the largest only because seeds are missing."""
    most = max((spread.count for spread in spreads if spread), default=0)
    return [spread if spread and spread.count == most else None for spread in spreads]


def _name_examples(results: Results) -> str:
    return "dev" if tested_on(results) == "test" else "the held-out training examples"


def _plot_mean(axes: "Axes", place: int, found: Difference, color: str, fill: str) -> None:
    """Plot a mean in percentage points, with its interval if it has one."""
    if found.interval:
        axes.plot([100 * end for end in found.interval], [place] * 2, color=color, lw=1.6)
    axes.plot(100 * found.value, place, "o", ms=6.5, color=color, mfc=fill)
