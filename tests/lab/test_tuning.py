from dataclasses import replace

import pytest

from effdeg.lab.store import Store
from effdeg.lab.tuning import chosen
from tests.lab.toys import RECIPE, Toy, finish

ED = RECIPE.row("ed")
TUNING = Toy(method="ed", held_out=100, epochs=2)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def tried(store, scores, **changes):
    for weight, accuracy in scores.items():
        finish(store, replace(TUNING, weight=weight, **changes), test_accuracy=accuracy)


def test_the_best_on_held_out_examples_is_chosen(store):
    assert chosen(RECIPE, ED, store.records()) is None
    tried(store, {20.0: 0.5, 2.0: 0.6, 7.0: 0.8, 3.0: 0.1})
    finish(store, Toy(method="ed", weight=20.0), test_accuracy=1.0)  # the test set has no say
    with pytest.raises(ValueError, match="held_out=0 would have the test set decide strengths"):
        chosen(RECIPE, ED, store.records(), changes={"held_out": 0})
    choice = chosen(RECIPE, ED, store.records())
    assert choice.changes == {"weight": 7.0}
    assert choice.score == 0.8
    assert choice.epochs == 2
    # In the order of the recipe; what was added by hand comes last.
    assert choice.tried == [
        ({"weight": 2.0}, 0.6),
        ({"weight": 7.0}, 0.8),
        ({"weight": 20.0}, 0.5),
        ({"weight": 3.0}, 0.1),
    ]


def test_seeds_are_averaged(store):
    tried(store, {2.0: 0.7, 7.0: 0.9})
    tried(store, {2.0: 0.7, 7.0: 0.3}, seed=1)
    choice = chosen(RECIPE, ED, store.records())
    assert choice.changes == {"weight": 2.0}
    assert choice.tried == [({"weight": 2.0}, pytest.approx(0.7)), ({"weight": 7.0}, pytest.approx(0.6))]


def test_the_longest_runs_decide(store):
    tried(store, {2.0: 0.9, 7.0: 0.8, 20.0: 0.7})
    tried(store, {2.0: 0.91, 7.0: 0.92}, epochs=10)
    choice = chosen(RECIPE, ED, store.records())
    assert (choice.changes, choice.epochs, len(choice.tried)) == ({"weight": 7.0}, 10, 2)


def test_a_single_strength_is_not_tuning_where_several_were_tried(store):
    tried(store, {7.0: 0.99}, epochs=60)  # a run of another experiment on held-out examples
    assert chosen(RECIPE, ED, store.records()).changes == {"weight": 7.0}
    tried(store, {2.0: 0.9, 7.0: 0.8})
    choice = chosen(RECIPE, ED, store.records())
    assert (choice.changes, choice.epochs, len(choice.tried)) == ({"weight": 2.0}, 2, 2)


def test_only_finished_runs_count(store):
    tried(store, {2.0: 0.6})
    run = store.run(replace(TUNING, weight=7.0))
    run.begin({})
    run.log({"test_accuracy": 1.0})
    assert chosen(RECIPE, ED, store.records()).changes == {"weight": 2.0}


def test_a_run_without_an_accuracy_is_no_candidate(store):
    tried(store, {2.0: float("nan"), 7.0: 0.1})
    assert chosen(RECIPE, ED, store.records()).changes == {"weight": 7.0}


def test_changes_of_a_user_have_their_own_tuning(store):
    tried(store, {2.0: 0.9, 7.0: 0.1})
    tried(store, {2.0: 0.1, 7.0: 0.9}, lr=0.5)
    assert chosen(RECIPE, ED, store.records()).changes == {"weight": 2.0}
    assert chosen(RECIPE, ED, store.records(), changes={"lr": 0.5}).changes == {"weight": 7.0}


def test_lines_without_strengths_are_not_tuned(store):
    finish(store, Toy(held_out=100))
    assert chosen(RECIPE, RECIPE.row("plain"), store.records()) is None
