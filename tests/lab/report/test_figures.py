import pytest

from effdeg.lab import all_recipes
from effdeg.lab.report import result_of
from effdeg.lab.report.figures import colours_of, drawings, plot_accuracies, plot_curves, plot_degrees, plot_prices
from effdeg.lab.store import Store
from effdeg.plots import THEMES
from tests.lab.report.stores import METHODS, PRICES, add


@pytest.fixture
def block(tmp_path):
    for seed in (0, 1):
        add(tmp_path, METHODS, "plain", 0.80 + seed / 100, seed=seed)
        add(tmp_path, METHODS, "ed", 0.84 + seed / 100, step=2.0, degree=0.3, seed=seed)
    add(tmp_path, METHODS, "plain", 0.82, epochs=40)
    return next(block for block in result_of(METHODS, Store(tmp_path).records()).blocks if block.epochs == 20)


def lines(axes, colour, *, marked=False):
    """Give what was drawn in a colour as strongly as means are: lines, or their marked ends."""
    drawn = [line for line in axes.lines if line.get_color() == colour and line.get_linewidth() > 1]
    return [line.get_xydata().tolist() for line in drawn if (len(line.get_xdata()) == 1) == marked]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_curves_are_means_over_seeds(block, theme):
    by_epoch, by_time = plot_curves(block, theme=theme).axes
    ink = colours_of(METHODS, theme)["ed"]
    (curve,) = lines(by_epoch, ink)
    assert curve == [[epoch, pytest.approx(84.5 * epoch / 20)] for epoch in (5, 10, 15, 20)]
    (curve,) = lines(by_time, ink)
    assert [x for x, _ in curve] == [10, 20, 30, 40]
    assert lines(by_time, ink, marked=True) == [[[40, pytest.approx(84.5)]]]
    assert {text.get_text() for text in by_epoch.texts} == {"Baseline 80.50", "ED 84.50"}
    assert by_time.get_xlabel() == "seconds of training on Thinking Machine"


def test_degrees(block):
    (axes,) = plot_degrees(block).axes
    (curve,) = lines(axes, colours_of(METHODS, "light")["ed"])
    assert curve == [[epoch, pytest.approx(0.3)] for epoch in (5, 10, 15, 20)]
    assert axes.get_ylim()[0] == 0


def test_the_paper_beside_ours(block):
    figure = plot_accuracies(block)
    (axes,) = figure.axes
    points = sorted(line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 1)
    assert points == pytest.approx([80, 80.1, 80.5, 82, 82, 84, 84.5])  # one of the 82 is at equal time
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Baseline", "Mixup", "SAM", "ED"]
    assert [text.get_text() for text in axes.texts] == ["not run", "not run"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["paper", "here", "at equal time"]


def test_prices(tmp_path):
    for row, accuracy, step in (("plain", 0.80, 1), ("ed", 0.84, 1.8), ("half", 0.839, 1.2)):
        add(tmp_path, PRICES, row, accuracy, step=step)
    (block,) = result_of(PRICES, Store(tmp_path).records()).blocks
    (axes,) = plot_prices(block).axes
    assert {text.get_text() for text in axes.texts} == {"Baseline", "all of it", "half of it"}
    assert [drawing.name for drawing in drawings(block)] == ["prices"]


def test_only_figures_that_show_something(block, tmp_path):
    assert [drawing.name for drawing in drawings(block)] == ["curves", "accuracies", "degrees"]
    assert drawings(result_of(METHODS, []).blocks[0]) == []
    assert drawings(result_of(PRICES, []).blocks[0]) == []
    for row in ("plain", "ed"):
        run = add(tmp_path / "short", METHODS, row, 0.8)
        (run / "metrics.jsonl").write_text(
            '{"epoch": 20, "seconds": 1, "test_accuracy": 0.8, "effective_degree": null}\n'
        )
    (short,) = result_of(METHODS, Store(tmp_path / "short").records()).blocks
    assert [drawing.name for drawing in drawings(short)] == ["curves", "accuracies"]


def test_lines_keep_their_colours():
    light = colours_of(METHODS, "light")
    assert len(set(light.values())) == 4
    assert light["ed"] == "#0072b2"
    assert colours_of(PRICES, "light")["ed"] == light["ed"]


def luminance(colour):
    """Give the relative luminance of the Web Content Accessibility Guidelines."""
    shares = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_labels_can_be_read(theme):
    for recipe in all_recipes().values():
        for colour in colours_of(recipe, theme).values():
            dark, light = sorted((luminance(colour), luminance(THEMES[theme].ground)))
            assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_figures_say_what_was_tested(tmp_path):
    for row in ("plain", "ed"):
        add(tmp_path, METHODS, row, 0.8, epochs=10, held_out=50)
    (block,) = result_of(METHODS, Store(tmp_path).records(), {"held_out": 50}).blocks
    figure = plot_accuracies(block)
    assert figure.axes[0].get_title(loc="left") == "held-out accuracy, %, 10 epochs"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["paper (20 epochs)", "here"]
    assert drawings(block)[0].caption.startswith("Held-out accuracy along training")
