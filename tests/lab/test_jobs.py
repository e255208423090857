from dataclasses import replace
from functools import partial

import pytest

from effdeg._utils.files import write_json
from effdeg.lab.jobs import equal_time_jobs, final_jobs, tuning_jobs
from effdeg.lab.store import Store
from tests.lab.toys import RECIPE, Toy, finish


def settings_of(jobs):
    return [job.settings for job in jobs]


def test_the_runs_that_tune():
    jobs = tuning_jobs(RECIPE)
    assert settings_of(jobs) == [Toy("ed", weight=weight, held_out=100, epochs=2) for weight in (2.0, 7.0, 20.0)]
    assert {(job.recipe, job.row, job.purpose) for job in jobs} == {("toy", "ed", "tuning")}
    changed = tuning_jobs(RECIPE, changes={"epochs": 9, "lr": 0.5}, tuning_changes={"held_out": 7, "seed": 3})
    # What the recipe says of tuning stands against changes to all runs, not against changes to these.
    assert changed[0].settings == Toy("ed", weight=2.0, lr=0.5, held_out=7, epochs=2, seed=3)
    assert tuning_jobs(RECIPE, methods=["plain", "broken"]) == []
    assert tuning_jobs(replace(RECIPE, tuning={})) == []


def test_the_runs_that_results_come_from(tmp_path):
    jobs = final_jobs(RECIPE, [], methods=["plain", "ed"])
    assert settings_of(jobs) == [Toy(), Toy(seed=1), Toy("ed", 2.0), Toy("ed", 2.0, seed=1)]
    assert {job.purpose for job in jobs} == {"final"}
    assert {job.row for job in final_jobs(RECIPE, [])} == {"plain", "ed", "broken", "killed"}
    assert [job.settings.seed for job in final_jobs(RECIPE, [], methods=["plain"], seeds=[7])] == [7]

    store = Store(tmp_path)
    for job in tuning_jobs(RECIPE):
        finish(store, job.settings)
    tuned = final_jobs(RECIPE, store.records(), methods=["plain", "ed"], seeds=[0])
    assert settings_of(tuned) == [Toy(), Toy("ed", 7.0)]
    # Tuned with other settings, or on other examples, it is another matter.
    assert final_jobs(RECIPE, store.records(), methods=["ed"], changes={"lr": 0.5})[0].settings.weight == 2.0
    assert final_jobs(RECIPE, store.records(), methods=["ed"], tuning_changes={"held_out": 5})[0].settings.weight == 2.0


def test_a_strength_that_a_user_sets_is_not_tuned(tmp_path):
    store = Store(tmp_path)
    for job in tuning_jobs(RECIPE):
        finish(store, job.settings)
    assert tuning_jobs(RECIPE, changes={"weight": 3.0}) == []
    (job,) = final_jobs(RECIPE, store.records(), methods=["ed"], seeds=[0], changes={"weight": 3.0})
    assert job.settings == Toy("ed", 3.0)


def test_every_point_of_the_grid_is_run_once():
    recipe = replace(RECIPE, grid={"lr": (0.1, 0.2), "held_out": (0, 1)})
    jobs = final_jobs(recipe, [], methods=["plain"], seeds=[0])
    assert [(job.settings.lr, job.settings.held_out) for job in jobs] == [(0.1, 0), (0.1, 1), (0.2, 0), (0.2, 1)]
    # A user's value for an axis makes points equal.
    jobs = final_jobs(recipe, [], methods=["plain"], seeds=[0], changes={"lr": 0.3})
    assert [(job.settings.lr, job.settings.held_out) for job in jobs] == [(0.3, 0), (0.3, 1)]
    assert len(final_jobs(RECIPE, [], methods=["plain", "plain"], changes={"seed": 5})) == 1


def test_what_a_user_got_wrong():
    with pytest.raises(ValueError, match=r"method='plane' is not known. Did you mean 'plain'"):
        tuning_jobs(RECIPE, methods=["plane"])
    with pytest.raises(ValueError, match=r"'wieght' is not a setting. Did you mean 'weight'"):
        final_jobs(RECIPE, [], changes={"wieght": 3.0})
    with pytest.raises(TypeError, match=r"epochs='many' is not possible: epochs is a whole number"):
        tuning_jobs(RECIPE, tuning_changes={"epochs": "many"})
    with pytest.raises(ValueError, match=r"seed=4294967296 is out of range: it must lie between 0 and 4294967295"):
        final_jobs(RECIPE, [], seeds=[2**32])


@pytest.mark.parametrize("jobs", [tuning_jobs, partial(final_jobs, records=[])])
def test_strengths_are_tuned_on_held_out_examples_alone(jobs):
    with pytest.raises(ValueError, match=r"held_out=0 would have the test set decide strengths"):
        jobs(RECIPE, tuning_changes={"held_out": 0})
    with pytest.raises(ValueError, match=r"weight=3.0 cannot hold .* tune 'ed': weight is what they try"):
        jobs(RECIPE, tuning_changes={"weight": 3.0})
    assert jobs(RECIPE, methods=["plain"], tuning_changes={"weight": 3.0}) == jobs(RECIPE, methods=["plain"])


def test_the_runs_at_equal_time(tmp_path):
    store, finals = Store(tmp_path), final_jobs(RECIPE, [], methods=["plain", "ed", "broken"])
    unknown = "{} is not run at equal time: no finished run of {} with the smallest seed says how long it took."
    assert equal_time_jobs(RECIPE, finals, store, "ed") == (
        [],
        [unknown.format("plain", "ed"), unknown.format("broken", "ed")],
    )
    for settings, seconds in ((Toy(), 10.0), (Toy("ed", 2.0), 25.0), (Toy("broken"), None)):
        finish(store, settings, **({} if seconds is None else {"seconds": seconds}))
    # Ten seconds for 4 epochs, so 10 epochs for 25; what does not say how long it took has no pace.
    planned = equal_time_jobs(RECIPE, finals, store, "ed")
    assert settings_of(planned[0]) == [Toy(epochs=10), Toy(seed=1, epochs=10)]
    assert planned[1] == [unknown.format("broken", "broken")]
    assert {job.purpose for job in planned[0]} == {"equal time"}
    finish(store, Toy(seed=1), seconds=1000.0)
    assert equal_time_jobs(RECIPE, finals, store, "ed") == planned  # whatever the other seeds took
    assert settings_of(equal_time_jobs(RECIPE, finals, store, "plain")[0]) == [
        Toy("ed", 2.0, epochs=2),
        Toy("ed", 2.0, seed=1, epochs=2),
    ]
    write_json(store.run(Toy("ed", 2.0)).folder / "environment.json", {"device": "none", "shared": True})
    assert equal_time_jobs(RECIPE, finals, store, "ed")[0] == []  # the time of one that shared its GPU says nothing
    with pytest.raises(ValueError, match=r"method='edd' is not known. Did you mean 'ed'"):
        equal_time_jobs(RECIPE, finals, store, "edd")
    with pytest.raises(ValueError, match="killed is not among the lines of this sweep"):
        equal_time_jobs(RECIPE, finals, store, "killed")


def test_every_point_of_the_grid_has_its_own_pace(tmp_path):
    recipe, store = replace(RECIPE, grid={"lr": (0.1, 0.2)}), Store(tmp_path)
    for (method, weight), lr, seconds in (
        (("plain", None), 0.1, 1.0),
        (("plain", None), 0.2, 1.0),
        (("ed", 2.0), 0.1, 2.0),
        (("ed", 2.0), 0.2, 3.0),
    ):
        finish(store, Toy(method, weight, lr), seconds=seconds)
    finals = final_jobs(recipe, [], methods=["plain", "ed"], seeds=[0])
    jobs, notes = equal_time_jobs(recipe, finals, store, "ed")
    assert settings_of(jobs) == [Toy(lr=0.1, epochs=8), Toy(lr=0.2, epochs=12)]
    assert notes == []
