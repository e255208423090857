"""``effdeg compare`` as a user types it."""

import json
import re

from tests.cli.networks import FAST, SMALL


def test_compare_ranks_checkpoints_of_one_model(run, data, weights, tmp_path):
    plot = tmp_path / "ranking.png"
    given = [argument for file in weights for argument in ("--weights", file)]
    code, out, _ = run("compare", SMALL, *given, "--data", data, *FAST, "--plot", plot)
    assert code == 0
    positions = [out.index(name) for name in ("scale1 ", "scale4 ", "scale8 ")]
    assert positions == sorted(positions)
    assert "The simplest is scale1, significantly so" in out
    assert plot.exists()
    code, out, _ = run(
        "compare", SMALL, SMALL, "--weights", weights[2], "--weights", weights[0], "--data", data, *FAST, "--json"
    )
    assert json.loads(out)["ranking"] == [f"{SMALL} (2)", f"{SMALL} (1)"]


def test_compare_says_when_models_cannot_be_told_apart(run, data, weights):
    code, out, _ = run("compare", SMALL, "--weights", weights[0], "--weights", weights[0], "--data", data, *FAST)
    assert code == 0
    assert "is not distinguishable from" in out


def test_compare_passes_on_the_notes_of_each_model(run, data, weights):
    code, out, _ = run(
        "compare", SMALL, "--weights", weights[0], "--weights", weights[2], "--data", data, *FAST[:4], "--degree", 11
    )
    assert code == 0
    # What all models have in common is printed once.
    assert out.count("note: nodes = degree + 1") == 1
    for name in ("scale1", "scale8"):
        assert re.search(rf"note on {name}: \d+% of the value lies in the upper half", out)
