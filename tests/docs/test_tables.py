import json
from pathlib import Path

import numpy as np
import pandas as pd
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
    file = ROOT / "results" / "cifar10-methods" / "ed-0.jsonl"
    summary = json.loads(file.read_text().splitlines()[-1])["summary"]
    recipe = "cifar10-methods@epochs=300"
    head, _, *rows = records.cut(recipe, 1, "here").splitlines()
    assert head == "|  | here, % |"
    assert [row.split(" | ")[0] for row in rows] == ["| Baseline", "| Mixup", "| ED"]  # the others were not run
    assert rows[-1] == f"| ED | {100 * summary['test_accuracy']:.1f} |"
    columns = {"a": (recipe, 1, "here"), "b": ("cifar10-methods", 1, "here")}
    assert records.merge(columns, rows=["ED", "nothing"]).splitlines()[2:] == [f"{rows[-1]} 83.3 |"]
    with pytest.raises(ValueError, match="no column 'gain'"):
        records.cut(recipe, 1, "gain")


def test_the_evidence_is_that_of_the_runs(docs):
    text = docs("records").describe("cifar10-methods")
    assert text.startswith(
        "**Evidence:** one seed, 36 epochs, NVIDIA H200. Differs from the recipe: epochs 36 (recipe: 300)"
    )
    assert "`effdeg-lab sweep cifar10-methods --data DIR`" in text


def test_degree_and_gap_along_training(docs):
    entries = [
        {"train_accuracy": 0.5 + 0.02 * epoch, "test_accuracy": 0.5, "effective_degree": {"value": 3.0 * epoch}}
        for epoch in (1, 2, 5)
    ]
    course = docs("tables").read_course([*entries, {"train_accuracy": 0.9, "test_accuracy": 0.1}])
    np.testing.assert_allclose(course, [[3, 6, 15], [0.02, 0.04, 0.1]])


def test_what_recipes_of_imagenet_cost_is_what_was_estimated(docs):
    cases = docs("records").read_cases()
    rows = pd.DataFrame(cases["imagenet_throughput"]["rows"]).query("batch == 1024 and waited.isna()")
    speeds = rows.set_index(["recipe", "method"])["images_per_second"]
    decoding = {(row["decoder"], row["processes"]): row["images_per_second"] for row in cases["decoding_speed"]["rows"]}
    for name in ("original", "strong"):
        recipe = find_recipe(f"imagenet-vit-{name}")
        hours = 1_281_167 * recipe.settings.to_dict()["epochs"] / 3600
        plain, ed, decoded = (
            hours / speed for speed in (speeds[name, "plain"], speeds[name, "ed"], decoding["pillow", 16])
        )
        expected = (
            f"{plain:.1f} h per run on an H200, {ed:.1f} with ED, if decoding keeps up; with 16 cores {decoded:.1f}."
        )
        assert recipe.cost.startswith(expected)
