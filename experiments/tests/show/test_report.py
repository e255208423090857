import json
import re
from dataclasses import replace
from html import escape, unescape
from itertools import pairwise

import pytest
import typer
from toy_results import METHODS, POOL, SHARES, make_run
from typer.testing import CliRunner

import effdeg_lab.core.recipe
from effdeg.io import to_json
from effdeg.plots import THEMES
from effdeg.pools import read_table
from effdeg_lab.cli import _results
from effdeg_lab.core.recipe import StudyFigure
from effdeg_lab.show.figures import open_figure
from effdeg_lab.show.report import draw, render_page, report_on, to_dict, to_text

RECIPES = {recipe.name: recipe for recipe in (METHODS, SHARES, POOL)}


@pytest.fixture(scope="module")
def runs():
    found = [make_run(METHODS, name, 0.8, epochs=10) for name in ("plain", "mixup")]
    found.append(make_run(METHODS, "ed", 0.84, epochs=10, step=1.7))
    found.append(make_run(METHODS, "mixup", 0.9, epochs=17, alpha=0.3))
    found += [make_run(METHODS, name, 0.7, epochs=5) for name in ("plain", "sam")]
    found += [make_run(METHODS, "ed", 0.7, weight=weight, held_out=100, epochs=10) for weight in (7.0, 20.0)]
    return found


@pytest.fixture(scope="module")
def page(runs):
    return render_page([report_on(recipe, runs) for recipe in RECIPES.values()])


def test_the_page_stands_alone(page, runs):
    assert {*re.findall(r' (?:href|src)="([^"]*)"', page)} <= {f"#{name}" for name in re.findall(r' id="(.*?)"', page)}
    assert "<script" not in page
    levels = [int(level) for level in re.findall(r"<h(\d)", page)]
    assert levels[0] == 1
    assert all(1 < below <= above + 1 for above, below in pairwise(levels))
    (figure,) = METHODS.study.figures(report_on(METHODS, runs).results[0])
    svg = draw(figure)
    assert svg.startswith(f'<svg role="img" aria-label="{escape(figure.caption)}" ')
    assert svg in page  # the same runs give the same page, to the last byte
    assert f"light-dark({THEMES['light'].simple}, {THEMES['dark'].simple})" in svg


def test_the_page_says_what_was_found(page):
    text = " ".join(unescape(re.sub(r"<[^>]+>", " ", page)).split())
    assert "Recipes shown: 1 of 3. Runs: 6, and 2 for tuning, on Thinking Machine." in text
    assert "Differs from the recipe: epochs 10 (recipe: 20)." in text
    assert "At another scale: 5 epochs, seed 0, Thinking Machine" in text
    # It shares the plain runs, but has none of its own.
    assert "Pairs Table 0 nothing effdeg-lab sweep shares" in text


def test_a_figure_in_the_themes_colors_is_drawn_once():
    """Its colors are paired by the themes; only those of a color map need a second drawing."""

    def make(*colors):
        def draw_lines(theme):
            drawn.append(theme)
            with open_figure(theme, (3, 2)) as (palette, figure):
                figure.subplots().plot([0, 1], color=colors[theme == "dark"] if colors else palette.simple)
                figure.suptitle("1.23456 < 2")
            return figure

        return StudyFigure("lines", "Two lines", draw_lines)

    drawn = []
    svg = draw(make())
    assert drawn == ["light"]
    assert f"stroke: light-dark({THEMES['light'].simple}, {THEMES['dark'].simple})" in svg
    assert "style=" not in svg  # classes instead
    assert re.search(r"<text [^>]*>1.23456 &lt; 2</text>", svg)  # text as it is, not outlines of letters
    svg = draw(make("#123456", "#abcdef"))
    assert drawn == ["light", "light", "dark"]
    assert "light-dark(#123456, #abcdef)" in svg


def test_text_and_plain_numbers(runs):
    report = report_on(METHODS, runs)
    assert report.tuning.rows == (
        ("Mixup", "α = 1", "–", "–", "used, not tuned"),
        ("ED", "λ = 7", "100", "10", "70.00%"),
        ("ED", "λ = 20", "100", "10", "70.00%"),
    )
    assert report.tuning.bold == {(1, 1), (1, 4)}
    assert report.tuning.notes[0].startswith("Bold: chosen.")
    untuned = report_on(METHODS, runs[:2]).tuning
    assert (untuned.rows, untuned.notes) == (report.tuning.rows[:1], ())
    markdown, latex = to_text(report, "markdown"), to_text(report, "latex")
    assert markdown.startswith("### Three methods & a half (Table 0)\n\nThe paper: ED is best.\n\nHere: not decided:")
    assert "| ED | **84.00 ± 0.50** | **84.00** | +4.00 | 99.00 | 0.50 ± 0.03 |" in markdown
    assert r"\subsection*{Three methods \& a half (Table 0)}" in latex
    assert latex.count(r"\begin{table}") == markdown.count("|---|") == 5
    plain = json.loads(to_json(to_dict(report)))
    assert plain["results"][0]["verdict"]["value"] == pytest.approx(4)
    assert plain["tuning"]["ed"]["changes"] == {"weight": 7.0}


@pytest.fixture
def call(tmp_path, runs, monkeypatch):
    monkeypatch.setattr(effdeg_lab.core.recipe, "find_recipe", RECIPES.__getitem__)
    monkeypatch.chdir(tmp_path)
    for run in [*runs, *(make_run(POOL, "plain", 0.8 + point["lr"], **point) for point in POOL.points())]:
        header = {key: getattr(run, key) for key in ("recipe", "method", "kind", "settings", "environment")}
        lines = [{"format": 3, **header}, *({"metrics": entry} for entry in run.metrics), {"summary": run.summary}]
        file = tmp_path / "effdeg-runs" / run.file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{to_json(line)}\n" for line in lines))

    def call(command, *arguments):
        app = typer.Typer()
        app.command()(getattr(_results, command))
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": "100"})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.output

    return call


def test_runs_on_different_data_are_noted():
    def report(*known):
        runs = [make_run(METHODS, name, 0.8, seed=seed) for name in ("plain", "ed") for seed in (0, 1)]
        runs = [replace(run, environment={**run.environment, **each}) for run, each in zip(runs, known, strict=True)]
        return report_on(METHODS, runs), [run.name for run in runs]

    same, other = {"data": "1"}, {"data": "2"}
    found, names = report(same, {}, other, same)
    sentence = "These runs may not be comparable: digits, or the names of its files, differed in "
    sentence += f"{names[0]}, {names[2]}."
    assert sentence in found.list_parts()
    assert sentence in render_page([found])
    assert not any("comparable" in str(part) for part in report(same, {}, {}, same)[0].list_parts())


NARROW = {"data": "my data", "batch": 8}


@pytest.fixture
def others():
    narrow = [make_run(METHODS, name, 0.5, seed=seed, **NARROW) for name in ("ed", "plain") for seed in (0, 1)]
    unfinished = make_run(METHODS, "sam", 0.5, lr=0.3, finished=False)
    faster = [make_run(METHODS, "plain", 0.5, lr=rate) for rate in (0.4, 0.5)]
    return [*narrow, make_run(METHODS, "sam", 0.5, batch=8, lr=0.3), unfinished, *faster]


def test_runs_with_other_settings_are_named_with_the_command_that_shows_them(runs, others):
    first, second, third, rest = report_on(METHODS, [*runs, *others]).describe_others()
    command = "To see them: `effdeg-lab table methods --runs . --set"
    assert first == f"With other settings: 4 finished runs of plain, ed. {command} 'data=my data' --set batch=8`"
    assert second == f"With other settings: 1 finished run of sam. {command} batch=8 --set lr=0.3`"
    assert third == f"With other settings: 1 finished run of plain. {command} lr=0.4`"
    assert rest == "And 1 more with still other settings."
    report = report_on(METHODS, [*runs, *others], NARROW)
    assert {run.file for run in report.runs} == {run.file for run in others[:4]}
    assert report.others == ()  # those that were not asked for


def test_table_in_the_terminal(call, tmp_path):
    text = call("table", "methods", "--plot", "curves.svg")
    assert "Here: not decided: ED minus Baseline, points (one seed): 4" in text
    assert "Also run: Mixup, 17 epochs, seed 0, Thinking Machine" in text
    assert (tmp_path / "curves.svg").read_text().startswith("<?xml")
    assert "At equal epochs: 5 epochs, seed 0" in call("table", "methods", "--set", "epochs=5")
    assert "To run it (nothing): `effdeg-lab sweep methods`" in call("table", "methods", "--set", "epochs=6")
    assert json.loads(call("table", "methods", "--format", "json"))["name"] == "methods"


def test_the_models_of_a_pool_as_csv(call, tmp_path):
    call("table", "pool", "--csv", "pool.csv")
    table = read_table(tmp_path / "pool.csv")
    strata, outcome = ["recipe", "architecture"], ["train_accuracy", "test_accuracy", "gap"]
    assert list(table)[:9] == ["model", "batch", "lr", "seed", *strata, *outcome]
    assert len(table["gap"]) == 9


def test_the_command_report(call, tmp_path):
    assert "shares: not run" in call("report", "shares", "--out", "page.html")
    assert (tmp_path / "page.html").read_text().rstrip().endswith("</html>")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["methods", "--csv", "x.csv"], "methods is not a pool of models"),
        (["methods", "--plot", "x.gif"], r"expected a file that ends in .pdf or .png or .svg"),
        (["methods", "--plot", "nowhere/x.png"], "the folder nowhere does not exist"),
        (
            ["shares", "--set", "epochs=3", "--plot", "x.png"],
            "shares has no figure, or effdeg-runs has too few finished runs of it",
        ),
        (["methods", "--set", "epoch=3"], "'epoch' is not a setting. Did you mean 'epochs'"),
    ],
)
def test_errors_come_before_any_work(call, arguments, message):
    with pytest.raises(ValueError, match=message):
        call("table", *arguments)
