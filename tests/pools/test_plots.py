import matplotlib as mpl
import numpy as np
import pytest
from scipy import stats

from effdeg.plots import THEMES
from effdeg.pools import rank
from tests.pools.pools import columns, grid_pool
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


def test_panels_show_models_and_scores(ranking, tmp_path):
    theme = "dark"
    figure = ranking.plot(theme=theme)
    figure.savefig(tmp_path / "ranking.png")
    panels = {axes.get_title("left").split("\n")[0]: axes for axes in figure.axes}
    assert list(panels) == list(ranking.scores)
    axes, score = panels["noise 1"], ranking.scores["noise 1"]
    assert axes.get_title("left").split("\n")[1] == f"r = {score.pearson}, τ = {score.kendall.value:.2f}"
    points = axes.collections[-1]
    np.testing.assert_allclose(points.get_offsets(), np.stack([TABLE["noise 1"], TABLE["gap"]], axis=1))
    assert figure.get_facecolor() == mpl.colors.to_rgba(THEMES[theme].ground)
    for color in points.get_facecolors():
        assert contrast(color, THEMES[theme].ground) > 3
    assert len(points.get_facecolors()) == 1  # a color that varied would need a meaning
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


@pytest.mark.parametrize("letters", ["adaptive_sharpness_of_a_block", "$" * 29])
def test_long_names_keep_to_their_panels(letters, tmp_path):
    generator = np.random.default_rng(0)
    target = f"{letters}{letters}"
    table = {target: TABLE["gap"]} | {f"{letters}@{index}": generator.standard_normal(27) for index in range(5)}
    figure = rank(table, target=target, resamples=100).plot()
    figure.savefig(tmp_path / "long.png")  # which lays it out
    for axes in figure.axes:
        *lines, _ = axes.get_title("left").split("\n")
        assert max(map(len, lines)) <= 27
        name = "".join(lines)
        assert name[:3] == letters[:3]
        assert name[-2] == "@"
        assert ("…" in name) == ("_" not in letters)
        bounds = axes.get_window_extent()
        titled = axes._left_title.get_window_extent()
        assert titled.width < bounds.width
    label = figure.axes[0].yaxis.label
    assert label.get_window_extent().height < figure.axes[0].get_window_extent().height


def test_the_twelve_best_by_default():
    generator = np.random.default_rng(0)
    table = {"gap": TABLE["gap"]} | {f"m{index}": generator.standard_normal(27) for index in range(14)}
    ranking = rank(table, resamples=100)
    figure = ranking.plot()
    assert [axes.get_title("left").split("\n")[0] for axes in figure.axes] == list(ranking.scores)[:12]
    assert "12 best of 14" in figure.get_supxlabel()
    asked = ranking.plot(list(ranking.scores))
    assert len(asked.axes) == 14
    assert "best of" not in asked.get_supxlabel()


def test_a_measure_turned_round_has_a_logarithmic_axis_too(ranking, tmp_path):
    figure = rank(TABLE, measures=["-huge"], resamples=100).plot()
    figure.savefig(tmp_path / "turned.png")
    (axes,) = figure.axes
    assert axes.get_xscale() == "symlog"
    at = axes.lines[0].get_xdata()
    assert at.min() == pytest.approx(-max(TABLE["huge"]))
    assert at.max() == pytest.approx(-min(TABLE["huge"]))
    shown = axes.transData.transform(axes.collections[-1].get_offsets())[:, 0]
    assert np.ptp(np.diff(np.sort(shown))) < 0.5 * np.ptp(shown)  # not all but one at the same place


def test_the_caption_owns_that_the_band_knows_no_seeds():
    rows = columns(grid_pool(axes=2, copies=2))
    plain, shared = (
        rank(rows, measures=["noise 1"], hyperparameters=by, resamples=100) for by in ([], ["lr", "batch"])
    )
    assert "independent" not in plain.plot().get_supxlabel()
    assert "if models were independent" in shared.plot().get_supxlabel().replace("\n", " ")


def test_mistakes(ranking):
    with pytest.raises(ValueError, match=r"measure='noise 2' is not known. Did you mean"):
        ranking.plot(["noise 2"])
    with pytest.raises(ValueError, match="no measure to plot"):
        ranking.plot([])
