"""The cost of settings, and how much of the full gain in accuracy each of them keeps."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from effdeg_lab.figures import Label, add_grid, label_points, open_figure
from effdeg_lab.results import Difference, MethodRuns, Results
from effdeg_lab.studies import StudyFigure
from effdeg_lab.studies import methods as m
from effdeg_lab.tables import NOTHING, Table
from effdeg_lab.verdicts import Verdict, judge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The goal: most of the full gain, for little more than the time of a plain step.
LIMIT, SHARE = 1.25, 0.95


@dataclass(frozen=True)
class Prices(m.Methods):
    """Compares methods by the cost of a step, relative to the first method's, and by their share of the full gain.

    The claim: the most accurate method that takes at most 1.25 times the plain step keeps 95% of the full gain.

    Attributes:
        full: The method whose gain over the first is the full gain.
    """

    full: str = field(kw_only=True)

    def claim(self, results: Results) -> Verdict:
        """Judge whether the best cheap method keeps enough of the full gain, paired by seed where possible."""
        best, full = _find_best(results), results.find(self.full)
        whole = results.difference(full)
        if whole is None:
            return Verdict("not decided")
        if best is None or not self._full_gain(results):
            return Verdict("not decided", f"gain of “{full.method.title}”, points", 100 * whole.value)
        plain, most = (each.values("test_accuracy") for each in (results.methods[0], full))
        wanted = (plain + SHARE * (most - plain)).dropna()
        if wanted.empty:  # they share no seed
            return Verdict("not decided")
        short = Difference.of(dict(100 * best.values("test_accuracy")), dict(100 * wanted))
        quantity = f"{best.method.title} over {SHARE:.0%} of the gain, points"
        return judge(quantity, short.value, short.interval, above=0.0)

    def tables(self, results: Results) -> list[Table]:
        """Return the methods by the price of their step, and their other scores."""
        methods = sorted(results.methods, key=lambda each: _price(results, each))
        best, whole, rough = _find_best(results), self._full_gain(results), m.is_rough(results)
        gains = [results.difference(each) for each in methods]
        columns = {
            "": [f"{each.method.title} ★" if each is best else each.method.title for each in methods],
            "step": [m.format_price(m.measure_price(results, each)) for each in methods],
            **m.list_accuracies(results, methods),
            "share of the full gain": [f"{gain.value / whole:.0%}" if gain and whole else NOTHING for gain in gains],
            "ED": [m.format_degree(m.read_degree(each)) for each in methods],
            "values": [m.list_values(results, each) for each in methods],
            **m.list_seeds(results, methods),
        }
        full = f"The full gain is that of “{results.find(self.full).method.title}”."
        star = f"★ The most accurate at {LIMIT} times the plain step or less."
        notes = [full, *([star] if best else []), *m.list_notes(results), *([m.ROUGH] if rough else [])]
        bold = [(methods.index(best), column) for column in range(4)] if best and not rough else []
        return [m.make_table(f"By price: {results.heading}", columns, notes, bold), *m.list_all_scores(results)]

    def figures(self, results: Results) -> list[StudyFigure]:
        """Plot accuracy against price."""
        if len(results.done) < 2 or m.measure_price(results, results.methods[0]) is None:
            return []
        tested = m.tested_on(results).capitalize()
        caption = (
            f"{tested} accuracy against the price of a step. Dotted: {LIMIT} plain steps, {SHARE:.0%} of the gain."
        )
        return [StudyFigure("prices", caption, lambda theme: self._plot(results, theme))]

    def _full_gain(self, results: Results) -> float | None:
        """Return the full gain; None if there is none, or only one seed, which does not show how much is chance."""
        whole = results.difference(results.find(self.full))
        return whole.value if whole and whole.interval and whole.value > 0 else None

    def _plot(self, results: Results, theme: str) -> "Figure":
        best, plain, whole = _find_best(results), results.methods[0], self._full_gain(results)
        with open_figure(theme, (11, 5.6)) as (look, figure):
            axes = figure.subplots()
            labels = []
            for each in (each for each in results.done if _price(results, each) < math.inf):
                color = look.ink if each is plain else look.complex if each is best else look.simple
                labels.append(Label(each.method.title, _price(results, each), 100 * _accuracy(each), color))
                std = 100 * each.values("test_accuracy").std()
                axes.errorbar(labels[-1].x, labels[-1].y, std, fmt="o", ms=7, color=color, elinewidth=1)
            axes.axvline(LIMIT, color=look.ink, ls=":", lw=1)
            if whole:
                axes.axhline(100 * (_accuracy(plain) + SHARE * whole), color=look.ink, ls=":", lw=1)
            axes.set(title=f"{m.tested_on(results)} accuracy, %", xlabel="time of a step, in plain steps")
            axes.margins(0.12)
            add_grid(axes, look)
            label_points(axes, labels)
        return figure


def _price(results: Results, each: MethodRuns) -> float:
    price = m.measure_price(results, each)
    return math.inf if price is None else price


def _accuracy(each: MethodRuns) -> float:
    return float(each.values("test_accuracy").mean())


def _find_best(results: Results) -> MethodRuns | None:
    """Find the most accurate method within the limit, except the first."""
    cheap = [each for each in results.done if _price(results, each) <= LIMIT and each is not results.methods[0]]
    return max(cheap, key=_accuracy, default=None)
