import pytest

from effdeg.lab.recipes.path_degrees import RECIPE
from effdeg.lab.report import result_of
from effdeg.lab.report.figures import drawings
from effdeg.lab.report.sheets import block_sheets
from effdeg.lab.report.text import document
from effdeg.lab.store import Store

DENSE = ("dense-2", "dense-3", "sparse-10", "monomial-3")


def entry(degree, **changes):
    """What a total degree gives when all is as the theorem has it."""
    return {
        "degree": degree,
        "followed": 1000,
        "found": float(degree),
        "found_coarsely": degree / 2,
        "too_high": 0,
        "dropped": 0,
        "vanishing": 0,
        "unexplained": 0,
        "effective_degree": {"value": 0.5 * degree, "stderr": 0.01},
        "normalized": {"value": 0.3 * degree, "stderr": 0.01},
        "noise": [
            {"size": size, "found": 16.0, "effective_degree": 0.5 * degree * (1 + size)} for size in (1e-6, 1e-2)
        ],
    } | changes


def add(folder, row, seed=0, **changes):
    """Keep a run of three total degrees, all with the same changes."""
    run = Store(folder).run(RECIPE.resolved(RECIPE.row(row), {"seed": seed}))
    run.begin({"device": "Thinking Machine"})
    run.finish({"degrees": [entry(degree, **changes) for degree in (1, 2, 3)], "seconds": 2.0})


def result(folder):
    return result_of(RECIPE, Store(folder).records())


def told(folder):
    found = result(folder)
    return found.findings[found.blocks[0]]


def filled(folder, **changes):
    for row in DENSE:
        for seed in (0, 1):
            add(folder, row, seed, **(changes if row == "dense-3" else {}))
    return folder


def test_the_theorem_holds_where_all_have_the_total_degree(tmp_path):
    found = told(filled(tmp_path))
    assert found.verdict == "holds"
    assert "Of 24,000 restrictions to paths, none loses its leading coefficient; all others" in str(found)
    assert "raises ED by at most 0.0% (1e-06) and 1.0% (1e-02)" in str(found)
    assert "normalized ED falls nowhere" in str(found)


def test_leading_coefficients_too_small_to_see_are_told_and_deny_nothing(tmp_path):
    found = told(filled(tmp_path, dropped=4))
    assert found.verdict == "holds"
    assert "on 24 (0.1%) it is too small for float64" in str(found)


@pytest.mark.parametrize(
    "changes",
    [
        {"dropped": 1, "vanishing": 1},
        {"dropped": 1, "unexplained": 1},
        {"too_high": 1},
        {"found": 2.0},  # the same for all total degrees
    ],
)
def test_the_theorem_fails_where_degrees_are_lost_or_not_ordered(tmp_path, changes):
    assert told(filled(tmp_path, **changes)).verdict == "does not hold"


def test_a_lattice_decides_nothing(tmp_path):
    add(tmp_path, "lattice-3", dropped=500, vanishing=500, found=1.0)
    assert told(tmp_path).verdict == "not decided"
    found = told(filled(tmp_path))
    assert found.verdict == "holds"
    assert "vanishes on 50%, and total degree 3 looks like 1.0" in str(found)


def test_an_effective_degree_that_falls_is_told(tmp_path):
    for row in DENSE:
        add(tmp_path, row)
    folder = tmp_path / "falling"
    run = Store(folder).run(RECIPE.resolved(RECIPE.row("dense-2"), {}))
    run.begin({"device": "none"})
    falls = [{"value": value, "stderr": 0.01} for value in (0.5, 1.0, 0.7)]
    run.finish({"degrees": [entry(degree + 1, effective_degree=each) for degree, each in enumerate(falls)]})
    assert "falls in “2 variables, all terms” (from 1.00 at degree 2 to 0.70 at 3)" in str(told(folder))
    assert "falls in" not in str(told(tmp_path))


def test_tables_have_what_was_found(tmp_path):
    filled(tmp_path, dropped=4)
    block = result(tmp_path).blocks[0]
    degrees, noise, raw, normalized = block_sheets(block)
    assert degrees.rows[1] == ("3 variables, all terms", "6,000", "0", "24", "3.000", "1.50")
    assert degrees.rows[4][1] == "not run"
    assert noise.rows[0] == ("2 variables, all terms", "2.00; 1.000", "16.00; 1.000", "16.00; 1.010")
    assert raw.rows[0] == ("2 variables, all terms", "0.50 ± 0.01", "1.00 ± 0.01", "1.50 ± 0.01")
    assert normalized.rows[0][1:] == ("0.30 ± 0.01", "0.60 ± 0.01", "0.90 ± 0.01")
    for sheet in (degrees, noise, raw, normalized):
        assert {len(row) for row in sheet.rows} == {len(sheet.head)}
    assert "Theorem 3.1" in document(result(tmp_path), "latex")


def test_figures_show_every_line(tmp_path):
    filled(tmp_path)
    add(tmp_path, "lattice-3", found=1.0)
    degrees, effective = (each.draw("dark") for each in drawings(result(tmp_path).blocks[0]))
    assert len(degrees.axes) == 3
    assert len(effective.axes) == 2
    texts = {each.get_text() for each in degrees.axes[0].texts}
    assert texts == {row.title for row in RECIPE.rows}
    degrees.canvas.draw()


def test_a_lattice_alone_can_be_drawn_and_told_in_a_line(tmp_path):
    add(tmp_path, "lattice-3", dropped=500, vanishing=500)
    assert drawings(result(tmp_path).blocks[0])[0].draw("light").axes
    (_, run), *_ = result(tmp_path).runs
    assert RECIPE.shows.score(run) == "total degree found on 1,500 of 3,000; leading coefficient zero on 1,500"
