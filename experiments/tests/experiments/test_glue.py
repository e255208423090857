"""GLUE's recipes: the paper's settings, the study on runs that are made up, and the commands on a tiny encoder."""

import shutil

import pytest
from scipy.stats import t
from test_glue_training import make_data, transformers
from toy_results import invent_run

from effdeg_lab.cli import main
from effdeg_lab.core.recipe import find_recipe
from effdeg_lab.core.results import collect
from effdeg_lab.experiments.glue import read_chosen

TINY = [each for key in ("model=tiny", "epochs=1", "batch=8", "compile=false") for each in ("--set", key)]
RECIPE = find_recipe("glue-rte")


def make_run(method, score, *, seed=0, recipe=RECIPE, step=2.0, halves=((0.5, 0.5),), **changes):
    """Make a run; ``halves`` are the scores to choose by and to report, in percent of one, after each epoch."""
    summary = {"score": score, "test_accuracy": score, "score_to_report": halves[-1][1], "dev_majority": 0.5}
    summary |= {"milliseconds_per_step": step, "seconds": 100 * step}
    metrics = [
        {"score_to_choose": choose, "score_to_report": report, "score": (choose + report) / 2}
        for choose, report in halves
    ]
    return invent_run(recipe, method, summary, metrics, seed=seed, **changes)


def make_runs(scores, **given):
    return [
        make_run(name, score, seed=seed, **given) for name, each in scores.items() for seed, score in enumerate(each)
    ]


def test_scores_with_their_spread_the_best_failures_differences_and_costs():
    runs = make_runs({"plain": [0.60, 0.62, 0.50], "mixup": [0.5, 0.5, 0.5]})
    runs += make_runs({"ed": [0.61, 0.64, 0.53]}, step=3.0)
    table, _ = RECIPE.study.tables(collect(RECIPE, runs)[0])
    assert table.title == "RTE, all-MiniLM-L6-v2: accuracy, 10 epochs, seeds 0, 1, 2, Thinking Machine"
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["Plain"] == ("70.28", "57.33 ± 6.43", "62.00", "1 of 3", "–", "2.0 (1.00×)")
    # Differences of 1, 2 and 3 points: a mean of 2 and a standard error of 1/√3.
    margin = t.ppf(0.975, 2) / 3**0.5
    low, high = 2 - margin, 2 + margin
    assert rows["ED"][3:] == ("0 of 3", f"+2.00 ({low:+.2f} to {high:+.2f})", "3.0 (1.50×)")
    assert rows["Mixup"][2:4] == ("50.00", "3 of 3")
    assert {table.rows[row][0] for row, column in table.bold if column == 2} == {"ED"}
    assert "3 of the recipe's 25 seeds" in table.notes[0]
    assert "Plain 70.28 ± 1.73, Mixup 70.28 ± 3.07, ED 71.12 ± 1.96" in table.notes[2]
    assert table.notes[-1].startswith("Not run: Mixup in a second stage; R-Drop; ")  # instead of rows of dashes


def test_stacked_runs_have_scores_but_no_times_and_count_as_the_same_machine():
    runs = make_runs({"plain": [0.60, 0.62, 0.64], "ed": [0.61, 0.64, 0.67], "rdrop": [0.8, 0.8]})
    for run in runs[1:3] + runs[3:5] + runs[6:]:  # all but the first of plain, and the last of ED
        run.environment["shared"], run.summary["milliseconds_per_step"] = True, 50.0
    table, _ = RECIPE.study.tables(collect(RECIPE, runs)[0])
    assert table.title.endswith("seeds 0, 1, 2, Thinking Machine")
    assert {row[0]: row[-1] for row in table.rows} == {"Plain": "2.0 (1.00×)", "ED": "2.0 (1.00×)", "R-Drop": "–"}
    # R-Drop has the highest mean, but fewer seeds than others.
    assert {table.rows[row][0] for row, column in table.bold if column == 2} == {"ED"}
    for run in runs:
        run.environment["shared"] = True
    table, _ = RECIPE.study.tables(collect(RECIPE, runs)[0])
    assert table.columns == ("", "paper, %", "here, %", "best, %", "failed", "against Plain")


def test_the_epoch_is_chosen_on_one_half_and_scored_on_the_other():
    halves = ((0.6, 0.1), (0.7, 0.62), (0.7, 0.9), (0.5, 0.58))
    assert read_chosen(make_run("plain", 0.5, halves=halves, epochs=4)) == 0.62  # the first of the best
    assert read_chosen(make_run("mixup-later", 0.5, halves=halves, epochs=2)) == 0.9  # of the second stage
    runs = [make_run("plain", 0.5, seed=seed, halves=halves) for seed in (0, 1)]
    runs += [make_run("ed", 0.5, seed=seed, halves=((0.5, 0.6 + 0.02 * seed),)) for seed in (0, 1)]
    _, table = RECIPE.study.tables(collect(RECIPE, runs)[0])
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["Plain"] == ("58.00 ± 0.00", "–", "62.00 ± 0.00", "–")
    assert rows["ED"][::2] == ("61.00 ± 1.41", "61.00 ± 1.41")
    assert [cell.split()[0] for cell in rows["ED"][1::2]] == ["+3.00", "-1.00"]
    assert rows.keys() == {"Plain", "ED"}


@pytest.mark.parametrize(
    ("ed", "word"),
    [
        ([0.64, 0.66, 0.68], "holds"),
        ([0.60, 0.66, 0.61], "not decided"),  # ahead of mixup, not of plain
        ([0.54, 0.57, 0.56], "does not hold"),
    ],
)
def test_ed_must_be_ahead_of_all_that_the_paper_reports(ed, word):
    runs = make_runs({"plain": [0.60, 0.62, 0.63], "mixup": [0.55, 0.56, 0.565], "rdrop": [0.7, 0.7, 0.7], "ed": ed})
    verdict = RECIPE.study.claim(collect(RECIPE, runs)[0])
    assert verdict.word == word
    without_mixup = [run for run in runs if run.method != "mixup"]
    assert RECIPE.study.claim(collect(RECIPE, without_mixup)[0]).word in {"not decided", "does not hold"}


@pytest.mark.parametrize("scores", [[0.6], [0.6, 0.49, 0.62]])
def test_the_figure_has_every_seed_sorted(scores):
    recipe = find_recipe("glue-cola")
    higher = {each.name: [score + 0.01 * place for score in scores] for place, each in enumerate(recipe.methods)}
    runs = make_runs(higher, recipe=recipe)
    results = collect(recipe, runs)[0]
    (figure,) = recipe.study.figures(results)
    assert figure.caption.startswith("CoLA, all-MiniLM-L6-v2: Matthews correlation on dev.")
    assert ("most frequent class" in figure.caption) == (min(scores) < 0.5)
    for theme in ("light", "dark"):
        left, right = figure.draw(theme).axes
        first = left.lines[0]
        assert first.get_xdata() == pytest.approx([100 * score for score in sorted(scores)])
        assert [*first.get_ydata()] == sorted(first.get_ydata(), reverse=True)  # rows are counted from the top
        assert len(right.get_yticks()) == len(recipe.methods)


@pytest.fixture
def data(tmp_path):
    return make_data(tmp_path)


@pytest.fixture
def type_command(monkeypatch, capsys, data):
    """Type a command with a data folder; return its exit code and all that it printed."""
    monkeypatch.setenv("EFFDEG_DATA", str(data))
    monkeypatch.setenv("EFFDEG_RUNS", str(data / "runs"))
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out + captured.err

    return call


def change_text(old, new):
    def change(data):
        file = data / "RTE" / "dev.tsv"
        file.write_text(file.read_text().replace(old, new))

    return change


def remove_pad_token(data):
    tokenizer = transformers.AutoTokenizer.from_pretrained(data / "tiny")
    tokenizer.pad_token = None
    tokenizer.save_pretrained(data / "tiny")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: shutil.rmtree(data / "RTE"), "rte was not found"),
        (lambda data: shutil.rmtree(data / "tiny"), "model='tiny' was not found"),
        (remove_pad_token, "no pad token"),
        (change_text("not_entailment", "perhaps"), "the label 'perhaps' is not one of"),
    ],
)
def test_mistakes_are_reported_before_any_run(type_command, data, change, message):
    change(data)
    code, said = type_command("sweep", "glue-rte", *TINY)
    assert code == 2
    assert message in said
    assert not (data / "runs").exists()


def test_a_batch_that_cannot_be_filled_is_reported_before_any_run(type_command, data):
    code, said = type_command("sweep", "glue-rte", *TINY, "--set", "limit=7")
    assert (code, "batch=8 is more than the 7 training examples" in said) == (2, True)
    code, said = type_command("run", "glue-rte", *TINY, "--set", "data=cifar10")
    assert (code, "data='cifar10' is not a task" in said) == (2, True)
    assert not (data / "runs").exists()
