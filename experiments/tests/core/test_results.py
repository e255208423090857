from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from toy_results import METHODS, POOL, Toy, make_run, make_seeds

from effdeg_lab.core.recipe import Study, find_recipe
from effdeg_lab.core.results import Difference, Selection, Spread, collect
from effdeg_lab.core.runs import Run
from effdeg_lab.show.methods import Methods, judge_difference
from effdeg_lab.show.report import report_on
from effdeg_lab.show.verdicts import judge

ED = METHODS.method("ed")


def means(runs, changes=None):
    """Return the accuracy of the first method by scale, in the order of scales."""
    found = collect(METHODS, runs, changes)
    return [(each.epochs, each.scale["limit"], (spread := each.methods[0].spread()) and spread.mean) for each in found]


def test_nothing_was_run():
    (results,) = collect(METHODS, [])
    assert [each.state for each in results.methods] == ["not run"] * 4
    assert (results.epochs, results.seeds, results.machines, results.equal_time) == (20, [], [], None)
    assert results.departures == []
    assert results.methods[0].spread() is None
    with pytest.raises(ValueError, match=r"'edd' is not a method of methods. Did you mean 'ed'"):
        results.find("edd")


def test_a_method_averages_its_seeds():
    accuracies = [0.80, 0.83, 0.81]
    runs = []
    for seed, accuracy in enumerate(accuracies):
        runs.append(make_run(METHODS, "plain", accuracy, step=1 + 0.1 * seed, degree=3 + seed, seed=seed))
        runs.append(make_run(METHODS, "ed", accuracy + 0.02 + 0.001 * seed, step=2.2, seed=seed))
    (results,) = collect(METHODS, runs[::-1])
    plain, ed = results.find("plain"), results.find("ed")
    assert plain.spread() == Spread(pytest.approx(np.mean(accuracies)), pytest.approx(np.std(accuracies, ddof=1)), 3)
    assert plain.values("effective_degree.value").to_dict() == {0: 3, 1: 4, 2: 5}
    assert plain.spread("unknown") is None
    assert plain.time() == pytest.approx(22)
    assert results.difference(ed).value == pytest.approx(0.021)
    assert results.difference(plain) is None
    assert results.difference(results.find("sam")) is None
    assert results.heading == "20 epochs, seeds 0, 1, 2, Thinking Machine"
    many = [make_run(METHODS, "plain", 0.8, seed=seed) for seed in range(25)]
    assert collect(METHODS, many)[0].heading == "20 epochs, seeds 0 to 24, Thinking Machine"
    assert collect(METHODS, many[::4])[0].heading == "20 epochs, seeds 0, 4, 8, 12, 16, 20, 24, Thinking Machine"


def test_results_are_of_one_scale():
    runs = [make_run(METHODS, name, 0.8 + many / 1000, epochs=many) for many in (10, 40) for name in ("plain", "ed")]
    runs += [make_run(METHODS, name, 0.7, epochs=10, limit=50) for name in ("plain", "ed")]
    runs.append(make_run(METHODS, "plain", 0.9, epochs=10, lr=0.5))
    assert means(runs) == [(40, None, pytest.approx(0.84)), (10, None, pytest.approx(0.81)), (10, 50, 0.7)]
    assert [epochs for epochs, *_ in means(runs, {"epochs": 10})] == [10, 10]
    assert means(runs, {"epochs": 10, "limit": 50}) == [(10, 50, 0.7)]
    assert means(runs, {"lr": 0.5}) == [(10, None, 0.9)]
    assert collect(METHODS, runs)[2].departures == ["epochs 10 (recipe: 20)", "limit 50 (recipe: none)"]


def test_a_scale_that_a_method_sets_itself_belongs_to_the_method():
    short = replace(ED, name="short", title="ED, half the epochs", changes={**ED.changes, "epochs": 10})
    recipe = replace(METHODS, methods=(*METHODS.methods, short))
    runs = [make_run(recipe, "plain", 0.8), make_run(recipe, "ed", 0.9), make_run(recipe, "short", 0.85)]
    first, second = collect(recipe, runs)
    assert (first.epochs, first.departures) == (20, [])
    accuracies = {each.method.name: each.spread().mean for each in first.done}
    assert accuracies == {"plain": 0.8, "ed": 0.9, "short": 0.85}
    # The short run is also one of ED's, at another scale.
    assert (second.epochs, [each.method.name for each in second.done]) == (10, ["ed"])
    (asked,) = collect(recipe, runs, {"epochs": 10})
    assert [each.method.name for each in asked.done] == ["ed", "short"]
    # A first method that sets a scale does not set it for the others.
    turned = replace(recipe, methods=recipe.methods[::-1])
    assert [each.departures for each in collect(turned, runs)] == [[], ["epochs 10 (recipe: 20)"]]


def test_a_long_run_of_one_method_does_not_push_the_table_aside():
    runs = [make_run(METHODS, name, 0.8, epochs=10) for name in ("plain", "mixup", "sam", "ed")]
    runs += [make_run(METHODS, name, 0.9, epochs=30) for name in ("plain", "ed")]
    runs.append(make_run(METHODS, "mixup", 0.95, epochs=300))
    assert [each.epochs for each in collect(METHODS, runs)] == [30, 10, 300]
    runs.append(make_run(METHODS, "sam", 0.9, epochs=300))
    assert [each.epochs for each in collect(METHODS, runs)] == [300, 30, 10]


def test_tuned_values_are_shown_and_never_the_best_on_the_test_set():
    runs = []
    for weight, tuned, final in ((7.0, 0.70, 0.95), (20.0, 0.75, 0.85), (3.0, 0.6, 0.99)):
        runs.append(make_run(METHODS, "ed", tuned, weight=weight, held_out=100, epochs=10))
        runs.append(make_run(METHODS, "ed", final, weight=weight))
    each = collect(METHODS, runs)[0].find("ed")
    assert each.values_used == each.choice.changes == {"weight": 20.0}
    assert each.spread().mean == 0.85
    assert collect(METHODS, runs, {"weight": 3.0})[0].find("ed").spread().mean == 0.99


def test_without_tuning_the_own_values_are_shown_else_those_with_most_seeds():
    runs = [make_run(METHODS, "ed", 0.85, weight=3.0, seed=seed) for seed in (0, 1)]
    runs.append(make_run(METHODS, "ed", 0.95, weight=20.0))
    assert collect(METHODS, runs)[0].find("ed").values_used == {"weight": 3.0}
    runs.append(make_run(METHODS, "ed", 0.80, weight=7.0))
    assert collect(METHODS, runs)[0].find("ed").values_used == {"weight": 7.0}


def test_runs_that_did_not_end():
    runs = [make_run(METHODS, "plain", 0.8), make_run(METHODS, "plain", None, seed=1)]
    runs.append(make_run(METHODS, "mixup", 0.8, finished=False))
    runs.append(replace(make_run(METHODS, "sam", 0.8, finished=False), failure="Traceback\nRuntimeError: diverged\n"))
    (results,) = collect(METHODS, runs)
    assert [each.state for each in results.methods] == ["run", "not finished", "failed", "not run"]
    assert results.failures == [
        "Baseline: 1 of 2 seeds; 1 failed: it has no test_accuracy, or that is not a number",
        "SAM: 0 of 1 seeds; 1 failed: RuntimeError: diverged",
    ]
    assert results.seeds == [0]  # the other one has no accuracy


class Within(Methods):
    """ED and plain training must differ by less than 50 points."""

    def claim(self, results):
        return judge_difference(results, results.find("ed"), results.find("plain"), above=-50.0, below=50.0)


WITHIN = replace(METHODS, study=Within())


def fail(name, **changes):
    return replace(make_run(METHODS, name, 0.8, finished=False, **changes), failure="RuntimeError: it diverged")


@pytest.mark.parametrize("how", ["failed", "NaN"])
def test_failed_seeds_are_counted_and_leave_a_claim_undecided(how):
    good = make_seeds({"plain": 0.8, "ed": 0.9})
    assert report_on(WITHIN, good).verdicts[0].word == "holds"
    lost = [fail("ed", seed=seed) if how == "failed" else make_run(METHODS, "ed", None, seed=seed) for seed in (3, 4)]
    elsewhere = [fail("ed", seed=5, weight=20.0), fail("ed", seed=5, epochs=40), fail("ed", seed=0)]  # or done again
    (results,) = collect(METHODS, [*good, *lost, *elsewhere])
    assert [len(each.failed) for each in results.methods] == [0, 0, 0, 2]
    difference = results.difference(results.find("ed"))
    assert (difference.interval, difference.reason) == (None, "ED: 3 of 5 seeds; 2 failed")
    verdict = report_on(WITHIN, [*good, *lost]).verdicts[0]
    assert (
        str(verdict)
        == "not decided: ED minus Baseline, points: 10, claimed above -50 and below 50; ED: 3 of 5 seeds; 2 failed"
    )
    table = METHODS.study.tables(results)[0]
    assert [row[table.columns.index("seeds")] for row in table.rows] == ["3", "–", "–", "3 of 5"]
    # A study that does not look at failed runs itself: they are counted for it.
    simple = type("Simple", (Study,), {"needs": "test_accuracy", "claim": lambda *_: judge("it", 1.0, (1.0, 1.0))})()
    verdict = report_on(replace(METHODS, study=simple), [*good, *lost]).verdicts[0]
    assert str(verdict) == "not decided: it: 1; ED: 3 of 5 seeds; 2 failed"
    assert str(report_on(METHODS, lost[:1]).verdicts[0]) == "not run: ED: 0 of 1 seeds; 1 failed"


@pytest.mark.parametrize("weights", [(7.0,), (7.0, 20.0)])
def test_missing_tuning_runs_leave_a_claim_undecided(weights):
    runs = [*make_seeds({"plain": 0.8, "ed": 0.9}), *tune(*((weight, 0.7) for weight in weights))]
    end = "" if len(weights) == 2 else "; ED: 1 of 2 tuning runs"
    word = "holds" if len(weights) == 2 else "not decided"
    verdict = report_on(WITHIN, runs).verdicts[0]
    assert verdict.word == word
    assert str(verdict).endswith(end)


def test_the_failed_runs_of_a_pool_are_counted_at_their_point_of_the_grid():
    runs = [make_run(POOL, "plain", 0.8, lr=lr, batch=10) for lr in (0.1, 0.01)]
    runs.append(replace(make_run(POOL, "plain", 0.8, lr=0.01, batch=10, seed=1, finished=False), failure="no"))
    (results,) = collect(POOL, runs)
    assert results.methods[0].describe_failed() == "MLP: 2 of 3 runs; 1 failed"
    assert [each.methods[0].describe_failed() for each in results.split()] == ["", "MLP: 1 of 2 seeds; 1 failed"]
    assert not POOL.study.needs_all  # some models of a pool may well diverge


def test_runs_of_other_code_are_named():
    recipe = find_recipe("toys:RECIPE")
    known = [make_run(recipe, "plain", 0.8, seed=0), make_run(recipe, "plain", 0.8, seed=1)]
    assert collect(recipe, [replace(run, code=recipe.code) for run in known])[0].different_code == []
    (results,) = collect(recipe, [known[0], replace(known[1], code="another")])
    text = f"1 of these 2 runs was made by other code than toys:RECIPE has now: {known[1].name}."
    assert results.different_code == [text]
    assert text in [*report_on(recipe, [known[0], replace(known[1], code="another")]).list_parts()]


def find_times(runs, epochs=10):
    at = next(each for each in collect(METHODS, runs) if each.epochs == epochs).equal_time
    return at, {name: (each.spread().mean, count) for name, (each, count) in at.reached.items()}


def test_equal_time_takes_the_longest_that_is_not_longer():
    runs = [make_run(METHODS, "ed", 0.88, step=2.0, epochs=10)]
    for name, step, by_epochs in (
        ("plain", 1.0, {10: 0.80, 17: 0.81, 20: 0.83, 22: 0.9}),
        ("mixup", 2.5, {10: 0.8, 4: 0.85}),
        ("sam", 4.0, {10: 0.8, 8: 0.85}),
    ):
        runs += [make_run(METHODS, name, found, step=step, epochs=epochs) for epochs, found in by_epochs.items()]
    at, found = find_times(runs)
    assert (at.reference.name, at.seconds) == ("ed", 20)
    assert found == {"ed": (0.88, 10), "plain": (0.83, 20)}
    # Mixup took more time with 10 epochs and less with 4: it could have been given the time.
    assert {name: each.time() for name, each in at.longer.items()} == {"sam": 32}


def test_equal_time_compares_like_with_like():
    runs = []
    for seed, accuracy in ((0, 0.82), (1, 0.84)):
        runs.append(make_run(METHODS, "ed", 0.88, step=2.0 + seed, epochs=10, seed=seed))
        runs.append(make_run(METHODS, "plain", 0.80, epochs=10, seed=seed))
        runs.append(make_run(METHODS, "plain", accuracy, epochs=25, seed=seed))
    runs += [make_run(METHODS, "mixup", 0.8, epochs=10), make_run(METHODS, "mixup", 0.9, epochs=25, alpha=0.2)]
    runs.append(make_run(METHODS, "sam", 0.9, epochs=25, device="a faster machine"))
    at, found = find_times(runs)
    assert at.seconds == 25
    assert found == {"ed": (0.88, 10), "plain": (pytest.approx(0.83), 25)}


def test_shared_seeds_are_paired_and_others_are_not():
    found = Difference.of({0: 0.84, 1: 0.86, 2: 0.85, 7: 0.1}, {1: 0.82, 0: 0.81, 2: 0.80})
    differences = [0.03, 0.04, 0.05]
    assert found.interval == pytest.approx(stats.t.interval(0.95, 2, np.mean(differences), stats.sem(differences)))
    found = Difference.of({0: 0.84, 1: 0.86}, {2: 0.82, 3: 0.83, 4: 0.81})
    stderr = np.sqrt(np.var([0.84, 0.86], ddof=1) / 2 + np.var([0.82, 0.83, 0.81], ddof=1) / 3)
    assert found.interval == pytest.approx(stats.t.interval(0.95, 1, 0.03, stderr))


@pytest.mark.parametrize(
    ("one", "other"),
    [({0: 0.85}, {0: 0.8}), ({0: 0.85}, {0: 0.78, 1: 0.82}), ({0: 0.841, 1: 0.853}, {0: 0.801, 1: 0.813})],
)
def test_a_single_seed_and_seeds_that_agree_by_accident_give_no_interval(one, other):
    found = Difference.of(one, other)
    assert found.interval is None
    assert found.value == pytest.approx(np.mean([one[seed] - other[seed] for seed in one]))  # also for a single seed


def fits(settings, name="ed", recipe=METHODS, *, without=(), extra=None, changes=None, **options):
    stored = {key: value for key, value in settings.to_dict().items() if key not in without} | (extra or {})
    run = Run(None, "methods", name, Toy.kind_name(), stored, {}, [])
    return bool(Selection(recipe, [run], changes).list_runs(recipe.method(name), **options))


OWN, TUNING = METHODS.resolve(ED), METHODS.resolve(ED, {"held_out": 100, "weight": 3.0})
POINT = POOL.settings.change({"lr": 0.01, "batch": 40})
AWAY = POOL.settings.change({"lr": 0.3, "batch": 40})
SEARCH = replace(POOL, grid={}, search=({"lr": 0.01, "batch": 40, "epochs": 5}, {"lr": 0.1, "batch": 40, "epochs": 7}))


@pytest.mark.parametrize(
    ("settings", "name", "options", "belongs"),
    [
        (OWN, "ed", {}, True),
        (OWN.change({"seed": 5, "epochs": 100, "weight": 50.0}), "ed", {}, True),
        (OWN.change({"lr": 0.2}), "ed", {}, False),
        (Toy(weight=3.0), "plain", {}, False),  # it is not tuned there
        (TUNING, "ed", {"tuning": True}, True),
        (TUNING, "ed", {}, False),
        (TUNING, "ed", {"recipe": replace(METHODS, tuning={}), "tuning": True}, False),
        (OWN, "ed", {"tuning": True, "changes": {"held_out": 0}}, False),  # never on the test set
        (POINT, "plain", {"recipe": POOL}, True),
        (AWAY, "plain", {"recipe": POOL}, False),  # not a point of the grid
        (AWAY, "plain", {"recipe": POOL, "changes": {"lr": 0.3}}, True),
        (replace(POINT, epochs=7), "plain", {"recipe": SEARCH}, False),  # of another point
        (replace(POINT, epochs=7), "plain", {"recipe": SEARCH, "changes": {"epochs": 7}}, True),
        (OWN, "ed", {"changes": {"epochs": 3}}, False),
        (TUNING, "ed", {"tuning": True, "changes": {"epochs": 3}}, True),  # tuning has a scale of its own
        (Toy(), "plain", {"without": ["lr", "epochs"]}, True),  # they are newer than the run
        (Toy(), "plain", {"extra": {"unheard_of": None}}, False),
    ],
)
def test_which_runs_belong_to_a_method(settings, name, options, belongs):
    assert fits(settings, name, **options) == belongs


def tune(*scores, **changes):
    return [
        make_run(METHODS, "ed", score, weight=weight, **{"held_out": 100, "epochs": 10, **changes})
        for weight, score in scores
    ]


def test_the_best_on_held_out_examples_is_chosen():
    runs = tune((20.0, 0.75), (7.0, 0.70), (3.0, 0.72), (5.0, None)) + tune((7.0, 0.76), seed=1)
    (choice,) = Selection(METHODS, runs).list_choices(ED)
    assert (choice.changes, choice.score, choice.held_out, choice.epochs) == ({"weight": 20.0}, 0.75, 100, 10)
    # In the order of the recipe, then what a user has added; a run without an accuracy went wrong.
    assert choice.tried == [
        ({"weight": 7.0}, pytest.approx(0.73)),
        *(({"weight": w}, s) for w, s in ((20.0, 0.75), (3.0, 0.72), (5.0, 0.0))),
    ]
    assert Selection(METHODS, runs).list_choices(METHODS.method("plain")) == []
    assert Selection(METHODS, [make_run(METHODS, "ed", 0.9)]).list_choices(ED) == []


def test_a_shorter_method_is_tuned_by_runs_of_its_own_length():
    short = replace(ED, name="short", changes={**ED.changes, "epochs": 5})
    recipe = replace(METHODS, methods=(*METHODS.methods, short), tuning={"held_out": 100})
    long_runs, short_runs = tune((7.0, 0.70), (20.0, 0.75)), tune((7.0, 0.73), (20.0, 0.71), epochs=5)
    selection = Selection(recipe, long_runs + short_runs)
    assert [each.changes for each in selection.list_choices(short)] == [{"weight": 7.0}, {"weight": 20.0}]
    (borrowed,) = Selection(recipe, long_runs).list_choices(short)  # better than none
    assert borrowed.changes == {"weight": 20.0}


def test_values_may_be_tuned_on_another_number_of_held_out_examples():
    def list_found(runs, **options):
        choices = Selection(METHODS, runs).list_choices(ED, **options)
        return [(each.held_out, each.changes["weight"]) for each in choices]

    fewer = tune((7.0, 0.70), (20.0, 0.75), held_out=50, epochs=100)
    assert list_found(fewer) == list_found(fewer, held_out=50) == [(50, 20.0)]
    assert list_found(fewer, held_out=100) == []
    both = [*fewer, *tune((7.0, 0.76), (20.0, 0.75))]
    assert list_found(both) == [(100, 7.0), (50, 20.0)]  # first that of the recipe, although it is shorter
    # A single value on a number that no sweep was asked for tunes nothing.
    assert list_found(fewer[:1]) == []
    assert list_found(fewer[:1], held_out=50) == [(50, 7.0)]
    # The choice that is shown is that of the runs that are shown.
    used = [make_run(METHODS, "ed", 0.8, weight=20.0)]
    assert collect(METHODS, [*both, *used])[0].find("ed").choice.held_out == 50
    used += [make_run(METHODS, "ed", 0.8, weight=7.0)]
    assert collect(METHODS, [*both, *used])[0].find("ed").choice.held_out == 100


@pytest.mark.parametrize(("step", "longer"), [(1.2, {"plain": 48}), (3.0, {})])
def test_a_run_that_was_meant_to_take_equally_long_but_took_longer_is_shown(step, longer):
    runs = [make_run(METHODS, "ed", 0.9, step=2.0), make_run(METHODS, "plain", 0.8)]
    runs.append(make_run(METHODS, "plain", 0.85, epochs=40, step=step))  # planned for 40 s
    at = next(each for each in collect(METHODS, runs) if each.epochs == 20).equal_time
    assert list(at.reached) == ["ed"]
    assert {name: each.time() for name, each in at.longer.items()} == pytest.approx(longer)
