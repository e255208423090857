import pytest
from scipy.stats import t
from toy_results import BASE, ED, Toy, make_run

from effdeg_lab.core.recipe import Method, Recipe
from effdeg_lab.core.results import collect
from effdeg_lab.experiments.cifar10.relatives import Relatives

RECIPE = Recipe(
    name="relatives",
    title="A family",
    settings=Toy(),
    study=Relatives(with_ed=("ed", "ed-half")),
    methods=(
        Method("plain", "Plain", {"regularizer": "plain"}),
        Method("mixup", "Mixup", {"regularizer": "mixup"}),
        Method("ed", "ED", {**ED, "epochs": 11}),
        Method("ed-half", "ED by half", {**ED, "pairs": 0.25, "epochs": 15}),
    ),
    grid={"batch": (10, 20)},
    **BASE,
)


def make_runs(accuracies, losses, batches=(10, 20)):
    """Make three seeds of every method at every point: given means, seeds that differ by a thousandth."""
    return [
        make_run(
            RECIPE,
            name,
            accuracies[name] + 0.001 * seed,
            batch=batch,
            seed=seed,
            summary={
                "test_loss": losses[name] + 0.001 * (seed if name == "mixup" else -seed),
                "test_loss_scaled": losses[name] / 2,
                "test_brier": 0.5,
            },
        )
        for batch in batches
        for name in accuracies
        for seed in range(3)
    ]


ACCURACIES = {"plain": 0.8, "mixup": 0.9, "ed": 0.85, "ed-half": 0.7}


def test_there_are_tables_for_every_point():
    runs = make_runs(ACCURACIES, dict.fromkeys(ACCURACIES, 0.5))
    tables = RECIPE.study.tables(collect(RECIPE, runs)[0])
    assert [table.title for table in tables if table.title.startswith("Accuracy")] == [
        f"Accuracy: batch {batch}, seeds 0, 1, 2, Thinking Machine" for batch in (10, 20)
    ]
    (column,) = [place for place, head in enumerate(tables[0].columns) if head == "epochs"]
    assert [row[column] for row in tables[0].rows] == ["20", "20", "11", "15"]


@pytest.mark.parametrize(
    ("losses", "word"),
    [
        ({"plain": 0.5, "mixup": 0.4, "ed": 0.6, "ed-half": 0.3}, "holds"),
        ({"plain": 0.5, "mixup": 0.4, "ed": 0.6, "ed-half": 0.7}, "not decided"),  # of the accuracies nothing is known
    ],
)
def test_the_claim_is_a_lead_somewhere(losses, word):
    verdict = RECIPE.study.claim(collect(RECIPE, make_runs(ACCURACIES, losses))[0])
    assert verdict.word == word
    if word == "holds":
        many = "interval for 8 comparisons"  # of accuracy, NLL, Brier score and ECE at two points
        assert verdict.quantity == f"NLL (batch 10), lead of ED by half over Mixup ({many})"
        assert verdict.value == pytest.approx(0.102)
        # Student's t at 1 − 0.025/8 with two degrees of freedom, times the standard error.
        assert verdict.interval[0] == pytest.approx(0.102 - t.ppf(1 - 0.025 / 8, 2) * 0.002 / 3**0.5)


def test_without_both_sides_nothing_is_decided():
    runs = make_runs({"plain": 0.8, "mixup": 0.9}, {"plain": 0.5, "mixup": 0.4})
    results = collect(RECIPE, runs)[0]
    assert RECIPE.study.claim(results).word == "not decided"
