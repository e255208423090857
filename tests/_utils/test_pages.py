"""One look: the style sheet of the pages has the colors of the figures, the site and the live picture have the same."""

import re
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

import pytest

from effdeg.io import render_html
from effdeg.plots import THEMES
from tests.test_plots import contrast

SHEETS = {name: files("effdeg._utils").joinpath(name).read_text() for name in ("colors.css", "page.css")}
DOCS = Path(__file__).parents[2] / "docs"


def read_colors(sheet):
    found = re.findall(r"--(\w+):.*light-dark\((#\w{6}), (#\w{6})\)", sheet)
    return {"light": {name: light for name, light, _ in found}, "dark": {name: dark for name, _, dark in found}}


COLORS = read_colors(SHEETS["colors.css"])


@pytest.mark.parametrize("theme", THEMES)
def test_pages_have_the_colors_of_the_figures(theme):
    shared = asdict(THEMES[theme]).items() & COLORS[theme].items()
    assert {name for name, _ in shared} == {"ground", "ink", "faint", "simple", "complex"}


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("ground", ["ground", "tint"])
def test_text_can_be_read(theme, ground):
    colors = COLORS[theme]
    texts = colors.keys() - {"ground", "tint", "faint", "complex"}
    assert texts == {"ink", "muted", "simple", "link", "good", "bad", "open"}
    assert {name for name in texts if contrast(colors[name], colors[ground]) < 4.5} == set()


def test_colors_are_declared_once():
    """What the site and the pages use is declared, and they have no colors of their own."""
    declared = set(re.findall(r"^ +--(\w+):", SHEETS["colors.css"], re.MULTILINE))
    used = {file.name: file.read_text() for file in (DOCS / "conf.py", DOCS / "_static" / "site.css")}
    used["page.css"] = SHEETS["page.css"]
    for name, text in used.items():
        names = {each for each in re.findall(r"var\(--([\w-]+)", text) if not each.startswith(("color-", "font-"))}
        assert names <= declared | {"width"}, name
        # The backgrounds of added and removed lines are those of the site's code.
        assert not [line for line in text.splitlines() if re.search(r"#[0-9a-f]{6}\b", line) and "span.g" not in line]
    assert declared <= set(re.findall(r"var\(--([\w-]+)", "".join(used.values())))


@pytest.mark.parametrize("theme", THEMES)
def test_the_live_picture_has_the_same_colors(theme):
    """Its style sheet repeats them, since it also works without the site."""
    live = read_colors((DOCS / "live" / "live.css").read_text())[theme]
    names = {"mixup": "complex", "ed": "simple"}
    own = {names.get(name, name): color for name, color in live.items()}
    assert own.keys() == {"ink", "muted", "faint", "ground", "simple", "complex"}
    assert own.items() <= COLORS[theme].items()


def test_a_page_brings_its_style_and_escapes_text():
    template = (
        '{% extends "page.html.j2" %}{% set title = "A & b" %}{% set program = "p" %}'
        "{% block lead %}<p>{{ words }}</p>{% endblock %}{% block main %}<h2>Part</h2>{% endblock %}"
    )
    page = render_html(template, words="<script>")
    assert all(sheet.strip() in page for sheet in SHEETS.values())
    for part in ("<h1>A &amp; b</h1>", "<p>&lt;script&gt;</p>", "<h2>Part</h2>", "Written by <code>p</code>, effdeg "):
        assert part in page
    assert not re.search(r"(src|href|url\()", page)
