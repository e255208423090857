"""Returns of agents on training levels and on unseen levels, during training and at the end, and the games' recipes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from effdeg_lab.core.recipe import Method, Recipe, Study, StudyFigure
from effdeg_lab.core.results import Results, Spread
from effdeg_lab.core.runs import Run
from effdeg_lab.experiments.procgen.ppo import PPO, check_games, train
from effdeg_lab.show.columns import MethodTable, format_price, format_spread, measure_price, read_curve
from effdeg_lab.show.figures import Axes, Figure, Label, Theme, add_grid, label_ends, open_figure, styles_of
from effdeg_lab.show.methods import judge_difference
from effdeg_lab.show.tables import NOTHING, Table, bold_largest
from effdeg_lab.show.verdicts import Verdict

_SPEED = "steps_per_second"
_UNSEEN: dict[str, Any] = {"lw": 1.7}
_TRAINING: dict[str, Any] = {"lw": 1.0, "alpha": 0.5}


@dataclass(frozen=True)
class Returns(Study):
    """Compares agents by their returns on unseen levels, paired by seed. It claims that ED is ahead of the first."""

    game: str  # as the paper calls it
    # Published returns of plain PPO on unseen and on training levels, by millions of steps.
    references: Mapping[float, tuple[Spread, Spread]] = field(default_factory=dict)
    needs: ClassVar[str | None] = "test_return"

    def claim(self, results: Results) -> Verdict:
        compared: dict[str, Any] = {"key": "test_return", "factor": 1, "unit": "return on unseen levels"}
        return judge_difference(results, results.find("ed"), results.methods[0], **compared, above=0.0)

    def tables(self, results: Results) -> list[Table]:
        return [self._list_returns(results)]

    def figures(self, results: Results) -> list[StudyFigure]:
        logged = any(read_curve(each, "step", "test_return") is not None for each in results.done)
        return [make_figure([results])] if logged else []

    def headline(self, run: Run) -> str:
        return f"return {run.value('test_return'):.2f} on unseen levels, {run.value('train_return'):.2f} in training"

    def _list_returns(self, results: Results) -> Table:
        methods, table = results.methods, MethodTable(results)
        unseen = [each.spread("test_return") for each in methods]
        table.bold |= bold_largest(unseen, 1)
        table.add("unseen levels", map(_format_return, unseen, (each.state for each in methods)))
        table.add_differences(f"against {table.first}", "test_return", factor=1)
        for head, key in {"training levels": "train_return", "gap": "gap"}.items():
            table.add(head, (_format_return(each.spread(key)) for each in methods))
        table.add_seeds()
        notes = [
            f"Raw returns of at least {results.scale['episodes']:,} episodes per run, after the last step. ±: standard "
            "error over seeds. Differences on unseen levels have 95% intervals, paired by seed; * excludes zero."
        ]
        speeds = [each.time(_SPEED) for each in methods]
        if any(speeds):
            table.add("steps/s", (NOTHING if speed is None else f"{speed:,.0f}" for speed in speeds))
            table.add("speed", (format_price(measure_price(results, each, _SPEED)) for each in methods))
            alone = "of runs that did not share their device"
            notes.append(f"Speed: steps per second relative to {table.first}'s, {alone}.")
        errors = [run.value("test_return_error") for each in results.done for run in each.runs]
        if not np.isnan(errors).all():
            notes.append(f"Standard error over the episodes of one run: at most {np.nanmax(errors):.2f}.")
        if published := self.references.get(_read_millions(results)[0]):
            title, unseen_there, training = f"{table.first} elsewhere", *map(_format_return, published)
            row = {"": title, "unseen levels": unseen_there, "training levels": training}
            for name, column in table.columns.items():
                column.append(row.get(name, NOTHING))
            source = f"{published[0].count} runs of openai/train-procgen"
            notes.append(f"{title}: {source} after as many steps, with batches of 65,536 steps.")
        notes += results.failures
        return table.make(f"{name_panel(results)}: {results.heading}", notes)


def make_figure(several: Sequence[Results]) -> StudyFigure:
    """Return the figure of returns during training, with a panel for each game."""
    games, episodes = [name_game(each) for each in several], min(each.scale["episodes"] for each in several)
    caption = (
        f"{', '.join(games)}: returns during training, solid on unseen levels, with bands of one standard error over "
        "seeds, faint on the levels trained on. Means of the last 100 episodes, averaged over a tenth of training "
        f"around each point. Dots and numbers: at least {episodes:,} episodes per run on unseen levels, at the end."
    )
    caption += " Shorter than the paper's runs." if any(map(is_shorter, several)) else ""
    return StudyFigure("returns", caption, lambda theme: _plot(several, theme))


def name_game(results: Results) -> str:
    assert isinstance(results.recipe.study, Returns)
    return results.recipe.study.game


def is_shorter(results: Results) -> bool:
    steps, papers = _read_millions(results)
    return steps < papers


def name_panel(results: Results) -> str:
    steps, papers = _read_millions(results)
    whole = f" of the paper's {papers:g}" if is_shorter(results) else ""
    return f"{name_game(results)}, {steps:g}{whole} million steps"


def _read_millions(results: Results) -> tuple[float, float]:
    return results.scale["steps"] / 1e6, results.recipe.settings.to_dict()["steps"] / 1e6


def smoothen(curves: np.ndarray) -> np.ndarray:
    """Return running means of curves, points last, over a tenth of the points, and fewer at the ends."""
    window = curves.shape[-1] // 10 // 2 * 2 + 1
    return pd.DataFrame(curves.T).rolling(window, center=True, min_periods=1).mean().to_numpy().T


def _format_return(spread: Spread | None, nothing: str = NOTHING) -> str:
    return format_spread(spread and replace(spread, std=spread.stderr), nothing)


def _plot(several: Sequence[Results], theme: str) -> Figure:
    from matplotlib.lines import Line2D

    columns = min(len(several), 2)
    rows = math.ceil(len(several) / columns)
    with open_figure(theme, (5.6 * columns, 3.7 * rows + 0.3)) as (look, figure):
        for place, results in enumerate(several):
            axes = figure.add_subplot(rows, columns, place + 1)
            _plot_game(axes, results, look, theme)
            below = place + columns < len(several)
            axes.set(xlabel="" if below else "environment steps, millions", ylabel="" if place % columns else "return")
        styles = {"unseen levels": _UNSEEN, "training levels": _TRAINING}
        handles = [Line2D([], [], color=look.ink, label=label, **style) for label, style in styles.items()]
        figure.legend(handles=handles, loc="outside upper right", ncols=2, fontsize=8.5)
    return figure


def _plot_game(axes: Axes, results: Results, look: Theme, theme: str) -> None:
    # ED is blue, as in other figures.
    labels, styles = [], styles_of(replace(results.recipe, equal_time="ed"), theme)
    for each in results.done:
        own = styles[each.method.name]
        for what, style, layer in (("train_return", _TRAINING, 2.0), ("test_return", _UNSEEN, 3.0)):
            curve = read_curve(each, "step", what)
            if curve is None:
                continue
            steps, smooth = curve[0, :, 0] / 1e6, smoothen(curve[..., 1])
            mean = smooth.mean(0)
            axes.plot(steps, mean, color=own.color, ls=own.line, zorder=layer, **style)
            if len(curve) > 1 and what == "test_return":
                stderr = smooth.std(0, ddof=1) / math.sqrt(len(curve))
                axes.fill_between(steps, mean - stderr, mean + stderr, color=own.color, alpha=0.18, lw=0, zorder=layer)
        end, value = _read_millions(results)[0], each.values("test_return").mean()
        axes.plot(end, value, own.marker, ms=5, color=own.color, zorder=4)
        labels.append(Label(f"{each.method.title} {value:.2f}", end, value, own.color))
    axes.set_title(name_panel(results))
    axes.set_xlim(left=0)
    add_grid(axes, look)
    label_ends(axes, labels)


# On an H200 with 16 CPU cores: `python -m benchmarks ppo_parts`.
STEPS_PER_SECOND = {"plain": 61_000, "ed": 39_000}

# PPO of github.com/openai/train-procgen with 500 hard levels, by millions of steps: returns on unseen levels and on
# training levels, means and standard deviations over 3 runs.
REFERENCES = {
    "dodgeball": {25: ((1.16, 0.02), (2.95, 0.10)), 50: ((1.58, 0.10), (3.81, 0.16))},
    "fruitbot": {25: ((-1.29, 0.13), (1.85, 0.07)), 50: ((-1.16, 0.41), (3.79, 0.33)), 100: ((1.5, 1.3), (8.57, 1.4))},
    "jumper": {25: ((2.64, 0.11), (4.89, 0.15)), 50: ((2.80, 0.07), (5.84, 0.13))},
    "starpilot": {25: ((3.47, 0.15), (6.40, 0.24)), 50: ((3.68, 0.15), (8.15, 0.42))},
}


def make_recipe(settings: PPO, *, game: str, expects: str) -> Recipe:
    """Make the recipe of a game, whose name is spelled as in the paper, from the paper's settings."""
    minutes = {name: round(settings.steps / rate / 60) for name, rate in STEPS_PER_SECOND.items()}
    references = {
        float(millions): (Spread(*unseen, 3), Spread(*training, 3))
        for millions, (unseen, training) in REFERENCES[settings.game].items()
    }
    return Recipe(
        name=f"procgen-{settings.game}",
        title=f"PPO on 500 levels of {game}, played on unseen levels",
        paper="Figure 6, section 6.4, appendix F.5",
        expects=expects,
        cost=f"{minutes['plain']} min per plain run on one H200, {minutes['ed']} with ED",
        settings=settings,
        run=train,
        check_data=check_games,
        study=Returns(game=game, references=references),
        methods=(
            Method("plain", "PPO"),
            Method("mixreg", "mixreg", {"mixreg": 0.2}),
            Method("ed", "ED", {"weight": 0.01}),
            Method("ed-self", "ED, self anchors", {"weight": 0.01, "anchor": "self"}),
            Method("mixreg-ed", "mixreg and ED", {"mixreg": 0.2, "weight": 0.01}),
        ),
        departs=(
            "128 games are played in parallel, as by mixreg's authors: with cleanrl's 64, a minibatch would have 2,048 "
            "observations, but the paper's 2,048 pairs are half a minibatch. Unseen levels are those numbered 500 to "
            "100,499, not all levels, so that none was trained on. Where the paper is silent: actor and critic share "
            "a trunk, as in cleanrl, and the penalty reaches it only through the actor's output; paths connect "
            "observations pixel by pixel; the degree is that of the action probabilities; it is penalized in every "
            "minibatch of every epoch; returns are raw, over the last 100 episodes during training and at least 500 "
            "at the end. Networks run in bfloat16 on a GPU. Mixreg has its authors' 0.2; ED with self anchors has the "
            "paper's λ for ED without."
        ),
    )


_HIGHER = "ED ends with higher returns on unseen levels (a figure, no numbers)."
_FASTER = "ED learns faster, and has higher returns on unseen levels (a figure, no numbers)."
RECIPES = (
    make_recipe(PPO(game="dodgeball", ramp=0.0), game="Dodgeball", expects=_HIGHER),
    make_recipe(PPO(game="fruitbot", steps=100_000_000), game="Fruitbot", expects=_HIGHER),
    make_recipe(PPO(game="jumper"), game="Jumper", expects=_FASTER),
    make_recipe(PPO(game="starpilot"), game="StarPilot", expects=_HIGHER),
)
