import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from effdeg._utils.files import to_json
from effdeg.lab.report import plain, result_of
from effdeg.lab.report.sheet import Sheet
from effdeg.lab.report.sheets import block_sheets, further, runs_sheet, tuning_sheet
from effdeg.lab.report.terminal import terminal
from effdeg.lab.report.text import document, latex, markdown
from effdeg.lab.report.wording import degree, duration
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
    assert sheet.head == ("", "paper (20 epochs), %", "here, %", "against Baseline", "training, %", "ED", "seeds")
    assert sheet.rows == (
        ("Baseline", "80.00 ± 0.50", "80.50 ± 0.71", "–", "99.00", "0.50 ± 0.02", "2"),
        ("Mixup", "82.00 ± 0.50", "85.00", "+4.50", "99.00", "0.50 ± 0.03", "1"),
        ("SAM", "80.10 ± 0.50", "not run", "–", "–", "–", "–"),
        ("ED", "84.00 ± 0.50", "84.50 ± 0.85", "+4.00 (+2.73 to +5.27)*", "99.00", "0.50 ± 0.02", "2"),
    )
    assert sheet.strong == {(3, 1), (1, 2)}
    assert "Shortened: 10 epochs instead of 20." in sheet.notes
    assert "±: standard deviation over seeds for accuracies, standard error for effective degrees (ED)." in sheet.notes


def test_heads_say_what_is_the_same_for_all_lines(tmp_path):
    for seed in (0, 1):
        for row in ("plain", "ed"):
            add(tmp_path, METHODS, row, 0.8, seed=seed, held_out=50)
    sheet = block_sheets(result_of(METHODS, Store(tmp_path).records(), {"held_out": 50}).blocks[0])[0]
    assert sheet.title == "At equal epochs: 20 epochs, seeds 0, 1, Thinking Machine"
    assert sheet.head == ("", "paper, %", "here, held-out, %", "against Baseline", "training, %", "ED")
    assert result_of(METHODS, Store(tmp_path).records(), {"held_out": 50}).tuning_runs == ()


def test_scales_in_words(tmp_path):
    scale = {"limit": 1200, "evaluate_every": 2, "measure_every": 2, "measure_paths": 100, "compile": False}
    for row in ("plain", "ed"):
        add(tmp_path, METHODS, row, 0.8, epochs=10, **scale)
    sheet = block_sheets(result_of(METHODS, Store(tmp_path).records()).blocks[0])[0]
    assert (
        "Shortened: 10 epochs instead of 20; 1,200 of all training examples; not compiled; effective degree on 100 "
        "paths instead of 400."
    ) in sheet.notes


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
        "ED: λ = 20, the best of 2, tuned in runs of 10 epochs on 100 held-out examples (λ = 7: 70.00% and λ = 20: "
        "75.00%)."
    ) in sheet.notes
    assert (
        "Of the strengths that were tried, tuning chose the strongest for ED: the best may lie beyond." in sheet.notes
    )
    # The cheaper Baseline was not given this time: nothing can be the best in it.
    assert not sheet.strong
    assert sheet.notes[-1] == (
        "To run what is missing: `effdeg lab sweep methods --runs RUNS --no-tune --seeds 0,1 --set epochs=10 "
        "--equal-time ed`"
    )


def test_at_equal_time(tmp_path):
    add(tmp_path, METHODS, "plain", 0.80, epochs=10)
    add(tmp_path, METHODS, "plain", 0.85, epochs=20)
    add(tmp_path, METHODS, "ed", 0.84, step=2.0, epochs=10)
    add(tmp_path, METHODS, "sam", 0.81, step=4.0, epochs=10)

    def sheet():
        return block_sheets(result_of(METHODS, Store(tmp_path).records(), {"epochs": 10}).blocks[0])[1]

    assert [row[-2] for row in sheet().rows] == ["not run", "not run", "took 40 s", "84.00"]
    result = result_of(METHODS, Store(tmp_path).records())
    times = block_sheets(next(block for block in result.blocks if block.epochs == 10))[1]
    assert [row[-2] for row in times.rows] == ["85.00", "not run", "took 40 s", "84.00"]
    assert times.strong == {(0, 5)}
    assert "In more time than that, SAM (81.00%) ended lower than ED." in times.notes


def test_all_chose_the_weakest(tmp_path):
    for row, strength, values in (("mixup", "alpha", (0.2, 1.0)), ("ed", "weight", (7.0, 20.0))):
        for value, accuracy in zip(values, (0.7, 0.6), strict=True):
            add(tmp_path, METHODS, row, accuracy, held_out=100, epochs=4 if row == "ed" else 6, **{strength: value})
        add(tmp_path, METHODS, row, 0.8, **{strength: values[0]})
    result = result_of(METHODS, Store(tmp_path).records())
    assert (
        "Both tuned lines chose the weakest strength that was tried; they were tuned in 4 to 6 epochs and used for 20, "
        "and short runs favour weak regularization."
    ) in block_sheets(result.blocks[0])[1].notes
    assert [row[2] for row in tuning_sheet(result).rows] == ["6", "6", "4", "4"]


def test_strengths_that_are_not_tuned_are_shown_too(tmp_path):
    rows = (METHODS.rows[0], replace(METHODS.rows[3], changes={"method": "mixup+ed", "weight": 7.0, "alpha": 1.0}))
    recipe = replace(METHODS, rows=rows)
    add(tmp_path, recipe, "plain", 0.8)
    add(tmp_path, recipe, "ed", 0.8, weight=20.0)
    sheet = block_sheets(result_of(recipe, Store(tmp_path).records()).blocks[0])[1]
    assert [row[1] for row in sheet.rows] == ["–", "λ = 20, α = 1"]


def test_tuning_runs_and_what_else_was_run(result):
    sheet = tuning_sheet(result)
    assert sheet.title == "Tuning on 100 held-out training examples"
    assert sheet.rows == (("ED", "λ = 7", "10", "70.00%"), ("ED", "λ = 20", "10", "75.00%"))
    assert sheet.strong == {(1, 1), (1, 3)}
    runs = runs_sheet(result).rows
    assert len(runs) == 8
    assert {row[1:5] for row in runs if "tuning" in row[1]} == {
        ("ED (tuning)", "0", "–", "70.00%"),
        ("ED (tuning)", "0", "weight 20 instead of 7", "75.00%"),
    }
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
    text = latex(ODD, "tab:odd-1")
    caption = r"50\% \& more\_of \#1 \{x\} \textasciitilde{} \textasciicircum{} \textbackslash{} \$."
    assert f"\\caption{{{caption}}}\n  \\label{{tab:odd-1}}" in text
    assert text.index(r"\end{tabular}") < text.index(r"$\alpha$ $\le$ 3.") < text.index(r"\end{minipage}")
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
    assert (r"\usepackage{booktabs}" in text) == (language == "latex")
    assert (r"\label{tab:methods-2}" in text) == (language == "latex")


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


WIDE = Sheet(
    "numbers",
    ("measure", "paper (300 epochs), %", "against the baseline", "spare"),
    (
        ("effective_degree_normalized_random_pixels", "87.80 ± 1.17", "+1.53 (+0.91 to +2.16)*", "0.90 (0.10…0.95)"),
        ("Mixup + ED", "90.18 ± 0.14", "–", "0.10 (-0.90…0.95)"),
    ),
    spare=frozenset({3}),
)


@pytest.mark.parametrize("width", [120, 80, 64, 52, 50])
def test_no_number_is_broken(width):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(terminal(WIDE, width))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    for number in ("87.80 ± 1.17", "90.18 ± 0.14", "+1.53", "(+0.91 to +2.16)*", "0.90", "0.10"):
        assert number in text
    for part in ("effective_", "degree_", "normalized_", "random_", "pixels", "Mixup"):
        assert part in text
    assert ("+1.53 (+0.91 to +2.16)*" in text) == (width >= 64)
    assert "…" not in text


@pytest.mark.parametrize(("seconds", "text"), [(0.95, "0.95 s"), (89, "89 s"), (96, "1.6 min"), (7200, "2 h")])
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (2.024, 0.078, "2.02 ± 0.08"),
        (0.2063, 0.0058, "0.206 ± 0.006"),
        (0.0042, 0.00031, "0.0042 ± 0.0003"),
        (0.0042, 0.0, "0.0042 ± 0.0000"),
        (1.2345e-9, 3e-11, "1.23e-09 ± 3e-11"),
        (0.0, 0.0, "0.00 ± 0.00"),
    ],
)
def test_small_effective_degrees_keep_their_digits(value, error, text):
    assert degree((value, error)) == text
