import json
from hashlib import sha256
from inspect import signature

import numpy as np
import pytest
import torch

import effdeg
from effdeg import pools
from effdeg.cli._pool import pool
from tests.cli.networks import FAST, SMALL, small

pytestmark = pytest.mark.filterwarnings("ignore:for . of . model")  # notes on the fit


@pytest.fixture
def labeled(tmp_path):
    files = []
    for seed, name in enumerate(("test", "train")):
        files.append(tmp_path / f"{name}.npz")
        x = np.random.default_rng(seed).random((30, 12), dtype=np.float32)
        np.savez(files[-1], images=x, labels=np.arange(30, dtype=np.uint8) % 3)
    return files


def test_pool_writes_a_table_that_can_be_ranked(run, labeled, weights, tmp_path):
    test, train = labeled
    given = [argument for file in weights for argument in ("--weights", file)]
    out = tmp_path / "pool.csv"
    command = ["pool", SMALL, *given, "--data", test, "--train", train, "--out", out, *FAST, "--device", "cpu"]
    command += ["--components", 1, "--components", 2]
    command += ["--proxy", "sharpness@0.05", "--proxy", "parameter_norm", "--quiet"]
    code, printed, errors = run(*command)
    assert (code, errors) == (0, "")
    assert all(word in printed for word in ("scale1", "scale4", "scale8", "gap", "written: "))
    table = pools.read_table(out)
    kinds = [f"{kind}{end}" for kind in ("", "_normalized") for end in ("", "_stderr")]
    names = [f"effective_degree{kind}{after}" for after in ("", "@1", "@2") for kind in kinds]
    accuracies = ["train_accuracy", "test_accuracy", "gap"]
    names += ["total_variation", "decision_regions", "confidence", "entropy", "nuclear_norm", "disagreement"]
    assert list(table) == ["model", *names, "sharpness@0.05", "parameter_norm", *accuracies, "sha256"]
    data = [(torch.from_numpy(np.load(file)["images"]), torch.arange(30) % 3) for file in labeled]
    settings = {"proxies": ["sharpness@0.05", "parameter_norm"], "components": [1, 2]}
    rows = effdeg.measure_pool(small(), weights, data[0], train=data[1], paths=20, nodes=12, degree=6, **settings)
    assert table.to_dict("list") == {name: [row[name] for row in rows] for name in table}
    assert f"{rows[0]['effective_degree@2']:.4g} " in printed
    assert f"± {rows[0]['effective_degree_stderr@2']:.2g} " in printed
    code, printed, _ = run("rank", out, "--measure", "effective_degree", "--measure", "parameter_norm")
    assert code == 0
    assert "effective_degree" in printed


def test_pool_refuses_other_settings_in_the_words_of_its_options(run, labeled, weights, tmp_path):
    command = ["pool", SMALL, "--weights", weights[0].parent, "--data", labeled[0], "--out", tmp_path / "pool.csv"]
    assert run(*command, *FAST, "--quiet")[0] == 0
    code, _, errors = run(*command, *FAST, "--seed", 3, "--quiet")
    assert code == 2
    assert "--seed was 0 then and is 3 now" in errors
    assert "choose another file with --out" in errors
    code, _, errors = run(*command, *FAST, "--train", tmp_path / "x.npy", "--quiet")
    assert code == 2
    assert "x.npy does not exist" in errors
    np.save(tmp_path / "x.npy", np.zeros((4, 12), np.float32))
    errors = run(*command, *FAST, "--train", tmp_path / "x.npy", "--quiet")[2]
    assert "x.npy holds no labels. Give a .npz, .pt, .safetensors or .parquet file with" in errors
    assert "DataLoader" not in errors
    np.savez(tmp_path / "few.npz", x=np.zeros((4, 12), np.float32), y=np.arange(3))
    errors = run(*command, *FAST, "--train", tmp_path / "few.npz", "--quiet")[2]
    assert "there are 4 examples, but 3 labels: each needs one." in errors
    assert "These are the examples of --train …" in errors


def test_several_checkpoints_after_one_option_are_explained(run, data, weights, tmp_path):
    code, _, errors = run("pool", SMALL, "--weights", *weights[:2], "--data", data, "--out", tmp_path / "pool.csv")
    assert code == 2
    assert "For several checkpoints, repeat --weights" in " ".join(errors.replace("│", "").split())


def test_an_interrupted_pool_says_that_it_can_be_continued(run, data, weights, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(effdeg, "measure_pool", interrupt)
    code, _, errors = run("pool", SMALL, "--weights", tmp_path, "--data", data, "--out", tmp_path / "pool.csv", *FAST)
    assert code == 130
    assert "stopped; the same command continues." in errors


def test_rows_of_checkpoints_that_are_gone_are_named(run, data, weights, tmp_path):
    out = tmp_path / "pool.csv"
    command = ["pool", SMALL, "--weights", weights[0].parent, "--data", data, "--out", out, *FAST, "--quiet"]
    assert "also has rows" not in run(*command)[1]
    weights[1].unlink()
    code, printed, _ = run(*command)
    assert code == 0
    assert "also has rows of checkpoints that --weights does not name: scale4." in " ".join(printed.split())
    assert pools.read_table(out)["model"].tolist() == ["scale1", "scale4", "scale8"]


@pytest.mark.filterwarnings("default")
def test_pool_ends_with_1_if_a_checkpoint_was_left_out(run, data, weights, tmp_path):
    (tmp_path / "damaged.pt").write_bytes(b"nothing")
    command = ["pool", SMALL, "--weights", tmp_path, "--data", data, "--out", tmp_path / "pool.csv", *FAST]
    code, printed, errors = run(*command)
    assert code == 1
    assert "damaged left out: " in errors
    assert pools.read_table(tmp_path / "pool.csv")["model"].tolist() == ["scale1", "scale4", "scale8"]
    assert json.loads((tmp_path / "pool.settings.json").read_text())["paths"] == 20
    assert "accuracy" not in printed
    assert "confidence" in printed  # without labels it is all there is next to the effective degree


def test_a_checkpoint_saved_while_the_pool_is_measured_is_not_left_out(run, data, weights, tmp_path, monkeypatch):
    measure = effdeg.measure_pool

    def measure_and_save(*given, **settings):
        rows = measure(*given, **settings)
        torch.save(small().state_dict(), tmp_path / "later.pt")
        return rows

    monkeypatch.setattr(effdeg, "measure_pool", measure_and_save)
    code, *_ = run("pool", SMALL, "--weights", tmp_path, "--data", data, "--out", tmp_path / "pool.csv", *FAST)
    assert code == 0


def test_pool_of_checkpoints_that_a_trainer_saved(run, tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.ViTConfig(**sizes, image_size=8, patch_size=4, num_labels=3)
    models = {}
    for step in (10, 20):
        torch.manual_seed(step)
        models[f"checkpoint-{step}"] = transformers.ViTForImageClassification(config)
        models[f"checkpoint-{step}"].save_pretrained(tmp_path / "runs" / f"checkpoint-{step}")
    x = np.random.default_rng(0).random((9, 3, 8, 8), np.float32)
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(9) % 3)
    (tmp_path / "runs" / "checkpoint-10" / "preprocessor_config.json").write_text('{"image_mean": [0.5, 0.5, 0.5]}')
    for options in ([], ["--mean", 0.5]):
        command = ["measure", tmp_path / "runs" / "checkpoint-10", "--data", tmp_path / "x.npz", *FAST, *options]
        assert ("preprocessor_config.json of" in run(*command, "--quiet")[2]) is (not options)
    command = ["pool", tmp_path / "runs" / "checkpoint-10", "--weights", tmp_path / "runs"]
    command += ["--data", tmp_path / "x.npz", "--out", tmp_path / "pool.csv", *FAST, "--proxy", "margin@50"]
    assert run(*command, "--quiet")[0] == 0
    table = pools.read_table(tmp_path / "pool.csv")
    assert table["model"].tolist() == list(models)
    measured = [effdeg.measure(model, torch.from_numpy(x), paths=20, nodes=12, degree=6) for model in models.values()]
    assert table["effective_degree"].tolist() == pytest.approx([each.value for each in measured])
    weights = (tmp_path / "runs" / "checkpoint-20" / "model.safetensors").read_bytes()
    assert table["sha256"][1] == sha256(weights).hexdigest()


def test_the_settings_of_a_pool_are_those_of_the_library():
    ours, expected = signature(pool).parameters, signature(effdeg.measure_pool).parameters
    empty = {"proxies", "components"}  # an option that is not given is None
    for name in expected.keys() - {"model", "weights", "data", "out", "progress", *empty}:
        assert ours[name].default == expected[name].default, name
    assert expected.keys() - ours.keys() == {"progress"}


def test_pool_as_json(run, data, weights, tmp_path):
    out = tmp_path / "pool.csv"
    command = ["pool", SMALL, "--weights", weights[0], "--data", data, "--out", out, *FAST, "--json"]
    code, printed, errors = run(*command)
    assert (code, errors) == (0, "")
    found = json.loads(printed)
    assert found["rows"][0]["disagreement"] is None  # of a single model
    table = pools.read_table(out)
    assert found["rows"][0]["effective_degree"] == table["effective_degree"][0]
    assert (found["out"], found["other_models"]) == (str(out), [])
