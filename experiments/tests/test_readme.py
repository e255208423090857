"""The README's worked example is one short file, and all commands work with it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from toy_results import invent_run

from effdeg_lab.cli import main
from effdeg_lab.core.recipe import find_recipe
from effdeg_lab.show.report import report_on

README = Path(__file__).parent.parent / "README.md"
NAME = "smoothing:RECIPE"
SHORT = ("--set", "steps=10")


@pytest.fixture
def experiment(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(code.splitlines()) <= 60
    (tmp_path / "smoothing.py").write_text(code)
    return tmp_path


def test_the_worked_example_runs(experiment, monkeypatch, capsys):
    monkeypatch.chdir(experiment)
    monkeypatch.setenv("EFFDEG_RUNS", "runs")
    monkeypatch.setattr(sys, "path", [*sys.path])
    # As a user does: like the command effdeg-lab, without the folder in Python's path.
    command = [sys.executable, "-P", "-m", "effdeg_lab", "run", NAME, "--method", "smoothed", *SHORT]
    subprocess.run(command, check=True, capture_output=True)
    first = (experiment / "runs" / "smoothing_RECIPE" / "smoothed-0-steps=10.jsonl").read_text()
    for arguments in (["sweep", NAME, "--seeds", "0,1", *SHORT], ["table", NAME, "--format", "markdown"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert not ended.value.code
    monkeypatch.delitem(sys.modules, "smoothing")
    files = sorted((experiment / "runs").glob("*/*.jsonl"))
    assert [file.stem for file in files] == [
        f"{method}-{seed}-steps=10" for method in ("plain", "smoothed") for seed in (0, 1)
    ]
    assert files[2].read_text() == first, "what is finished is not run again"
    assert all("summary" in json.loads(file.read_text().splitlines()[-1]) for file in files)
    table = capsys.readouterr().out
    assert re.search(r"\| smoothing 0\.1 \| 0\.\d+ \| \d\.\d+ \| \d\.\d+ \|", table)
    assert "smoothed minus plain" in table


def test_the_worked_example_survives_runs_that_ended_with_nan(experiment, monkeypatch):
    monkeypatch.syspath_prepend(experiment)
    monkeypatch.delitem(sys.modules, "smoothing", raising=False)
    recipe = find_recipe(NAME)
    for losses, found in (((1.0, 2.0, None), "-0.25; smoothing 0.1: 2"), ((None,) * 3, "nan; smoothing 0.1: 0")):
        runs = [
            invent_run(recipe, method, {"test_accuracy": 0.5, "degree": value, "normalized": value}, seed=seed)
            for method, values in (("plain", (1.5, 2.0, 2.5)), ("smoothed", losses))
            for seed, value in enumerate(values)
        ]
        report = report_on(recipe, runs)
        verdict = f"not decided: smoothed minus plain: {found} of 3 seeds; {losses.count(None)} failed"
        assert str(report.verdicts[0]) == verdict
        assert recipe.study.tables(report.results[0])[0].rows[0] == ("plain", "0.500", "2.000", "2.000")
    monkeypatch.delitem(sys.modules, "smoothing")


def test_every_command_is_explained():
    commands = " ".join(re.findall(r"^\| `effdeg-lab ([\w-]+)", README.read_text(), flags=re.MULTILINE))
    assert commands == "list show run run sweep campaign status curve table soup clip-pool report"
