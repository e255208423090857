"""Tables and numbers of the pages are those of the records."""

import ast
import itertools
import json
import math
import re
import statistics
from pathlib import Path

import pytest

from effdeg_lab import Run, find_recipe
from effdeg_lab.core.results import collect

ROOT = Path(__file__).parents[2]


def test_other_measures_of_a_pool_are_shown_at_the_radius_that_does_best(docs):
    kinds = {"sharpness@0.1": (1, 2, 0), "sharpness@1": (3, 2, 1), "adaptive_sharpness@1": (0, 0, 1)}
    kinds |= {"margin@10": (1, 2, 3), "margin@50": (3, 2, 1), "gap": (1, 2, 3)}
    kinds |= {"effective_degree": (3, 2, 1), "effective_degree_normalized": (1, 2, 3), "sharpness": (1, 2, 3)}
    rows = [{name: values[place] for name, values in kinds.items()} for place in range(3)]
    ours, others = "−1.00; normalized 1.00", "sharpness −0.50, adaptive sharpness 0.87, margin 1.00"
    assert docs("lab_tables")._format_pool("a pool", rows) == f"| a pool | {ours} | {others} |"


def test_the_choice_among_five_is_that_of_all_sets_of_five_of_a_recipe(docs):
    which_model = docs("which_model")
    # The last does not fit. A measure with a minus chooses the largest value.
    plain = [(1.0, 0.5, 70), (0.99, 2.0, 80), (1.0, 3.0, 90), (1.0, 1.0, 60), (1.0, 4.0, 75), (1.0, 0.7, 85)]
    mixup = [(1.0, 0.01 * place, 40 + place * (9 - place)) for place in range(9)] + [(0.5, 0.0, 95)]
    models = [
        dict.fromkeys((name.lstrip("-") for name in which_model.MEASURES), value)
        | {"train_accuracy": train, "test_accuracy": test / 100, "recipe": recipe}
        for recipe, values in (("plain", plain), ("mixup", mixup))
        for train, value, test in values
    ]
    rows = which_model.make_choice_table({"MLP": models}).splitlines()

    def average(choose):
        sets = [itertools.combinations(values, 5) for values in (plain, mixup[:-1])]
        means = [statistics.fmean(choose(each)[2] for each in inside) for inside in sets]
        return (6 * means[0] + 9 * means[1]) / 15

    best = average(lambda each: max(each, key=lambda model: model[2]))
    chance = statistics.fmean(test for _, _, test in plain + mixup[:-1])
    for name, choose in (("total_variation", min), ("-margin@50", max)):
        mean = average(lambda each, choose=choose: choose(each, key=lambda model: model[1]))
        assert f"| `{name}` | {mean:.1f}% ({(mean - chance) / (best - chance):.0%}) |" in rows
    assert "| `entropy_test` | – |" in rows
    assert rows[-2:] == [f"| test accuracy itself | {best:.1f}% |", f"| chance | {chance:.1f}% |"]


def test_monomials_are_counted(docs):
    """Against a list of all of them, and Pascal's rule where there are too many to list."""
    monomials = docs("bounds").monomials
    for dimension, degree in itertools.product(range(1, 5), range(6)):
        # A constant factor of one fills a monomial up to the degree.
        listed = itertools.combinations_with_replacement(range(dimension + 1), degree)
        assert monomials(dimension, degree) == len(list(listed))
    assert monomials(3072, 40) == monomials(3071, 40) + monomials(3072, 39)


def test_both_bounds_hold_against_all_signs(docs):
    """The Rademacher complexity of both balls, computed over all signs, on features that make the first bound sharp."""
    bounds, examples = docs("bounds"), 8
    features = [[1 if (row >> column) & 1 else -1 for column in range(3)] for row in range(examples)]
    l1, squared = [], []
    for signs in itertools.product((-1, 1), repeat=examples):
        sums = [sum(sign * row[column] for sign, row in zip(signs, features, strict=True)) for column in range(3)]
        l1.append(max(map(abs, sums)) / examples)
        squared.append(sum(each**2 for each in sums) / examples**2)
    mean = math.fsum(map(math.sqrt, squared)) / len(squared)
    assert 0.9 * bounds.l2_bound(3, examples) < mean <= bounds.l2_bound(3, examples)
    assert math.sqrt(math.fsum(squared) / len(squared)) == pytest.approx(bounds.l2_bound(3, examples))
    assert 0.5 * bounds.l1_bound(3, examples) < math.fsum(l1) / len(l1) <= bounds.l1_bound(3, examples)


def test_the_bound_of_networks_is_the_published_one(docs):
    """One linear layer of norm 1 on examples of norm 1: (1 + √(2 ln 2))/√n; two layers of norm 3 each: nine times."""
    bound = docs("bounds").network_bound
    assert bound(1.0, 1, 1.0, 4) == pytest.approx((1 + math.sqrt(2 * math.log(2))) / 2)
    assert bound(9.0, 2, 1.0, 4) == pytest.approx(9 * (1 + 2 * math.sqrt(math.log(2))) / 2)


def test_the_time_of_a_step_is_shown_as_measured(docs, tmp_path, monkeypatch):
    speed = docs("speed")
    monkeypatch.setattr(speed, "RECORD", tmp_path / "gpu.json")
    work = {
        "teraflop": 0.5,
        "gigabytes_unfused": 8.0,
        "floor_of_products": 1.0,
        "floor_unfused": 2.0,
        "floor_fused": 1.5,
    }
    times = {"matrix products": 3000.0, "other": 500.0, "gaps": 500.0}
    profiles = [
        {"variant": name, "method": method, "milliseconds": 4.0, "work": work, "microseconds": times, "kernels": {}}
        for name, method in (("baseline", "plain"), ("baseline", "ed"), ("64 tokens", "plain"), ("64 tokens", "ed"))
    ]
    speedups = [
        {"variant": "baseline", "model": "vit-tiny", "method": "plain", "milliseconds": 5.0, "ratio": 1.0},
        {"variant": "flash", "model": "vit-tiny", "method": "plain", "error": "not measured within 130 s"},
        {
            "variant": "64 tokens",
            "model": "vit-tiny-mean",
            "method": "ed",
            "milliseconds": 4.0,
            "ratio": 0.8,
            "peak_MiB": 2560.0,
        },
        {"variant": "ResNet-18", "model": "resnet18", "method": "ed", "milliseconds": 3.0},
    ]
    cases = {"step_profile": {"rows": profiles}, "engine_speedups": {"rows": speedups}}
    speed.RECORD.write_text(json.dumps({"cases": cases}))
    assert speed.make_speedup_table("vit").splitlines()[2:] == [
        "| baseline | 5.00 ms | 1.00 |  |  |  |  |  |",
        "| flash | not measured within 130 s |  |  |  |  |  |  |",
        "| 64 tokens |  |  |  | 4.00 ms | 0.80 | 2.5 GiB | as the model `vit-tiny-mean` |",
    ]
    assert speed.make_speedup_table("resnet").splitlines()[2:] == ["| ResNet-18 |  |  |  | 3.00 ms |  |  |  |"]
    assert speed.find_number("engine_speedups", "baseline", "plain", "epoch") == "0.975"  # 195 steps
    assert speed.find_number("engine_speedups", "baseline", "plain", "over 0.78") == "25%"
    assert speed.find_number("step_profile", "64 tokens", "ed", "share") == "25%"
    assert speed.find_number("step_profile", "no such", "ed", "share") == "(not measured)"
    assert "| matrix products | 3,000 | 3,000 | 3,000 | 3,000 |" in speed.make_profile()
    assert "| least time, one kernel per operation | 2.00 ms |" in speed.make_floor_table()
    (axes,) = speed.plot("light").axes
    ends = [bar.get_x() + bar.get_width() for bar in axes.patches]
    assert ends == pytest.approx([3, 3.5, 4] * 4)
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "plain, before",
        "plain, now",
        "with the penalty, before",
        "with the penalty, now",
    ]


def test_numbers_within_sentences_are_those_of_the_records(docs):
    find_number = docs("lab_tables").find_number
    summary = json.loads((ROOT / "results/cifar10-contest/ed-0.jsonl").read_text().splitlines()[-1])["summary"]
    error = find_number("cifar10-contest", "summary", "ed", "test_calibration_error")
    assert error == f"{summary['test_calibration_error']:.3f}"
    assert find_number("cifar10-contest", "1", "ED", "2") == f"{100 * summary['test_accuracy']:.2f}"
    at_length, with_settings = (find_number(f"cifar10-methods@{at}", "1", "ED", "2") for at in ("300", "epochs=300"))
    assert at_length == with_settings != find_number("cifar10-methods", "1", "ED", "2")
    rows = json.loads((ROOT / "results/benchmarks/gpu.json").read_text())["cases"]["engine_speedups"]["rows"]
    (ed, plain) = (
        next(row["milliseconds"] for row in rows if row["variant"].endswith("flat, fused") and row["method"] == method)
        for method in ("ed", "plain")
    )
    assert find_number("benchmark", "engine_speedups") == f"{ed / plain:.2f}"


def test_a_lead_is_the_paired_difference_of_the_records(docs):
    find_number = docs("lab_tables").find_number

    def read(name, seed):
        file = ROOT / "results" / "cifar10-few-labels" / f"{name.format(seed)}.jsonl"
        return json.loads(file.read_text().splitlines()[-1])["summary"]

    ed, ict = ([read(name, seed) for seed in range(3)] for name in ("ed-teacher-{}-weight=20", "ict-{}"))
    gains = [100 * (one["test_accuracy"] - other["test_accuracy"]) for one, other in zip(ed, ict, strict=True)]
    mean, margin = statistics.fmean(gains), 4.3027 * statistics.stdev(gains) / math.sqrt(3)  # t of two degrees
    found = find_number("cifar10-few-labels", "lead", "ed-teacher", "ict", "accuracy, %", "labeled 1000")
    assert found == f"{mean:+.3g} ({mean - margin:+.3g} to {mean + margin:+.3g})"
    losses = [other["test_loss"] - one["test_loss"] for one, other in zip(ed, ict, strict=True)]  # lower is better
    found = find_number("cifar10-few-labels", "lead", "ed-teacher", "ict", "NLL", "labeled 1000")
    assert found.startswith(f"{statistics.fmean(losses):+.3g} (")
    seeds = find_number("cifar10-few-labels", "seeds", "ict", "temperature", "labeled 1000")
    assert seeds == "{:.3g}, {:.3g} and {:.3g}".format(*(each["temperature"] for each in ict))


def test_the_games_that_were_run_are_shown(docs, monkeypatch):
    lab_tables, recipes = docs("lab_tables"), [find_recipe(f"procgen-{name}") for name in ("dodgeball", "starpilot")]
    runs = [
        Run(
            file=Path(recipe.name) / f"{method.name}-{seed}.jsonl",
            recipe=recipe.name,
            method=method.name,
            kind="PPO",
            settings=recipe.resolve(method, {"seed": seed, "steps": 25_000_000}).to_dict(),
            environment={"device": "Thinking Machine"},
            metrics=[{"step": 1000 * step, "test_return": step, "train_return": step} for step in range(9)],
            summary={"test_return": 1.5 + seed, "train_return": 3.0, "gap": 1.5 - seed},
        )
        for recipe in recipes
        for method in recipe.methods[:2]
        for seed in (0, 1)
    ]

    for name in ("results", "tables"):  # other tests must not find what is made up
        monkeypatch.setattr(lab_tables, name, getattr(lab_tables, name).__wrapped__)
    monkeypatch.setattr(lab_tables, "runs", list)
    assert lab_tables.fill("procgen") == "Not run yet.\n"
    monkeypatch.setattr(lab_tables, "runs", lambda: runs)
    heads = re.findall(r"\*\*(\w+), 25 of the paper's 50 million steps: ", lab_tables.fill("procgen"))
    assert heads == ["Dodgeball", "StarPilot"]
    assert lab_tables.fill("number procgen-starpilot; 1; PPO; 1") == "2.00 ± 0.50"
    assert lab_tables.fill("caption procgen-returns").startswith("*Dodgeball, StarPilot: ")
    rows = lab_tables.make_recipe_table().splitlines()
    assert any(row.endswith("| 15 runs of 50,000,000 steps | 4 runs of 25,000,000 steps |") for row in rows)


def test_the_kernels_of_a_block_are_shown_as_measured(docs, tmp_path, monkeypatch):
    """On a chip of 100 TFLOP/s and 10 TB/s, with kernels that take a microsecond, or ten with the slower tile."""
    speed = docs("speed")
    monkeypatch.setattr(speed, "RECORD", tmp_path / "gpu.json")
    work = {"teraflop_per_second": 100.0, "terabytes_per_second": 10.0}
    profile = {
        "variant": speed.FASTEST,
        "method": "plain",
        "work": work,
        "kernel_times": dict.fromkeys(speed.KERNELS, 48),
    }
    tiles = [
        {"kernel": name, "rows": speed.ROWS, "ROWS": rows, "num_stages": 1, "microseconds": time, "TFLOP/s": 50 / time}
        for name in speed.KERNELS
        for rows, time in ((64, 10.0), (128, 1.0))
    ]
    tiles.append({"kernel": "mlp_forward", "rows": speed.ROWS, "error": "too large"})
    tiles += [
        {"kernel": name, "rows": speed.ROWS, "microseconds": blocks}
        for parts in speed.PRODUCTS.values()
        for name, (*_, blocks) in parts.items()
    ]
    cases = {"step_profile": {"rows": [profile]}, "kernel_tiles": {"rows": tiles}}
    speed.RECORD.write_text(json.dumps({"cases": cases}))
    rows = [line.split(" | ") for line in speed.make_kernel_table().splitlines()[2:]]
    # Seven times 192 values of two bytes for each of 16,384 tokens are 44 MB, which take 4.4 µs.
    assert rows[0][1:] == ["128 rows", "1.0", "10.0", "4.0", "4.4", "50 (50%)", "44 (440%) |"]
    # The three products: 20 × 192² × 16,384 FLOPs, more than 100 TFLOP/s do in 120 µs.
    assert rows[-3][2:] == ["3.0", "", "", "120.8", "4.03e+03 (4027%)", "27.3 (273%) |"]
    assert rows[-1][:3] == ["| 12 blocks", "", "**168**"]  # 14 µs each: one kernel is there twice


def test_the_kernels_have_the_fastest_tiles(docs):
    speed, source = docs("speed"), ROOT / "experiments" / "src" / "effdeg_lab" / "models" / "vit_kernels.py"
    chosen = {
        node.targets[0].id.lower(): ast.literal_eval(node.value)
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
    }
    assert set(chosen) == set(speed.KERNELS)
    for name, tile in chosen.items():
        assert tile.items() <= speed.find_tiles(name)[0].items(), name


def test_costs_of_relatives_join_those_of_the_baselines(docs, tmp_path, monkeypatch):
    make_figures = docs("make_figures")
    monkeypatch.setattr(make_figures.speed, "RECORD", tmp_path / "gpu.json")

    def case(model, **milliseconds):
        rows = [
            {"method": name, "model": model, "ratio": time / milliseconds["plain"], "milliseconds": time}
            for name, time in milliseconds.items()
        ]
        return {"detail": "how", "rows": rows}

    baselines = [case(model, plain=4.0, sam=8.0) for model in ("ResNet-18", "ViT-Tiny")]
    cases = {"baseline_costs": {"detail": "how", "rows": [row for each in baselines for row in each["rows"]]}}
    cases["relative_costs_vit"] = case("ViT-Tiny", plain=5.0, regmixup=9.0)
    (tmp_path / "gpu.json").write_text(json.dumps({"cases": cases}))
    assert make_figures.baseline_costs().splitlines()[2:] == [
        "| `plain` | **1.00** (4.00 ms) | **1.00** (4.00 ms) |",
        "| `sam` | **2.00** (8.00 ms) | **2.00** (8.00 ms) |",
        "| `regmixup` |  | **1.80** (9.00 ms) |",
    ]


def test_networks_at_once_are_shown_as_measured(docs, tmp_path, monkeypatch):
    speed = docs("speed")
    monkeypatch.setattr(speed, "RECORD", tmp_path / "gpu.json")
    rows = [
        {"network": "MLP", "networks": 4, "one after another": 2000.0, "stacked": 500.0, "streams": 800.0},
        {"network": "ViT", "networks": 1, "one after another": 900.4, "why, stacked": "RuntimeError"},
    ]
    speed.RECORD.write_text(json.dumps({"cases": {"networks_at_once": {"rows": rows}}}))
    assert speed.make_network_table().splitlines()[2:] == [
        "| MLP | 4 | 2,000 | 800 (2.5 ×) | 500 (4.0 ×) |",
        "| ViT | 1 | 900 |  | fails |",
    ]


def test_degree_and_gap_along_training(docs):
    find_course = docs("along_training").find_course
    entries = [
        {
            "epoch": epoch,
            "train_accuracy": 0.5 + 0.02 * epoch,
            "test_accuracy": 0.5,
            "effective_degree": {"value": 3.0 * epoch, "stderr": 0.1},
        }
        for epoch in (1, 2, 5)
    ]
    unmeasured = {"epoch": 3, "train_accuracy": 0.9, "test_accuracy": 0.1}
    course = find_course(Run(ROOT, "recipe", "ed", "Training", {}, {}, [*entries, unmeasured]))
    assert list(course.epochs) == [1, 2, 5]
    assert course.gaps == pytest.approx([2, 4, 10])
    assert course.levels == pytest.approx(1)
    assert math.isnan(course.changes)  # two changes always lie on a line
    assert find_course(Run(ROOT, "recipe", "ed", "Training", {}, {}, entries[:2])) is None


def test_hours_of_the_papers_table_from_images_per_second(docs, monkeypatch):
    throughput = docs("throughput")
    rows = [
        {"recipe": recipe, "batch": batch, "captured": True, "method": method, "images_per_second": speed}
        | {"milliseconds": 1e3 * batch / speed, "peak_GiB": 10.0}
        for recipe in ("original", "strong")
        for batch in (1024, 128)
        for method, speed in (("plain", 4000.0), ("ed", 2000.0))
    ]
    decoding = [{"decoder": "pillow", "processes": count, "images_per_second": 100.0 * count} for count in (1, 30)]
    decoding += [{"decoder": "torchvision", "processes": 30, "images_per_second": 1.0}]
    monkeypatch.setattr(throughput.speed, "read_rows", lambda case: decoding if case == "decoding_speed" else rows)
    hours = 90 * 1_281_167 / 4000 / 3600
    found = throughput.make_hours()
    assert f"| strong | 1 | {hours:.1f} | {2 * hours:.1f} | 40, 20 |" in found
    assert f"| original | 8 | {hours / 8:.1f} | {hours / 4:.1f} | 320, 160 |" in found
    assert f"| **all of Table 3, 3 seeds** | 1 | | **{18 * hours:.1f}** | |" in found
    assert f"| **all of Table 3, 3 seeds** | 8 | | **{18 * hours / 8:.1f}** ({18 * hours:.0f} GPU hours) | |" in found
    # 3,000 images per second are decoded: too few for plain training.
    limited = 6 * (hours * 4 / 3 + 2 * hours)
    assert f"| **the same with 30 decoding processes** | 1 | | **{limited:.0f}** | |" in found
    step = "| strong | 1,024 | compiled, captured"
    assert f"{step} | on the GPU | plain | 4,000 | 256.0 | 10.0 GiB |" in throughput.make_table()
    # Hours do not depend on how fast one machine decodes.
    rows.append(rows[4] | {"images_per_second": 1000.0, "source": "photos", "waited": 0.75})
    assert throughput.make_hours() == found
    assert f"{step} | JPEGs of 500 × 375 | plain | 1,000 | 256.0 | 10.0 GiB |  |  | 75% |" in throughput.make_table()
    # What does not fit is said, and there is no total.
    rows[1] = {key: rows[1][key] for key in ("recipe", "batch", "captured", "method")} | {"error": "out of memory"}
    assert "| original | 1 | 8.0 | not measured |  |" in throughput.make_hours()
    assert throughput.make_hours().count("all of Table 3") == 1
    assert "| does not fit |" in throughput.make_table()
    monkeypatch.setattr(throughput.speed, "read_rows", lambda _: [])
    assert not throughput.is_measured()


def test_a_run_takes_as_long_as_its_images_take_to_decode(docs, monkeypatch):
    throughput = docs("throughput")
    speeds = {("pillow", 0): 90.0, ("pillow", 1): 100.0, ("pillow", 16): 1000.0}
    speeds |= {("torchvision", count): 2 * each for (_, count), each in speeds.items()}
    rows = [{"decoder": name, "processes": count, "images_per_second": each} for (name, count), each in speeds.items()]
    monkeypatch.setattr(throughput.speed, "read_rows", lambda case: rows if case == "decoding_speed" else [])
    assert throughput.make_decoding_table().splitlines() == [
        "| processes | Pillow, images/s | hours of a run | torchvision, images/s | hours of a run |",
        "|---:|---:|---:|---:|---:|",
        "| 1 | 100 | 320.3 | 200 | 160.1 |",
        "| 16 | 1,000 | 32.0 | 2,000 | 16.0 |",
    ]
    rows.clear()
    assert throughput.make_decoding_table().startswith("Not measured yet")


def test_the_time_of_a_stacked_step_is_shared_by_its_runs(docs):
    """Epochs of 10 steps that take 20, 20 and 50 ms each, for four runs; alone 6 ms; evaluation is in neither.

    A slower stack may have shared the GPU, and does not count.
    """
    recipe = find_recipe("glue-rte")

    def make_run(seed, times, **environment):
        seconds = itertools.accumulate(times)
        metrics = [{"step": 10 * place, "seconds": each} for place, each in enumerate(seconds, start=1)]
        settings = recipe.resolve(recipe.method("plain"), {"seed": seed}).to_dict()
        summary = {"score": 0.5, "seconds": sum(times)}
        return Run(Path(f"{seed}"), "glue-rte", "plain", "FineTuning", settings, environment, metrics, summary)

    stacked = [make_run(seed, [0.2, 0.2, 0.5], together=4, shared=True, device="A") for seed in range(1, 5)]
    slower = [make_run(seed, [0.7] * 3, together=6, shared=True, device="A") for seed in range(5, 11)]
    (results,) = collect(recipe, [make_run(0, [0.06] * 3, device="A"), *stacked, *slower])
    head, _, row, _, note = docs("text_results").make_step_table([results]).splitlines()
    assert head.endswith("| RTE, MiniLM-L6-v2, alone | RTE, MiniLM-L6-v2, stacked |")
    assert row == "| Plain | 6.00 | 5.00 (4) |"
    assert note.startswith("A; ")


def test_the_parts_of_ppo_are_shown_as_measured(docs, tmp_path, monkeypatch):
    speed = docs("speed")
    monkeypatch.setattr(speed, "RECORD", tmp_path / "gpu.json")
    rows = [
        {"variant": "ed-fused", "update, ms": 20.06, "rollout, ms": 300.4, "steps per second": 40_000.4, "peak_GiB": 6},
        {"variant": "plain-pytorch", "update, ms": 19.9, "rollout, ms": "procgen is missing", "peak_GiB": 3.21},
    ]
    speed.RECORD.write_text(json.dumps({"cases": {"ppo_parts": {"rows": rows}}}))
    assert speed.make_ppo_table().splitlines()[2:] == [
        "| with the penalty, our kernels | 20.1 ms | 300 ms | **40,000** | 6.0 GiB |",
        "| plain, PyTorch’s kernels | 19.9 ms |  |  | 3.2 GiB |",
    ]
