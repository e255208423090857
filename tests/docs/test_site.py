"""The site: every public name is in its reference, every page in its contents, and what Sphinx is given can be read."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from tests.test_docstrings import PACKAGES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXAMPLES = sorted((DOCS / "gallery").glob("plot_*.py"))


def read_reference(text):
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


def test_every_page_is_in_the_contents():
    index = "".join((DOCS / name).read_text() for name in ("index.md", "results/index.md"))
    listed = re.findall(
        r"^(?:.* <)?([\w/-]+)>?$", "".join(re.findall(r"{toctree}(.*?)```", index, flags=re.DOTALL)), re.M
    )
    pages = {page.stem for page in DOCS.glob("*.md")} - {"index", "README"}
    pages |= {f"contributing/{page.stem}" for page in (DOCS / "contributing").glob("*.md")}
    pages |= {page.stem for page in (DOCS / "results").glob("*.md")} - {"index"}
    assert {*listed} - {"examples/index", "api/index", "results/index"} == pages
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
    results = adapt("[a](digits.md) [b](../lab.md)", DOCS / "results" / "page.md")
    assert results == "[a](/results/digits.md) [b](/lab.md)"


def test_sections_of_other_files(docs):
    fill_blocks = docs("site_pages").fill_blocks
    glossary = fill_blocks("# Words\n```{page} CONTRIBUTING.md#glossary\n```\n")
    assert "| word | meaning |" in glossary
    assert "Architecture" not in glossary
    assert "\n## The experiments" in fill_blocks("```{page} CONTRIBUTING.md#architecture\n```")  # one level up
    programs = fill_blocks("```{programs}\n```")
    assert programs.count("{literalinclude}") == len(list((ROOT / "examples").glob("*.py")))


def test_the_live_picture_is_embedded(docs):
    html = docs("site_pages").fill_blocks("# Title\n```{live}\n```\n")
    assert html.startswith(
        '# Title\n````{raw} html\n<link rel="stylesheet" href="_static/live.css">\n<div class="effdeg-live">'
    )
    assert 'src="_static/live.js"' in html
    assert "<body" not in html


def test_bars_are_escaped_but_not_in_examples(docs):
    lines = ["Σ |c_k|, ``a | b``", "", ">>> 1 | 2", "3 | x", "", "|w|"]
    docs("site_pages").escape_bars(None, "function", "f", None, None, lines)
    assert lines == [r"Σ \|c_k\|, ``a | b``", "", ">>> 1 | 2", "3 | x", "", r"\|w\|"]


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


def test_the_check_of_a_site(docs, tmp_path):
    find_problems = docs("check_site").find_problems
    page = tmp_path / "index.html"
    page.write_text(
        '<a href="https://example.org">b</a> <link rel="canonical" href="https://x"> <img src="a.png" alt="A picture">'
    )
    assert find_problems(tmp_path) == []
    page.write_text(
        '<script src="https://cdn.org/x.js"></script> <img src="a.png"><img src="b.png" alt="b.png">'
        '<img src="c.png" alt="">'
    )
    (tmp_path / "a.css").write_text("@import url(https://fonts.org/a.css); p {background: url('https://b.org/b.png')}")
    assert find_problems(tmp_path) == [
        "index.html loads https://cdn.org/x.js",
        "index.html shows a.png without a text",
        "index.html shows b.png without a text",
        "a.css loads @import url(https://fonts.org/a.css)",
        "a.css loads url('https://b.org/b.png'",
    ]
