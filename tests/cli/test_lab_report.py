"""``effdeg lab table`` and ``effdeg lab report`` as a user types them."""

import json

import pytest

from effdeg.lab import all_recipes
from effdeg.ranking import read_table
from tests.lab.report.stores import METHODS, POOL, add

TABLE, MODELS = "tests.lab.report.stores:METHODS", "tests.lab.report.stores:POOL"


@pytest.fixture
def lab(run, tmp_path, monkeypatch):
    """Type ``effdeg lab`` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EFFDEG_RUNS", raising=False)
    return lambda *arguments, **how: run("lab", *arguments, **how)


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "effdeg-runs"
    for epochs in (10, 20):
        for row, accuracy in (("plain", 0.80), ("mixup", 0.85), ("ed", 0.84)):
            add(folder, METHODS, row, accuracy + epochs / 1000, epochs=epochs)
    return folder


def test_a_table_in_the_terminal(lab, runs):
    code, out, _ = lab("table", TABLE)
    assert code == 0
    assert "Against it, Mixup (87.00%) is above ED (86.00%)" in out
    assert out.index("20 epochs") < out.index("10 epochs")
    lines = [line for line in out.splitlines() if line.startswith("│ Mixup")]
    assert "82.00 ± 0.50" in lines[0]
    assert "87.00" in lines[0]
    assert "Shortened: 10 epochs instead of 20." in out
    assert "The rate is not the paper's." in out


def test_one_scale(lab, runs):
    out = lab("table", TABLE, "--set", "epochs=10")[1]
    assert "86.00%" in out
    assert "87.00" not in out
    code, out, err = lab("table", TABLE, "--set", "epoch=10")
    assert (code, out) == (2, "")
    assert "Did you mean 'epochs'" in err.replace("\n", " ")


def test_other_languages(lab, runs):
    assert "| Mixup | 82.00 ± 0.50 | **87.00** |" in lab("table", TABLE, "--format", "markdown")[1]
    assert r"Mixup & 82.00 $\pm$ 0.50 & \textbf{87.00} &" in lab("table", TABLE, "--format", "latex")[1]
    found = json.loads(lab("table", TABLE, "--format", "json")[1])
    assert [block["scale"]["epochs"] for block in found["blocks"]] == [20, 10]


def test_nothing_was_run(lab, tmp_path):
    add(tmp_path / "effdeg-runs", POOL, "plain", 0.9)
    code, out, _ = lab("table", TABLE)
    assert code == 0
    assert sum("not run" in line for line in out.splitlines() if line.startswith("│")) == 8
    assert f"effdeg lab sweep {TABLE} --runs" in out
    assert "nan" not in out


def test_nothing_is_cut_on_a_narrow_screen(lab, runs):
    out = lab("table", TABLE, width=60)[1]
    assert "…" not in out


def test_no_number_is_broken_on_80_columns(lab, runs):
    for seed in (1, 2):
        for row, accuracy in (("plain", 0.81), ("mixup", 0.85), ("ed", 0.84)):
            add(runs, METHODS, row, accuracy + seed / 100 * (row == "ed"), seed=seed)
    wide, narrow = (lab("table", TABLE, "--set", "epochs=20", width=width)[1] for width in (300, 80))
    assert max(map(len, narrow.splitlines())) <= 80
    for text in (wide, narrow):
        assert "82.00 ± 0.50" in text
    cells = [cell.strip() for line in wide.splitlines() if line.startswith("│") for cell in line.split("│")]
    numbers = [part for cell in cells for part in cell.replace(" (", "\n(").split("\n") if any(map(str.isdigit, part))]
    assert len(numbers) > 30
    for number in numbers:
        assert number in narrow


def test_the_folder_of_runs_may_be_in_the_environment(lab, runs, monkeypatch, tmp_path):
    monkeypatch.setenv("EFFDEG_RUNS", str(runs.rename(tmp_path / "elsewhere")))
    assert "87.00" in lab("table", TABLE)[1]


def test_figures_and_models(lab, runs, tmp_path):
    for point in POOL.points():
        accuracy = 0.9 - 0.001 * point["batch"] - point["lr"] / 10
        summary = {"proxies": {"parameter_norm": {"value": point["batch"] + point["lr"], "stderr": None}}}
        add(runs, POOL, "plain", accuracy, degree=1 - accuracy, summary=summary, **point)
    code, out, _ = lab("table", TABLE, "--plot", "curves.png")
    assert code == 0
    assert "written: curves.png" in out
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = lab("table", MODELS, "--csv", "pool.csv", "--plot", "panels.svg")
    assert code == 0
    assert (tmp_path / "panels.svg").exists()
    assert len(read_table(tmp_path / "pool.csv")["gap"]) == 9
    assert "effective_degree" in out


@pytest.mark.parametrize("option", ["--csv", "--plot"])
def test_a_file_that_cannot_be_written_completely_stays_what_it_was(lab, runs, tmp_path, monkeypatch, option):
    for point in POOL.points():
        add(runs, POOL, "plain", 0.9 - 0.001 * point["batch"] - point["lr"] / 10, degree=point["lr"], **point)
    file = tmp_path / ("pool.csv" if option == "--csv" else "pool.svg")
    file.write_text("old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("effdeg._utils.files.os.fsync", full)
    code, _, err = lab("table", MODELS, option, file.name)
    assert code == 2
    assert "No space left on device" in err
    assert file.read_text() == "old"
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table", "digits-method"], "'digits-method' is not a recipe. Did you mean 'digits-methods'"),
        (["report", TABLE, "cifar10-bases"], "'cifar10-bases' is not a recipe. Did you mean 'cifar10-basis'"),
        (["table", TABLE, "--csv", "x.csv"], "METHODS is no pool of models"),
        (["table", MODELS, "--csv", "x.txt"], "expected a file that ends in .csv"),
        (["table", TABLE], "--runs effdeg-runs: there is no such folder. Name the folder that effdeg lab run or"),
        (["table", TABLE, "--runs", "typo"], "--runs typo: there is no such folder."),
        (["report", "--runs", "typo"], "--runs typo: there is no such folder."),
        (["report", "--runs", __file__], "it is no folder"),
        (["report", "--runs", "."], "--runs .: it holds no runs."),
        (["table", TABLE, "--plot", "x.gif"], "expected a file that ends in"),
        (["report", "--out", "x.pdf"], "expected a file that ends in .html"),
        (["report", "--out", "absent/x.html"], "the folder absent does not exist"),
    ],
)
def test_mistakes_end_with_one_clear_sentence(lab, tmp_path, arguments, message):
    code, out, err = lab(*arguments)
    assert (code, out) == (2, "")
    assert message in err.replace("\n", " ")
    assert not list(tmp_path.iterdir())


def test_a_report(lab, runs, tmp_path):
    code, out, _ = lab("report", TABLE, "digits-methods", "--out", "page.html")
    assert code == 0
    assert f"{TABLE}: One seed: 2 of the 3 pairs" in out
    assert "digits-methods: Not run yet." in out
    assert "written: page.html" in out
    page = (tmp_path / "page.html").read_text()
    assert "Three methods &amp; a half" in page
    assert "effdeg lab sweep digits-methods" in page


def test_runs_of_another_experiment_leave_nothing_to_draw_or_write(lab, runs, tmp_path):
    for option, file, message in (
        ("--csv", "x.csv", "POOL lies in effdeg-runs"),
        ("--plot", "x.png", "POOL in effdeg-runs has anything to draw"),
    ):
        code, _, err = lab("table", MODELS, option, file)
        assert code == 2
        assert message in err.replace("\n", " ")
        assert not (tmp_path / file).exists()


def test_a_report_of_all_recipes(lab, runs, tmp_path):
    assert lab("report")[0] == 0
    page = (tmp_path / "effdeg-lab.html").read_text()
    for name in all_recipes():
        assert f"effdeg lab sweep {name}" in page
