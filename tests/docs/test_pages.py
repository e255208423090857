"""The pages point to files that exist, list what there is, and their code runs."""

import ast
import math
import re
from pathlib import Path

import pytest
import torch

from effdeg import Penalty
from effdeg_lab import all_recipes

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "findings").glob("*.md")]
LINKED = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "experiments" / "README.md"]


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
    names = {}
    for block in _python_blocks(ROOT / "docs" / "text.md"):  # encoders, then language models
        exec(block, names)
        assert 0 < names.pop("degree") < math.inf
        assert 0 < names.pop("measured").value < math.inf
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
