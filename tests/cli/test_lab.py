"""``effdeg lab`` as a user types it: list, show, run and sweep."""

import json
import re
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from functools import partial

import pytest
import torch

from effdeg.cli import _lab_sweep as lab_sweep
from effdeg.lab import Failure, Outcome, Run, Store, Task, all_recipes, find_recipe, train
from effdeg.lab.jobs import final_jobs
from effdeg.lab.settings import digest, to_dict

DIGITS = find_recipe("digits-methods")
FAST = {
    "epochs": 4,
    "evaluate_every": 2,
    "measure_every": 0,
    "measure_paths": 5,
    "measure_nodes": 8,
    "measure_degree": 4,
}
SET = [argument for key, value in FAST.items() for argument in ("--set", f"{key}={value}")]


@pytest.fixture(name="run")
def run_lab(run, monkeypatch, tmp_path):
    """Type ``effdeg lab`` in an empty folder, on a machine where nothing is set up."""
    monkeypatch.chdir(tmp_path)
    for name in ("EFFDEG_RUNS", "EFFDEG_DATA"):
        monkeypatch.delenv(name, raising=False)
    return partial(run, "lab")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "effdeg-runs")


@pytest.fixture
def sweeps(monkeypatch):
    """What was asked of sweeps, none of which is carried out."""
    asked = []

    def carry_out(found, **options):
        asked.append({"recipe": found, **options})
        return Outcome()

    monkeypatch.setattr(lab_sweep, "carry_out", carry_out)
    return asked


def settings_of(method, **changes):
    return DIGITS.resolved(DIGITS.row(method), FAST | changes)


def end(store, settings, **summary):
    """Keep a run as if it had been carried out."""
    run = store.run(settings)
    run.begin({"device": "CPU"})
    run.finish(summary)


def tuned(store):
    """Keep runs that tune the weight of ED, of which 20 is the best."""
    for weight, accuracy in ((7.0, 0.5), (20.0, 0.8), (50.0, 0.7)):
        end(store, settings_of("ed", weight=weight, held_out=200), test_accuracy=accuracy)


def test_list_shows_every_recipe_and_what_it_takes(run):
    code, out, _ = run("list", width=400)
    assert code == 0
    lines = out.splitlines()
    for name, found in all_recipes().items():
        line = next(line for line in lines if f" {name} " in line)
        assert found.title in line
        assert found.paper in line
    runs = {
        "cifar10-cost": "17 methods × 3 seeds = 51, and 48 to tune",
        "cifar10-basis": "2 methods × 3 seeds = 6",
        "pnn": "6 lines × 3 seeds = 18",
    }
    for name, text in (runs | {"cifar10-vit-pool": "27 settings × 3 seeds = 81"}).items():
        assert text in next(line for line in lines if f" {name} " in line)


@pytest.mark.parametrize(
    "arguments", [["list"], ["show", "cifar10-cost"], ["sweep", "cifar10-cost", "--dry-run"]], ids=lambda each: each[0]
)
def test_nothing_is_cut_on_a_narrow_screen(run, arguments):
    code, out, _ = run(*arguments, width=80)
    assert code == 0
    assert "…" not in out
    for name in all_recipes() if arguments == ["list"] else [row.name for row in find_recipe("cifar10-cost").rows]:
        assert re.search(rf"^(│ )?{re.escape(name)} ", out, flags=re.MULTILINE)


def test_list_as_json(run):
    code, out, _ = run("list", "--json")
    listed = {each["name"]: each for each in json.loads(out)}
    assert code == 0
    assert list(listed) == list(all_recipes())
    assert listed["cifar10-basis"]["runs"] == 2 * 3
    assert listed["cifar10-basis"]["tuning_runs"] == 0
    assert listed["cifar10-cost"]["tuning_runs"] == 16 * 3
    assert listed["cifar10-resnet18-pool"]["grid"]["lr"] == [0.1, 0.01, 0.001]


def test_show_tells_the_paper_s_finding_and_the_settings_of_a_line(run):
    code, out, _ = run("show", "cifar10-methods", "--method", "ed", "--set", "epochs=40")
    found = find_recipe("cifar10-methods")
    assert code == 0
    flat = " ".join(out.split())
    for text in (found.title, found.paper, found.expects, found.departs, "90.82 ± 0.11", "weight: 7 20 50"):
        assert text in flat
    lines = {line.split()[1]: line.split()[3:-1] for line in out.splitlines() if line.startswith("│ ")}
    assert lines["epochs"] == ["40", "│", "instead", "of", "300"]
    assert lines["weight"] == ["7", "│", "instead", "of", "none"]
    assert lines["batch"] == ["256", "│"]
    assert set(to_dict(found.settings)) <= set(lines)
    assert digest(found.resolved(found.row("ed"), {"epochs": 40})) in out


def test_show_as_json(run):
    code, out, _ = run("show", "digits-methods", "--set", "proxies=margin,path_norm", "--json")
    shown = json.loads(out)
    expected = replace(DIGITS.settings, proxies=("margin", "path_norm"))
    assert code == 0
    assert shown["settings"] == to_dict(expected)
    assert shown["run"] == digest(expected)
    assert shown["method"] is None
    assert [line["name"] for line in shown["lines"]] == [row.name for row in DIGITS.rows]
    mixed = next(line for line in shown["lines"] if line["name"] == "mixup+ed")
    assert mixed["changes"] == {"method": "mixup+ed", "weight": 7.0}
    assert mixed["strengths"] == {"weight": [2.0, 7.0, 20.0]}
    assert mixed["paper"] is None


def test_run_gives_what_the_library_gives_and_shows_it_again_later(run, store, tmp_path):
    code, out, _ = run("run", "digits-methods", "--seed", 3, *SET)
    assert code == 0
    settings = settings_of("plain", seed=3)
    other = Store(tmp_path / "other").run(settings)
    train(settings, Task(other, None, torch.device("cpu")))
    expected, ours = other.record().summary, store.run(settings).record().summary
    for key in ("test_accuracy", "train_accuracy", "test_loss", "effective_degree"):
        assert ours[key] == expected[key]
    degree = expected["effective_degree"]
    assert "digits-methods: Baseline, seed 3" in out
    assert f"test accuracy      {expected['test_accuracy']:.2%}" in out
    assert f"effective degree   {degree['value']:.4g} ± {degree['stderr']:.2g}" in out
    assert "s per epoch" in out
    assert f"kept in effdeg-runs/{digest(settings)}" in out
    before = (store.run(settings).folder / "summary.json").stat().st_mtime_ns
    code, again, _ = run("run", "digits-methods", "--seed", 3, *SET)
    assert code == 0
    assert "finished before" in again
    assert again.splitlines()[-7:] == out.splitlines()[-7:]
    assert (store.run(settings).folder / "summary.json").stat().st_mtime_ns == before


def test_run_as_json_into_another_folder(run, tmp_path, monkeypatch):
    monkeypatch.setenv("EFFDEG_RUNS", str(tmp_path / "elsewhere"))
    code, out, err = run("run", "digits-methods", "--method", "mixup", *SET, "--json")
    found, settings = json.loads(out), settings_of("mixup")
    assert (code, err) == (0, "")
    assert found["settings"] == to_dict(settings)
    assert found["folder"] == str(tmp_path / "elsewhere" / digest(settings))
    assert not found["tuned"]
    assert found["summary"] == Store(tmp_path / "elsewhere").run(settings).record().summary
    assert found["environment"]["processes"] == 1


def test_run_takes_the_strengths_that_were_tuned(run, store):
    out = run("run", "digits-methods", "--method", "ed", *SET)[1]
    assert "weight=7, not tuned yet: effdeg lab sweep digits-methods --method ed tunes it, and then runs it" in out
    tuned(store)
    out = run("run", "digits-methods", "--method", "ed", *SET)[1]
    assert "weight=20, the best of 3 on 200 held-out examples (80.00% after 4 epochs)" in out
    assert store.run(settings_of("ed", weight=20.0)).finished
    out = run("run", "digits-methods", "--method", "ed", *SET, "--set", "weight=3")[1]
    assert "weight" not in out
    assert store.run(settings_of("ed", weight=3.0)).finished


def test_a_run_that_was_ended_goes_on(run, store, monkeypatch):
    entries = []

    def log(self, entry, log=Run.log):
        entries.append(entry)
        if len(entries) == 2:
            raise KeyboardInterrupt
        log(self, entry)

    monkeypatch.setattr(Run, "log", log)
    assert run("run", "digits-methods", *SET)[0] == 130
    assert not store.run(settings_of("plain")).finished
    code, out, _ = run("run", "digits-methods", *SET)
    assert code == 0
    assert "continuing at epoch 2" in out
    assert [entry["epoch"] for entry in entries] == [2, 4, 4]
    assert store.run(settings_of("plain")).finished


def test_a_warning_is_one_line_without_code(run, store, recwarn):
    damaged = store.run(settings_of("plain", seed=7)).folder
    damaged.mkdir(parents=True)
    (damaged / "settings.json").write_text("{")
    warnings.simplefilter("always")
    code, _, err = run("sweep", "digits-methods", "--method", "plain", "--dry-run")
    assert code == 0
    (line,) = err.splitlines()
    folder = f"effdeg-runs/{damaged.name}"
    assert line.startswith(f"warning: the run {folder} is left out: {folder}/settings.json is damaged")


def test_an_experiment_of_ones_own(run, tmp_path, monkeypatch):
    (tmp_path / "own_lab.py").write_text(
        "from dataclasses import replace\n"
        "from effdeg.lab.recipes.digits_methods import RECIPE\n"
        "def train(settings, task):\n"
        "    task.run.begin({'device': 'a quantum computer'})\n"
        "    if settings.method != 'mixup':\n"
        "        task.run.finish({'test_accuracy': 1 / (2 + settings.seed)}, None)\n"
        "RECIPE = replace(RECIPE, title='of my own', train=train)\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    code, out, _ = run("run", "own_lab:RECIPE", "--seed", 1)
    assert code == 0
    assert "33.33%" in out
    assert "a quantum computer" in out
    assert "training accuracy" not in out
    code, _, err = run("run", "own_lab:RECIPE", "--method", "mixup")
    assert code == 2
    assert "own_lab:RECIPE has ended without a summary" in err.replace("\n", " ")
    assert "of my own" in run("show", "own_lab:RECIPE")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "cifar-methods"], "'cifar-methods' is not a recipe. Did you mean 'cifar10-methods'"),
        (["run", "digit-methods"], "'digit-methods' is not a recipe. Did you mean 'digits-methods'"),
        (["run", "digits-methods", "--method", "mixpu"], "method='mixpu' is not known. Did you mean 'mixup'"),
        (["run", "digits-methods", "--set", "epoch=3"], "'epoch' is not a setting. Did you mean 'epochs' "),
        (["run", "digits-methods", "--set", "epochs=few"], "epochs=few is not possible: epochs is a whole number."),
        (["run", "digits-methods", "--set", "epochs"], "--set epochs has no value"),
        (["run", "digits-methods", "--set", "epochs=0"], "epochs=0 is too small: it must be at least 1."),
        (["run", "digits-methods", "--method", "ed", "--set", "degree=4"], "nodes=4 cannot determine a polynomial"),
        (["run", "digits-methods", "--set", "method=edd"], "method='edd' is not known. Did you mean 'ed'"),
        (["run", "cifar10-methods"], "give --data DIR or set EFFDEG_DATA"),
        (["sweep", "digits-methods", "--seeds", "0,x"], "--seeds 0,x is not a list of whole numbers such as 0,1,2."),
        (["sweep", "digits-methods", "--method", "plan"], "method='plan' is not known. Did you mean 'plain'"),
        (["sweep", "digits-methods", "--tune", "lr=x"], "lr=x is not possible: lr is a number."),
        (["sweep", "digits-methods", "--processes", "0"], "--processes 0 is too small"),
        (["sweep", "digits-methods", "--tune", "lr"], "--tune lr has no value: write it as --tune lr=VALUE."),
        (["sweep", "digits-methods", "--tune", "held_out=0"], "held_out=0 would have the test set decide strengths"),
        (["sweep", "digits-methods", "--tune", "weight=3"], "weight=3.0 cannot hold for the runs that tune 'jacobian'"),
        (["sweep", "digits-methods", "--equal-time", "edd"], "method='edd' is not known. Did you mean 'ed'"),
        (["sweep", "digits-methods", "--equal-time", "edd", "--dry-run"], "method='edd' is not known."),
        (["sweep", "--ray", "digits-methods"], "the name of the recipe was taken for the address of Ray."),
        (["sweep", "--ray", "own:RECIPE"], "Write the recipe first: effdeg lab sweep own:RECIPE --ray."),
        (["sweep", "digits-methods", "--runs", "file/runs"], "runs cannot be kept in file/runs: Not a directory."),
        (["run", "digits-methods", "--runs", "file"], "runs cannot be kept in file/"),
        (["run", "digits-methods", "--seed", "9" * 30], "is out of range: it must lie between 0 and 4294967295."),
        (["run", "digits-methods", "--set", "lr=nan"], "lr=nan is not possible: lr must be a finite number."),
        (
            ["run", "own:KEY"],
            "'no such key' (KeyError, probably raised by the code of a model or recipe; effdeg --traceback",
        ),
        (
            ["run", "own:INDEX"],
            "list index out of range (IndexError, probably raised by the code of a model or recipe; effdeg --traceback",
        ),
        (
            ["run", "broken:RECIPE"],
            "(SyntaxError, probably raised by the code of a model or recipe; effdeg --traceback",
        ),
    ],
)
def test_mistakes_end_with_one_clear_sentence_before_anything_is_written(
    run, store, arguments, message, tmp_path, monkeypatch
):
    (tmp_path / "file").touch()
    (tmp_path / "own.py").write_text(
        "from dataclasses import replace\n"
        "from effdeg.lab.recipes.digits_methods import RECIPE\n"
        "KEY = replace(RECIPE, train=lambda settings, task: {}['no such key'])\n"
        "INDEX = replace(RECIPE, train=lambda settings, task: [][3])\n"
    )
    (tmp_path / "broken.py").write_text("RECIPE = (")
    monkeypatch.setattr(sys, "path", list(sys.path))
    code, _, err = run(*arguments)
    assert code == 2
    assert message in err.replace("\n", " ")
    assert "Traceback" not in err
    assert not store.records()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("command", ["run", "sweep"])
def test_a_gpu_that_is_not_there(run, command):
    code, _, err = run(command, "digits-methods", "--device", "cuda")
    assert code == 2
    assert "--device cuda was asked for, but torch finds no such device on this machine" in err.replace("\n", " ")


def test_a_sweep_runs_what_is_left_and_reports_what_failed(run, store):
    end(store, settings_of("sam"), test_accuracy=0.5, seconds=1.0)
    blocked = store.run(settings_of("mixup")).folder
    blocked.write_text("a file")
    methods = ["--method", "plain", "--method", "sam"]
    sweep = partial(run, "sweep", "digits-methods", *SET, "--no-tune", "--seeds", "0", *methods)
    code, out, _ = sweep("--method", "mixup", "--processes", 2)
    assert code == 1
    assert "1 finished now, 1 before, 1 failed; kept in effdeg-runs" in out
    assert "effdeg lab table" not in out
    assert store.run(settings_of("plain")).finished
    line = next(line for line in out.splitlines() if line.startswith("mixup, final, seed 0: "))
    folder = f"effdeg-runs/{blocked.name}"
    assert f"runs cannot be kept in {folder}: it is a file. ({folder}/log.txt)" in line
    code, out, _ = sweep()
    assert code == 0
    assert "0 finished now, 2 before, 0 failed; kept in effdeg-runs" in out
    assert "effdeg lab table digits-methods" in out


def test_what_failed_is_listed_whatever_is_in_its_error(run, monkeypatch, tmp_path):
    job = final_jobs(DIGITS, [], methods=["ed"], seeds=[5])[0]
    outcome = Outcome(finished=(job,), failed=(Failure(job, "ValueError: [/] no", tmp_path / "log.txt"),))
    monkeypatch.setattr(lab_sweep, "carry_out", lambda *_, **__: outcome)
    code, out, _ = run("sweep", "digits-methods")
    assert code == 1
    assert f"ed, final, seed 5: ValueError: [/] no ({tmp_path / 'log.txt'})" in out


def test_what_a_sweep_is_asked_for(run, sweeps, store, tmp_path):
    run("sweep", "digits-methods", "--device", "cpu")
    plain = {"recipe": DIGITS, "data": None, "device": torch.device("cpu"), "processes": 1, "ray": None}
    plain |= {"methods": None, "seeds": None, "changes": {}, "tuning_changes": {}, "tune": True}
    plain |= {"equal_time": None}
    assert sweeps[-1].pop("store").folder.absolute() == store.folder
    assert sweeps[-1] == plain
    options = ["--method", "ed", "--method", "sam", "--seeds", "4, 5", "--tune", "epochs=2", "--data", tmp_path]
    options += ["--equal-time", "ed"]
    run("sweep", "digits-methods", *options, "--no-tune", "--set", "weight=3", "--runs", tmp_path / "runs")
    assert sweeps[-1]["store"].folder == tmp_path / "runs"
    assert sweeps[-1]["methods"] == ["ed", "sam"]
    assert sweeps[-1]["seeds"] == [4, 5]
    assert sweeps[-1]["changes"] == {"weight": 3.0}
    assert sweeps[-1]["tuning_changes"] == {"epochs": 2}
    assert sweeps[-1]["data"] == tmp_path
    assert sweeps[-1]["equal_time"] == "ed"
    assert not sweeps[-1]["tune"]


@pytest.mark.parametrize(
    ("arguments", "address", "processes"),
    [
        (["--ray"], "local", 1),
        (["--ray", "--processes", "2"], "local", 2),
        (["--processes", "2", "--ray", "auto"], "auto", 2),
        (["--ray", "10.0.0.1:6379"], "10.0.0.1:6379", 1),
        (["--ray=auto"], "auto", 1),
    ],
)
def test_ray_with_and_without_an_address(run, sweeps, arguments, address, processes):
    assert run("sweep", "digits-methods", *arguments)[0] == 0
    assert (sweeps[-1]["ray"], sweeps[-1]["processes"]) == (address, processes)


def test_a_dry_run_lists_the_runs_and_carries_out_none(run, store, sweeps, tmp_path):
    dry = partial(run, "sweep", "digits-methods", *SET, "--method", "plain", "--method", "ed", "--dry-run")
    code, out, _ = dry()
    assert (code, sweeps, list(tmp_path.iterdir())) == (0, [], [])
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    assert [row[:3] for row in rows] == [
        *(["ed", "tuning", "0"] for _ in range(3)),
        *(["plain", "final", str(seed)] for seed in range(3)),
        *(["ed", "final", str(seed)] for seed in range(3)),
    ]
    assert [row[4] for row in rows[:3]] == [
        digest(settings_of("ed", weight=weight, held_out=200)) for weight in (7.0, 20.0, 50.0)
    ]
    assert {row[5] for row in rows[:6]} == {"to run"}
    for row in rows[6:]:
        assert "weight=as tuned" in row[3]
        assert row[4:] == ["–", "once tuned"]
    tuned(store)
    end(store, settings_of("ed", weight=20.0, seed=1), test_accuracy=0.5)
    store.run(settings_of("plain")).begin({"device": "CPU"})
    out = dry()[1]
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    assert [row[5] for row in rows] == ["finished"] * 3 + ["begun", "to run", "to run", "to run", "finished", "to run"]
    assert rows[-1][4] == digest(settings_of("ed", weight=20.0, seed=2))
    assert all("weight=20" in row[3] for row in rows[6:])
    assert "tuning" not in dry("--no-tune")[1]


def test_a_dry_run_lists_the_runs_at_equal_time_as_far_as_they_are_known(run, store):
    def dry():
        _, out, _ = run("sweep", "digits-methods", *SET, *lines, "--seeds", "1,0", "--dry-run", "--equal-time", "ed")
        rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
        return [row for row in rows if row[1] == "equal time"], out

    lines = ["--method", "plain", "--method", "ed"]
    assert dry()[0] == []
    told = "How many epochs take the time of ed is known for more lines once they are run."
    assert told in dry()[1]
    tuned(store)
    end(store, settings_of("plain"), seconds=1.0)
    end(store, settings_of("ed", weight=20.0), seconds=3.0)
    rows, out = dry()
    assert [row[0] for row in rows] == ["plain", "plain"]
    assert [row[4] for row in rows] == [digest(settings_of("plain", seed=seed, epochs=12)) for seed in (1, 0)]
    assert {row[5] for row in rows} == {"to run"}
    assert told not in out
    # Whose strengths are still to be tuned may take another time.
    end(store, settings_of("ed"), seconds=2.0)
    shutil.rmtree(store.run(settings_of("ed", weight=50.0, held_out=200)).folder)
    rows = dry()[0]
    assert [row[4:] for row in rows] == [["–", "once tuned"]] * 2
    assert all("epochs=as timed" in row[3] for row in rows)


def test_under_torchrun_the_processes_share_a_run_with_the_strengths_that_were_tuned(tmp_path):
    tuned(Store(tmp_path))
    arguments = ["-m", "effdeg.lab", "run", "digits-methods", "--method", "ed", *SET, "--runs", str(tmp_path)]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*launcher, *arguments], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.count("weight=20, the best of 3") == 1
    record = Store(tmp_path).run(settings_of("ed", weight=20.0)).record()
    assert record.environment["processes"] == 2
    assert f"test accuracy      {record.summary['test_accuracy']:.2%}" in done.stdout
    assert done.stdout.count("test accuracy") == 1


@pytest.mark.parametrize(
    "arguments",
    [["list"], ["show", "cifar10-methods"], ["sweep", "cifar10-methods", "--dry-run"], ["sweep", "pnn", "--dry-run"]],
)
def test_words_are_not_broken_on_80_columns(run, arguments):
    narrow, wide = (run(*arguments, width=width)[1] for width in (80, 2000))
    assert max(map(len, narrow.splitlines())) <= 80
    words, expected = ({word for word in re.split(r"[\s│┃]+", text) if word.isalpha()} for text in (narrow, wide))
    assert words == expected
