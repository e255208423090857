"""The pages say what the runs gave, and point to files that exist."""

import ast
import importlib
import itertools
import json
import math
import re
import statistics
from pathlib import Path

import numpy as np
import pytest
import torch

from effdeg import Penalty
from effdeg_lab import Run, all_recipes, find_recipe
from effdeg_lab.results import collect
from effdeg_lab.studies.random_pool import rank_within

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "findings").glob("*.md")]
LINKED = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "experiments" / "README.md"]


@pytest.fixture
def docs(monkeypatch):
    """Import a module of docs/, whose scripts import each other as files of one folder."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module


def broken_links(page):
    """Return what a page shows or links to, within the repository, that is not there."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    targets = re.findall(r"(?:src|srcset|href)=\"([^\"]+)\"|\]\(([^)\s]+)\)", text)
    local = ["".join(found) for found in targets if not re.match(r"[a-z]+:", "".join(found))]
    return [target for target in local if not _exists(page, target)]


def _exists(page, target):
    name, _, anchor = target.partition("#")
    file = page.parent / name if name else page
    return file.exists() and (not anchor or anchor in _anchors(file.read_text()))


def _anchors(text):
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_tables_are_those_of_the_results(docs):
    pages = docs("make_figures").render_pages()
    assert set(pages) == set(PAGES)
    for page, text in pages.items():
        assert text == page.read_text(), f"{page.name} is not what results/ give: python docs/make_figures.py tables"


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_mark_is_filled_and_every_link_leads_somewhere(page):
    text = page.read_text()
    assert not re.findall(r"<!-- (?!end)[^>]* -->\n?<!-- end -->", text)
    assert text.count("<!-- end -->") == len(re.findall(r"<!-- (?!end|TODO)[^>]* -->", text))
    assert broken_links(page) == []


def test_other_measures_of_a_pool_are_shown_at_the_radius_that_does_best(docs):
    kinds = {"sharpness@0.1": (1, 2, 0), "sharpness@1": (3, 2, 1), "adaptive_sharpness@1": (0, 0, 1)}
    kinds |= {"margin@10": (1, 2, 3), "margin@50": (3, 2, 1), "gap": (1, 2, 3)}
    kinds |= {"effective_degree": (3, 2, 1), "effective_degree_normalized": (1, 2, 3), "sharpness": (1, 2, 3)}
    rows = [{name: values[place] for name, values in kinds.items()} for place in range(3)]
    ours, others = "−1.00; normalized 1.00", "sharpness −0.50, adaptive sharpness 0.87, margin 1.00"
    assert docs("lab_tables")._format_pool("a pool", rows) == f"| a pool | {ours} | {others} |"


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "there.png").touch()
    (tmp_path / "other.md").write_text("# A heading: with §4.3\n")
    page = tmp_path / "page.md"
    page.write_text(
        '<source srcset="there.png"><source srcset="gone-dark.png"><img src="gone.png">\n'
        "![](there.png) ![text](gone-too.png) [a](other.md) [b](no.md) [c](other.md#a-heading-with-43)\n"
        "[d](other.md#no-such) [e](#mine) [f](#not-mine) [g](https://example.org/x.png) `[h](code.md)`\n"
        "## Mine\n```\n[i](code.md)\n```\n"
    )
    assert broken_links(page) == ["gone-dark.png", "gone.png", "gone-too.png", "no.md", "other.md#no-such", "#not-mine"]


def _python_blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_parse(page):
    assert all(ast.parse(block).body for block in _python_blocks(page))


def test_the_tutorial_runs():
    names = {}
    exec("\n".join(_python_blocks(ROOT / "docs" / "getting-started.md")), names)
    assert names["comparison"].ranking == ["simple", "plain"]


def test_the_page_on_text_runs():
    pytest.importorskip("transformers")
    (block,) = _python_blocks(ROOT / "docs" / "text.md")
    names = {}
    exec(block, names)
    assert 0 < names["degree"] < math.inf
    assert 0 < names["measured"].value < math.inf
    assert names["penalty"].settings.pairs == 0.5


def test_the_page_on_fine_tuning_runs():
    names = {}
    exec("\n".join(_python_blocks(ROOT / "docs" / "fine-tuning.md")), names)
    assert 0 < names["degree"] < math.inf
    curve, soup = names["curve"], names["soup"]
    assert [row["alpha"] for row in curve] == [step / 10 for step in range(11)]
    assert curve[-1] == {"alpha": 1.0, **names["evaluate"](names["end"])}
    assert soup.score >= max(soup.scores.values())
    assert not names["dominates"](*[[(row["test"], row["shifted"]) for row in curve]] * 2)
    for key, value in names["mean"].items():
        torch.testing.assert_close(value, (names["start"][key] + names["end"][key]) / 2)
        torch.testing.assert_close(value, names["halfway"][key])


def test_the_page_on_reinforcement_learning_runs():
    names = {}
    exec("\n".join(_python_blocks(ROOT / "docs" / "reinforcement-learning.md")), names)
    assert 0 < names["measured"].value < math.inf
    observations, trunk, critic_head = (names[name] for name in ("observations", "trunk", "critic_head"))
    assert len(names["values"]) == len(names["policy"].logits) == len(observations)
    assert len(names["hidden"]) == 3 * len(observations)  # what the page says about the cost
    own = Penalty(pairs=len(observations) // 2, anchor="self")
    assert len(own.points(observations).append_to(observations)) == 2 * len(observations)
    names["degree"].backward()
    assert critic_head.weight.grad is None
    assert trunk[0].weight.grad.abs().sum() > 0


def test_observations_and_actions_of_other_kinds():
    """What docs/reinforcement-learning.md says of dicts, masks, and actions that are not one choice."""
    x = {"frame": torch.rand(8, 3, 4, 4), "speed": torch.rand(8, 2), "possible": torch.rand(8, 5) > 0.5}
    points = Penalty(pairs=4).points(x)
    first, second = (x["possible"][end] for end in points.pairs.unbind(1))
    assert points.inputs["frame"].shape == (16, 3, 4, 4)
    assert torch.equal(points.inputs["possible"], (first | second).repeat_interleave(4, dim=0))
    with pytest.raises(TypeError, match="no straight line joins integers"):
        Penalty(pairs=4).points((255 * x["frame"]).byte())
    logits = torch.randn(16, 2, 3)
    flat = Penalty(output=lambda returned: torch.cat([part.softmax(-1) for part in returned.split((3, 3), -1)], -1))
    assert flat.degree(logits.flatten(1), points) == pytest.approx(Penalty().degree(logits, points).item())
    means = torch.randn(16, 2)
    for output, values in (("identity", means), (torch.tanh, means.tanh())):
        found = Penalty(output=output).degree(means, points)
        assert found == pytest.approx(Penalty(output="identity").degree(values, points).item())


def test_every_relative_of_the_penalty_runs_in_the_loop_of_its_page(docs):
    (block,) = _python_blocks(ROOT / "docs" / "relatives.md")
    members = [each.code for each in docs("relatives").MEMBERS if each.code.startswith("method(")]
    assert len(members) == 9
    for code in members:
        changed = re.sub(r"^way = method\(.*\)", f"way = {code}", block, flags=re.MULTILINE)
        names = {}
        exec(changed, names)
        assert f"way = {code}" in changed
        assert 0 < names["loss"] < math.inf


def test_the_relatives_cost_what_their_formulas_say(docs):
    """With half as many pairs as examples, 3 or 4 nodes, and as many unlabeled examples as labeled ones."""
    costs = {each.name.strip("*"): docs("relatives").count_examples(each.code) for each in docs("relatives").MEMBERS}
    assert costs.pop("ED with labels, 3 nodes") == (1 + 0.5 * 1, 0)
    assert costs.pop("ED without anchors") == (1 + 0.5 * 4, 0)
    assert costs.pop("plain") == costs.pop("mixup") == (1, 0)
    assert costs.pop("ICT") == costs.pop("ED with a teacher") == (2, 1)
    assert len(costs) == 5
    assert set(costs.values()) == {(2, 0)}


def test_the_figure_of_the_relatives_shows_their_targets(docs):
    relatives = docs("relatives")
    slopes = torch.arange(-2, 15, dtype=torch.float64) / 10
    least = {anchor: relatives.find_degrees(slopes, anchor) for anchor in ("labels", "self", None)}
    assert [round(float(slopes[each.index(min(each))]), 1) for each in least.values()] == [1.0, 0.4, 0.0]
    p = torch.arange(1, 20, dtype=torch.float64) / 20
    found = {
        name: [loss(torch.stack([torch.zeros(()), logit])[None]).item() for logit in torch.logit(p)]
        for name, loss in relatives.find_losses().items()
    }
    assert len(found) == 5
    for name, losses in found.items():
        assert float(p[losses.index(min(losses))]) == pytest.approx(0.3), name
    # |Δ| over both classes is 2, and 2 |p − t| in both; α (1 − α) is 0.21.
    assert found["absolute: L1 mixup"] == pytest.approx([2 * abs(each - 0.3) for each in p.tolist()])
    assert found["ED, 3 nodes"] == pytest.approx([1 + 2 * abs(each - 0.3) / 0.84 for each in p.tolist()])


def test_the_choice_among_five_is_that_of_all_sets_of_five(docs):
    which_model = docs("which_model")
    # The last does not fit. A measure with a minus chooses the largest value.
    values = [
        (1.0, 0.5, 70),
        (0.99, 2.0, 80),
        (1.0, 3.0, 90),
        (1.0, 1.0, 60),
        (1.0, 4.0, 75),
        (1.0, 0.7, 85),
        (0.5, 0.0, 95),
    ]
    models = [
        dict.fromkeys((name.lstrip("-") for name in which_model.MEASURES), value)
        | {"train_accuracy": train, "test_accuracy": test / 100}
        for train, value, test in values
    ]
    rows = which_model.make_choice_table({"MLP": models}).splitlines()
    sets = list(itertools.combinations(values[:-1], 5))

    def average(choose):
        return statistics.fmean(choose(each)[2] for each in sets)

    best, chance = (
        average(lambda each: max(each, key=lambda model: model[2])),
        statistics.fmean([70, 80, 90, 60, 75, 85]),
    )
    for name, choose in (("total_variation", min), ("-margin@50", max)):
        mean = average(lambda each, choose=choose: choose(each, key=lambda model: model[1]))
        assert f"| `{name}` | {mean:.1f}% ({(mean - chance) / (best - chance):.0%}) |" in rows
    assert "| `entropy_test` | – |" in rows
    assert rows[-2:] == [f"| test accuracy itself | {best:.1f}% |", f"| chance | {chance:.1f}% |"]


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= 900


def _map():
    """Return the rows of docs/paper.md, by the table or figure they begin with: all cells but the first."""
    rows = re.findall(r"^\| ((?:Table|Figure) \d+): (.+) \|$", (ROOT / "docs" / "paper.md").read_text(), re.MULTILINE)
    return {name: cells.split(" | ")[1:] for name, cells in rows}


def test_every_table_figure_and_recipe_is_listed():
    expected = [f"Table {number}" for number in range(1, 13)] + [f"Figure {number}" for number in range(1, 10)]
    assert list(_map()) == expected
    text = (ROOT / "docs" / "beyond.md").read_text()
    assert [name for name in all_recipes() if f"`{name}`" not in text] == []


def test_the_papers_map_says_what_was_run(docs):
    """Rows without runs are not called done, nor those with runs not run; without the first method they are begun."""
    lab_tables = docs("lab_tables")
    for name, (listed, _, status) in _map().items():
        recipes = [each for each in re.findall(r"`([\w-]+)`", listed) if each in all_recipes()]
        if recipes and "," not in status:
            done = {"done", "done smaller"} if lab_tables.was_compared(recipes[0]) else {"begun"}
            assert status in (done if lab_tables.was_run(recipes[0]) else {"not run"}), name
        if not recipes:
            assert status == "done", name


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

    rivals = [case(model, plain=4.0, sam=8.0) for model in ("ResNet-18", "ViT-Tiny")]
    cases = {"rival_costs": {"detail": "how", "rows": [row for each in rivals for row in each["rows"]]}}
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
    monkeypatch.setattr(throughput.speed, "read_rows", lambda _: rows)
    hours = 90 * 1_281_167 / 4000 / 3600
    found = throughput.make_hours()
    assert f"| strong | 1 | {hours:.1f} | {2 * hours:.1f} |" in found
    assert f"| original | 8 | {hours / 8:.1f} | {hours / 4:.1f} |" in found
    assert f"| **all of Table 3, 3 seeds** | 1 | | **{18 * hours:.0f}** |" in found
    assert "| strong | 1,024 | compiled, captured | plain | 4,000 | 256.0 | 10.0 GiB |" in throughput.make_table()
    # What does not fit is said, and there is no total.
    rows[1] = {key: rows[1][key] for key in ("recipe", "batch", "captured", "method")} | {"error": "out of memory"}
    assert "| original | 1 | 8.0 | not measured |" in throughput.make_hours()
    assert throughput.make_hours().count("all of Table 3") == 1
    assert "| does not fit |" in throughput.make_table()
    monkeypatch.setattr(throughput.speed, "read_rows", lambda _: [])
    assert not throughput.is_measured()


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
    """Where this changes, so must the sentences of which-model.md."""
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
    assert all(read_interval(rows[name][2])[1] > 0.6 for name in ("sharpness@0.01", "-confidence_test", "entropy_test"))
    assert find_sign(rows["parameter_norm"][0]) == find_sign(rows["distance"][0]) == -1
    assert all(read_interval(together)[0] > read_interval(rows[name][1])[1] for name in ("sharpness@0.01", "distance"))
    assert min(model["train_accuracy"] for model in docs("lab_tables").pool("cifar10-random-pool").models) > 0.99

    choices = docs("lab_tables").fill("which-model choice").splitlines()
    shares = {line.split(" | ")[0].strip("| `"): re.findall(r"\((-?\d+)%\)", line) for line in choices}
    assert [int(share) > 80 for share in shares["effective_degree_normalized_test"]] == [True, False, True, False]
    assert max(int(share) for share in shares["effective_degree_normalized_test"][1::2]) < 0
    assert 25 <= int(shares["-confidence_test"][0]) <= 45
    for name in ("total_variation", "decision_regions"):
        assert min(int(share) for share in shares[name]) >= 0
        assert min(int(share) for share in shares[name][::2]) > 75

    pearson = {row[0]: find_sign(row[1]) for row in tables("finetune-pool")[0].rows}
    names = ("effective_degree_normalized_test@1", "sharpness@0.1", "parameter_norm")
    assert [pearson[name] for name in names] == [1, -1, 0]
    assert not any(find_sign(row[4]) for row in tables("finetune-pool")[0].rows)  # Kendall's τ without mixup
    rows = {row[0]: row[1:] for row in tables("finetune-pool")[3].rows}
    assert next(iter(rows)) == "distance"
    fitted = {name: find_sign(cells[2]) for name, cells in rows.items() if "degree" in name or "sharpness" in name}
    assert len(fitted) == 5
    assert not any(fitted.values())
    assert find_sign(rows["distance"][2]) == 0
    assert docs("lab_tables").judge("finetune-pool").reason is not None  # training accuracy explains as much
    models = docs("lab_tables").pool("finetune-pool").models
    models = [{**model, "smoothed": model["smoothing"] > 0} for model in models]
    fitted = [model for model in models if model["train_accuracy"] >= 0.99]
    mixed = [model["recipe"] == "with mixup" for model in models if model not in fitted]
    assert sum(mixed) >= 0.9 * len(mixed)
    scores = rank_within(fitted, list(names[:2]), ["recipe", "smoothed"]).scores
    assert not any(each.kendall.interval[0] > 0 or each.kendall.interval[1] < 0 for each in scores.values())


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
    """Where this changes, so must the sentences of which-model.md."""
    models = [{**model, "width": read_width(model)} for model in docs("lab_tables").pool("cifar10-random-pool").models]
    scores = rank_within(models, ("-width", "sharpness@0.01", "-confidence_test"), ["recipe"]).scores
    assert max(scores, key=lambda name: scores[name].kendall.value) == "-width"
    for recipe, most in (("without mixup", 0.8), ("with mixup", 0.5)):
        inside = [model for model in models if model["recipe"] == recipe]
        gaps = np.array([model["gap"] for model in inside])
        left = regress_out(gaps, inside)
        assert left.var() < 0.2 * gaps.var()

        def correlate(name, inside=inside, left=left):
            values = np.array([model[name] for model in inside])
            return np.corrcoef(regress_out(values, inside), left)[0, 1]

        assert min(map(correlate, ("effective_degree_normalized_test", "effective_degree_normalized_test@1"))) > 0.9
        assert max(correlate("sharpness@0.01"), -correlate("confidence_test")) < most


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
    best = max(soups.rows, key=lambda row: float(row[-1]))
    assert best[0] == "Mixup: uniform soup"
    under_shifts = {row[0]: float(row[-1]) for row in soups.rows}
    assert under_shifts["ED: uniform soup"] > under_shifts["Plain (LP-FT): uniform soup"]
    assert under_shifts["ED, own ends: greedy soup"] < under_shifts["Plain (LP-FT): greedy soup"]


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
