"""How tables and numbers of the pages are made from the records."""

import itertools
import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest

from effdeg_lab import find_recipe

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("83.33 ± 0.44 and 1.005", "83.3 ± 0.44 and 1.01"),
        ("-0.03 (-1.01 to +0.95)", "−0.03 (−1.01 to +0.95)"),
        ("0.79 (-0.71…0.86)", "0.79 (−0.71 to 0.86)"),
        ("99.95 and 0.0474 and 0.00 and 1,281,167", "100 and 0.0474 and 0.00 and 1,281,167"),
        ("resnet9-8, `sharpness@0.0512`, α = 0.2", "resnet9-8, `sharpness@0.0512`, α = 0.2"),
    ],
)
def test_numbers_have_three_digits_and_one_minus_sign(docs, text, shown):
    assert docs("records").shorten(text) == shown


def test_a_table_shows_some_columns_of_what_was_run(docs):
    records = docs("records")
    summary = json.loads((ROOT / "results/cifar10-contest/ed-0.jsonl").read_text().splitlines()[-1])["summary"]
    head, _, *rows = records.cut("cifar10-contest", 1, "here", "seeds").splitlines()
    assert head == "|  | here, % | seeds |"
    assert [row.split(" | ")[0] for row in rows] == ["| Baseline", "| Mixup", "| ED"]  # the others were not run
    assert rows[-1] == f"| ED | {100 * summary['test_accuracy']:.1f} | 1 |"
    columns = {"a": ("cifar10-contest", 1, "here"), "b": ("cifar10-contest", 3, "ECE")}
    assert records.merge(columns, rows=["ED", "SAM"]).splitlines()[2:] == [f"{rows[-1][:-3]}4.31 |", "| SAM | – | – |"]


def test_the_evidence_is_that_of_the_runs(docs):
    text = docs("records").describe("cifar10-methods")
    assert text.startswith(
        "**Evidence:** one seed, 36 epochs, NVIDIA H200. Differs from the recipe: epochs 36 (recipe: 300)"
    )
    assert "`effdeg-lab sweep cifar10-methods --data DIR`" in text


def test_the_choice_among_five_is_that_of_all_sets_of_five_of_a_recipe(docs):
    plain = [(0.5, 70), (2.0, 80), (3.0, 90), (1.0, 60), (4.0, 75), (0.7, 85)]
    mixup = [(0.01 * place, 40 + place * (9 - place)) for place in range(9)]
    models = [
        {"value": value, "test_accuracy": test, "recipe": recipe}
        for recipe, values in (("plain", plain), ("mixup", mixup))
        for value, test in values
    ]
    for measure, choose in (("value", min), ("-value", max)):
        sets = [itertools.combinations(values, 5) for values in (plain, mixup)]
        means = [statistics.fmean(choose(each)[1] for each in inside) for inside in sets]
        assert docs("tables").choose(models, measure) == pytest.approx((6 * means[0] + 9 * means[1]) / 15)
    assert docs("tables").choose(models, "entropy_test") is None


def test_the_bound_of_networks_is_the_published_one(docs):
    """At one network: (1 + √(2 L ln 2)) Π‖Wᵢ‖ r/√n with three layers and 100 digits, times 2/γ."""
    from effdeg.demo import load_digits
    from effdeg.pools import read_table

    table = read_table(ROOT / "results" / "pools" / "digits.csv")
    norms = load_digits(per_class=10, seed=0).labeled.double().norm(dim=1)
    complexity = (1 + math.sqrt(2 * 3 * math.log(2))) * table["frobenius_product"][0] * norms.norm().item() / 100
    assert docs("tables").bound_networks()[0] == pytest.approx(2 / table["margin@50"][0] * complexity)


def test_degree_and_gap_along_training(docs):
    entries = [
        {"train_accuracy": 0.5 + 0.02 * epoch, "test_accuracy": 0.5, "effective_degree": {"value": 3.0 * epoch}}
        for epoch in (1, 2, 5)
    ]
    course = docs("tables").read_course([*entries, {"train_accuracy": 0.9, "test_accuracy": 0.1}])
    np.testing.assert_allclose(course, [[3, 6, 15], [0.02, 0.04, 0.1]])


def test_what_recipes_of_imagenet_cost_is_what_was_estimated(docs):
    tables = docs("tables")
    for name, (plain, ed) in tables.estimate_hours().items():
        expected = f"{plain:.1f} h per run on an H200, {ed:.1f} with ED, if decoding keeps up; with 16 cores "
        assert find_recipe(f"imagenet-vit-{name}").cost.startswith(f"{expected}{tables.find_decoding_hours():.1f}.")
