import base64
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from effdeg.lab.report import result_of
from effdeg.lab.report.drawing import Drawing
from effdeg.lab.report.page import _figure, _svg, page
from effdeg.lab.report.shared_runs import run_and_not
from effdeg.lab.store import Store
from effdeg.plots import THEMES
from tests.lab.report.stores import METHODS, POOL, PRICES, add


class Reader(HTMLParser):
    """Checks that what is opened is closed, and collects text, anchors and what is referred to."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.anchors, self.references = [], [], set(), []

    def handle_starttag(self, tag, attrs):
        if tag not in {"meta", "img", "source", "br", "wbr"}:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                assert value not in self.anchors
                self.anchors.add(value)
            if name in {"href", "src", "srcset"}:
                self.references.append(value)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for row, accuracy in (("plain", 0.80), ("mixup", 0.85), ("ed", 0.84)):
        add(folder, METHODS, row, accuracy, epochs=10, step=1.0 if row != "ed" else 1.7)
    add(folder, METHODS, "mixup", 0.9, epochs=17)
    for row in ("plain", "sam"):
        add(folder, METHODS, row, 0.7, epochs=5)
    for weight, accuracy in ((7.0, 0.7), (20.0, 0.65)):
        add(folder, METHODS, "ed", accuracy, weight=weight, held_out=100, epochs=10)
    records = Store(folder).records()
    return page([result_of(recipe, records) for recipe in (METHODS, PRICES, POOL)])


@pytest.fixture(scope="module")
def read(written):
    reader = Reader()
    reader.feed(written)
    assert not reader.open
    return reader


def test_the_page_needs_nothing_else(written, read):
    for reference in read.references:
        assert reference.startswith("data:image/svg+xml;base64,") or reference[1:] in read.anchors
    assert "http" not in re.sub(r"base64,[A-Za-z0-9+/=]+", "", written)
    assert "<script" not in written
    assert "@import" not in written
    assert "url(" not in written


def test_the_page_says_it_all(read):
    text = " ".join(" ".join(read.text).split())
    for words in (
        "Three methods & a half",
        "ED is best.",
        "One seed: 2 of the 3 pairs that the paper tells apart stand in its order here, 2 of them by more than the "
        "paper's own spread.",
        "Against it, Mixup (85.00%) is above ED (84.00%), by more than the paper's own spread.",
        "≈ not decided",
        "The gap is training accuracy minus test accuracy",
        "its numbers beside those of 6 runs on Thinking Machine, after 2 that tuned strengths.",
        "80.00 ± 0.50",
        "In the time of ED (17 s), Mixup reaches 90.00% in 17 epochs",
        "The rate is not the paper's.",
        "Thinking Machine",
        "Tuning on 100 held-out training examples",
        "ED (tuning)",
        "Mixup, 17 epochs, α = 1: 90.00%",
        "Also at another scale: 5 epochs",
        "1 experiment of 3 was run",
        "effdeg lab sweep prices",
        "effdeg lab sweep pool",
        "torch 2.13",
        "SAM",
    ):
        assert words in text, words
    assert {"methods", "absent", "tuning", "runs"} <= read.anchors


def test_figures_are_drawn_for_light_and_dark(written, read):
    images = [reference for reference in read.references if reference.startswith("data:")]
    assert len(images) == written.count("<figure>") > 0
    for image in images:
        svg = base64.b64decode(image.partition(",")[2]).decode()
        assert "<svg" in svg
        light, dark = (dict(re.findall(r"(--c\d+): (#[0-9a-f]{6});", part)) for part in svg.split("@media")[:2])
        assert light.keys() == dark.keys() == {*re.findall(r"var\((--c\d+)\)", svg)}
        assert (THEMES["light"].ink, THEMES["dark"].ink) in {(light[name], dark[name]) for name in light}
        assert not re.search(r"(fill|stroke): #", svg)


def test_a_figure_whose_themes_differ_in_more_than_colours_is_kept_twice():
    def draw(theme):
        figure = Figure()
        figure.text(0.5, 0.5, theme)
        return figure

    html = _figure(Drawing("either", "in words", draw))
    assert html.count("data:image/svg+xml;base64,") == 2
    assert "(prefers-color-scheme: dark)" in html


def test_long_numbers_are_rounded_and_factors_are_not():
    def draw(theme):
        figure = Figure(figsize=(1, 1))
        figure.add_artist(Line2D([0.123456789, 0.2], [0.5, 0.6]))
        return figure

    svg = _svg(Drawing("line", "a line", draw), "light")
    assert 'd="M 8.89 36' in svg
    assert "8.888" not in svg


def test_titles_of_tables_do_not_scroll_with_them(written):
    assert "<caption" not in written
    assert '<p class="caption">At equal epochs: ' in written
    assert '</p><div class="wide"><table' in written


def test_what_shows_a_new_line_is_open(written):
    assert "<details open><summary>Also at another scale: 5 epochs" in written


def test_an_experiment_without_a_run_of_its_own_was_not_run(tmp_path):
    add(tmp_path, METHODS, "plain", 0.8)
    copy = replace(METHODS, name="copy", rows=METHODS.rows[:2])

    def results():
        return [result_of(recipe, Store(tmp_path).records()) for recipe in (METHODS, copy)]

    found = results()
    assert run_and_not(found) == (found[:1], [(found[1], "shares 1 run with methods")])
    text = page(found)
    assert "1 experiment of 2 was run" in text
    assert "Table 0 · shares 1 run with methods" in text
    assert 'id="copy"' not in text
    found = results()[::-1]
    assert run_and_not(found) == (found[:1], [(found[1], "shares 1 run with copy")])
    add(tmp_path, METHODS, "sam", 0.8)
    found = results()[::-1]
    assert run_and_not(found) == (found, [])


def test_only_data_from_a_folder_needs_one():
    images = replace(METHODS, settings=replace(METHODS.settings, data="cifar10"))
    assert "<code>effdeg lab sweep methods</code>" in page([result_of(METHODS, [])])
    assert "<code>effdeg lab sweep methods --data DIR</code>" in page([result_of(images, [])])


def test_the_same_runs_give_the_same_page(tmp_path):
    for row in ("plain", "ed"):
        add(tmp_path, PRICES, row, 0.8)
    pages = {page([result_of(PRICES, Store(tmp_path).records())]) for _ in range(2)}
    assert len(pages) == 1


def test_a_page_of_nothing():
    text = page([result_of(METHODS, [])])
    assert "0 experiments of 1 were run" in text
    assert "<figure>" not in text
