import numpy as np
import pytest

from effdeg._utils.statistics import student_quantile
from effdeg.lab.recipes.grokking import RECIPE
from effdeg.lab.report import result_of
from effdeg.lab.report.figures import drawings
from effdeg.lab.report.sheets import block_sheets, runs_sheet
from effdeg.lab.report.text import document
from effdeg.lab.store import Store
from effdeg.lab.studies.grokking.claim import judged
from effdeg.lab.studies.grokking.course import DEGREE, Course
from effdeg.lab.studies.grokking.figure import plot_courses
from effdeg.plots import THEMES
from tests.lab.studies.grokking.runs import made_up
from tests.lab.studies.grokking.test_claim import ACCURACIES, AS_THE_PAPER, LOSSES

EARLY = [0, 0.1, 0.2, 0.9, 0.4, 0.3, 0.2, *[0.1] * 8]
GENERALIZED = {"accuracies": ACCURACIES, "losses": LOSSES}
MEMORIZED = {"accuracies": [0.01] * 15, "losses": list(range(1, 16))}
RISING = [float(norm) for norm in range(1, 16)]


@pytest.fixture
def store(tmp_path):
    made_up(tmp_path, "paper", degrees=AS_THE_PAPER, norms=RISING, **GENERALIZED)
    made_up(tmp_path, "paper", degrees=[1.1 * each for each in AS_THE_PAPER], norms=RISING, seed=1, **GENERALIZED)
    made_up(tmp_path, "half", degrees=RISING, norms=RISING, **MEMORIZED)
    other = {"norms": RISING[::-1], "sharpness": AS_THE_PAPER, "normalized": AS_THE_PAPER}
    made_up(tmp_path, "decay", degrees=EARLY, **other, **GENERALIZED)
    return Store(tmp_path)


@pytest.fixture
def result(store):
    return result_of(RECIPE, store.records())


@pytest.fixture
def block(result):
    (block,) = result.blocks
    return block


def test_the_finding(result, block):
    found = result.findings[block]
    assert found.verdict == "holds"
    assert found.sentences == (
        "“30%, no weight decay” (2 seeds): ED rises while the network memorizes, is highest near the drop of the "
        "validation loss, and falls.",
        "“30%, weight decay 1” (one seed): the claim fails: ED is highest not near the drop of the validation loss, "
        "but at 0.062 times its step (until the drop, at 0.062 times).",
        "The validation loss does not drop within 163,840 steps, so that the claim cannot be tested, in “50%, no "
        "weight decay” (one seed; 1.00%): in brackets the highest validation accuracy.",
        "Normalized ED, of the logits: “30%, no weight decay”: 1.00 at its highest until the drop (0.0078 times its "
        "step), 1.00 at the drop, 1.00 at the end; the claim holds in 0 of 2 runs; “30%, weight decay 1”: 0.90 at its "
        "highest until the drop (0.5 times its step), 0.80 at the drop, 0.10 at the end; the claim holds in 1 of 1 "
        "run.",
        "At the end ED is 0.10 to 0.11 where the network generalized and 15.00 where it did not.",
        "The parameter norm rises throughout, as in the paper, in “30%, no weight decay” and “50%, no weight decay”, "
        "and falls in “30%, weight decay 1” (by 93% of its highest).",
        "Of the other measures these are highest near the drop: sharpness in “30%, weight decay 1”.",
        "Not run: “30%, no decay, float64 softmax” and “50%, weight decay 1”.",
    )


def test_seeds_that_disagree(tmp_path):
    made_up(tmp_path, "paper", degrees=AS_THE_PAPER, **GENERALIZED)
    made_up(tmp_path, "paper", degrees=EARLY, seed=1, **GENERALIZED)
    made_up(tmp_path, "paper", degrees=EARLY, seed=2, **MEMORIZED)
    result = result_of(RECIPE, Store(tmp_path).records())
    found = result.findings[result.blocks[0]]
    assert found.verdict == "not decided"
    assert found.sentences[0].startswith("“30%, no weight decay” (2 of 3 seeds): the claim fails in 1 of 2: ED is")


def test_all_that_fails_is_named(tmp_path):
    made_up(tmp_path, "paper", degrees=[0.2, *[0.1] * 5, *[0.9] * 9], **GENERALIZED)
    result = result_of(RECIPE, Store(tmp_path).records())
    assert result.findings[result.blocks[0]].sentences[0] == (
        "“30%, no weight decay” (one seed): the claim fails: ED does not rise while the network memorizes and does not "
        "end below its highest."
    )
    assert result.findings[result.blocks[0]].verdict == "does not hold"


def test_tables(block):
    steps, degrees = block_sheets(block)
    cells = {row[0]: dict(zip(steps.head[1:], row[1:], strict=True)) for row in steps.rows}
    assert cells["30%, no weight decay"] == {
        "99% in training": "40",
        "50% in validation": "1,280",
        "99% in validation": "2,560",
        "loss highest": "160",
        "loss halved": "1,280",
        "ED highest until then": "640",
        "ED highest": "640",
    }
    assert cells["50%, no weight decay"]["50% in validation"] == "never"
    assert cells["50%, no weight decay"]["ED highest"] == "163,840"
    assert list(cells["50%, weight decay 1"].values()) == ["not run", *["–"] * 6]
    assert "163,840" in steps.title
    assert degrees.head == (
        "",
        "at first",
        "memorized",
        "highest until the drop",
        "at the drop",
        "highest",
        "at the end",
    )
    found = {row[0]: row[1:] for row in degrees.rows}
    # Two seeds, the second a tenth higher, each with a standard error of 0.01.
    assert found["30%, no weight decay"] == (
        "0.000 ± 0.007", "0.210 ± 0.007", "0.945 ± 0.007", "0.840 ± 0.007", "0.945 ± 0.007", "0.105 ± 0.007",
    )  # fmt: skip
    assert found["50%, no weight decay"][2:4] == ("–", "–")


def test_steps_over_seeds(tmp_path):
    later = [0.01, *ACCURACIES[:-1]]
    made_up(tmp_path, "paper", degrees=AS_THE_PAPER, **GENERALIZED)
    made_up(tmp_path, "paper", degrees=AS_THE_PAPER, accuracies=later, losses=LOSSES, seed=1)
    made_up(tmp_path, "paper", degrees=AS_THE_PAPER, seed=2, **MEMORIZED)
    (block,) = result_of(RECIPE, Store(tmp_path).records()).blocks
    steps = block_sheets(block)[0]
    assert steps.rows[0][2] == "1,280 to 2,560 (2 of 3)"


def test_runs_have_a_score(result):
    assert runs_sheet(result).rows[0][4] == "validation accuracy up to 100.00%, highest ED 0.900 at step 640"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_figure(block, theme):
    lines = [block.line("paper"), block.line("half")]
    figure = plot_courses(lines, theme=theme)
    colours = THEMES[theme]
    grid, beside = np.array(figure.axes[:10]).reshape(5, 2), figure.axes[10:]
    assert [axes.lines[0].get_ydata().tolist() for axes in beside] == [[1.0] * 15] * 2  # normalized
    assert [axes.get_title(loc="left") for axes in grid[0]] == ["30%, no weight decay", "50%, no weight decay"]
    assert [axes.get_ylabel() for axes in grid[:, 0]] == [
        "loss", "effective degree", "parameter norm", "sharpness", "adaptive sharpness",
    ]  # fmt: skip
    degree = grid[1, 0]
    strong = max((line for line in degree.lines if len(line.get_xdata()) > 2), key=lambda line: line.get_linewidth())
    assert strong.get_ydata().tolist() == AS_THE_PAPER
    (dot,) = [line for line in degree.lines if line.get_marker() == "o"]
    assert (dot.get_xdata()[0], dot.get_ydata()[0]) == (640, 0.9)
    # The band is the 95% interval of the measurement.
    highest = max(point[1] for point in degree.collections[0].get_paths()[0].vertices)
    assert highest == pytest.approx(0.9 + student_quantile(0.975, 199) * 0.01)
    texts = [[text.get_text() for text in axes.texts] for axes in grid[0]]
    assert texts == [["validation", "training", "memorized", "generalizes"], ["validation", "training", "memorized"]]
    for axes in grid.flat:
        assert axes.get_xscale() == "log"
        assert len(axes.patches) == (axes in grid[:, 0])
    (shade,) = degree.patches
    assert (shade.get_x(), shade.get_x() + shade.get_width()) == (640, 1280)
    assert grid[0, 0].get_facecolor() == pytest.approx(figure.get_facecolor())
    assert colours.ground == {"light": "#ffffff", "dark": "#0d1117"}[theme]


def test_figures_are_by_weight_decay_and_what_dropped_most_comes_first(block, tmp_path):
    assert [each.name for each in drawings(block)] == ["without-decay", "with-decay"]
    assert "thin: the others" in drawings(block)[0].caption
    assert "thin" not in drawings(block)[1].caption
    made_up(tmp_path / "other", "decay", degrees=EARLY, **GENERALIZED)
    made_up(tmp_path / "other", "half", degrees=RISING, **MEMORIZED)
    (other,) = result_of(RECIPE, Store(tmp_path / "other").records()).blocks
    assert [each.name for each in drawings(other)] == ["with-decay", "without-decay"]


def test_a_document_has_it_all(result):
    for language in ("markdown", "latex"):
        written = document(result, language)
        assert "ED rises while the network memorizes, is highest near the drop" in written
        assert "loss halved" in written


def test_the_first_line_is_the_paper_s():
    paper = RECIPE.resolved(RECIPE.rows[0], {})
    assert (paper.fraction, paper.weight_decay, paper.softmax) == (0.3, 0.0, "float32")
    assert DEGREE == "validation_effective_degree"


def test_where_the_paper_s_setting_cannot_be_tested_that_is_said_first(tmp_path):
    made_up(tmp_path, "paper", degrees=EARLY, **MEMORIZED)
    made_up(tmp_path, "decay", degrees=EARLY, **GENERALIZED)
    made_up(tmp_path, "half-decay", degrees=AS_THE_PAPER, **GENERALIZED)
    result = result_of(RECIPE, Store(tmp_path).records())
    found = result.findings[result.blocks[0]]
    assert found.verdict == "not decided"
    assert found.sentences[0] == (
        "In the paper's setting the network does not generalize in the steps that it was given; where it does, the "
        "claim fails in 1 of 2 lines."
    )
    assert any("the latter without, which may be why" in sentence for sentence in found.sentences)


def test_a_plateau_that_reaches_the_drop_is_near_it(tmp_path):
    level = [0.0, 0.2, *[0.9] * 11, 0.1, 0.1]
    early = made_up(
        tmp_path, "paper", degrees=[each + 0.001 * (at == 2) for at, each in enumerate(level)], **GENERALIZED
    )
    assert judged(Course.of(early)).near
