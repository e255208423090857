"""Picking one of several networks: observations, what rules gain, and pools whose answer is known."""

import base64
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from engine_runs import carry_out, small
from torch import nn
from toy_results import make_run

import effdeg
from effdeg import changes
from effdeg.pools._choice import Observation, choose, estimate_errors, find_variance
from effdeg_lab.core.recipe import Method, Recipe
from effdeg_lab.core.results import collect
from effdeg_lab.data.labeled import Corrupted, Labeled
from effdeg_lab.engine import Training, classify
from effdeg_lab.engine.examples import DeviceExamples
from effdeg_lab.engine.observation import decode, encode, make_copies, observe
from effdeg_lab.experiments.picking import study as picking
from effdeg_lab.experiments.picking.foreign import Foreign, check_foreign
from effdeg_lab.models.made_up import make_up


def make_pool(accuracy, measures=None, examples=400, seed=0, **columns):
    """Make networks of which those with more errors change more predictions; a wrong prediction is a random class."""
    rng, count = np.random.default_rng(seed), len(accuracy)
    labels = rng.integers(0, 10, examples)
    correct = rng.random((count, examples)) < np.array(accuracy)[:, None]
    predicted = np.where(correct, labels, (labels + rng.integers(1, 10, (count, examples))) % 10)
    changed = np.where(rng.random((count, examples)) < np.array(accuracy)[:, None], predicted, (predicted + 1) % 10)
    names = np.array([str(number) for number in range(count)])
    known = {"configuration": names, **dict.fromkeys(("architecture", "network"), np.array(["x"] * count))}
    known |= {name: np.array(values) for name, values in columns.items()}
    given = {name: np.array(values, float) for name, values in (measures or {}).items()}
    return picking.Pool("toy", np.array(accuracy), predicted, changed, correct, given, np.ones(count, bool), known)


def test_the_expected_best_of_a_few_is_that_over_all_choices():
    rng = np.random.default_rng(0)
    accuracy, scores = rng.random(9), rng.integers(0, 4, 9).astype(float)  # with ties
    found = []
    for choice in map(list, combinations(range(9), 4)):
        tied = [each for each in choice if scores[each] == scores[choice].min()]
        found.append(accuracy[tied].mean())
    assert picking.expect_best_of(scores, accuracy, 4) == pytest.approx(np.mean(found))
    assert picking.expect_best_of(np.zeros(9), accuracy, 4) == pytest.approx(accuracy.mean())


def test_a_measure_equal_to_the_error_gains_everything_and_a_constant_nothing():
    accuracy = np.linspace(0.3, 0.8, 40)
    measures = {"error": 1 - accuracy, "wrong": accuracy, "constant": np.ones(40)}
    measures["random"] = np.random.default_rng(1).random(40)
    gains = picking.measure_gains(make_pool(accuracy, measures))
    assert gains.rules["error"].share == pytest.approx(100)
    assert gains.rules["constant"].share == pytest.approx(0, abs=1e-6)
    assert gains.rules["wrong"].share == pytest.approx(-100)  # accuracies are symmetric around their mean
    assert abs(gains.rules["random"].share) < 40
    low, high = gains.rules["random"].interval
    assert low < gains.rules["random"].share < high
    assert gains.rules[picking.PICK].share > 95
    assert gains.rules["10 labels"].share < gains.rules["50 labels"].share < gains.rules["200 labels"].share
    assert gains.rules["10 labels + pick"].share > gains.rules["10 labels"].share
    assert gains.chance == pytest.approx(0.55)


def test_the_pick_among_five_is_that_of_the_library(monkeypatch):
    accuracy = np.array([0.4, 0.55, 0.5, 0.7, 0.6, 0.45])
    pool = make_pool(accuracy, examples=200)
    options = {"seed": 0, "labels": 0, "examples": 200, "change": ""}
    every = {
        place: Observation("", 10, torch.from_numpy(each), torch.from_numpy(pool.changed[place]), {})
        for place, each in enumerate(pool.predicted)
    }
    expected = []
    for choice in combinations(range(6), 5):
        chosen = choose({}, {str(place): every[place] for place in choice}, None, options, [])
        expected.append(accuracy[int(chosen.best)])
    assert picking.measure_gains(pool).rules[picking.PICK].accuracy == pytest.approx(np.mean(expected))
    seen = {str(place): every[place] for place in range(5)}
    given = []
    monkeypatch.setattr(picking, "find_variance", lambda wrong: given.append(wrong) or find_variance(wrong))
    scores = picking.score_subsets(pool, np.arange(5)[None])[picking.PICK][0]
    assert {each.shape[2] for each in given} == {5}  # networks come last
    assert scores == pytest.approx([choose({}, seen, None, options, []).scores[name] for name in seen])
    # Where a prediction is right it is taken for the label: these are the first examples that some network has right.
    labels = np.array([pool.predicted[right.argmax(), place] for place, right in enumerate(pool.correct.T[:50])])
    wrong = (pool.predicted[:5, :50] != labels).astype(float)
    found = estimate_errors(scores, wrong.mean(1), find_variance(wrong.T))
    chosen = choose({}, seen, torch.from_numpy(labels), options, []).scores
    assert found == pytest.approx([chosen[name] for name in seen])


def test_within_groups_only_networks_of_one_group_are_compared():
    # The measure orders networks within each group, and the groups the wrong way round.
    groups = np.array(["a", "b"] * 10)
    accuracy = np.linspace(0.3, 0.5, 20) + 0.3 * (groups == "b")
    measure = 1 - accuracy + 1.0 * (groups == "b")
    pool = make_pool(accuracy, {"measure": measure}, network=groups)
    assert picking.measure_gains(pool, one_network=True).rules["measure"].share == pytest.approx(100)
    assert picking.measure_gains(pool).rules["measure"].share < 0


def test_predictions_are_kept_in_a_few_bytes_and_read_again():
    torch.manual_seed(0)
    model, inputs = nn.Sequential(nn.Flatten(), nn.Linear(48, 300)), torch.randn(30, 3, 4, 4)
    copies, labels = make_copies(inputs, changes.mirror), torch.randint(0, 300, (30,))
    labels[:3] = model(inputs).argmax(1)[:3]
    labeled = (torch.randn(60, 3, 4, 4), torch.randint(0, 300, (60,)))
    kept = observe(model, inputs, copies, labels, paths=10, nodes=12, labeled=labeled)
    predicted, changed, correct = decode(kept)
    assert predicted.tolist() == model(inputs).argmax(1).tolist()
    assert changed.tolist() == model(inputs.flip(-1)).argmax(1).tolist()
    assert correct.tolist() == (model(inputs).argmax(1) == labels).tolist()
    assert kept["accuracy"] == correct.mean() >= 0.1
    assert len(encode(torch.zeros(300), 10)) == 400
    measures = kept["measures"]
    measured = effdeg.measure(model, inputs, paths=10, nodes=12, degree=5, partners=copies)
    expected = {"value": measured.value, "stderr": measured.stderr}
    assert measures["effective_degree_copies@5"] == pytest.approx(expected, rel=1e-2)
    assert measures["effective_degree_copies@5"]["value"] == pytest.approx(measured.value)
    along = {"paths": 10, "nodes": 12, "degree": 5}
    table = effdeg.proxies.evaluate(model, inputs, names=["decision_regions", "total_variation"], **along)
    for name, result in table.items():
        assert measures[name]["value"] == pytest.approx(result.value)
        assert measures[name]["stderr"] == pytest.approx(result.stderr, rel=1e-2)
    proxies = effdeg.proxies.evaluate(model, inputs, names=["confidence", "thresholded_confidence"], labeled=labeled)
    assert {name: measures[name]["value"] for name in proxies} == pytest.approx(proxies.row())
    assert {"effective_degree@3", "effective_degree_normalized_copies@10", "inconsistency_soft"} <= {*measures}
    assert "effective_degree@20" not in measures  # 12 nodes do not determine it


def make_images(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 4
    noise = torch.randint(0, 120, (count, 3, 8, 8), generator=generator)
    return (noise + 40 * labels.view(-1, 1, 1, 1)).to(torch.uint8), labels


def test_a_run_keeps_its_predictions_on_every_test_set_and_nothing_else(tmp_path, monkeypatch):
    (train, labels), (test, answers) = make_images(64, 0), make_images(120, 1)
    darker, brighter = (test - 30).clamp(0), (test + 30).clamp(0, 255)
    corrupted = Corrupted(3, {"dark": (darker, answers), "bright": (brighter, answers)})
    data = Labeled(train, labels, test, answers, 4, (0.5,) * 3, (0.25,) * 3, corrupted=corrupted)
    data = replace(data, shifted={"upside down": (test.flip(2), answers)})
    monkeypatch.setattr(classify, "load", lambda *_: data)
    settings = small(model="mlp", limit=64, batch=16, epochs=6, observe=50, measure_paths=6)
    found = carry_out(tmp_path, settings)
    assert not found.weights
    assert "effective_degree" not in found.summary
    observed = found.summary["observed"]
    assert [*observed] == ["test", "corrupted", "upside down"]
    chosen = torch.randperm(120, generator=torch.Generator().manual_seed(0))[:50].sort().values
    examples, device = DeviceExamples(data, settings, torch.device("cpu")), torch.device("cpu")
    model = classify.make_network(settings, examples, device)
    weights = carry_out(tmp_path / "again", settings.change({"observe": 0})).weights
    model.load_state_dict(weights)
    mixed = torch.stack([(darker, brighter)[place % 2][index] for place, index in enumerate(chosen.tolist())])
    for name, images in {"test": test[chosen], "corrupted": mixed, "upside down": test.flip(2)[chosen]}.items():
        expected = model.eval()(examples.normalize(images)).argmax(1)
        predicted, _, correct = decode(observed[name])
        assert predicted.tolist() == expected.tolist()
        assert correct.tolist() == (expected == answers[chosen]).tolist()
        assert "thresholded_confidence" in observed[name]["measures"]
    monkeypatch.undo()
    with pytest.raises(ValueError, match="observe=50 is for images"):
        carry_out(tmp_path / "features", small(observe=50))


RECIPE = Recipe(
    name="picking-toy",
    title="",
    paper="not in the paper",
    expects="",
    cost="",
    settings=Training(data="cifar10"),
    run=lambda settings, job: None,
    study=picking.Picking(),
    methods=(Method("random", ""),),
    seeds=(0, 1),
    grid={"model": ("resnet9-8", "resnet9-16", "vit-128x2-4", "vit-128x2-8"), "lr": (1e-4, 3e-4, 1e-3, 3e-3)},
)


def test_records_become_pools_and_tables(monkeypatch):
    monkeypatch.setattr(picking, "_SUBSETS", 100)
    monkeypatch.setattr(picking, "_RESAMPLES", 20)
    rng, accuracy, runs = np.random.default_rng(0), [], []
    labels = rng.integers(0, 10, 300)
    for place, point in enumerate(RECIPE.points()):
        for seed in RECIPE.seeds:
            accuracy.append(0.3 + 0.5 * rng.random())
            observed = {}
            for name in ("test", "corrupted"):
                right = rng.random(300) < accuracy[-1] - 0.2 * (name == "corrupted")
                predicted = np.where(right, labels, (labels + 1 + rng.integers(0, 9, 300)) % 10)
                changed = np.where(rng.random(300) < accuracy[-1], predicted, (predicted + 1) % 10)
                texts = (encode(torch.from_numpy(each), 10) for each in (predicted, changed))
                observed[name] = {
                    **dict(zip(("predicted", "changed"), texts, strict=True)),
                    "examples": 300,
                    "classes": 10,
                    "accuracy": float(right.mean()),
                    "correct": base64.b64encode(np.packbits(right).tobytes()).decode(),
                    "measures": {
                        "effective_degree@3": {"value": 1 - accuracy[-1], "stderr": 0.1},
                        "confidence": {"value": accuracy[-1], "stderr": 0.1},
                    },
                }
            train = 0.5 if place % 8 == 0 else 1.0
            summary = {"train_accuracy": train, "observed": observed}
            runs.append(make_run(RECIPE, "random", accuracy[-1], summary=summary, seed=seed, **point))
    (results,) = collect(RECIPE, runs)
    pools = picking.read_pools(results)
    names = ["toy", "toy, ResNet-9", "toy, ViT"]
    assert [pool.name for pool in pools] == [*names, *(name.replace("toy", "toy corrupted") for name in names)]
    assert pools[0].accuracy.tolist() == pytest.approx([run.value("test_accuracy") for run in results.methods[0].runs])
    gains = {each.pool.name: each for each in picking.list_all_gains(pools)}
    assert len(gains["toy"].pool) == 28
    for name in ("confidence", "effective_degree@3"):
        assert gains["toy"].rules[name].share == pytest.approx(100)
    overview, fitted, every = RECIPE.study.tables(results)
    assert overview.rows[0][0] == "toy (28)"
    assert overview.rows[0][1] == f"{100 * gains['toy'].chance:.1f}"
    assert {row[0]: row[1] for row in fitted.rows}["confidence"].startswith("100")
    assert "toy (32)" in every.columns
    assert RECIPE.study.claim(results).quantity.startswith("gain of the pick, toy")


def test_a_classifier_of_others_that_is_not_there_is_reported_before_anything_starts(tmp_path):
    with pytest.raises(ValueError, match="give --data DIR"):
        check_foreign([Foreign(model="resnet")], None)
    with pytest.raises(FileNotFoundError, match="with the folder resnet and classifiers"):
        check_foreign([Foreign(model="resnet")], tmp_path)
    make_up(["foreign"], tmp_path)
    with pytest.raises(FileNotFoundError, match="val5 is incomplete"):
        check_foreign([Foreign(model="resnet50_keras")], tmp_path)
    check_foreign([Foreign(model="resnet50_keras", data="foreign")], tmp_path)
