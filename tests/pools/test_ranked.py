import numpy as np
import pytest

from effdeg.pools import rank
from effdeg.pools._ranked import as_frame, group_rows
from effdeg.pools._ranked import find_duplicates as find_duplicate_rows
from tests.pools.pools import AXES, grid_pool

TABLE = {
    "model": ["a", "a", "a", "d", "d"],
    "file": ["1.pt", "2.pt", "3.pt", "4.pt", "5.pt"],
    "norm": ["batch", "batch", "layer", "batch", "batch"],
    "m": [1.0, 1.0, 1.0, None, float("nan")],
    "gap": [0.5, 0.5, 0.5, 0.5, 0.5],
}


def find_duplicates(table, *roles):
    return find_duplicate_rows(as_frame(table), *roles)


def test_rows_that_are_the_same():
    # Rows 0, 1 and 2 differ in text; only that of the hyperparameter counts. A missing value equals a missing value.
    assert find_duplicates(TABLE, ["gap", "m"], ["norm"], "model") == [[0, 1], [3, 4]]
    assert find_duplicates(TABLE, ["gap", "m"], [], "model") == [[0, 1, 2], [3, 4]]
    assert find_duplicates(TABLE, ["gap", "m"], ["file", "norm"], "model") == []
    # A column of numbers without a role, such as the seed, tells models apart.
    assert find_duplicates(TABLE | {"seed": [0, 1, 2, 3, 4]}, ["gap", "m"], ["norm"], "model") == []
    # So do names; without names, numbers alone decide.
    assert find_duplicates(TABLE | {"model": ["a", "b", "c", "d", "d"]}, ["gap", "m"], ["norm"], "model") == [[3, 4]]
    assert find_duplicates(TABLE, ["gap", "m"], ["norm"], None) == [[0, 1], [3, 4]]


def test_rows_of_one_checkpoint_are_one_model_whatever_settings_they_are_said_to_have():
    table = TABLE | {"model": ["a", "a", "c", "d", "e"], "sha256": ["x", None, "x", "y", "y"], "lr": [1, 1, 2, 3, 4]}
    assert find_duplicates(table, ["gap", "m"], ["norm", "lr"], "model") == [[0, 1, 2], [3, 4]]
    assert find_duplicates(table | {"lr": [1, 5, 2, 3, 4]}, ["gap", "m"], ["norm", "lr"], "model") == [[0, 2], [3, 4]]
    # Measured twice, such as on other examples.
    assert find_duplicates(table | {"m": [1.0, 1.0, 2.0, 3.0, 3.0]}, ["gap", "m"], [], "model") == [[0, 1], [3, 4]]


def test_a_model_that_is_listed_twice_counts_once():
    rows = [row | {"model": f"model_{index}"} for index, row in enumerate(grid_pool())]
    plain = rank(rows, hyperparameters=list(AXES), resamples=100)
    copied = rank([*rows[:5], rows[4], *rows[5:]], hyperparameters=list(AXES), resamples=100)
    assert (copied.pool.names, copied.scores) == (plain.pool.names, plain.scores)
    assert copied.pool.duplicates == [["model_4", "model_4"]]
    assert "note: model_4 is listed 2 times: counted once." in str(copied)
    assert (copied.to_dict()["duplicates"], plain.pool.duplicates) == ([["model_4", "model_4"]], [])
    rows = [row | {"sha256": row["model"]} for row in rows]
    doubled = rank([*rows[:12], *(row | {"model": f"copy_{row['model']}"} for row in rows)], resamples=100)
    (note,) = (note for note in doubled.warnings() if "counted once" in note)
    assert note.startswith("note: 24 rows are 12 models; model_0 and copy_model_0 are the same model; model_1 and ")
    assert note.endswith("model_2 and copy_model_2 are the same model; …: counted once.")
    with pytest.raises(ValueError, match="at least 3 models; the table has 2; rows of the same model count once"):
        rank({"m": [1, 1, 2], "gap": [1, 1, 2]})


def test_models_of_different_names_and_equal_numbers_are_different_models():
    table = {"model": [f"m{i}" for i in range(24)], "degree": [i % 6 for i in range(24)]}
    table["gap"] = [(7 * (i % 6) + i % 2) / 40 for i in range(24)]  # 6 different pairs of numbers, each 4 times
    ranked = rank(table, resamples=100)
    assert (len(ranked.pool), ranked.pool.duplicates) == (24, [])
    assert "note: m0, m6, m12 and m18, m1, m7, m13 and m19, m2, m8, m14 and m20, … agree in every number" in str(ranked)
    assert len(rank({name: table[name] for name in ("degree", "gap")}, resamples=100).pool) == 6


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
    with pytest.raises(KeyError, match="the stratum 'cutmix' is left out: 3 models, fewer than 5"):
        ranking.strata["cutmix"]
    with pytest.raises(KeyError, match=r"there is no stratum 'mixpu'. Did you mean 'mixup'"):
        ranking.strata["mixpu"]
    with pytest.raises(KeyError, match="there are no strata"):
        rank(table, measures=["m"], resamples=100).strata["mixup"]
    assert "note: recipe stuck is left out: gap is 0.5 for all of its 6 models." in text
