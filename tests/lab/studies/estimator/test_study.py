"""How the errors of the estimator are told, from runs that nobody ran."""

import pytest

from effdeg.lab.recipes.estimator import RECIPE
from effdeg.lab.report import result_of
from effdeg.lab.report.text import document
from effdeg.lab.store import Store
from effdeg.lab.studies.estimator.grid import EXACT_AT, SCHEMES, degrees_on


def add(store, row, *, bias=0.0, growth=0.0, late=0.0, seed=0):
    """Write a run whose exact value is 2 from degree 20 on, or grows on from 40, or once more late; half below 20."""
    settings = RECIPE.resolved(RECIPE.row(row), {"seed": seed})
    run = store.run(settings)
    run.begin({"device": "a slide rule"})
    exact = {
        degree: min(degree, 1) + (degree >= 20) + growth * max(0, degree - 40) / 600 + late * (degree > 99)
        for degree in EXACT_AT
    }
    for sampling, nodes in SCHEMES:
        for degree in degrees_on(nodes):
            run.log({
                "sampling": sampling,
                "nodes": nodes,
                "degree": degree,
                "within": 0.1 if sampling == "cosine" else 0.0,
                "value": exact[degree] * (1 + bias),
                "std": exact[degree],
                "exact": exact[degree],
                "bias": bias,
                "bias_stderr": 0.001,
                "residual": 0.2 if degree < 7 else 0.0,
                "upper_half": 0.5 if degree < 20 else 0.0,
                "warned": nodes > degree + 1 and degree < 7,
            })
    run.finish({"degrees": list(exact), "exact": list(exact.values()), "seconds": 1.0})


def block_of(store):
    result = result_of(RECIPE, store.records())
    return result.blocks[0], result


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


@pytest.mark.parametrize(("bias", "verdict"), [(0.005, "aim met"), (-0.02, "aim missed")])
def test_the_aim_can_be_met_and_missed(store, bias, verdict):
    add(store, "polynomial")
    add(store, "kinks-4", bias=bias, growth=1.0)
    block, result = block_of(store)
    found = result.findings[block]
    assert found.verdict == verdict
    assert f"at most {abs(bias):.2%} from the exact value at that degree (ReLU network, 4 units)" in found.sentences[0]
    said = str(found)
    assert "From degree 40 to 640 it grows by 50% (ReLU network, 4 units), and on without a limit" in said
    assert "Not run: sin 4x, sin 16x, sin 64x and ReLU network, 64 units." in said


def test_a_value_that_the_defaults_cut_off_is_said_and_counts_as_missed(store):
    add(store, "sine-64", late=0.5)
    block, result = block_of(store)
    said = str(result.findings[block])
    assert "Beyond degree 40, where the defaults stop, the exact value goes on by 25% (sin 64x)." in said
    assert "No setting is within 1% of the whole value of any function." in said
    costs = RECIPE.shows.sheets(block)[0]
    assert costs.rows[0] == ("sin 64x", "cosine", *["–"] * 7)
    assert costs.rows[3][:5] == ("sin 64x", "default", "200", "40", "-20.00")


def test_seeds_are_averaged(store):
    for seed, bias in enumerate((0.0, 0.03)):
        add(store, "polynomial", bias=bias, seed=seed)
    block, result = block_of(store)
    assert "at most 1.50%" in result.findings[block].sentences[0]
    assert RECIPE.shows.score(block.done[0].runs[1]) == "+3.00% at 200/40"


def test_tables_have_the_cheapest_setting_and_count_warnings(store):
    add(store, "polynomial")
    block, result = block_of(store)
    costs, nodes, splits, warnings = RECIPE.shows.sheets(block)
    # Degree 20 is the first with the whole value, 24 nodes the fewest for it; the spread is 1, hence 2,500 paths.
    assert costs.rows[0] == (
        "polynomial of degree 5", "cosine", "24", "20", "+0.00", "1.00", "0.050", "2,500", "60,000"
    )  # fmt: skip
    assert costs.rows[3][1:] == ("default", "200", "40", "+0.00", "1.00", "0.050", "2,500", "500,000")
    assert nodes.rows[0] == ("polynomial of degree 5", "cosine", "3", "4", "6", "8", "15", "15", "24", "48")
    # Below degree 20 half of the value is missed, which only many paths could be worth: never here.
    assert {row[3] for row in splits.rows} == {"24"}
    below = [(nodes, degree) for _, nodes in SCHEMES for degree in degrees_on(nodes) if degree < 20]
    all_of_them = sum(len(degrees_on(nodes)) for _, nodes in SCHEMES)
    caught = sum(degree < 7 and nodes > degree + 1 for nodes, degree in below)
    untold = sum(nodes == degree + 1 for nodes, degree in below)
    silent = len(below) - caught - untold
    assert warnings.rows == (
        (
            "polynomial of degree 5", f"{len(below)} of {all_of_them}", str(caught), str(untold), str(silent), "0",
            str(len(below)), "0", "0",
        ),
    )  # fmt: skip
    assert "60,000" in document(result, "markdown")


def test_figures_are_drawn(store):
    add(store, "polynomial")
    add(store, "kinks-64", bias=0.02, growth=1.0)
    block, _ = block_of(store)
    drawn = {each.name: each.draw("dark") for each in RECIPE.shows.drawings(block)}
    assert list(drawn) == ["bias", "degrees", "cost", "split", "warnings"]
    panels = {name: len(figure.axes) for name, figure in drawn.items()}
    assert panels == {"bias": 6, "degrees": 1, "cost": 1, "split": 2, "warnings": 2}
    labels = [text.get_text() for text in drawn["cost"].axes[0].texts]
    assert "cosine 24/20" in labels
    exact = drawn["degrees"].axes[0].lines[0].get_ydata()
    assert (exact[0], exact[39], exact[-1]) == (0.5, 1.0, 1.0)
