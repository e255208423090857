from effdeg.lab.report.figures import drawings
from effdeg.lab.report.sheets import block_sheets
from effdeg.lab.report.text import document
from effdeg.lab.studies.polynomials.networks.targets import TASKS
from tests.lab.studies.polynomials.networks.stores import add, result


def told(folder):
    found = result(folder)
    return found.findings[found.blocks[0]]


def filled(folder, **changes):
    """All six tasks, each with changes of its own: ``task_3={"factor": 2}``."""
    for task in TASKS:
        for seed in (0, 1):
            add(folder, task, seed=seed, **changes.get(f"task_{task}", {}))
    return folder


def test_networks_like_their_maps_hold_the_claim(tmp_path):
    found = told(filled(tmp_path))
    assert found.verdict == "holds"
    assert "ordered by the degree" in str(found)
    assert "by 2.0000 to 2.0000, the normalized one by 1.0000 to 1.0000" in str(found)
    assert "misses its map by 1.0e-05" in str(found)


def test_the_paper_s_numbers_are_judged_by_the_exact_ones(tmp_path):
    sentences = told(filled(tmp_path)).sentences
    assert "22 of the paper's 30 numbers lie within 5%" in sentences[-2]
    assert "4 of Task 1, by up to +9% (0.73 instead of 0.667 in ED (Legendre))" in sentences[-2]
    assert "4 of Task 6, by up to -11% (9.62 instead of 10.864 in ED (PCA-1))" in sentences[-2]
    assert sentences[-1].startswith("If that is noise, it is that of about")


def test_a_reversed_order_denies_the_claim(tmp_path):
    found = told(filled(tmp_path, task_3={"factor": 0.2}, task_6={"factor": 0.2}))
    assert found.verdict == "does not hold"
    assert "reversed" in str(found)


def test_an_order_within_the_noise_decides_nothing(tmp_path):
    wide = {"factor": 0.4, "stderr": 0.5}
    found = told(filled(tmp_path, task_3=wide, task_6=wide))
    assert found.verdict == "not decided"
    assert "within the noise" in str(found)


def test_a_ratio_that_is_not_two_denies_the_claim(tmp_path):
    assert told(filled(tmp_path, task_4={"factor": 1.02})).verdict == "does not hold"


def test_a_ratio_within_a_percent_of_two_does_not(tmp_path):
    assert told(filled(tmp_path, task_4={"factor": 1.009})).verdict == "holds"


def test_networks_that_do_not_fit_decide_nothing(tmp_path):
    found = told(filled(tmp_path, task_2={"error": 0.02}))
    assert found.verdict == "not decided"
    assert "Not fitted within 1%, which decides nothing: Task 2." in str(found)


def test_tasks_that_were_not_run_are_named(tmp_path):
    add(tmp_path, 3)
    found = told(tmp_path)
    assert found.verdict == "not decided"
    assert "Not run: Task 1, Task 2, Task 4, Task 5 and Task 6." in str(found)
    assert drawings(result(tmp_path).blocks[0])[0].draw("light").axes


def test_tables_have_the_paper_the_exact_value_and_the_network(tmp_path):
    block = result(filled(tmp_path)).blocks[0]
    fits, raw, others = block_sheets(block)
    assert fits.rows[2] == ("Task 3", "5", "1.0e-05", "0.000%", "2 s")
    assert raw.rows[0] == ("Task 1", "0.72", "0.667*", "0.667 ± 0.005", "0.29", "0.278*", "0.278 ± 0.002")
    assert others.rows[5] == (
        *("Task 6", "6.64", "7.346", "7.346 ± 0.052", "9.62", "10.864", "10.864 ± 0.077"),
        *("6.16", "6.860", "6.860 ± 0.049"),
    )
    assert {len(row) for row in others.rows} == {len(others.head)}
    assert "Task 6" in document(result(tmp_path), "markdown")


def test_figures_show_every_column_and_every_fit(tmp_path):
    block = result(filled(tmp_path)).blocks[0]
    values, fits = (each.draw("dark") for each in drawings(block))
    assert len(values.axes) == 10
    assert [each.get_title(loc="left") for each in values.axes[:2]] == ["ED (Chebyshev)", "normalized ED"]
    assert len(fits.axes[0].lines) == 12
    fits.canvas.draw()


def test_a_run_is_told_in_a_line(tmp_path):
    add(tmp_path, 3)
    (_, run), *_ = result(tmp_path).runs
    assert result(tmp_path).recipe.shows.score(run) == "relative error 1.0e-05, ED 2.958, exact 2.958"
