import ast
import math
import re
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from effdeg import Penalty, baselines
from tests.models import Counted

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted((DOCS / "results").glob("*.md"))]
LINKED = [*PAGES, *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "experiments/README.md"))]


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
    assert text.count("<!-- end -->") == len(re.findall(r"<!-- (?:table|number) [^>]* -->", text))
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
    return [dedent(block) for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_parse(page):
    assert all(ast.parse(block).body for block in _python_blocks(page))


def test_the_tutorial_runs():
    names = {}
    exec("\n".join(_python_blocks(DOCS / "getting-started.md")), names)
    assert names["comparison"].ranking == ["penalized", "slow", "fast"]
    assert names["choice"].best == "slow"
    printed = re.findall(r"^(\w+): ([\d.]+%)$", (DOCS / "getting-started.md").read_text(), re.MULTILINE)
    digits = names["digits"]
    for name, shown in printed:
        right = names["models"][name](digits.held_out).argmax(1) == digits.held_out_labels
        assert right.float().mean().item() == pytest.approx(float(shown.rstrip("%")) / 100, abs=0.01)
    assert len(printed) == 3


def test_the_page_on_text_runs():
    pytest.importorskip("transformers")
    names = {}
    for block in _python_blocks(DOCS / "text.md"):  # encoders, then language models
        exec(block, names)
        assert 0 < names.pop("degree") < math.inf
        assert 0 < names.pop("measured").value < math.inf
    assert names["penalty"].settings.pairs == 0.5


def test_the_page_on_fine_tuning_runs():
    names = {}
    exec("\n".join(_python_blocks(DOCS / "fine-tuning.md")), names)
    assert 0 < names["degree"] < math.inf
    curve, soup = names["curve"], names["soup"]
    assert [row["alpha"] for row in curve] == [step / 10 for step in range(11)]
    assert curve[-1] == {"alpha": 1.0, **names["evaluate"](names["end"])}
    assert soup.score >= max(names["evaluate"](weights)["test"] for weights in names["states"].values())
    for key, value in names["mean"].items():
        torch.testing.assert_close(value, (names["start"][key] + names["end"][key]) / 2)
        torch.testing.assert_close(value, names["halfway"][key])


def test_the_page_on_reinforcement_learning_runs():
    names = {}
    exec("\n".join(_python_blocks(DOCS / "reinforcement-learning.md")), names)
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


def test_every_relative_of_the_penalty_runs_as_many_batches_as_its_page_says():
    """With half as many pairs as examples, and as many unlabeled examples as labeled ones."""
    rows = re.findall(r"\| ([\d.]+) \| `(.+)` \|$", (DOCS / "relatives.md").read_text(), re.MULTILINE)
    assert len(rows) == 11
    for count, code in rows:
        model, teacher = (Counted(torch.nn.Linear(6, 10)) for _ in range(2))
        names = {"method": baselines.method, "ICT": baselines.ICT, "Penalty": Penalty, "model": model}
        x, y = torch.rand(8, 6), torch.arange(8)
        made = eval(code, names | {"teacher": teacher, "x": x, "u": torch.rand(8, 6)})
        if isinstance(made, baselines.Method):
            assert made.loss(model, *made.batch(x, y), torch.nn.functional.cross_entropy) < math.inf
        assert model.rows / 8 == float(count), code


def test_pages_are_short():
    words = {page: len(page.read_text().split()) for page in DOCS.rglob("*.md")}
    assert sum(words.values()) <= 22_000
    limits = {"README.md": 600, "CONTRIBUTING.md": 900, "CHANGELOG.md": 400}
    assert {name for name, most in limits.items() if len((ROOT / name).read_text().split()) > most} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_cells_are_short(page):
    rows = re.findall(r"^\|(.+)\|$", page.read_text(), flags=re.MULTILINE)
    cells = [cell for row in rows for cell in re.split(r"(?<!\\)\|", row)]
    assert [cell for cell in cells if len(re.sub("<!--.*?-->", "", cell).split()) > 20] == []


def test_every_table_and_figure_is_listed():
    text = (DOCS / "paper.md").read_text()
    items = [f"Table {number}" for number in range(1, 13)] + [f"Figure {number}" for number in range(1, 10)]
    assert [item for item in items if not re.search(rf"(^\| {item}:|Not run: .*{item} )", text, re.MULTILINE)] == []


def test_every_table_and_number_is_on_a_page(docs):
    text = "".join(page.read_text() for page in PAGES)
    marks = {kind: set(re.findall(rf"<!-- {kind} (.+?) -->", text)) for kind in ("table", "number")}
    assert set(docs("tables").TABLES) - marks["table"] == set()
    assert set(docs("tables").NUMBERS) - marks["number"] == set()


def test_every_figure_is_on_a_page():
    text = "".join(page.read_text() for page in PAGES)
    assert [file.name for file in (DOCS / "figures").iterdir() if file.name not in text] == []
