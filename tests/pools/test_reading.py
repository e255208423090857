import re
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from effdeg.pools import rank, read_table

COLUMNS = {"lr": [0.1, 0.1, 0.3, 0.3], "norm": ["a", "b", "a", "b"], "m": [1.0, 2.0, 4.0, 3.0], "gap": [1, 2, 3, 4]}


class Series:
    def __init__(self, cells):
        self.cells = cells

    def tolist(self):
        return list(self.cells)


class NAType:
    """As pandas.NA does, it refuses to be compared."""

    def __bool__(self):
        raise TypeError

    def __eq__(self, other):
        return self

    __ne__ = __eq__
    __hash__ = None


class Frame:
    """What a DataFrame has of columns."""

    def __init__(self, data):
        self.data, self.columns = data, list(data)

    def __getitem__(self, name):
        return Series(self.data[name])


def read(path):
    """Return the columns of a file as lists, with None where a value is missing."""
    return {name: [None if cell != cell else cell for cell in cells] for name, cells in read_table(path).items()}


def written(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def kendall(table, **settings):
    return rank(table, hyperparameters=["lr", "norm"], resamples=100, **settings).scores["m"].kendall.value


def test_every_kind_of_table(tmp_path):
    rows = [dict(zip(COLUMNS, values, strict=True)) for values in zip(*COLUMNS.values(), strict=True)]
    text = "\n".join([",".join(COLUMNS), *(",".join(map(str, row.values())) for row in rows)])
    pq.write_table(pa.table(COLUMNS), tmp_path / "t.parquet")
    tables = [
        COLUMNS,
        rows,
        tuple(rows),
        Frame(COLUMNS),
        pa.table(COLUMNS),
        COLUMNS | {"m": np.array(COLUMNS["m"]), "gap": torch.tensor(COLUMNS["gap"])},
        COLUMNS | {"m": [torch.tensor(cell) for cell in COLUMNS["m"]], "gap": [Decimal(cell) for cell in (1, 2, 3, 4)]},
        COLUMNS | {"m": [np.float32(cell) for cell in COLUMNS["m"]]},
        tmp_path / "t.parquet",
        written(tmp_path / "t.csv", text),
        str(written(tmp_path / "bom.csv", "\ufeff" + text.replace("\n", "\r\n") + "\n\n")),
    ]
    for table in tables:
        assert kendall(table) == pytest.approx(4 / 6)
        assert list(rank(table, resamples=100).scores) in (["lr", "m"], ["m", "lr"])


def test_numbers_of_a_csv_file(tmp_path):
    lines = [
        ",plain,spaced,sparse,word,odd,flag,comma",
        '0,1, 2 ,,NA,inf,True,"1,5"',
        "1,-1e-3,.5,3,4,nan,False,2",
        '2,+4.,7,"5",5,-Infinity,True,3',
    ]
    columns = read(written(tmp_path / "t.csv", "\n".join(lines)))
    assert list(columns) == ["plain", "spaced", "sparse", "word", "odd", "flag", "comma"]
    assert (columns["plain"], columns["spaced"]) == ([1, -0.001, 4], [2, 0.5, 7])
    assert (columns["sparse"], columns["word"]) == ([None, 3, 5], [None, 4, 5])
    assert (columns["odd"], columns["flag"]) == ([np.inf, None, -np.inf], ["True", "False", "True"])
    assert columns["comma"] == ["1,5", "2", "3"]


@pytest.mark.parametrize(
    "text",
    [
        'name,m,gap\na, 1, 2\n"b, c", 3, 4\n',
        'm, name, gap\n1, "a", 2\n3, "b, c", 4\n   \n \n',
        'name,m,gap\r\na,1,2\r\n"b, c",3,4\r\n,,\r\n',
    ],
)
def test_quotes_spaces_and_empty_lines_of_a_csv_file(tmp_path, text):
    columns = read(written(tmp_path / "T.CSV", text))
    assert columns == {"name": ["a", "b, c"], "m": [1, 3], "gap": [2, 4]}


@pytest.mark.parametrize("missing", [" ", "NA"])
def test_missing_values_of_a_csv_file(tmp_path, missing):
    columns = read(written(tmp_path / "t.csv", f"m,norm,gap\n1,a,1\n{missing},{missing},2\n-2.5,b,3\n"))
    assert (columns["m"], columns["norm"]) == ([1, None, -2.5], ["a", missing.strip() or None, "b"])


def test_underscores_make_a_name_not_a_number(tmp_path):
    """Python itself reads 1_0 as 10; none is a name, too."""
    columns = read(written(tmp_path / "t.csv", "version,norm,gap\n1_0,none,0.5\n1_1,None,0.25\n"))
    assert columns == {"version": ["1_0", "1_1"], "norm": ["none", "None"], "gap": [0.5, 0.25]}


def test_a_typing_error_in_a_column_of_numbers_is_named(tmp_path):
    file = written(tmp_path / "t.csv", "model,m,n,flag,gap\na,1,1,True,1\nb,2,,False,2\nc,3,O.5,,3\nd,4,4,True,4\n")
    assert rank(file, resamples=100).notes()[:2] == [
        "not ranked, since it holds 'O.5' (model c) among numbers: n",
        "not ranked, since it holds True and False: flag",
    ]


def test_missing_values_of_a_measure_are_no_mistake():
    table = COLUMNS | {"m": [1.0, None, 2.0, NAType()], "n": [1, 2, 3, 4]}
    ranking = rank(Frame(table), measures=["m", "n"], resamples=100)
    assert ranking.scores["m"].undefined.startswith("not finite for models 2 and 4")
    sparse = rank([{"gap": 1, "m": 1}, {"gap": 2}, {"gap": 3, "m": 3}], resamples=100)
    assert sparse.scores["m"].undefined.startswith("not finite for model 2:")


def test_true_and_false_are_a_hyperparameter_not_a_measure():
    table = COLUMNS | {"augmented": [True, True, False, False]}
    ranking = rank(table, resamples=100)
    assert "augmented" not in ranking.scores
    assert "note: not ranked, since it holds True and False: augmented." in ranking.warnings()
    assert "note: not ranked, since it holds text: norm." in ranking.warnings()
    assert rank(table, measures=["m"], hyperparameters=["augmented"], resamples=100).scores["m"].psi is not None


@pytest.mark.parametrize(
    ("table", "settings", "message"),
    [
        (COLUMNS, {"target": "gpa"}, "no column 'gpa' for the target. Did you mean 'gap'"),
        ({"sha256": ["a", "b", "c"], "norm": [1, 2, 3]}, {}, "no column 'gap' for the target: a pool has"),
        (COLUMNS, {"measures": ["n"]}, "no column 'n' for the measure."),
        (COLUMNS, {"measures": ["-nrom"]}, "no column '-nrom' for the measure. Did you mean 'norm'"),
        (COLUMNS, {"hyperparameters": ["rl"]}, "no column 'rl' for the hyperparameter. Did you mean 'lr'"),
        (COLUMNS, {"measures": ["m", "m"]}, "the measure 'm' was given twice"),
        (COLUMNS, {"measures": ["norm"]}, "the measure 'norm' must be numbers, but model 1 has 'a'"),
        ({"m": [1, 2], "gap": [1, 2]}, {}, "at least 3 models; the table has 2"),
        ({"m": [1, 2, 3], "gap": [1, None, 3]}, {}, "'gap' is missing or not finite for model 2"),
        ({"m": [1, 2, 3], "gap": [1, np.nan, np.inf]}, {}, "not finite for models 2 and 3"),
        ({"m": [1, 2, 3], "gap": [5, 5, 5]}, {}, "'gap' is 5 for all 3 models: nothing to rank"),
        ({"m": [1, 2, 3], "gap": [0, 0, 0]}, {}, "nothing to rank. Were all accuracies measured on the same examples?"),
        ({"m": [1, 2, 3], "gap": [1, 2]}, {}, "differ in length ('m' has 3, 'gap' has 2)"),
        ({"gap": [1, 2, 3], "norm": ["a", "b", "c"]}, {}, "besides the target 'gap' to rank it by ('norm' holds 'a')"),
        ({"gap": [1, 2, 3], "m": [1, 2, 3], "lr": [1, None, 2]}, {"hyperparameters": ["lr"]}, "missing for model 2"),
        ({}, {}, "the table is empty"),
        (COLUMNS, {"measures": ["-gap"]}, "'gap' is given as the target and as a measure"),
        (COLUMNS, {"hyperparameters": ["m"], "measures": ["-m"]}, "'m' is given as a hyperparameter and as a measure"),
        (COLUMNS, {"hyperparameters": ["lr"], "clusters": ["norm"]}, "'norm' is not one of them. Choose from: 'lr'"),
        (COLUMNS, {"clusters": ["lr"]}, "'lr' is not one of them. Name it with hyperparameters=… too"),
        (COLUMNS, {"hyperparameters": ["lr"], "clusters": []}, "clusters=[] is empty"),
        (COLUMNS, {"fit": 0.99}, "fit=0.99 needs a column 'train_accuracy' in the table"),
        (COLUMNS, {"fit": 0}, "fit=0 must be positive and finite"),
        (COLUMNS | {"train_accuracy": [1, 1, 0.5, 0.9]}, {"fit": 0.99}, "with fit=0.99, 2 of 4 are left"),
        (COLUMNS | {"train_accuracy": ["1", "x", "1", "1"]}, {"fit": 1}, "'train_accuracy' must be numbers, but model"),
        (COLUMNS, {"resamples": 99}, "resamples=99 is too small: it must be at least 100"),
        ("table.xlsx", {}, "has the suffix '.xlsx'; a table is read from a .csv or .parquet file"),
    ],
)
def test_mistakes(table, settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        rank(table, **settings)


@pytest.mark.parametrize(
    ("table", "settings", "message"),
    [
        ([1, 2, 3], {}, "the table is of type list; give a dict of columns"),
        ({"gap": 0.3}, {}, "the column 'gap' must be a sequence"),
        (COLUMNS, {"measures": "m"}, "measures must be a list of names"),
        (COLUMNS, {"hyperparameters": "lr"}, "hyperparameters must be a list of names"),
    ],
)
def test_mistaken_types(table, settings, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        rank(table, **settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; expected a line of column names"),
        ("m,gap\n", "the table is empty"),
        ("m,gap\n1,2\n3\n", "line 3 has 1 cell, but the first line names 2 columns"),
        ("m,gap\n1,2\n3,4\n0,5,6\n", "line 4 has 3 cells, .* 2 columns. Numbers need a decimal point"),
        ("m;gap\n1;2\n", "has a single column, 'm;gap'; separate columns by commas"),
        ('m,gap\n1,"0,5"\n2,1\n3,2\n', "the target 'gap' must be numbers, but model 1 has '0,5'; .* a decimal point"),
        ("m,gap,m\n1,2,3\n", "several columns called 'm'"),
    ],
)
def test_mistakes_in_a_csv_file(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        rank(written(tmp_path / "t.csv", text))


def test_files_that_are_not_there_or_not_tables(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent.csv does not exist"):
        read_table(tmp_path / "absent.csv")
    with pytest.raises(ValueError, match=r"cannot be read as .parquet"):
        read_table(written(tmp_path / "t.parquet", "m,gap\n"))
    (tmp_path / "latin.csv").write_bytes(b"m,gap\n\xff,1\n")
    with pytest.raises(ValueError, match=r"cannot be read as .csv; save it as UTF-8"):
        read_table(tmp_path / "latin.csv")
