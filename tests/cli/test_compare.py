import json
import re

import numpy as np
import pytest
import torch

from effdeg import proxies
from effdeg.io import load_data, load_model
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
    code, found, _ = run("compare", SMALL, "--weights", weights[0].parent, "--data", data, *FAST)
    assert code == 0
    assert found in out
    code, out, _ = run(
        "compare", SMALL, SMALL, "--weights", weights[2], "--weights", weights[0], "--data", data, *FAST, "--json"
    )
    assert json.loads(out)["ranking"] == [f"{SMALL} (2)", f"{SMALL} (1)"]


@pytest.mark.parametrize("models", [1, 2])
def test_a_checkpoint_or_folder_that_is_missing_is_named(run, data, weights, tmp_path, models):
    given = ["--weights", weights[0], "--weights", tmp_path / "gone"]
    code, _, errors = run("compare", *[SMALL] * models, *given[-2 * models :], "--data", data, *FAST)
    assert code == 2
    assert "gone does not exist." in errors


def test_compare_says_when_models_cannot_be_told_apart(run, data, weights):
    code, out, _ = run("compare", SMALL, "--weights", weights[0], "--weights", weights[0], "--data", data, *FAST)
    assert code == 0
    assert "(2) on every path: they may be the same model." in " ".join(out.split())
    assert "more paths" not in out
    twins = [argument for file in (weights[0], *weights[:2]) for argument in ("--weights", file)]
    assert "The simplest is" not in run("compare", SMALL, *twins, "--data", data, *FAST)[1]
    generator = torch.Generator().manual_seed(0)
    state = torch.load(weights[0])["state_dict"]
    state = {name: each + 1e-3 * torch.randn(each.shape, generator=generator) for name, each in state.items()}
    torch.save(state, weights[1])
    out = run("compare", SMALL, "--weights", weights[0], "--weights", weights[1], "--data", data, *FAST)[1]
    assert "is not distinguishable from" in out
    assert "more paths may distinguish them" in out


def test_other_measures_stand_next_to_the_effective_degree(run, data, weights):
    given = [argument for file in weights[:2] for argument in ("--weights", file)]
    names = ["confidence", "entropy", "nuclear_norm", "disagreement", "total_variation"]
    asked = [argument for name in names for argument in ("--proxy", name)]
    code, out, _ = run("compare", SMALL, *given, "--data", data, *FAST, *asked, "--json")
    assert code == 0
    found = json.loads(out)["proxies"]
    models, inputs = [load_model(SMALL, file) for file in weights[:2]], load_data(data).inputs
    options = dict(zip([flag.lstrip("-") for flag in FAST[::2]], map(int, FAST[1::2]), strict=True))
    for (own, other), name in ((models, "scale1"), (models[::-1], "scale4")):
        expected = proxies.evaluate(own, inputs, names=names, others=[other], **options).to_dict()["results"]
        assert found[name] == expected
    asked = asked[:-2]
    code, out, _ = run("compare", SMALL, *given, "--data", data, *FAST, *asked, width=80)
    assert code == 0
    assert all(word in out for word in ("significant", "confidence", "disagreement"))  # in one line
    assert max(map(len, out.splitlines())) <= 80
    assert f"{found['scale1']['confidence']['value']:.4g}" in re.sub(r"\s+", " ", out)


def test_proxies_take_the_labels_in_the_file(run, data, weights, tmp_path):
    x, y = np.load(data), np.arange(len(np.load(data))) % 3
    np.savez(tmp_path / "xy.npz", images=x, labels=y)
    command = ["compare", SMALL, "--weights", weights[0].parent, "--data", tmp_path / "xy.npz", *FAST, "--json"]
    code, out, _ = run(*command, "--proxy", "margin@10")
    assert code == 0
    expected = proxies.margin(load_model(SMALL, weights[0]), (torch.from_numpy(x), torch.from_numpy(y)), percentile=10)
    assert json.loads(out)["proxies"]["scale1"]["margin@10"]["value"] == pytest.approx(expected.value)


def test_the_output_says_what_it_is_of(run, data, weights):
    given = ["--weights", weights[0].parent, "--data", data, *FAST]
    out = " ".join(run("compare", SMALL, *given, "--normalized")[1].split())
    assert "normalized effective degree of the probabilities, simplest first" in out
    assert "is that of the logits: use --output identity." in out
    assert "no labels: --proxy confidence, entropy, nuclear_norm or disagreement" in out
    assert "±" not in out
    out = " ".join(run("compare", SMALL, *given, "--proxy", "confidence", "--output", "identity")[1].split())
    assert "effective degree of the raw outputs, simplest first" in out
    assert "±: standard error" in out
    assert "need no labels" not in out


def test_a_proxy_that_has_no_value_is_refused_before_any_work(run, data, weights):
    given = [argument for file in weights[:2] for argument in ("--weights", file)]
    code, _, err = run("compare", SMALL, *given, "--data", data, *FAST, "--proxy", "confidense")
    assert code != 0
    assert "Did you mean 'confidence'" in re.sub(r"\s+", " ", err)
    code, _, err = run("compare", SMALL, *given, "--data", data, *FAST, "--proxy", "margin@10")
    assert code != 0
    assert "--proxy margin@10: --data" in err
    assert "holds no labels. Give a .npz" in re.sub(r"\s+", " ", err)
