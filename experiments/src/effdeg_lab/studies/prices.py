"""What settings cost, and how much of the full gain in accuracy each of them keeps."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from effdeg_lab.results import Difference, MethodRuns, Results
from effdeg_lab.studies import StudyFigure
from effdeg_lab.studies import methods as m
from effdeg_lab.tables import NOTHING, Table
from effdeg_lab.verdicts import Verdict, judge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What is looked for: most of the full gain, for little more than a plain step.
LIMIT, SHARE = 1.25, 0.95


@dataclass(frozen=True)
class Prices(m.Methods):
    """Compares methods by what a step costs, relative to the first method's, and what share of the full gain it keeps.

    The claim: the most accurate method at 1.25 times the plain step or less keeps 95% of the gain of the full setting.

    Attributes:
        full: The method whose gain over the first is the full one.
    """

    full: str = field(kw_only=True)

    def claim(self, results: Results) -> Verdict:
        """Judge whether the best cheap method keeps enough of the full gain, seed by seed where they share seeds."""
        best, whole = self._find_best(results), results.difference(results.find(self.full))
        if best is None or whole is None or not self._full_gain(results):
            if whole is None:
                return Verdict("not decided")
            quantity = f"gain of “{results.find(self.full).method.title}”, points:"
            return Verdict("not decided", quantity, 100 * whole.value)
        plain, full, kept = (
            each.values("test_accuracy") for each in (results.methods[0], results.find(self.full), best)
        )
        wanted = (plain + SHARE * (full - plain)).dropna()
        if wanted.empty:  # they share no seed
            return Verdict("not decided")
        short = Difference.of(dict(kept), dict(wanted))
        interval = short.interval and (100 * short.interval[0], 100 * short.interval[1])
        quantity = f"{best.method.title} over {SHARE:.0%} of the gain, points:"
        return judge(quantity, 100 * short.value, interval, above=0.0)

    def tables(self, results: Results) -> list[Table]:
        """Return the methods by the price of their step."""
        prices = measure_prices(results)
        methods = sorted(results.methods, key=lambda each: prices.get(each.method.name, math.inf))
        shares, best = self.measure_shares(results), self._find_best(results)
        columns = {
            "": [f"{each.method.title} ★" if each is best else each.method.title for each in methods],
            "step": [f"{prices[each.method.name]:.2f}×" if each.method.name in prices else NOTHING for each in methods],
            m.name_accuracy(results): [m.format_accuracy(each) for each in methods],
            "share of the full gain": [
                f"{shares[each.method.name]:.0%}" if each.method.name in shares else NOTHING for each in methods
            ],
            "ED": [m.format_degree(m.read_degree(each)) for each in methods],
            "values": [m.list_values(results, each) for each in methods],
            **m.list_seeds(results, methods),
        }
        notes = [
            f"The step is relative to that of {results.methods[0].method.title}, averaged over all of training; the "
            f"full gain is that of “{results.find(self.full).method.title}”.",
            *([f"★ The most accurate at {LIMIT} times the plain step or less."] if best else []),
            *m.list_notes(results),
        ]
        rough = m.is_rough(results)
        bold = [(methods.index(best), column) for column in range(4)] if best and not rough else []
        others = m.list_other_values(results)
        return [
            m.make_table(f"By price: {results.heading}", columns, [*notes, *([m.ROUGH] if rough else [])], bold),
            *([others] if others else []),
        ]

    def figures(self, results: Results) -> list[StudyFigure]:
        """Return accuracy against price."""
        if len(results.done) < 2 or not measure_prices(results):
            return []
        caption = (
            f"{m.tested_on(results).capitalize()} accuracy against the price of a step, relative to a plain one. "
            f"Dotted: {LIMIT} times that, and {SHARE:.0%} of the full gain; filled: the best within the limit."
        )
        return [StudyFigure("prices", caption, lambda theme: self._plot(results, theme))]

    def numbers(self, results: Results) -> dict[str, Any]:
        """Return the numbers by method, and the shares of the full gain."""
        return super().numbers(results) | {"share_of_gain": self.measure_shares(results)}

    def measure_shares(self, results: Results) -> dict[str, float]:
        """Return each method's share of the full gain; empty where seeds do not show that there is one."""
        whole = self._full_gain(results)
        gains = {each.method.name: results.difference(each) for each in results.methods}
        return {name: gain.value / whole for name, gain in gains.items() if gain and whole}

    def _full_gain(self, results: Results) -> float | None:
        """Return the full gain; None if there is none, or a single seed, which does not show how much is chance."""
        whole = results.difference(results.find(self.full))
        return whole.value if whole and whole.interval and whole.value > 0 else None

    def _find_best(self, results: Results) -> MethodRuns | None:
        """Find the most accurate method within the limit, except the first."""
        prices = measure_prices(results)
        cheap = [each for each in results.done if prices.get(each.method.name, math.inf) <= LIMIT]
        return max((each for each in cheap if each is not results.methods[0]), key=_mean_accuracy, default=None)

    def _plot(self, results: Results, theme: str) -> "Figure":
        from effdeg.plots import open_figure
        from effdeg_lab.figures import Label, label_points

        with open_figure(theme, (11, 5.6)) as (look, figure):
            axes = figure.subplots()
            best, plain, whole = self._find_best(results), results.methods[0], self._full_gain(results)
            labels = []
            for name, price in measure_prices(results).items():
                each = results.find(name)
                spread = each.spread()
                assert spread is not None  # it has a price
                color = look.ink if each is plain else look.complex if each is best else look.simple
                height, std = 100 * spread.mean, None if spread.std is None else [100 * spread.std]
                axes.errorbar([price], [height], std, fmt="none", ecolor=color, elinewidth=1, alpha=0.5)
                face = color if each is best else look.ground
                axes.plot(price, height, "o", ms=7, mec=color, mfc=face, mew=1.6, zorder=3)
                labels.append(Label(each.method.title, price, height, color))
            axes.axvline(LIMIT, color=look.ink, ls=":", lw=1)
            if whole:
                axes.axhline(100 * (_mean_accuracy(plain) + SHARE * whole), color=look.ink, ls=":", lw=1)
            axes.margins(0.12)
            axes.grid(color=look.faint, lw=0.6)
            axes.set_axisbelow(True)
            title = f"{m.tested_on(results)} accuracy, %, {results.epochs} epochs"
            axes.set(title=title, xlabel="time of a step, in plain steps")
            label_points(axes, labels)
        return figure


def measure_prices(results: Results) -> Mapping[str, float]:
    """Return the price of each method that has one: the time of its step relative to the first method's."""
    prices = {each.method.name: m.measure_price(results, each) for each in results.methods}
    return {name: price for name, price in prices.items() if price is not None}


def _mean_accuracy(each: MethodRuns) -> float:
    spread = each.spread()
    return spread.mean if spread else 0.0
