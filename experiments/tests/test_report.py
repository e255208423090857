import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from toy_results import METHODS, POOL, PRICES, make_run
from typer.testing import CliRunner

import effdeg_lab.cli_report
import effdeg_lab.recipe
from effdeg.io import to_json
from effdeg.plots import THEMES
from effdeg.ranking import read_table
from effdeg_lab.report import draw_in_both_themes, render_page, report_on, to_dict, to_text
from effdeg_lab.runs import FORMAT
from effdeg_lab.studies import StudyFigure

RECIPES = {recipe.name: recipe for recipe in (METHODS, PRICES, POOL)}


class Reader(HTMLParser):
    """Checks that what is opened is closed, and collects text, anchors and references."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.anchors, self.references = [], [], set(), []

    def handle_starttag(self, tag, attrs):
        if tag not in {"meta", "br", "wbr"}:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.anchors.add(value)
            if name in {"href", "src"}:
                self.references.append(value)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def runs():
    found = [
        make_run(METHODS, name, accuracy, epochs=10, step=1.0 if name != "ed" else 1.7)
        for name, accuracy in (("plain", 0.80), ("mixup", 0.85), ("ed", 0.84))
    ]
    found.append(make_run(METHODS, "mixup", 0.9, epochs=17))
    found += [make_run(METHODS, name, 0.7, epochs=5) for name in ("plain", "sam")]
    found += [
        make_run(METHODS, "ed", accuracy, weight=weight, held_out=100, epochs=10)
        for weight, accuracy in ((7.0, 0.7), (20.0, 0.65))
    ]
    return found


@pytest.fixture(scope="module")
def page(runs):
    return render_page([report_on(recipe, runs) for recipe in RECIPES.values()])


def test_the_page_stands_alone(page, runs):
    reader = Reader()
    reader.feed(page)
    assert not reader.open
    inner = {reference for reference in reader.references if not reference.startswith("#")}
    assert not inner
    assert {reference[1:] for reference in reader.references} <= reader.anchors
    assert "<script" not in page
    figures = METHODS.study.figures(report_on(METHODS, runs).results[0])
    assert draw_in_both_themes(figures[1]) in page  # the same runs give the same page, to the last byte


def test_the_page_says_what_was_found(page):
    reader = Reader()
    reader.feed(page)
    text = " ".join(" ".join(reader.text).split())
    assert "Recipes shown: 1 of 3. Runs: 6, and 2 for tuning, on Thinking Machine." in text
    assert "≈ not decided ED over Baseline, points: 4" in text
    assert "Not the recipe’s: epochs 10 (recipe: 20)." in text
    assert "At another scale: 5 epochs, seed 0, Thinking Machine" in text
    assert "Three methods & a half" in text
    assert "Not the paper’s. The rate is not the paper's." in text
    # The price list shares the plain runs, but has none of its own.
    assert "A price list none nothing effdeg-lab sweep prices" in text
    assert "Tuning on 100 held-out training examples" in text
    assert "<code>effdeg-lab sweep methods --runs RUNS" in page
    assert "methods/mixup-" in text


def test_figures_are_drawn_once_for_both_themes(page):
    assert page.count("light-dark(") > 100
    assert 'class="in-dark"' not in page


def test_a_recipe_that_shares_all_its_runs_is_shown(runs):
    other = replace(METHODS, name="other", methods=METHODS.methods[:2], study=type(METHODS.study)(), equal_time=None)
    assert report_on(other, runs).shown
    assert not report_on(PRICES, runs).shown


def test_figures_follow_the_readers_theme():
    def draw(theme, width=2):
        figure = Figure(figsize=(2, 2))
        figure.add_artist(Line2D([0, 1], [0, 1], color=THEMES[theme].simple, lw=width))
        return figure

    svg = draw_in_both_themes(StudyFigure("line", "A line.", draw))
    assert f"light-dark({THEMES['light'].simple}, {THEMES['dark'].simple})" in svg
    assert svg.startswith("<svg")
    other = StudyFigure("line", "A line.", lambda theme: draw(theme, 2 if theme == "light" else 3))
    assert draw_in_both_themes(other).count("<svg") == 2


def test_tuning_and_run_tables(runs):
    report = report_on(
        METHODS,
        [
            *runs,
            make_run(METHODS, "mixup", 0.8, alpha=0.3, epochs=40),
            make_run(METHODS, "sam", 0.8, epochs=40),
            make_run(METHODS, "plain", 0.8, epochs=40),
        ],
    )
    tuning = report.tuning
    assert tuning.rows == (
        ("Mixup", "α = 0.3", "–", "used, not tuned"),
        ("ED", "λ = 7", "10", "70.00%"),
        ("ED", "λ = 20", "10", "65.00%"),
    )
    assert tuning.bold == {(1, 1), (1, 3)}
    table = report_on(METHODS, runs).run_table
    assert [row[1] for row in table.rows].count("ED (tuning)") == 2
    (row,) = [row for row in table.rows if row[1] == "Mixup" and "17" in row[3]]
    assert row[2:] == ("0", "epochs 17 (recipe: 20)", "90.00%", "17 s", "Thinking Machine", "torch 2.13")


def test_text_and_plain_numbers(runs):
    report = report_on(METHODS, runs)
    markdown, latex = to_text(report, "markdown"), to_text(report, "latex")
    assert markdown.startswith(
        "### Three methods & a half (Table 0)\n\nThe paper: ED is best.\n\nHere: not decided: ED over"
    )
    assert "| ED | **84.00 ± 0.50** | 84.00 | +4.00 | 99.00 | 0.50 ± 0.03 |" in markdown
    assert r"\subsection*{Three methods \& a half (Table 0)}" in latex
    assert latex.count(r"\begin{table}") == markdown.count("|---|") == 5
    plain = json.loads(to_json(to_dict(report)))
    first = plain["results"][0]
    assert first["verdict"]["word"] == "not decided"
    assert (first["verdict"]["value"], first["by_method"]["ed"]["accuracy"]["mean"]) == (pytest.approx(4), 0.84)
    assert plain["tuning"]["ed"]["changes"] == {"weight": 7.0}


@pytest.fixture
def call(tmp_path, runs, monkeypatch):
    """Return a function that calls a command on a folder of runs."""
    monkeypatch.setattr(effdeg_lab.recipe, "find_recipe", RECIPES.__getitem__)
    monkeypatch.chdir(tmp_path)
    for run in [*runs, *(make_run(POOL, "plain", 0.8 + point["lr"], **point) for point in POOL.points())]:
        header = {key: getattr(run, key) for key in ("recipe", "method", "kind", "settings", "environment")}
        lines = [{"format": FORMAT, **header}, *run.metrics, {"summary": run.summary}]
        file = tmp_path / "effdeg-runs" / run.file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{to_json(line)}\n" for line in lines))

    def call(command, *arguments):
        import typer

        app = typer.Typer()
        app.command()(getattr(effdeg_lab.cli_report, command))
        result = CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "100"})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.output

    return call


def test_table_in_the_terminal(call, tmp_path):
    text = call("table", "methods", "--plot", "curves.svg")
    assert "not decided: ED over Baseline, points: 4" in text
    assert "not the recipe's: epochs 10 (recipe: 20)" in text
    assert "At equal epochs: 10 epochs, seed 0, Thinking Machine" in text
    assert "also run: Mixup, 17 epochs, seed 0, Thinking Machine (--set epochs=17 shows it)" in text
    assert "written: curves.svg" in text
    assert (tmp_path / "curves.svg").read_text().startswith("<?xml")
    assert "only runs with epochs=5" in call("table", "methods", "--set", "epochs=5")
    assert json.loads(call("table", "methods", "--format", "json"))["recipe"] == "methods"


def test_the_models_of_a_pool_as_csv(call, tmp_path):
    call("table", "pool", "--csv", "pool.csv")
    table = read_table(tmp_path / "pool.csv")
    assert list(table)[:7] == ["model", "batch", "lr", "seed", "train_accuracy", "test_accuracy", "gap"]
    assert len(table["gap"]) == 9


def test_the_command_report(call, tmp_path):
    assert "prices: not run" in call("report", "prices", "--out", "page.html")
    assert (tmp_path / "page.html").read_text().rstrip().endswith("</html>")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["methods", "--csv", "x.csv"], "methods is not a pool of models"),
        (["methods", "--plot", "x.gif"], r"expected a file that ends in .pdf or .png or .svg"),
        (["methods", "--plot", "nowhere/x.png"], "the folder nowhere does not exist"),
        (["methods", "--runs", "nowhere"], "--runs nowhere: there is no such folder"),
        (["prices", "--set", "epochs=3", "--plot", "x.png"], "no finished run of prices is in effdeg-runs"),
        (["methods", "--set", "epoch=3"], "'epoch' is not a setting. Did you mean 'epochs'"),
    ],
)
def test_errors_come_before_any_work(call, arguments, message):
    with pytest.raises(ValueError, match=message):
        call("table", *arguments)
