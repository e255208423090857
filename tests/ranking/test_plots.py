import matplotlib as mpl
import numpy as np
import pytest
from scipy import stats

from effdeg.plots import THEMES
from effdeg.ranking import rank
from tests.ranking.pools import columns, grid_pool
from tests.test_plots import contrast

TABLE = columns(grid_pool())
TABLE |= {
    "constant": [1.0] * 27,
    "huge": [float(10 ** (100 * value)) for value in TABLE["noise 1"]],
    "extreme": [1e300 * value for value in TABLE["noise 1"]],
    "no $\\frac$ formula": TABLE["noise 3"],
}
MEASURES = ["noise 0.3", "noise 1", "noise 3", "huge", "extreme", "constant", "no $\\frac$ formula"]


@pytest.fixture(scope="module")
def ranking():
    return rank(TABLE, measures=MEASURES, resamples=100)


@pytest.mark.parametrize("theme", THEMES)
def test_panels_show_models_and_scores(ranking, theme, tmp_path):
    figure = ranking.plot(theme=theme)
    figure.savefig(tmp_path / "ranking.png")
    panels = {axes.get_title("left").split("\n")[0]: axes for axes in figure.axes}
    assert list(panels) == list(ranking.scores)
    axes, score = panels["noise 1"], ranking.scores["noise 1"]
    assert axes.get_title("left").split("\n")[1] == f"r = {score.pearson}, τ = {score.kendall.value:.2f}"
    points = axes.collections[-1]
    np.testing.assert_allclose(points.get_offsets(), np.stack([TABLE["noise 1"], TABLE["gap"]], axis=1))
    assert figure.get_facecolor() == mpl.colors.to_rgba(THEMES[theme].ground)
    for colour in points.get_facecolors():
        assert contrast(colour, THEMES[theme].ground) > 3
    # Models with larger gaps are lighter, whatever the theme.
    brightness = points.get_facecolors()[:, :3].mean(1)
    assert brightness[np.argmax(TABLE["gap"])] > brightness[np.argmin(TABLE["gap"])] + 0.1
    (text,) = panels["constant"].texts
    assert "constant: correlation undefined" in text.get_text()
    assert panels["extreme"].get_xlabel() == "× 10^299"  # the largest is 0.3 times 1e300
    assert panels["huge"].get_xscale() == "log"


def test_the_line_and_its_band(ranking):
    axes = ranking.plot(["noise 3"]).axes[0]
    x, y = np.array(TABLE["noise 3"]), np.array(TABLE["gap"])
    line = stats.linregress(x, y)
    at, drawn = axes.lines[0].get_data()
    np.testing.assert_allclose(drawn, line.intercept + line.slope * at)
    band = axes.collections[0].get_paths()[0].vertices
    error = np.sqrt(np.sum((y - line.intercept - line.slope * x) ** 2) / 25)
    half = stats.t(25).ppf(0.975) * error * np.sqrt(1 / 27 + (at - x.mean()) ** 2 / np.sum((x - x.mean()) ** 2))
    assert band[:, 1].max() == pytest.approx(np.max(drawn + half), rel=1e-4)
    assert band[:, 1].min() == pytest.approx(np.min(drawn - half), rel=1e-4)


def test_panels_wrap_at_four_columns(ranking):
    figure = ranking.plot(MEASURES)
    rows = {axes.get_subplotspec().rowspan.start for axes in figure.axes}
    columns = {axes.get_subplotspec().colspan.start for axes in figure.axes}
    assert (len(figure.axes), rows, columns) == (7, {0, 1}, {0, 1, 2, 3})
    assert len(ranking.plot(["noise 1"]).axes) == 1


def test_mistakes(ranking):
    with pytest.raises(ValueError, match=r"measure='noise 2' is not known. Did you mean"):
        ranking.plot(["noise 2"])
    with pytest.raises(ValueError, match=r"theme='drak' is not known. Did you mean 'dark'"):
        ranking.plot(theme="drak")
    with pytest.raises(ValueError, match="no measure to draw"):
        ranking.plot([])
