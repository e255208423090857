"""Which half of an image networks rely on, the simple one (MNIST) or the complex one (CIFAR), and what changes that."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pandas as pd
from scipy.stats import t as student

from effdeg_lab.results import Results
from effdeg_lab.runs import Run
from effdeg_lab.studies import Study, StudyFigure
from effdeg_lab.studies.methods import (
    ROUGH,
    format_degree,
    format_difference,
    format_points,
    is_rough,
    list_notes,
    make_table,
    measure_price,
    read_degree,
)
from effdeg_lab.tables import NOTHING, Table
from effdeg_lab.verdicts import Verdict, judge, judge_all

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TEST, SIMPLE, COMPLEX = "test", "MNIST randomized", "CIFAR randomized"
_KEYS = {TEST: "test_accuracy", SIMPLE: f"further_tests.{SIMPLE}", COMPLEX: f"further_tests.{COMPLEX}"}
# All in percent: with two classes, with a network that has learned, and with one that ignores CIFAR.
_CHANCE, _LEARNED, _NEAR_CHANCE, _LOSS = 50.0, 95.0, 5.0, 1.0
_HALVES = (
    "A network that looks at one half alone is at chance, 50%, when that half is randomized. One that weighs both "
    "alike is right where they agree and in half of the other cases: 75% with either randomized."
)


class Accuracies(NamedTuple):
    """What the paper reports for a method, in percent: on the test images, and with either half of them randomized."""

    test: float
    mnist_randomized: float
    cifar_randomized: float

    def by_test(self) -> dict[str, float]:
        """Return the numbers by the names of the tests."""
        return dict(zip(_KEYS, self, strict=True))


@dataclass(frozen=True)
class MnistCifar(Study):
    """Compares accuracies with either half of the images randomized.

    The claim is that networks rely on MNIST almost entirely: of all methods that the paper reports, accuracy with MNIST
    randomized is within 5 points of chance, and with CIFAR randomized no more than a point below that without. Nothing
    is decided where one of these methods was not run, or a run has not learned (less than 95% of the test images).

    Attributes:
        paper: What the paper reports, by the names of the methods.
    """

    paper: Mapping[str, Accuracies]
    needs: ClassVar[str | None] = "test_accuracy"

    def claim(self, results: Results) -> Verdict:
        """Judge whether networks rely on MNIST almost entirely."""
        parts = []
        for each in (each for each in results.methods if each.method.name in self.paper):
            if not each.runs:
                return Verdict("not decided")
            test, simple, complex_ = (100 * each.values(key) for key in _KEYS.values())
            if test.min() < _LEARNED:
                return Verdict("not decided")
            bounds = {"above": _CHANCE - _NEAR_CHANCE, "below": _CHANCE + _NEAR_CHANCE}
            parts += [
                _judge(f"accuracy of {each.method.title} with {SIMPLE}, %", simple, **bounds),
                _judge(f"points that {each.method.title} loses with {COMPLEX}", test - complex_, below=_LOSS),
            ]
        return judge_all(parts)

    def tables(self, results: Results) -> list[Table]:
        """Return the accuracies next to the paper's, then what each method gains and costs."""
        return [self._list_accuracies(results), _list_gains(results)]

    def figures(self, results: Results) -> list[StudyFigure]:
        """Return the accuracies with either half randomized, and what less reliance on the simple half costs."""
        if not any(each.spread(_KEYS[SIMPLE]) for each in results.done):  # held-out images have no other tests
            return []
        return [
            StudyFigure(
                "halves",
                "Accuracy with both halves as they are, and with either randomized; bars are standard deviations over "
                "seeds, hollow dots the paper's.",
                lambda theme: self._plot_halves(results, theme),
            ),
            StudyFigure(
                "cost",
                "Accuracy with MNIST randomized against accuracy without: methods at the lower right rely on MNIST "
                "alone, those on the diagonal on CIFAR alone. Bars are standard deviations over seeds.",
                lambda theme: _plot_cost(results, theme),
            ),
        ]

    def headline(self, run: Run) -> str:
        """Return the accuracy, and those with either half randomized if they were measured."""
        test, *others = (100 * run.value(key) for key in _KEYS.values())
        further = [f"{name} {value:.2f}%" for name, value in zip((SIMPLE, COMPLEX), others, strict=True) if value >= 0]
        return f"{test:.2f}%" + (f" ({', '.join(further)})" if further else "")

    def _list_accuracies(self, results: Results) -> Table:
        columns = {"": [each.method.title for each in results.methods]}
        for test, key in _KEYS.items():
            absent = [each.state if test == TEST and not each.runs else NOTHING for each in results.methods]
            columns[f"{test}, %"] = [
                format_points(spread) if (spread := each.spread(key)) else nothing
                for each, nothing in zip(results.methods, absent, strict=True)
            ]
        papers = [self.paper.get(each.method.name) for each in results.methods]
        columns["paper, %"] = [" / ".join(f"{value:.2f}" for value in paper) if paper else NOTHING for paper in papers]
        notes = ("The paper's three numbers are those of the three columns before.", _HALVES, *list_notes(results))
        return make_table(f"Test accuracy with either half randomized: {results.heading}", columns, notes)

    def _plot_halves(self, results: Results, theme: str) -> "Figure":
        from effdeg.plots import open_figure

        methods = results.methods
        with open_figure(theme, (8.5, 0.9 + 0.55 * len(methods))) as (look, figure):
            axes = figure.subplots()
            colors = {TEST: look.ink, COMPLEX: look.simple, SIMPLE: look.complex}
            for place, each in enumerate(methods):
                reported = self.paper[each.method.name].by_test() if each.method.name in self.paper else {}
                for height, (test, color) in zip((place - 0.25, place, place + 0.25), colors.items(), strict=True):
                    if test in reported:
                        _draw_dot(axes, reported[test], height, color, look.ground)
                    if (spread := each.spread(_KEYS[test])) is not None:
                        mean, std = 100 * spread.mean, 100 * (spread.std or 0.0)
                        axes.plot((mean - std, mean + std), (height, height), color=color, lw=1.6, alpha=0.6)
                        _draw_dot(axes, mean, height, color, color, size=5.5)
                        if each is results.done[0]:
                            _name_dot(axes, test, mean, height, color)
                if not each.runs:
                    axes.text(75, place, each.state, va="center", ha="center", fontsize=8, alpha=0.7)
            for place in range(1, len(methods)):
                axes.axhline(place - 0.5, color=look.faint, lw=0.6)
            axes.axvline(_CHANCE, color=look.ink, ls=":", lw=1)
            axes.set_yticks(range(len(methods)), [each.method.title for each in methods])
            axes.set_ylim(len(methods) - 0.5, -0.5)
            axes.set_xlim(min(45.0, axes.get_xlim()[0]), 101.5)
            axes.grid(axis="x", color=look.faint, lw=0.6)
            axes.set_axisbelow(True)
            axes.tick_params(left=False)
            axes.spines["left"].set_visible(False)
            axes.set(title="test accuracy, %; hollow: the paper's; dotted: chance")
        return figure


def _judge(quantity: str, values: "pd.Series[float]", **bounds: float) -> Verdict:
    """Judge the mean over seeds; seeds that agree exactly give an interval without width."""
    mean, count = float(values.mean()), len(values)
    if count < 2:
        return judge(quantity, mean, None, **bounds)
    margin = float(student.ppf(0.975, count - 1) * values.std()) / math.sqrt(count)
    return judge(quantity, mean, (mean - margin, mean + margin), **bounds)


def _list_gains(results: Results) -> Table:
    first = results.methods[0].method.title
    prices = [measure_price(results, each) for each in results.methods]
    columns = {
        "": [each.method.title for each in results.methods],
        **{
            f"{test}: against {first}": [
                format_difference(results.difference(each, key=_KEYS[test])) for each in results.methods
            ]
            for test in (SIMPLE, TEST)
        },
        "ED": [format_degree(read_degree(each)) for each in results.methods],
        "step": [NOTHING if price is None else f"{price:.2f}×" for price in prices],
    }
    notes = ["Points of accuracy with 95% intervals; * leaves out zero.", *([ROUGH] if is_rough(results) else [])]
    return make_table("What that gains and costs", columns, notes)


def _plot_cost(results: Results, theme: str) -> "Figure":
    from effdeg.plots import open_figure
    from effdeg_lab.figures import Label, colors_of, label_points

    with open_figure(theme, (7.2, 4.6)) as (look, figure):
        axes = figure.subplots()
        labels = []
        for each in results.done:
            x, y = each.spread(_KEYS[TEST]), each.spread(_KEYS[SIMPLE])
            color = colors_of(results.recipe, theme)[each.method.name]
            if x is None or y is None:
                continue
            label = Label(each.method.title, 100 * x.mean, 100 * y.mean, color)
            stds = 100 * (y.std or 0.0), 100 * (x.std or 0.0)
            axes.errorbar(label.x, label.y, *stds, fmt="o", ms=6, color=color, elinewidth=1)
            labels.append(label)
        axes.set_xlim(min([70.0, *(label.x - 5 for label in labels)]), 101)
        axes.set_ylim(45, max([80.0, *(label.y + 6 for label in labels)]))
        axes.axhline(_CHANCE, color=look.ink, ls=":", lw=1)
        axes.axline((75, 75), slope=1, color=look.ink, ls=":", lw=1)
        small: dict[str, Any] = {"fontsize": 8, "alpha": 0.7, "rotation_mode": "anchor", "transform_rotates_text": True}
        axes.text(axes.get_xlim()[0] + 0.5, 50.5, "chance", **small)
        axes.text(75, 75.5, "CIFAR alone", rotation=45, ha="center", **small)
        axes.grid(color=look.faint, lw=0.6)
        axes.set_axisbelow(True)
        axes.set(title="test accuracy with MNIST randomized, %", xlabel="test accuracy, %")
        label_points(axes, labels)
    return figure


def _draw_dot(axes: "Axes", x: float, y: float, edge: str, face: str, *, size: float = 8.0) -> None:
    axes.plot(x, y, "o", ms=size, mec=edge, mfc=face, mew=1.2, zorder=3)


def _name_dot(axes: "Axes", text: str, x: float, y: float, color: str) -> None:
    """Write what a dot is next to it, towards the middle of the figure."""
    left = x > 75
    axes.annotate(
        text,
        (x, y),
        (-12 if left else 12, 0),
        textcoords="offset points",
        color=color,
        fontsize=8,
        va="center",
        ha="right" if left else "left",
        bbox={"fc": axes.get_facecolor(), "ec": "none", "pad": 0.5},
    )
