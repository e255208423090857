import json

import pytest

from effdeg.lab.files import to_json
from effdeg.lab.report import plain, result_of
from effdeg.lab.report.sheets import Sheet, block_sheets, further, runs_sheet, tuning_sheet
from effdeg.lab.report.text import document, latex, markdown
from effdeg.lab.report.wording import duration
from effdeg.lab.store import Store
from tests.lab.report.stores import METHODS, add

ODD = Sheet(
    "50% & more_of #1 {x} ~ ^ \\ $",
    ("", "λ_max | x"),
    (("a_b|c", "1 ± 2×"), ("*d*", "–")),
    ("α ≤ 3.",),
    frozenset({(0, 1)}),
)


@pytest.fixture
def result(tmp_path):
    for seed in (0, 1):
        add(tmp_path, METHODS, "plain", 0.80 + seed / 100, seed=seed, epochs=10)
        add(tmp_path, METHODS, "ed", 0.839 + 0.012 * seed, step=1.7, weight=20.0, seed=seed, epochs=10)
    add(tmp_path, METHODS, "mixup", 0.85, epochs=10)
    add(tmp_path, METHODS, "mixup", 0.90, epochs=17)
    for weight, accuracy in ((7.0, 0.7), (20.0, 0.75)):
        add(tmp_path, METHODS, "ed", accuracy, weight=weight, held_out=100, epochs=10)
    return result_of(METHODS, Store(tmp_path).records())


def test_accuracies(result):
    sheet = block_sheets(result.blocks[0])[0]
    assert sheet.title == "At equal epochs: 10 epochs, seeds 0, 1, Thinking Machine"
    assert sheet.head == ("", "paper, %", "here, %", "against Baseline", "training, %", "effective degree", "seeds")
    assert sheet.rows == (
        ("Baseline", "80.00 ± 0.50", "80.50 ± 0.71", "–", "99.00", "0.5 ± 0.02", "0, 1"),
        ("Mixup", "82.00 ± 0.50", "85.00", "+4.50", "99.00", "0.5 ± 0.03", "0"),
        ("SAM", "80.10 ± 0.50", "not run", "–", "–", "–", "–"),
        ("ED", "84.00 ± 0.50", "84.50 ± 0.85", "+4.00 (+2.73 to +5.27)*", "99.00", "0.5 ± 0.02", "0, 1"),
    )
    assert sheet.strong == {(3, 1), (1, 2)}
    assert "Shortened: 10 epochs instead of 20." in sheet.notes


def test_times(result):
    sheet = block_sheets(result.blocks[0])[1]
    assert sheet.title == "What it costs, and at equal time: 17 s, that of ED"
    assert sheet.rows == (
        ("Baseline", "–", "1 s", "1.00×", "10 s", "not run", "–"),
        ("Mixup", "α = 1", "1 s", "1.00×", "10 s", "90.00", "17"),
        ("SAM", "–", "not run", "–", "–", "not run", "–"),
        ("ED", "λ = 20", "1.7 s", "1.70×", "17 s", "84.50 ± 0.85", "10"),
    )
    assert "The recipe's own strength, not tuned: Mixup." in sheet.notes
    assert (
        "ED: λ = 20, the best of 2 on 100 held-out examples (λ = 7: 70.00% and λ = 20: 75.00%); it is the largest that "
        "was tried, so the best may lie beyond."
    ) in sheet.notes


def test_tuning_runs_and_what_else_was_run(result):
    sheet = tuning_sheet(result)
    assert sheet.title == "Tuning on 100 held-out training examples, 10 epochs"
    assert sheet.rows == (("ED", "λ = 7", "70.00%"), ("ED", "λ = 20", "75.00%"))
    assert sheet.strong == {(1, 1), (1, 2)}
    runs = runs_sheet(result).rows
    assert len(runs) == 6
    assert ("ED", "1", "10 epochs instead of 20; weight 20 instead of 7", "85.10%") in [row[1:5] for row in runs]
    assert all(row[-1] == "torch 2.13, python 3.11, effdeg 0.4" for row in runs)
    assert further(result) == ["Mixup, 17 epochs, α = 1: 90.00% (one seed, 17 s, Thinking Machine)"]


def test_strengths_that_are_not_the_tuned_ones(tmp_path):
    add(tmp_path, METHODS, "ed", 0.8, weight=3.0)
    add(tmp_path, METHODS, "ed", 0.7, weight=7.0, seed=1)
    add(tmp_path, METHODS, "ed", 0.7, weight=20.0, held_out=100, epochs=10)
    add(tmp_path, METHODS, "mixup", 0.8, alpha=0.3)
    notes = block_sheets(result_of(METHODS, Store(tmp_path).records()).blocks[0])[1].notes
    assert "ED: λ = 7; the tuned one, λ = 20, was not run at this scale." in notes
    assert "ED was also run with λ = 3 (80.00%), which is not shown." in notes
    assert "Mixup: α = 0.3, set by hand, not tuned." in notes


def test_several_devices_are_named(tmp_path):
    add(tmp_path, METHODS, "plain", 0.8)
    add(tmp_path, METHODS, "sam", 0.8, device="a faster machine")
    sheet = block_sheets(result_of(METHODS, Store(tmp_path).records()).blocks[0])[1]
    assert sheet.head[-1] == "device"
    assert [row[-1] for row in sheet.rows] == ["Thinking Machine", "–", "a faster machine", "–"]


def test_a_failure_is_told(tmp_path):
    run = add(tmp_path, METHODS, "sam", 0.8, finished=False)
    (run / "failure.txt").write_text("RuntimeError: it diverged\n")
    add(tmp_path, METHODS, "plain", 0.8)
    sheet = block_sheets(result_of(METHODS, Store(tmp_path).records()).blocks[0])[0]
    assert sheet.rows[2][2] == "failed"
    assert "SAM failed: RuntimeError: it diverged" in sheet.notes


def test_latex_is_escaped():
    text = latex(ODD)
    assert r"\caption{50\% \& more\_of \#1 \{x\} \textasciitilde{} \textasciicircum{} \textbackslash{} \$." in text
    assert r"$\alpha$ $\le$ 3." in " ".join(text.split())
    assert r"     & $\lambda$\_max \textbar{} x \\" in text
    assert r"    a\_b\textbar{}c & \textbf{1 $\pm$ 2$\times$} \\" in text
    assert text.isascii()
    for rule in ("toprule", "midrule", "bottomrule"):
        assert text.count(rule) == 1


def test_markdown_is_escaped():
    lines = markdown(ODD).splitlines()
    assert lines[2:6] == [
        r"|  | λ\_max \| x |",
        "|---|---:|",
        r"| a\_b\|c | **1 ± 2×** |",
        r"| \*d\* | – |",
    ]


@pytest.mark.parametrize("language", ["markdown", "latex"])
def test_documents_hold_everything(result, language):
    text = document(result, language)
    assert ("Three methods & a half" if language == "markdown" else r"Three methods \& a half") in text
    for words in ("The paper: ED is best.", "Also run: Mixup, 17 epochs", "The rate is not the paper's.", "not run"):
        assert words in text
    assert text.isascii() == (language == "latex")


def test_plain_numbers(result):
    found = json.loads(to_json(plain.to_dict(result)))
    assert found["recipe"] == "methods"
    (block,) = found["blocks"]
    lines = {line["name"]: line for line in block["lines"]}
    assert lines["plain"]["accuracy"] == {
        "mean": pytest.approx(0.805),
        "std": pytest.approx(0.005 * 2**0.5),
        "count": 2,
    }
    assert lines["ed"]["difference"]["value"] == pytest.approx(0.04)
    assert lines["ed"]["paper"] == {"mean": 84.0, "std": 0.5}
    assert (lines["ed"]["strengths"], lines["ed"]["tuned"]) == ({"weight": 20.0}, True)
    assert lines["mixup"]["at_equal_time"] == {"mean": 0.9, "std": None, "count": 1, "epochs": 17}
    assert (lines["sam"]["state"], lines["sam"]["accuracy"]) == ("not run", None)
    assert block["equal_time"] == {"reference": "ed", "seconds": 17.0}
    assert found["tuning"]["ed"]["changes"] == {"weight": 20.0}
    assert found["further"][0]["scale"]["epochs"] == 17


@pytest.mark.parametrize(("seconds", "text"), [(0.95, "0.95 s"), (89, "89 s"), (96, "1.6 min"), (7200, "2 h")])
def test_durations(seconds, text):
    assert duration(seconds) == text
