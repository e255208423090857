from dataclasses import replace

import numpy as np
import pytest
from toy_results import METHODS, SHARES

from effdeg.plots import THEMES
from effdeg_lab.core.recipe import Method
from effdeg_lab.show.figures import Style, spread_apart, styles_of


def test_places_keep_their_distance_and_their_order():
    wanted = [0.5, 0.52, 0.1, 0.98, 0.99, 0.51]
    places = spread_apart(wanted, 0.06)
    assert np.argsort(places).tolist() == np.argsort(wanted).tolist()
    assert np.diff(sorted(places)).min() >= 0.06 - 1e-12
    assert (max(places), places[2]) == (1, 0.1)
    # Where there is no room they run over, but not into one another.
    assert np.diff(sorted(spread_apart([0.5] * 20, 0.1))).min() == pytest.approx(0.1)


def test_methods_have_one_color_each():
    styles = styles_of(METHODS, "dark")
    assert (styles["plain"], styles["ed"]) == (Style(THEMES["dark"].ink), Style(THEMES["dark"].simple))
    assert styles_of(SHARES, "dark")["half"].color == THEMES["dark"].simple
    assert len({style.color for style in styles.values()}) == len(styles)


def test_methods_that_share_a_color_differ_in_line_and_marker():
    methods = tuple(Method(str(place), "", {"batch": 1 + place}) for place in range(40))
    styles = styles_of(replace(METHODS, methods=methods, equal_time=None), "light").values()
    assert len({style.color for style in styles}) == 10
    for shape in ("line", "marker"):
        assert len({(style.color, getattr(style, shape)) for style in styles}) == 40
