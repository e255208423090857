import json
import os
import re
import signal
import socket
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from toys import NAME, RECIPE, Toy, finish, make_job, signal_when_held

from effdeg_lab.cli import main
from effdeg_lab.cli._running import REQUEUE, _join_processes
from effdeg_lab.core import sweep as sweeping
from effdeg_lab.core.recipe import find_recipe
from effdeg_lab.core.runs import Job, RunFolder
from effdeg_lab.core.workers import Ended, Planned

OWN = """
from dataclasses import replace
from toys import RECIPE

def run(settings, job):
    job.start()
    if settings.regularizer == "plain":
        job.finish({"test_accuracy": 1 / (2 + settings.seed), "effective_degree": {"value": 2.5, "stderr": 0.25}})

def run_on(settings, job):
    job.start()
    job.finish({"x": float("nan"), "degree": {"value": float("inf"), "stderr": 1.0}})
    if settings.seed:
        raise ValueError("after the end\\nof the run")

LATE = replace(RECIPE, run=run_on)
RECIPE = replace(RECIPE, title="of my own [x]", run=run)
KEY = replace(RECIPE, run=lambda settings, job: {}["no such key"])
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own_lab.py").write_text(OWN)
    yield "own_lab:RECIPE"
    sys.modules.pop("own_lab", None)


@pytest.fixture
def toy_alone(monkeypatch):
    monkeypatch.setattr("effdeg_lab.core.recipe.all_recipes", lambda: {"toy": RECIPE})


def test_recipes_are_listed_and_shown(run, toy_alone):
    code, out, _ = run("list")
    assert (code, "none · 8 runs, and 3 to tune · nothing" in out, "can run here" in out) == (0, True, True)
    code, out, _ = run("show", NAME, "--method", "ed", "--set", "epochs=40")
    assert code == 0
    for part in ("toys:RECIPE: A random walk", "regularizer=ed weight=2", "tuned: weight 2 7 20", "90.18 ± 0.14"):
        assert part in out
    lines = {" ".join(line.split()) for line in out.splitlines()}
    assert {"epochs=40 (recipe: 4)", "weight=2 (recipe: none)", "lr=0.1"} <= lines


def test_a_run_and_the_same_again(run, folder):
    code, out, _ = run("run", NAME, "--seed", 3)
    assert code == 0
    found = folder.find(Toy(seed=3))
    for part in ("toys:RECIPE: Plain, seed 3", f"{found.value('walk'):.4g}", "toys_RECIPE/plain-3.jsonl"):
        assert part in out
    code, out, _ = run("run", NAME, "--seed", 3)
    assert code == 0
    assert "already finished; --again runs it again" in out
    found.file.write_text(found.file.read_text().replace(f"{found.value('walk')}", "7"))
    assert run("run", NAME, "--seed", 3, "--again")[0] == 0
    assert folder.find(Toy(seed=3)).summary == found.summary


def test_a_run_into_another_folder(run, tmp_path, monkeypatch):
    monkeypatch.setenv("EFFDEG_RUNS", str(tmp_path / "elsewhere"))
    assert run("run", NAME, "--method", "ed", "--set", "weight=3")[0] == 0
    (found,) = RunFolder(tmp_path / "elsewhere").read()
    assert found.settings == Toy(regularizer="ed", weight=3.0).to_dict()
    assert found.file == tmp_path / "elsewhere" / "toys_RECIPE" / "ed-0-weight=3.jsonl"
    assert found.environment["processes"] == 1


def test_a_run_takes_the_values_that_were_tuned(run, folder):
    assert "ED, seed 0\n" in run("run", NAME, "--method", "ed")[1]
    for planned in sweeping.Plan(RECIPE).plan_tuning():
        finish(folder, planned.settings, "ed")
    assert "ED, seed 0, weight=7 (the best of 3 tried)" in run("run", NAME, "--method", "ed")[1]
    assert folder.find(Toy(regularizer="ed", weight=7.0)).name == f"{NAME}/ed-0-weight=7"


@pytest.mark.parametrize("command", [("run",), ("sweep", "--method", "plain", "--seeds", "0")])
def test_a_finished_run_on_other_data_is_not_taken_for_this_one(run, folder, command):
    recipe = find_recipe("digits-methods")
    settings = recipe.resolve(recipe.method("plain"))
    for data, code in (("another", 2), (settings.identify_data(None), 0)):
        job = Job(settings, recipe.name, "plain", settings, folder, torch.device("cpu"))
        job.start(data=data)
        job.finish({"test_accuracy": 0.5})
        found, _, err = run(command[0], recipe.name, *command[1:])
        assert (found, "plain-0.jsonl was made with other data: give its data folder" in err) == (code, bool(code)), err
        job.file.unlink()


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, REQUEUE), (signal.SIGINT, 130)])
def test_signals_make_a_run_save(run, folder, tmp_path, number, expected):
    with signal_when_held(tmp_path, number):
        code, out, err = run("run", NAME, "--set", "epochs=6", "--device", "cpu")
    assert (code, "error" in err) == (expected, False)
    assert "stopped; run the same command again to continue" in out
    assert folder.find(Toy(epochs=6)).stopped


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_of_other_code_is_not_taken_for_this_one(run, own, folder, tmp_path, recwarn, finished):
    warnings.simplefilter("always")
    commands = [("run", own, "--seed", 1), ("sweep", own, "--method", "plain", "--seeds", "1", "--device", "cpu")]
    assert run(*commands[0])[0] == 0
    file = folder.find(Toy(seed=1)).file
    if not finished:
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:1]))
        file.with_suffix("").mkdir()
        (file.with_suffix("") / "checkpoint-000001-.pt").touch()
    del sys.modules["own_lab"]
    (tmp_path / "own_lab.py").write_text(OWN.replace("1 / (2 +", "7 / (2 +"))
    code, out, err = run("status", own)
    assert (code, "own_lab:RECIPE: its code changed between runs and now" in out) == (0, True)
    if finished:
        for command in commands:
            code, out, err = run(*command)
            assert (code, f"{file.relative_to(tmp_path)} came from other code than {own} has now" in err) == (2, True)
            assert "0.3333" not in out
            assert run(*command, "--any-code")[0] == 0
        assert "2.333" in run(*commands[0], "--again")[1]
    else:
        code, out, err = run(*commands[0])
        assert "plain-1.jsonl continues from a checkpoint of other code than own_lab:RECIPE has now" in err
        assert "2.333" in out
    assert "changed" not in run("status", own)[1]


def test_a_damaged_line_in_a_finished_run_is_reported_by_all_commands(run, folder, recwarn):
    warnings.simplefilter("always")
    assert run("run", NAME)[0] == 0
    file = folder.find(Toy()).file
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:2], lines[2][:9], *lines[3:], ""]))
    sweep = ("sweep", NAME, "--method", "plain", "--seeds", "0", "--dry-run")
    for command in (("status",), ("table", NAME), sweep, ("run", NAME)):
        _, out, err = run(*command)
        assert "plain-0.jsonl is damaged: line 3: " in err
        assert err.replace("\n", " ").count("Move or delete it.") == 1
        assert command is not sweep or "to run" in out
    assert "already finished" not in out  # it is run again, into a file of its own
    assert folder.find(Toy()).file != file


def test_a_number_that_is_not_finite_is_shown(run, own):
    out = run("run", "own_lab:LATE")[1]
    assert re.search("^x +not finite *$", out, re.MULTILINE)
    assert re.search("^degree +not finite ± 1 *$", out, re.MULTILINE)


def test_an_error_after_the_summary_fails_the_run(run, own):
    for _ in range(2):  # the second time it is not taken for finished
        code, _, err = run("run", "own_lab:LATE", "--seed", 1)
        assert (code, "after the end" in err) == (2, True)
        out = run("status")[1]
        assert "own_lab:LATE/plain-1: ValueError: after the end" in out
        (found,) = json.loads(run("status", "--json")[1])
        assert (found["state"], found["summary"]) == ("failed", None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", NAME, "--seed", "-1"], "--seed -1 is not a whole number of at least 0."),
        (["campaign", "nowhere.txt"], "nowhere.txt cannot be read: No such file or directory. Name a text file"),
        (["run", NAME, "--set", "epoch=3"], "'epoch' is not a setting. Did you mean 'epochs'"),
        (["run", NAME, "--device", "gpu"], "--device gpu is not a device: write cpu, cuda or cuda:1."),
        (["run", NAME, "--device", "meta"], "--device meta is not supported: write cpu, cuda or cuda:1."),
        (["report", "--out", "/proc/x.html"], "--out: no file can be written into /proc"),
        (["run", NAME, "--device", "cuda:99"], "--device cuda:99 was asked for, but torch finds no such device"),
        (["run", NAME, "--runs", "file"], "runs cannot be kept in file: "),
        (["run", "toys:WITH_DATA", "--data", "nowhere"], "no cifar10 in nowhere"),
        (["sweep", NAME, "--seeds", "0,x"], "--seeds 0,x is not a list of whole numbers such as 0-4 or 0,1,7."),
        (["sweep", NAME, "--set", "seed=4"], "--set seed=4: write --seeds 4 instead."),
        (["run", NAME, "--seed", "3", "--set", "seed=4"], "--set seed=4: write --seed 4 instead."),
        (["run", NAME, "--seed", "0-4"], f"a run has one seed. For several: effdeg-lab sweep {NAME} --seeds 0-4"),
        (["status", "--runs", "nowhere"], "--runs nowhere: there is no such folder."),
        (["run", "own_lab:KEY"], "'no such key' (KeyError; effdeg-lab --traceback … shows where)"),
    ],
)
def test_mistakes_end_with_one_clear_sentence(run, own, toy_alone, monkeypatch, tmp_path, arguments, message):
    def check(name, folder):
        raise ValueError(f"no {name} in {folder}")

    monkeypatch.setattr("effdeg_lab.data.check", check)
    (tmp_path / "file").touch()
    code, _, err = run(*arguments)
    assert code == 2
    assert message in err.replace("\n", " ")
    assert "Traceback" not in err
    assert not [run for run in RunFolder(tmp_path / "effdeg-runs").read() if run.failure is None]


def test_a_traceback_is_shown_if_asked_for(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="is not a setting"):
        main(["--traceback", "run", NAME, "--set", "epoch=3"])


def test_what_a_sweep_is_asked_for_and_how_it_ended(run, monkeypatch, tmp_path, folder):
    asked, planned = [], Planned("ed", Toy(seed=5), "final")
    make_job(folder, Toy(seed=5), "ed").fail("no")
    skipped = [Ended(planned._replace(method="tuned"), "not run", "because")] * 2
    outcomes = [
        [Ended(planned, "failed", "[/] no"), *skipped],
        [Ended(planned, "stopped")],
        [Ended(planned, "finished")],
    ]
    monkeypatch.setattr(sweeping, "sweep", lambda plan, **options: asked.append((plan, options)) or outcomes.pop(0))
    code, out, _ = run("sweep", NAME, "--device", "cpu")
    assert code == 1
    assert "1 failed, 2 not run; kept in effdeg-runs" in out
    assert out.count("tuned: because") == 1
    assert "ed, final, seed 5: [/] no (effdeg-runs/toy/ed-5-" in out
    plan, options = asked[-1]
    assert (plan.methods, plan.seeds, plan.changes, plan.tune, plan.equal_time) == ((), [], {}, True, None)
    assert (options["runs"].folder, options["processes"]) == (Path("effdeg-runs"), 1)
    arguments = ["--method", "ed", "--method", "plain", "--seeds", "4- 6, 0", "--data", tmp_path]
    arguments += ["--equal-time", "ed", "--set", "weight=3", "--processes", 2, "--any-code"]
    assert run("sweep", NAME, *arguments)[0] == REQUEUE
    plan, options = asked[-1]
    assert (plan.methods, plan.seeds, plan.changes) == (["ed", "plain"], [4, 5, 6, 0], {"weight": 3.0})
    assert (plan.tune, plan.equal_time) == (True, "ed")
    assert (options["data"], options["processes"]) == (tmp_path, 2)
    assert options["any_code"]
    assert run("sweep", NAME, "--no-tune")[0] == 0
    assert not asked[-1][0].tune


def test_a_dry_run_lists_the_runs_and_carries_out_none(run, folder, tmp_path):
    dry = partial(run, "sweep", NAME, "--method", "plain", "--method", "ed", "--dry-run")
    code, out, _ = dry()
    assert (code, list(tmp_path.iterdir())) == (0, [])
    rows = [line.split() for line in out.splitlines() if line.split()[:1] in (["plain"], ["ed"])]
    assert [row[:2] for row in rows] == [["ed", "tuning"]] * 3 + [["plain", "final"]] * 2 + [["ed", "final"]] * 2
    assert rows[1][3:] == ["weight=7", "held_out=100", "epochs=2", "to", "run"]
    finish(folder, Toy(seed=1))
    make_job(folder).fail("no")
    rows = [line.split() for line in dry()[1].splitlines() if line.split()[:1] == ["plain"]]
    assert [row[-1] for row in rows] == ["failed", "finished"]


def test_the_status_of_all_runs(run, folder, monkeypatch):
    finish(folder, Toy())
    finish(folder, Toy(seed=1))
    make_job(folder, Toy(regularizer="broken"), "broken").fail("Traceback\nValueError: [/] no")
    jobs = {seed: make_job(folder, Toy(seed=seed)) for seed in range(2, 7)}
    for seed, job in jobs.items():
        with monkeypatch.context() as patched:
            if seed > 4:
                patched.setattr("effdeg_lab.core.runs._identify_machine", lambda: "another")
            job.start()
        job.log({"test_accuracy": 0.5})
        job.save({})
    jobs[3].fail(None)
    for killed in (4, 5, 6):
        jobs[killed].close()
    for silent in (2, 6):
        os.utime(jobs[silent].file, (0, 0))
    code, out, _ = run("status")
    assert code == 0
    rows = {line.split()[1]: line.split()[2:] for line in out.splitlines() if line.strip().startswith("toy ")}
    assert rows == {"plain": ["2", "2", "3"], "broken": ["1"]}
    assert "toy/plain-2: 50.0%, " in out
    assert "toy/broken-0: ValueError: [/] no" in out
    found = json.loads(run("status", "--json", "--runs", folder.folder)[1])
    states = {Path(each["file"]).stem: each["state"] for each in found}
    # The silent run of this machine still has its lock; of other machines only the time is known.
    expected = ["finished"] * 2 + ["running", "stopped", "stopped", "running", "stopped"]
    assert [states[f"plain-{seed}"] for seed in range(7)] == expected


def test_the_status_is_watched_until_ctrl_c(run, folder, monkeypatch):
    def sleep(seconds):
        if folder.find(Toy(seed=1)):
            raise KeyboardInterrupt
        finish(folder, Toy(seed=1))

    finish(folder, Toy())
    monkeypatch.setattr("effdeg_lab.cli._runs.time.sleep", sleep)
    code, out, _ = run("status", "--watch")
    assert (code, [line.split() for line in out.splitlines() if "plain" in line]) == (0, [["toy", "plain", "2"]])


def test_help_does_not_wait_for_torch():
    code = "import sys\nfrom effdeg_lab.cli import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass\n"
    code += "print([name for name in ('torch', 'pandas', 'typer') if name in sys.modules], file=sys.stderr)"
    for arguments in (["sweep", "--help"], ["swep"]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
        assert done.stderr.splitlines()[-1] == "['typer']"
        if arguments[0] == "sweep":
            assert "RequeueExit=75" in done.stdout


def run_as_torchrun_would(rank, port, runs):
    torch.set_num_threads(1)  # forks have none of the threads of OpenMP
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": port}
    main(["run", "toys:SHARED", "--runs", runs, "--device", "cpu"])


def test_under_torchrun_the_processes_share_a_run(folder, capfd):
    """By what it sets in the environment of its processes."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    method = "spawn" if torch.cuda.is_available() else "fork"  # forks need not import torch again
    with warnings.catch_warnings(action="ignore"):  # of forks next to threads
        given = (port, str(folder.folder))
        torch.multiprocessing.start_processes(run_as_torchrun_would, given, nprocs=2, start_method=method)
    found = folder.find(Toy())
    assert (found.summary, found.environment["processes"]) == ({"total": 2.0}, 2)
    assert capfd.readouterr().out.count("Plain, seed 0") == 1


@pytest.mark.parametrize(
    ("device", "message"),
    [("cuda:0", "--device cuda:0 is not possible under torchrun"), ("cuda", "than GPUs: use --nproc-per-node 1")],
)
def test_processes_that_have_no_gpu_of_their_own_are_refused(monkeypatch, device, message):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match=message), _join_processes(torch.device(device)):
        pass


def test_processes_on_a_cpu_are_joined_by_gloo_also_where_there_is_a_gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    joined = []
    for name in ("init_process_group", "barrier", "destroy_process_group"):
        monkeypatch.setattr(torch.distributed, name, lambda *given, name=name: joined.append((name, *given)))
    with _join_processes(torch.device("cpu")):
        assert joined == [("init_process_group", "gloo")]
    assert [name for name, *_ in joined[1:]] == ["barrier", "destroy_process_group"]
