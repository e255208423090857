"""What sentences of the pages say was found is what the records show; where this changes, so must the sentences."""

import itertools
import json
import math
import re
import statistics
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_rel

from effdeg_lab import find_recipe
from effdeg_lab.experiments.pools.random_search import rank_within

ROOT = Path(__file__).parents[2]


def test_what_the_pages_say_of_text_is_what_was_found(docs):
    """The side of zero on which a whole interval lies, 0 if on neither; where this changes, so must the sentences."""
    signs = {}
    for results in docs("lab_tables").read_texts():
        model = next(run.settings["model"] for each in results.done for run in each.runs)
        for each in results.done[1:]:
            low, high = results.difference(each, key="score").interval
            signs[results.recipe.name, model, each.method.name] = (low > 0) - (high < 0)
    assert {key: sign for key, sign in signs.items() if sign} == {
        ("glue-rte", "all-MiniLM-L6-v2", "mixup"): -1,
        ("glue-rte", "all-MiniLM-L6-v2", "mixup-later"): -1,
        ("glue-rte", "all-MiniLM-L6-v2", "ed-self"): -1,
        ("glue-mrpc", "all-MiniLM-L6-v2", "mixup"): -1,
        ("glue-mrpc", "all-MiniLM-L6-v2", "ed"): -1,
        ("glue-mrpc", "all-MiniLM-L6-v2", "ed-curvature"): -1,
    }
    plain, ed = (
        {run.settings["seed"]: run.summary for run in each.runs}
        for each in results.done  # of mpnet, the last
        if each.method.name in ("plain", "ed")
    )
    fitted = [seed for seed, summary in plain.items() if summary["score"] > summary["dev_majority"]]
    gains = [100 * (ed[seed]["score"] - plain[seed]["score"]) for seed in fitted]
    mean, margin = statistics.fmean(gains), 2.3646 * statistics.stdev(gains) / math.sqrt(8)  # t of seven degrees
    assert abs(mean) < 0.05
    said = f"without that seed the difference is 0.0 points (−{margin - mean:.1f} to +{mean + margin:.1f})"
    assert said in (ROOT / "docs" / "findings" / "table-4.md").read_text()


def read_interval(cell):
    """Read the interval of a cell such as ``0.85 (0.77…0.92)`` or ``+2.75 (+0.40 to +5.09)\\*``."""
    low, high = re.search(r"\((.+?)(?:…| to )(.+?)\)", cell).groups()
    return float(low), float(high)


def find_sign(cell):
    """Return the side of zero on which a whole interval lies, 0 if on neither."""
    low, high = read_interval(cell)
    return (low > 0) - (high < 0)


def test_what_the_pages_say_of_random_searches_is_what_was_found(docs):
    """Where this changes, so must the sentences of ordering-models.md."""
    tables = docs("lab_tables").tables
    compared = tables("cifar10-random-pool")[3]
    rows = {row[0]: row[1:] for row in compared.rows}
    assert {*list(rows)[:2]} == {"effective_degree_normalized_test@1", "decision_regions_test"}
    within, together, one_width = rows["effective_degree_normalized_test@1"]
    assert read_interval(within)[0] > max(
        read_interval(rows[name][0])[1] for name in ("-confidence_test", "entropy_test")
    )
    assert read_interval(together)[0] > max(
        read_interval(rows[name][1])[1] for name in ("total_variation_test", "effective_degree_test")
    )
    assert find_sign(one_width) == 1
    assert read_interval(one_width)[0] < read_interval(within)[0]
    models = docs("lab_tables").pool("cifar10-random-pool").models
    normalized, others = "effective_degree_normalized_test", ["sharpness@0.05", "-confidence_test", "entropy_test"]
    ranked = rank_within(models, [normalized, *others, "adaptive_sharpness@1"], ["network", "recipe"])
    assert all(ranked.compare(normalized, name).interval[0] < 0 for name in others)
    assert ranked.compare(normalized, "adaptive_sharpness@1").interval[0] > 0
    along = ["effective_degree_normalized_test@1", normalized, "decision_regions_test", "total_variation_test"]
    ranked = rank_within(models, [*along, "-mixup_margin"], ["recipe"])
    pairs = itertools.combinations([*along, "-mixup_margin"], 2)
    assert all(ranked.compare(*pair).interval[0] < 0 < ranked.compare(*pair).interval[1] for pair in pairs)
    first = [row[0] for row in tables("cifar10-random-pool")[0].rows][:8]
    assert [name for name in first if "margin" in name or "sharpness" in name] == ["-mixup_margin"]
    assert find_sign(rows["parameter_norm"][0]) == find_sign(rows["distance"][0]) == -1
    assert all(read_interval(together)[0] > read_interval(rows[name][1])[1] for name in ("sharpness@0.05", "distance"))
    assert min(model["train_accuracy"] for model in models) > 0.99

    choices = docs("lab_tables").fill("which-model choice").splitlines()
    shares = {line.split(" | ")[0].strip("| `"): re.findall(r"\((-?\d+)%\)", line) for line in choices}
    resnet18, vit, resnet9, _, deit = map(int, shares["effective_degree_normalized_test"])
    assert min(resnet18, resnet9) > 90
    assert max(vit, deit) < 0
    assert min(int(share) for name in ("total_variation", "decision_regions") for share in shares[name][:3:2]) > 85
    for name in ("-confidence_test", "entropy_test"):
        resnet9, mlps, deit = map(int, shares[name])
        assert 40 < resnet9 < 60
        assert 33 < deit < 40
        assert mlps > 0
    best, chance = (re.findall(r"[\d.]+(?=%)", line) for line in choices[-2:])
    assert float(best[3]) - float(chance[3]) < 1


def test_what_the_pages_say_of_fine_tuned_networks_is_what_was_found(docs):
    """Where this changes, so must the sentences of ordering-models.md and paper.md."""
    scores, chosen, _, compared = docs("lab_tables").tables("finetune-pool")
    rows = {row[0]: row[1:] for row in compared.rows}
    names = ("effective_degree_test@1", "sharpness@0.05", "parameter_norm")
    assert [find_sign(rows[name][0]) for name in names] == [1, -1, 0]
    assert next(iter(rows)) == "distance"
    assert [name for name, cells in rows.items() if find_sign(cells[2])] == ["decision_regions_test"]
    without_mixup = {row[0]: find_sign(row[4]) for row in scores.rows}
    mentioned = [name for name in without_mixup if "degree" in name or "sharpness" in name or name == "parameter_norm"]
    assert len(mentioned) == 21
    assert not any(without_mixup[name] for name in mentioned)

    models = docs("lab_tables").pool("finetune-pool").models
    models = [{**model, "smoothed": model["smoothing"] > 0} for model in models]
    fitted = [model for model in models if model["train_accuracy"] >= 0.99]
    mixed = [model["recipe"] == "with mixup" for model in models if model not in fitted]
    assert sum(mixed) >= 0.9 * len(mixed)
    degrees = [name for name in models[0] if name.startswith("effective_degree")]
    measures = [*degrees, *(name for name in models[0] if "sharpness" in name)]
    for strata in (["recipe"], ["recipe", "smoothed"]):
        ranked = rank_within(fitted, measures, strata).scores
        assert len(ranked) == 20
        assert not any(each.kendall.interval[0] > 0 or each.kendall.interval[1] < 0 for each in ranked.values())
    for recipe in ("with mixup", "without mixup"):
        ranked = rank_within([model for model in fitted if model["recipe"] == recipe], degrees, ["recipe"]).scores
        assert not any(each.kendall.interval[0] > 0 for each in ranked.values())
        assert (ranked["effective_degree_normalized_test"].kendall.interval[1] < 0) == (recipe == "with mixup")
    assert rank_within(fitted, degrees, ["recipe"]).scores["effective_degree_test"].pearson.interval[0] > 0
    frame = pd.DataFrame(models).groupby("recipe")[["gap", "effective_degree_test"]].mean()
    assert frame.gap["without mixup"] > frame.gap["with mixup"]
    assert 2.5 < frame.effective_degree_test["without mixup"] / frame.effective_degree_test["with mixup"] < 3.5
    best = {row[0].split(" (")[0]: row[1].split(" → ")[1] for row in chosen.rows}
    assert [find_sign(best[name]) for name in ("sharpness", "effective degree")] == [0, 1]

    odd = sorted(models, key=lambda model: model["gap"])[-3:]
    assert all(model["lr"] < 2.5e-5 and model["epochs"] >= 14 and model["alpha"] < 0.05 for model in odd)
    assert odd[0]["gap"] > 0.18 > 0.172 > sorted(model["gap"] for model in models)[-4]
    for model in odd:
        stratum = [each for each in models if each["recipe"] == model["recipe"]]
        assert sum(each["effective_degree_test"] > model["effective_degree_test"] for each in stratum) <= 1
    names = ["effective_degree_test", "train_accuracy"]
    with_them = rank_within(models, names, ["recipe"]).scores
    without = rank_within([model for model in models if model not in odd], names, ["recipe"]).scores
    assert sum(model in fitted for model in odd) == 2
    fitting = rank_within([model for model in fitted if model not in odd], names, ["recipe"]).scores
    assert fitting["effective_degree_test"].pearson.interval[0] < 0
    halved = without["effective_degree_test"].pearson.value
    assert 0.4 < halved / with_them["effective_degree_test"].pearson.value < 0.6
    assert halved < without["train_accuracy"].pearson.value
    alone = rank_within(
        [model for model in models if model not in odd and not model["alpha"]], names, ["recipe"]
    ).scores
    assert alone["effective_degree_test"].pearson.interval[0] < 0


def test_what_the_pages_say_of_mlps_is_what_was_found(docs):
    """Where this changes, so must the sentences of ordering-models.md and README.md."""
    scores, best, _, compared, _ = docs("lab_tables").tables("cifar10-random-mlps")
    assert "Models: without mixup 9, with mixup 15." in scores.notes
    kendall = {row[0]: row[3:] for row in scores.rows}
    degrees = [name for name in kendall if name.startswith("effective_degree")]
    assert len(degrees) == 12
    assert all(float(kendall[name][0].split(" ")[0]) < 0 for name in degrees)
    assert [name for name in degrees if find_sign(kendall[name][0])] == ["effective_degree_normalized_test@10"]
    assert {name for name, cells in kendall.items() if find_sign(cells[0]) > 0} == {"-mixup_margin", "sharpness@0.1"}
    assert [find_sign(cell) for cell in kendall["-mixup_margin"]] == [1, 1, 0]
    assert find_sign(next(row[1] for row in best.rows if row[0].startswith("sharpness"))) == 0
    together = {row[0]: find_sign(row[2]) for row in compared.rows}
    names = ("-confidence_test", "effective_degree_normalized_test", "effective_degree_test", "total_variation_test")
    assert [together[name] for name in names] == [1, 1, -1, -1]

    (plain, mixed), resnets = (
        [
            pd.DataFrame(docs("lab_tables").pool(name).models).query(f"recipe == {recipe!r} and train_accuracy >= 0.99")
            for recipe in ("without mixup", "with mixup")
        ]
        for name in ("cifar10-random-mlps", "cifar10-random-pool")
    )
    for mlps, others in zip((plain, mixed), resnets, strict=True):
        assert np.ptp(mlps.test_accuracy) < 0.02
        assert 8 < others.gap.std() / mlps.gap.std() < 14
        assert others.groupby("network").gap.std().min() > 4 * mlps.gap.std()
    lower = ["test_accuracy", "confidence_test", "effective_degree_test"]
    assert (mixed[lower].mean() < plain[lower].mean()).all()
    assert mixed.effective_degree_test.mean() < plain.effective_degree_test.mean() / 2
    higher = ["gap", "effective_degree_normalized_test"]
    assert (mixed[higher].mean() > plain[higher].mean()).all()


def regress_out(values, models):
    """Return what a linear model of all hyperparameters leaves of some values."""
    columns = []
    for model in models:
        sgd, numbers = model["optimizer"] == "sgd", np.log([model["lr"], model["weight_decay"]])
        rest = [math.log(read_width(model)), math.log(model["batch"]), model["alpha"]]
        columns.append([1.0, sgd, *sgd * numbers, *(not sgd) * numbers, *rest])
    design = np.array(columns)
    return values - design @ np.linalg.lstsq(design, values, rcond=None)[0]


def read_width(model):
    return int(model["network"].removeprefix("resnet9-"))


def test_neither_width_nor_learning_rate_explains_the_random_search(docs):
    """Where this changes, so must the sentences of ordering-models.md."""
    models = [{**model, "width": read_width(model)} for model in docs("lab_tables").pool("cifar10-random-pool").models]
    scores = rank_within(models, ("-width", "sharpness@0.01", "-confidence_test"), ["recipe"]).scores
    assert max(scores, key=lambda name: scores[name].kendall.value) == "-width"
    for recipe, most in (("without mixup", 0.75), ("with mixup", 0.6)):
        inside = [model for model in models if model["recipe"] == recipe]
        gaps = np.array([model["gap"] for model in inside])
        left = regress_out(gaps, inside)
        assert left.var() < 0.2 * gaps.var()

        def correlate(name, inside=inside, left=left):
            values = np.array([model[name] for model in inside])
            return np.corrcoef(regress_out(values, inside), left)[0, 1]

        names = ("effective_degree_normalized_test", "effective_degree_normalized_test@1", "decision_regions_test")
        assert min(map(correlate, names)) > 0.9
        assert correlate("total_variation_test") > 0.8
        sharpness = [name for name in models[0] if "sharpness" in name]
        assert len(sharpness) == 8
        assert max(*map(correlate, sharpness), -correlate("confidence_test")) < most


def find_p_values():
    """Test every method against LP-FT on PACS, paired by seed, as tuned: on photos and under shifts."""
    files = {"plain": "plain-{}-lr=3e-05", "random-head": "random-head-{}", "mixup": "mixup-{}"}
    files |= {"ed": "ed-{}-weight=8", "ed-self": "ed-self-{}"}
    found = {}
    for method, file in files.items():
        for seed in range(5):
            lines = (ROOT / "results/finetune-shifts" / f"{file.format(seed)}.jsonl").read_text().splitlines()
            summary = json.loads(lines[-1])["summary"]
            for column in ("test_accuracy", "shifted_accuracy"):
                found.setdefault((method, column), []).append(summary[column])
    return {key: ttest_rel(values, found["plain", key[1]]).pvalue for key, values in found.items() if key[0] != "plain"}


def test_what_the_pages_say_of_fine_tuning_is_what_was_found(docs):
    """Where this changes, so must the sentences of fine-tuning.md."""
    table, _, curves, soups = docs("lab_tables").tables("finetune-shifts")
    signs = {row[0]: (find_sign(row[6]), find_sign(row[7])) for row in table.rows[1:]}
    assert signs == {"Plain, random head": (-1, 0), "Mixup": (0, 1), "ED": (-1, 1), "ED, own ends": (0, 1)}
    shifted = {row[0]: float(row[5].split(" ")[0]) for row in table.rows}
    assert max(shifted, key=shifted.get) == "Mixup"
    assert {row[0] for row in curves.rows if row[2] == "above"} == {"Mixup", "ED", "ED, own ends"}
    assert {row[0]: row[1] for row in curves.rows}["ED"] == "crosses"
    means = {row[0]: [float(cell.split(" ")[0]) for cell in row[2:5]] for row in table.rows}
    gains = {name: np.sign(np.subtract(means[name], means["Plain (LP-FT)"])).tolist() for name in ("ED", "Mixup")}
    assert gains == {"ED": [-1, -1, 1], "Mixup": [1, 1, 1]}  # on paintings, cartoons, sketches
    tested = find_p_values()
    survives = [found for rank, found in enumerate(sorted(tested, key=tested.get)) if tested[found] * (8 - rank) < 0.05]
    assert len(tested) == 8
    assert survives == [("mixup", "shifted_accuracy")]
    best = max(soups.rows, key=lambda row: float(row[-1]))
    assert best[0] == "Mixup: uniform soup"
    under_shifts = {row[0]: float(row[-1]) for row in soups.rows}
    assert under_shifts["ED: uniform soup"] > under_shifts["Plain (LP-FT): uniform soup"]
    assert under_shifts["ED, own ends: greedy soup"] < under_shifts["Plain (LP-FT): greedy soup"]

    table, _, curves, _ = docs("lab_tables").tables("finetune-shifts@lr=0.0001")
    signs = {row[0]: (find_sign(row[6]), find_sign(row[7])) for row in table.rows[2:]}
    assert signs == {"Mixup": (0, 1), "ED": (0, 1), "ED, own ends": (0, 0)}
    assert all(row[8].startswith("lr = 0.0001") for row in table.rows)
    same_rate = {row[0]: [float(cell.split(" ")[0]) for cell in row[1:6]] for row in table.rows}
    assert same_rate["Plain (LP-FT)"][0] < same_rate["ED"][0]
    assert same_rate["Plain (LP-FT)"][-1] < shifted["Plain (LP-FT)"]
    gains = np.subtract(same_rate["ED"], same_rate["Plain (LP-FT)"])[1:4]
    assert gains[2] > gains[gains > 0].sum() / 2  # on sketches
    assert {row[0]: row[1:3] for row in curves.rows}["ED"] == ("above", "level")
    assert {row[0]: row[1:3] for row in curves.rows}["Mixup"] == ("above", "above")

    table, _, curves = docs("lab_tables").tables("finetune-shifts-cifar10")
    signs = {row[0]: (find_sign(row[5]), find_sign(row[6])) for row in table.rows[1:]}
    assert signs == {"Plain, random head": (-1, 0), "Mixup": (0, 0), "ED": (0, 0), "ED, own ends": (1, 0)}
    assert {row[2] for row in curves.rows} == {"level"}
    shifted = {row[0]: float(row[4].split(" ")[0]) for row in table.rows}
    assert min(shifted[name] for name in ("Mixup", "ED", "ED, own ends")) > shifted["Plain (LP-FT)"] + 1


def test_what_the_pages_say_of_tiny_imagenet_is_what_was_found():
    def read(name):
        return json.loads((ROOT / "results" / name).read_text().splitlines()[-1])["summary"]

    better, epochs = {}, {"tiny-imagenet-vit": 116, "tiny-imagenet-vit-strong": 114}
    for recipe, count in epochs.items():
        assert not [*(ROOT / "results" / recipe).glob("*-1.jsonl")]  # "each run has one seed"
        methods = ("plain", "ed", "ed-30", "mixup", "cutmix")
        plain, ed, *below = (read(f"{recipe}/{method}-0.jsonl") for method in methods)
        assert all(each["test_accuracy"] < plain["test_accuracy"] - 0.01 for each in below)
        assert all(each["effective_degree"]["value"] < ed["effective_degree"]["value"] for each in below)
        assert all(each["train_accuracy"] < 0.5 for each in below)
        assert below[0]["seconds"] == pytest.approx(plain["seconds"], rel=0.06)  # "about as long"
        assert round(ed["seconds"] / plain["seconds_per_epoch"]) == count
        gain = ed["test_accuracy"] - plain["test_accuracy"]
        error = math.sqrt(sum(each["test_accuracy"] * (1 - each["test_accuracy"]) / 1e4 for each in (plain, ed)))
        assert round(100 * error, 2) == 0.69
        assert 0.004 < abs(gain) < min(error, 0.006)  # "about half a point", "less than the standard error"
        assert round(1000 * (ed["shifted"]["val5"] - plain["shifted"]["val5"])) == -2
        losses = [f"test_{name}" for name in ("loss", "loss_scaled", "brier", "brier_scaled", "aurc")]
        better[recipe] = gain > 0, {ed[name] < plain[name] for name in losses}
        temperatures = plain["temperature"], ed["temperature"]  # above 1 if a network is too confident
        assert temperatures[0] > temperatures[1] > 1 if gain > 0 else temperatures[1] < 1
    assert better == {"tiny-imagenet-vit": (True, {True}), "tiny-imagenet-vit-strong": (False, {False})}
    all_five = {method: read(f"tiny-imagenet-vit/{method}-0.jsonl") for method in methods}
    assert max(methods, key=lambda method: all_five[method]["shifted"]["val5"]) == "cutmix"
    best = {name: min(methods, key=lambda method: all_five[method][name]) for name in losses}
    assert best == {
        **dict.fromkeys(("test_loss", "test_loss_scaled", "test_brier"), "cutmix"),
        **dict.fromkeys(("test_brier_scaled", "test_aurc"), "ed"),
    }


def test_what_the_pages_say_of_decoding_is_what_was_found(docs):
    rows = docs("speed").read_rows("imagenet_throughput")
    found = {(row["variant"], row["method"]): row for row in rows}
    waited = {key: row["waited"] for key, row in found.items() if "waited" in row}
    assert waited.pop(("strong-1024-tiny-imagenet", "ed")) < 0.1
    assert min(waited.values()) > 0.25
    photos = found["strong-1024-photos", "ed"]
    assert photos["images_per_second"] < 0.8 * found["strong-1024", "ed"]["images_per_second"]  # "could do more"
    lengths = [found[f"strong-1024-{source}", "plain"]["milliseconds"] for source in ("tiny-imagenet", "photos")]
    assert [int(60 * each / 1e3) for each in lengths] == [11, 20]  # seconds
    memory = {row["batch"]: row["peak_GiB"] for row in rows if (row["recipe"], row["method"]) == ("original", "ed")}
    assert {batch: round(each) for batch, each in memory.items()} == {1024: 69, 128: 9}  # "up to 70 GiB"


def test_what_recipes_of_imagenet_cost_is_what_was_estimated(docs):
    throughput = docs("throughput")
    (decoding,) = re.findall(r"\| 16 \| [\d,]+ \| ([\d.]+) \|", throughput.make_decoding_table())
    for name in throughput.RECIPES:
        ((plain, ed),) = re.findall(rf"\| {name} \| 1 \| ([\d.]+) \| ([\d.]+) \|", throughput.make_hours())
        expected = f"{plain} h per run on an H200, {ed} with ED, if decoding keeps up; with 16 cores {decoding}."
        assert find_recipe(f"imagenet-vit-{name}").cost.startswith(expected)


def test_what_the_pages_say_of_attention_is_what_was_found(docs):
    rows = {(row["tokens"], row["kernel"]): row for row in docs("speed").read_rows("attention_kernels")}
    assert [key for key, row in rows.items() if not row["finite"]] == [(64, "cudnn")]
    flash = {tokens: rows[tokens, "flash"]["milliseconds"] for tokens in (64, 65, 196, 197)}
    ratios = {tokens: each / rows[tokens, "efficient"]["milliseconds"] for tokens, each in flash.items()}
    assert ratios[64] > 1.5
    assert 0.95 < ratios[65] < 1.05
    assert max(ratios[196], ratios[197]) < 0.8
