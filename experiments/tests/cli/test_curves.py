import math
import os
import time

import pytest
from toys import NAME, make_job

from effdeg_lab.cli._runs import describe_progress, describe_run, draw_curve, get_progress


@pytest.fixture
def job(folder):
    job = make_job(folder, recipe=NAME)
    job.start(steps=100)
    for step, score in ((10, 0.25), (20, 0.5)):
        job.log({"step": step, "seconds": 0.4 * step, "test_accuracy": score, "degree": {"value": 3.0, "stderr": 1.0}})
    yield job
    job.close()


def test_a_running_run_says_how_far_it_is_and_how_long_it_will_take(job, run):
    known = job.read()
    os.utime(job.file, (time.time() - 2, time.time() - 2))
    step, steps, left = get_progress(known)
    assert (step, steps) == (20, 100)
    assert 20 < left <= 30  # 80 steps of 0.4 s, less the 2 s since the evaluation and what the test takes
    assert ", step 20 of 100 (20%), about " in describe_progress(known)
    assert describe_run(known)["progress"] == 0.2
    assert "toys:RECIPE/plain-0, step 20 of 100 (20%), about " in run("status")[1]
    job.finish({"test_accuracy": 0.6})
    assert "progress" not in describe_run(job.read())


def test_curves_of_one_run(job, run):
    _, out, _ = run("curve", NAME, "--method", "plain", "--seed", 0)
    assert "toys:RECIPE/plain-0: running, step 20 of 100 (20%)" in out
    rows = {line.split("  ")[0].strip(): line.split() for line in out.splitlines()}
    assert rows["test accuracy"][2:] == ["▁█", "0.25", "0.5"]
    assert rows["degree"][1:] == ["▁▁", "3", "3"]
    assert "seconds" not in rows
    assert "no number" not in out
    job.log({"step": 30, "degree": {"value": math.nan, "stderr": 1.0}, "loss": math.inf})
    _, out, _ = run("curve", NAME)
    assert "degree: no number in 1 of 3 evaluations\nloss: no number in 1 of 3 evaluations\n" in out
    assert "accuracy: no number" not in out  # it was not evaluated
    for option, value, message in (
        ("--seed", 1, "has no run of toys:RECIPE --seed 1 that was evaluated"),
        ("--method", "plains", "'plains' is not a method"),
    ):
        code, _, err = run("curve", NAME, option, value)
        assert (code, message in err) == (2, True)


def test_a_curve_has_a_bar_for_each_number_or_share_of_them():
    assert draw_curve([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert draw_curve([7.0, 0.0, math.nan, 7.0]) == "█▁ █"
    assert draw_curve([2.0]) == "▁"
    assert draw_curve(range(1000), width=4) == "▁▃▆█"  # the 250th, 500th, 750th and 1,000th
    assert draw_curve([math.nan]) == " "
