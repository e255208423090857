import pytest

from effdeg.lab.registry import find_recipe
from effdeg.lab.report import result_of
from effdeg.lab.report.sheets import block_sheets
from effdeg.lab.report.text import document
from effdeg.lab.store import Store
from effdeg.lab.training.settings import Training
from tests.lab.studies.halves.stores import RECIPE, add, add_seeds, block_of


@pytest.fixture
def folder(tmp_path):
    add_seeds(tmp_path, "plain", 0.9985, 0.4950, 0.9980)
    add_seeds(tmp_path, "swapped", 0.9000, 0.7000, 0.7200, step=11.0)
    add(tmp_path, "ed", 0.9990, 0.4950, 0.9985, step=16.0, degree=0.25)
    return tmp_path


def test_the_tables(folder):
    accuracies, gains = block_sheets(block_of(folder))
    assert accuracies.head == ("", "test, %", "MNIST randomized, %", "CIFAR randomized, %", "paper, %")
    rows = {row[0]: row[1:] for row in accuracies.rows}
    assert rows["Baseline"] == ("99.85 ± 0.00", "49.50 ± 0.20", "99.80 ± 0.00", "99.85 / 48.05 / 99.85")
    assert rows["ED"] == ("99.90", "49.50", "99.85", "99.90 / 47.95 / 99.90")
    assert rows["CutMix"] == ("not run", "–", "–", "–")
    assert len(rows) == len(RECIPE.rows)
    costs = {row[0]: row[1:] for row in gains.rows}
    assert costs["Baseline"] == ("–", "–", "0.50 ± 0.01", "1.00×")
    assert costs["ED"][2:] == ("0.25 ± 0.02", "1.60×")
    assert costs["Simple half swapped"][0].startswith("+20.50 (")
    assert costs["Simple half swapped"][0].endswith("*")
    assert costs["Simple half swapped"][1] == "-9.85"
    assert costs["CutMix"] == ("–",) * 4


def test_it_is_told_in_a_document(folder):
    text = document(result_of(RECIPE, Store(folder).records()), "markdown")
    assert "| Baseline | 99.85 ± 0.00 | 49.50 ± 0.20 | 99.80 ± 0.00 | 99.85 / 48.05 / 99.85 |" in text


def test_a_run_is_scored_by_all_its_tests(tmp_path):
    run = add(tmp_path, "plain", 0.9985, 0.4950, 0.9980).record()
    assert RECIPE.shows.score(run) == "99.85% (MNIST randomized 49.50%, CIFAR randomized 99.80%)"
    held_out = Store(tmp_path).run(RECIPE.resolved(RECIPE.rows[0], {"held_out": 1000}))
    held_out.begin({})
    held_out.finish({"test_accuracy": 0.9})
    assert RECIPE.shows.score(held_out.record()) == "90.00%"


def test_the_figures_show_every_line_that_was_run(folder):
    halves, cost = (drawing.draw("dark") for drawing in RECIPE.shows.drawings(block_of(folder)))
    (axes,) = halves.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [row.title for row in RECIPE.rows]
    assert [text.get_text() for text in axes.texts].count("not run") == len(RECIPE.rows) - 3
    dots = [float(line.get_xdata()[0]) for line in axes.lines if line.get_marker() == "o"]
    papers, ours = [99.85, 99.85, 48.05, 99.90, 99.90, 47.95], [99.85, 49.5, 99.8, 99.9, 49.5, 99.85, 90, 70, 72]
    assert sorted(dots) == pytest.approx(sorted([*papers, *ours]))
    shown = {text.get_text() for text in cost.axes[0].texts}
    assert {"Baseline", "ED", "Simple half swapped"} <= shown
    assert "CutMix" not in shown
    assert cost.get_facecolor() == halves.get_facecolor()


def test_the_lines_are_the_paper_s_and_every_idea_with_its_rival():
    found = find_recipe("mnist-cifar")
    settings = {row.name: found.resolved(row, {}) for row in found.rows}
    assert all(isinstance(each, Training) for each in settings.values())
    assert list(found.shows.paper) == ["plain", "ed"]
    assert {each.ends for each in settings.values()} == {"data", "cuts", "balanced", "simple-half"}
    rivals = {name: each.augment for name, each in settings.items() if each.method == "plain"}
    assert rivals == {"plain": "none", "cutmix": "cutmix", "swapped": "swap-simple-half"}
    # No path costs more points than half a batch's pairs do.
    assert all(each.pairs <= 0.5 for each in settings.values())
