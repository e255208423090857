import matplotlib as mpl
import numpy as np
import pytest
import torch

import effdeg
from effdeg.plots import THEMES
from tests.models import mlp

X = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))


def contrast(one, other):
    """The contrast ratio of two colors, as the web's accessibility guidelines define it."""

    def luminance(color):
        channels = np.array(mpl.colors.to_rgb(color))
        linear = np.where(channels <= 0.03928, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", THEMES)
def test_colors_can_be_read_on_their_ground_and_told_apart(theme):
    colors = THEMES[theme]
    assert contrast(colors.ink, colors.ground) > 7
    for color in (colors.simple, colors.complex, colors.steep):
        assert contrast(color, colors.ground) > 3
    # What a protanope and a deuteranope see of a blue and an orange differs in its blueness.
    blue, orange = (mpl.colors.to_rgb(color)[2] for color in (colors.simple, colors.complex))
    assert blue - orange > 0.4


@pytest.mark.parametrize("theme", THEMES)
def test_figures_show_what_was_measured(theme, tmp_path):
    trace = effdeg.trace(mlp(), X, paths=30, nodes=20)
    measured = trace.fit(degree=8)
    figure = trace.plot(degree=8, theme=theme)
    titles = [axes.get_title("left") for axes in figure.axes]
    assert "spectrum of 30 paths" in titles
    assert sum("path: effective degree" in title for title in titles) == 2
    spectrum = next(axes for axes in figure.axes if "spectrum" in axes.get_title("left")).lines[0].get_ydata()
    np.testing.assert_allclose(spectrum, measured.spectrum)
    assert figure.get_facecolor() == mpl.colors.to_rgba(THEMES[theme].ground)
    figure.savefig(tmp_path / "method.png")

    histogram = measured.plot(theme=theme).axes[1]
    assert f"{measured.value:.4g}" in histogram.get_title("left")
    assert sum(patch.get_height() for patch in histogram.patches[:40]) == 30

    comparison = effdeg.compare({"a": mlp(seed=0), "b": mlp(seed=1)}, X, paths=30, nodes=20, degree=8)
    axes = comparison.plot(theme=theme).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == comparison.ranking


def test_the_two_marked_paths_are_a_simple_and_a_complex_one():
    trace = effdeg.trace(mlp(), X, paths=50, nodes=20)
    titles = [axes.get_title("left") for axes in trace.plot(degree=8).axes]
    simple, complex_ = (float(title.split()[-1]) for title in titles if "path: effective degree" in title)
    per_path = trace.fit(degree=8).per_path
    assert simple < float(per_path.median()) < complex_


def test_the_plane_of_the_landscape_keeps_straight_lines_and_main_directions():
    stretched = X * torch.tensor([9.0, 4.0, 0.1, 0.1, 0.1, 0.1])
    trace = effdeg.trace(mlp(), stretched, paths=40, nodes=5)
    first = stretched[trace.pairs[:, 0], :2].double()
    second = stretched[trace.pairs[:, 1], :2].double()
    distance = (trace.ends[:, 0] - trace.ends[:, 1]).norm(dim=1)
    torch.testing.assert_close(distance, (first - second).norm(dim=1), rtol=0.05, atol=0.2)


def test_one_path_one_output_and_an_unknown_theme():
    trace = effdeg.trace(lambda x: x[:, :1] ** 2, X[:, :1], paths=1, nodes=20)
    assert trace.plot(degree=5, output="identity").axes
    spectrum, histogram = trace.fit(degree=5, output="identity").plot().axes
    assert spectrum.get_title("left") == "spectrum of a single path"
    assert "interval" not in spectrum.get_ylabel()
    assert histogram.get_title("left").endswith("95% interval none from a single path")
    assert len(histogram.lines) == 1
    assert not histogram.patches
    compared = effdeg.compare({"a": mlp(seed=0), "b": mlp(seed=1)}, X, paths=1, nodes=12, degree=5).plot()
    assert compared.axes[0].get_title("left") == "effective degree of the probabilities\nof a single path: no intervals"
    assert all(np.isfinite(line.get_xdata()).all() for axes in compared.axes for line in axes.lines)
    with pytest.raises(ValueError, match=r"theme='drak' is not known. Did you mean 'dark'"):
        trace.plot(degree=5, output="identity", theme="drak")


def test_the_readers_own_style_is_left_alone():
    before = dict(mpl.rcParams)
    effdeg.measure(mlp(), X, paths=5, nodes=5, degree=3).plot(theme="dark")
    assert dict(mpl.rcParams) == before
