import csv
import json
import sys
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from effdeg.pools import rank
from tests.pools.pools import AXES, columns, grid_pool

TABLE = columns(grid_pool()) | {"constant": [1.0] * 27, "[note]": ["x"] * 27}
BY = [argument for name in AXES for argument in ("--by", name)]
FAST = ["--resamples", "100"]


@pytest.fixture(name="run")
def run_rank(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return partial(run, "rank")


@pytest.fixture
def table(tmp_path):
    file = tmp_path / "pool.csv"
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(TABLE)
        writer.writerows(zip(*TABLE.values(), strict=True))
    return file


def test_rank_prints_the_scores_and_draws_the_figure(run, table, tmp_path):
    code, out, _ = run(table, *BY, *FAST, "--plot", "ranking.png")
    assert code == 0
    expected = rank(TABLE, hyperparameters=list(AXES), resamples=100)
    for row in expected.rows()[1:-1]:
        line = next(line for line in out.splitlines() if line.strip().startswith(row[0]))
        assert all(cell in line for cell in row)
    assert "constant is constant: correlation undefined" in out
    assert "it holds text: [note]" in out
    assert "written: ranking.png" in out
    assert (tmp_path / "ranking.png").read_bytes().startswith(b"\x89PNG")
    assert "nan" not in out.lower()


def test_rank_as_json(run, table, tmp_path):
    pq.write_table(pa.table(TABLE), tmp_path / "pool.parquet")
    code, out, _ = run(tmp_path / "pool.parquet", *BY, *FAST, "--json")
    record = json.loads(out)
    assert code == 0
    expected = rank(TABLE, hyperparameters=list(AXES), resamples=100)
    assert record["scores"] == json.loads(json.dumps(expected.to_dict()["scores"]))


@pytest.mark.parametrize(
    ("cell", "message"),
    [("nan", "can be ranked: m is not finite for model b"), ("x1", "column 'm' must be numbers, but model b has 'x1'")],
)
def test_a_cell_without_a_number_in_the_only_measure_is_named(run, tmp_path, cell, message):
    (tmp_path / "pool.csv").write_text(f"model,m,gap\na,1,1\nb,{cell},2\nc,3,3\n")
    code, out, err = run(tmp_path / "pool.csv")
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "gpa"], "no column 'gpa' for the target. Did you mean 'gap'"),
        (["--measure", "[note]"], "the measure '[note]' must be numbers, but model 1 has 'x'"),
        (["--cluster", "lr"], "'lr' is not one of them. Name it with --by … too."),
        (["--plot", "figure.gif"], "expected a file that ends in .pdf or .png or .svg"),
        (["--within", "noise 1"], "no stratum of noise 1 can be ranked"),
        (["--variants", "noise*"], "--variants noise*: expected NAME=PATTERN, such as 'sharpness=sharpness@*'"),
        (["--resamples", "99"], "--resamples 99 is too small"),
    ],
)
def test_mistakes_end_with_one_clear_sentence(run, table, tmp_path, arguments, message):
    code, out, err = run(table, *arguments)
    assert (code, out) == (2, "")
    assert message in err.replace("\n", " ")
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == [table]


def test_without_matplotlib_the_table_is_printed_all_the_same(run, table, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in [name for name in sys.modules if name.startswith("matplotlib.") or name == "effdeg.plots"]:
        monkeypatch.delitem(sys.modules, name)
    code, out, _ = run(table, *FAST)
    assert code == 0
    assert "Kendall" in out
    code, out, err = run(table, *FAST, "--plot", "figure.png")
    assert (code, out) == (2, "")
    assert "pip install 'effdeg[plots]'" in err.replace("\n", " ")


def test_within_strata_with_a_figure_for_each(run, table, tmp_path):
    arguments = [
        "--within",
        "lr",
        "--by",
        "batch",
        "--by",
        "decay",
        "--variants",
        "noise=noise*",
        "--plot",
        "pool.png",
        *FAST,
    ]
    code, out, _ = run(table, *arguments)
    assert code == 0
    settings = {"strata": ["lr"], "hyperparameters": ["batch", "decay"], "variants": {"noise": "noise*"}}
    expected = rank(TABLE, **settings, resamples=100)
    assert "27 models within lr (0.01, 0.1, 0.3), 4 measures of gap" in out
    assert "lr 0.1: 9 models" in out
    for ranked in (expected, *expected.strata.values()):
        for row in (*ranked.rows()[1:-1], *ranked.best_rows()[1:]):
            assert any(all(cell in line for cell in row) for line in out.splitlines())
    for name in ("0.01", "0.1", "0.3"):
        assert f"written: pool-{name}.png" in out
        assert (tmp_path / f"pool-{name}.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads(run(table, *arguments, "--json")[1])
    assert record["best"] == json.loads(json.dumps(expected.to_dict()["best"]))
    assert record["strata"]["0.3"]["scores"] == expected.strata["0.3"].to_dict()["scores"]


def test_files_of_strata_have_names_that_a_folder_takes(run, table, tmp_path):
    text = table.read_text().splitlines()
    recipes = ["a/b", "a b", "c"]
    lines = [f"{line},{recipes[index % 3]}" for index, line in enumerate(text[1:])]
    (tmp_path / "named.csv").write_text("\n".join([f"{text[0]},recipe", *lines]))
    out = run("named.csv", "--within", "recipe", "--measure", "noise 1", "--plot", "f.png", *FAST)[1]
    for name in ("a-b-1", "a-b-2", "c"):
        assert f"written: f-{name}.png" in out
        assert (tmp_path / f"f-{name}.png").exists()
