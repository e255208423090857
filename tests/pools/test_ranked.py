import numpy as np
import pytest

from effdeg.pools import rank
from effdeg.pools._ranked import as_frame, group_rows
from effdeg.pools._ranked import find_repeats as find_repeated_rows
from tests.pools.pools import AXES, grid_pool

TABLE = {
    "model": ["a", "a", "a", "d", "d"],
    "file": ["1.pt", "2.pt", "3.pt", "4.pt", "5.pt"],
    "norm": ["batch", "batch", "layer", "batch", "batch"],
    "m": [1.0, 1.0, 1.0, None, float("nan")],
    "gap": [0.5, 0.5, 0.5, 0.5, 0.5],
}


def find_repeats(table, *roles):
    return np.flatnonzero(find_repeated_rows(as_frame(table), *roles)).tolist()


def test_rows_that_are_the_same():
    # Rows 0, 1 and 2 differ in text; only that of the hyperparameter counts. A missing value equals a missing value.
    assert find_repeats(TABLE, ["gap", "m"], ["norm", "model"]) == [1, 4]
    assert find_repeats(TABLE, ["gap", "m"], ["model"]) == [1, 2, 4]
    assert find_repeats(TABLE, ["gap", "m"], ["file", "norm", "model"]) == []
    # A column of numbers without a role, such as the seed, tells models apart.
    assert find_repeats(TABLE | {"seed": [0, 1, 2, 3, 4]}, ["gap", "m"], ["norm", "model"]) == []
    # So do names; without names, numbers alone decide.
    assert find_repeats(TABLE | {"model": ["a", "b", "c", "d", "d"]}, ["gap", "m"], ["norm", "model"]) == [4]
    assert find_repeats(TABLE, ["gap", "m"], ["norm"]) == [1, 4]


def test_rows_of_one_checkpoint_are_one_model_whatever_settings_they_are_said_to_have():
    table = TABLE | {"model": ["a", "a", "c", "d", "e"], "sha256": ["x", None, "x", "y", "y"], "lr": [1, 1, 2, 3, 4]}
    assert find_repeats(table, ["gap", "m"], ["norm", "lr", "model"]) == [1, 2, 4]
    assert find_repeats(table | {"lr": [1, 5, 2, 3, 4]}, ["gap", "m"], ["norm", "lr", "model"]) == [2, 4]
    # Measured twice, such as on other examples.
    assert find_repeats(table | {"m": [1.0, 1.0, 2.0, 3.0, 3.0]}, ["gap", "m"], ["model"]) == [1, 4]


def test_a_model_that_is_listed_twice_counts_once():
    rows = [row | {"model": f"model_{index}"} for index, row in enumerate(grid_pool())]
    plain = rank(rows, hyperparameters=list(AXES), resamples=100)
    copied = rank([*rows[:5], rows[4], *rows[5:]], hyperparameters=list(AXES), resamples=100)
    assert (copied.pool.names, copied.scores) == (plain.pool.names, plain.scores)
    assert "note: rows that repeat a model are left out: model_4." in str(copied)
    assert (copied.to_dict()["repeated"], plain.pool.repeated) == (["model_4"], [])
    rows = [row | {"sha256": row["model"]} for row in rows]
    doubled = rank([*rows[:12], *(row | {"model": f"copy_{row['model']}"} for row in rows)], resamples=100)
    assert doubled.pool.repeated == [f"copy_model_{number}" for number in range(12)]
    with pytest.raises(ValueError, match="at least 3 models; the table has 2; rows of the same model count once"):
        rank({"m": [1, 1, 2], "gap": [1, 1, 2]})


def test_strata_by_name_and_in_order_of_appearance():
    columns = {"mix": [1.0, 0.0, 1.0, 0.25], "norm": ["b", "b", "b", "a"]}
    for table, names, expected in (
        (columns, ["mix"], {"1": [0, 2], "0": [1], "0.25": [3]}),
        ({"version": ["v1.0", "v1", "v1.0"]}, ["version"], {"v1.0": [0, 2], "v1": [1]}),
        (columns, ["mix", "norm"], {"1, b": [0, 2], "0, b": [1], "0.25, a": [3]}),
        (
            {"a": ["x, y", "x", "x, y"], "b": ["z", "y, z", "z"]},
            ["a", "b"],
            {"'x, y', 'z'": [0, 2], "'x', 'y, z'": [1]},
        ),
    ):
        groups = group_rows(as_frame(table), names)
        assert {name: rows.tolist() for name, rows in groups.items()} == expected
        assert list(groups) == list(expected)


def test_strata_that_are_left_out_are_named_and_the_others_ranked():
    generator = np.random.default_rng(0)
    sizes = {"plain": 12, "mixup": 9, "cutmix": 3, "stuck": 6}
    recipes = [name for name, size in sizes.items() for _ in range(size)]
    gaps = generator.standard_normal(len(recipes))
    gaps[-6:] = 0.5
    table = {"recipe": recipes, "gap": gaps, "m": generator.standard_normal(len(recipes))}
    # A missing measure of a stratum that is left out does no harm.
    table["m"][22] = np.nan
    ranking = rank(table, strata=["recipe"], resamples=100)
    assert list(ranking.strata) == ["plain", "mixup"]
    assert len(ranking.pool) == 21
    assert ranking.pool.names == [str(row) for row in range(1, 22)]
    text = str(ranking)
    assert text.startswith("21 models within recipe (plain, mixup), 1 measure of gap, best first\n")
    assert "note: recipe cutmix is left out: 3 models, fewer than 5." in text
    assert "note: recipe stuck is left out: gap is 0.5 for all of its 6 models." in text
