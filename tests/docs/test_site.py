"""The site: every public name is in its reference, every page in its contents, and what Sphinx is given can be read."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from effdeg_lab import all_recipes
from tests.test_docstrings import PACKAGES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXAMPLES = sorted((DOCS / "gallery").glob("plot_*.py"))


def read_reference(text):
    """Return the full names that a page of the reference describes."""
    module, found = "", []
    for directive, name in re.findall(r"^\.\. (\w+):: (\S+)$", text, flags=re.MULTILINE):
        if directive in {"currentmodule", "automodule"}:
            module = name
        elif directive.startswith("auto"):
            found.append(name if name.startswith("effdeg") else f"{module}.{name}")
    return found


def find_object(name):
    """Return what a full name stands for: ``effdeg.measure`` is a function, and a module that has names, too."""
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def list_public_names():
    for package in [*PACKAGES, "effdeg.pools", "effdeg_lab"]:
        module = importlib.import_module(package)
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == package]
        names = getattr(module, "__all__", [name for name in own if not name.startswith("_")])
        yield from (f"{package}.{name}" for name in names)


def test_every_public_name_is_in_the_reference():
    described = [name for page in (DOCS / "api").glob("*.rst") for name in read_reference(page.read_text())]
    assert sorted({name for name in described if described.count(name) > 1}) == []
    objects = [find_object(name) for name in described]
    # A constant is found by its name, as numbers are equal; modules have pages of their own, the version a sentence.
    missing = [
        name
        for name in list_public_names()
        if name not in described
        and not (hasattr(find_object(name), "__qualname__") and any(find_object(name) is each for each in objects))
        and type(find_object(name)).__name__ != "module"
        and name != "effdeg.__version__"
    ]
    assert missing == []


def test_a_missing_name_would_be_noticed():
    page = ".. currentmodule:: effdeg\n\n.. autofunction:: measure\n.. autoclass:: effdeg.train.Penalty\n   :members:\n"
    assert read_reference(page) == ["effdeg.measure", "effdeg.train.Penalty"]
    assert "effdeg.baselines.mixup" in list_public_names()


def test_every_page_is_in_the_contents():
    index = (DOCS / "index.md").read_text()
    listed = re.findall(
        r"^(?:.* <)?([\w/-]+)>?$", "".join(re.findall(r"{toctree}(.*?)```", index, flags=re.DOTALL)), re.M
    )
    pages = {page.stem for page in DOCS.glob("*.md")} - {"index", "README"}
    pages |= {f"contributing/{page.stem}" for page in (DOCS / "contributing").glob("*.md")}
    assert {*listed} - {"examples/index", "api/index"} == pages
    reference = (DOCS / "api" / "index.md").read_text()
    assert {page.stem for page in (DOCS / "api").glob("*.rst")} == {*re.findall(r"^(\w+)$", reference, re.M)}


def test_links_and_pictures_for_sphinx(docs):
    adapt = docs("site_pages").adapt
    page = (
        '<picture>\n<source srcset="figures/a-dark.png" media="x"><img alt="A text." src="figures/a-light.png">\n'
        "</picture>\n<!-- number x; y -->0.97<!-- end --> [a](lab.md#b) [`code`](../examples/plain_loop.py) "
        "[c](../experiments/README.md)\n"
        "[d](../results) [e](https://example.org) [f](#here) `[g](../h)`\n"
        "<!-- table -->\n| a |\n|---|\n<!-- end -->\n```\n[i](j.md) <!-- k -->\n```\n"
    )
    assert adapt(page, DOCS / "page.md") == (
        "![A text.](/figures/a-light.png){.only-light}\n![A text.](/figures/a-dark.png){.only-dark}\n"
        "0.97 [a](/lab.md#b) [`code`](/programs.md#plain-loop) [c](/experiments.md)\n"
        "d [e](https://example.org) [f](#here) `[g](../h)`\n"
        "\n| a |\n|---|\n\n```\n[i](j.md) <!-- k -->\n```\n"
    )
    assert adapt("[a](../docs/relatives.md)", ROOT / "experiments" / "README.md") == "[a](/relatives.md)"
    links = "[a](findings/table-1.md) [b](findings/digits-methods.md)"  # GitHub's readers find what was found
    assert adapt(links, DOCS / "page.md") == "[a](/paper/table-1.md) [b](/beyond/digits-methods.md)"


def test_sections_of_other_files(docs):
    fill_blocks = docs("site_pages").fill_blocks
    glossary = fill_blocks("# Words\n```{page} CONTRIBUTING.md#glossary\n```\n")
    assert "| word | meaning |" in glossary
    assert "Architecture" not in glossary
    assert "\n## The experiments" in fill_blocks("```{page} CONTRIBUTING.md#architecture\n```")  # one level up
    programs = fill_blocks("```{programs}\n```")
    assert programs.count("{literalinclude}") == len(list((ROOT / "examples").glob("*.py")))


def test_the_live_picture_is_embedded(docs, tmp_path, monkeypatch):
    pages = docs("site_pages")
    monkeypatch.setattr(pages, "LIVE", tmp_path / "live.html")
    assert pages.fill_blocks("```{live}\n```").count("![") == 2  # a figure while there is none
    pages.LIVE.write_text(
        '<html><head><link rel="stylesheet" href="live.css"><style>body { margin: 0 }</style></head>'
        '<body class="x"><div>picture</div><script src="live.js" defer></script></body></html>'
    )
    found = pages.fill_blocks("# Title\n```{live}\n```\n")
    assert found == (
        '# Title\n````{raw} html\n<link rel="stylesheet" href="_static/live.css">'
        '<div>picture</div><script src="_static/live.js" defer></script>\n````\n'
    )


def test_bars_are_escaped_but_not_in_examples(docs):
    lines = ["Σ |c_k|, ``a | b``", "", ">>> 1 | 2", "3 | x", "", "|w|"]
    docs("site_pages").escape_bars(None, "function", "f", None, None, lines)
    assert lines == [r"Σ \|c_k\|, ``a | b``", "", ">>> 1 | 2", "3 | x", "", r"\|w\|"]


def test_every_item_of_the_paper_has_a_page(docs):
    pages = docs("paper_pages")
    names = [item.name for item in pages.read_items()]
    assert sorted(names) == sorted([f"Table {n}" for n in range(1, 13)] + [f"Figure {n}" for n in range(1, 10)])
    linked = pages.link_items((DOCS / "paper.md").read_text())
    assert linked.count("](/paper/") == len(names)
    assert "[Table 12](/paper/table-12.md): polynomial networks" in linked


@pytest.mark.parametrize(
    ("paper", "kind", "numbers"),
    [
        ("Tables 5 and 10, appendix C.1", "Table", ["5", "10"]),
        ("Figures 2 and 9, appendices C.1 and D.1", "Figure", ["2", "9"]),
        ("Figures 2 and 9, appendices C.1 and D.1", "Table", []),
        ("Table 4, appendix F.4", "Table", ["4"]),
        ("Table 2, Figure 5, section 6.2", "Table", ["2"]),
        ("Table 2, Figure 5, section 6.2", "Figure", ["5"]),
        ("Appendix F.1 and Tables 1 and 10 (their setting)", "Table", []),
        ("none; the methods of Table 1", "Table", []),
    ],
)
def test_recipes_name_what_they_reproduce(docs, paper, kind, numbers):
    assert docs("paper_pages")._list_numbers(paper, kind) == numbers


def test_pages_of_the_paper_have_its_numbers_and_ours(docs):
    pages = docs("paper_pages")
    items = {item.name: item for item in pages.read_items()}
    legendre = pages.render(items["Table 6"])
    assert "effdeg-lab sweep cifar10-basis --data DIR" in legendre
    assert re.search(r"^\| Legendre \| 89\.89 ± 1\.29 \| not run \|", legendre, re.M)
    assert "Nothing of its own was run" in legendre
    assert re.search(r"^\| ED \| 72\.76 ± 0\.16 \| not run \|$", pages.render(items["Table 3"]), re.M)
    halves = pages.render(items["Table 11"])
    tables = docs("lab_tables").format_tables("mnist-cifar")
    assert all(line in halves for line in tables.splitlines() if line.startswith("| "))
    assert "Verdict: **holds**" in halves
    assert "![" in halves


def test_pages_have_what_was_found(docs):
    pages = docs("paper_pages")
    items = {item.name: item for item in pages.read_items()}
    assert {item.page for item in items.values()} | set(all_recipes()) >= {
        file.stem for file in pages.FINDINGS.glob("*.md")
    }
    first = pages.render(items["Table 1"])
    assert "\n## What we found\n\n- **At the paper's 300 epochs**" in first
    assert "](../findings/cifar10-contest.md)" in first
    # A recipe of two items is shown by the first of them.
    random_pixels = pages.render(items["Figure 9"])
    assert "those of [Figure 2](/paper/figure-2.md)" in random_pixels
    assert "effdeg-lab sweep" not in random_pixels
    beyond = pages.render_recipe("cifar10-fused")
    assert beyond.startswith("# Our kernels against PyTorch's\n\n[All recipes](/beyond.md).\n\nRuns with average")
    assert "effdeg-lab sweep cifar10-fused --data DIR" in beyond
    assert "| our kernels | 82.48 |" in beyond


def test_links_of_the_index_lead_to_the_same_pages_from_below(docs):
    lower = docs("paper_pages")._lower_links
    assert (
        lower("[a](b.md#c) [d](../e.md) [f](findings/g.md)") == "[a](../b.md#c) [d](../../e.md) [f](../findings/g.md)"
    )


def test_figures_of_the_paper_are_drawn(docs):
    pages, results = docs("paper_pages"), docs("lab_tables").results
    drawn, caption = pages.show_figures(results("cifar10-methods"))
    assert re.match(r'```{raw} html\n<figure class="drawn">\n<svg role="img" aria-label="[^"<]{20,}" ', drawn)
    assert "light-dark(" in drawn
    assert caption.startswith("*")
    shown, *_ = pages.show_figures(results("mnist-cifar"))
    for theme in ("light", "dark"):
        assert f"](/figures/mnist-cifar-halves-{theme}.png){{.only-{theme}}}" in shown


def test_rooms_stand_above_what_they_import(docs):
    rooms = docs("rooms")
    imports = rooms.read_imports()
    assert imports["functional"] == {"_utils"}
    assert "plots" not in imports["measuring"]  # only late
    assert "pools" in imports["cli"]  # late, as all that the command line imports
    floors = rooms.place(rooms.reduce(imports))
    level = {room: number for number, floor in enumerate(floors) for room in floor}
    assert all(level[room] < level[each] for room, found in imports.items() for each in found)
    assert rooms.reduce({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": {"b"}, "b": {"c"}, "c": set()}
    drawn = rooms.draw()
    assert all(f">{room}</text>" in drawn for room in imports)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_has_a_title_and_a_text_for_its_figure(file):
    tree = ast.parse(file.read_text())
    title, line = ast.get_docstring(tree).splitlines()[:2]
    assert line == "=" * len(title)
    names = {
        each.targets[0].id: each.value
        for each in tree.body
        if isinstance(each, ast.Assign) and hasattr(each.targets[0], "id")
    }
    assert len(ast.literal_eval(names["ALT"])) > 40


def test_there_are_examples_enough():
    assert 8 <= len(EXAMPLES) <= 12


def test_the_check_of_a_site(docs, tmp_path):
    find_problems = docs("check_site").find_problems
    (tmp_path / "there.html").write_text('<p id="here"><img src="a.png" alt="A picture"></p>')
    (tmp_path / "a.png").touch()
    page = tmp_path / "index.html"
    page.write_text(
        '<a href="there.html#here">a</a> <a href="https://example.org">b</a> <link rel="canonical" href="https://x">'
    )
    assert find_problems(tmp_path) == []
    page.write_text(
        '<script src="https://cdn.org/x.js"></script> <a href="there.html#gone">a</a> <a href="gone.html">b</a>'
        '<img src="a.png"><img src="a.png" alt="a.png"><img src="a.png" alt="">'
    )
    (tmp_path / "a.css").write_text(
        "@import url(https://fonts.org/a.css); p { background: url('https://b.org/b.png') }"
    )
    assert find_problems(tmp_path) == [
        "index.html loads https://cdn.org/x.js",
        "index.html shows a.png without a text",
        "index.html shows a.png without a text",
        "index.html links to there.html#gone, which is not there",
        "index.html links to gone.html, which is not there",
        "a.css loads @import url(https://fonts.org/a.css)",
        "a.css loads url('https://b.org/b.png'",
    ]
