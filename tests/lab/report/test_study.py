"""A study, which tells its results in its own way, in every form of the report."""

from dataclasses import dataclass, field

import pytest
from matplotlib.figure import Figure

from effdeg.lab.recipe import Recipe, Row
from effdeg.lab.report import Finding, result_of
from effdeg.lab.report.drawing import Drawing
from effdeg.lab.report.figures import drawings
from effdeg.lab.report.page import page
from effdeg.lab.report.plain import to_dict
from effdeg.lab.report.sheet import Sheet
from effdeg.lab.report.sheets import block_sheets, heading, runs_sheet
from effdeg.lab.report.text import document
from effdeg.lab.report.wording import sweep_command
from effdeg.lab.store import Store


@dataclass(frozen=True)
class Fall:
    height: float = 1.0
    seed: int = field(default=0, metadata={"scale": True})
    resolution: int = field(default=10, metadata={"scale": True})


class Falls:
    """Tells how long things fall."""

    def finding(self, block):
        return Finding("holds", (f"{len(block.done)} heights fell.",))

    def sheets(self, block):
        rows = tuple((line.row.title, f"{line.runs[0].summary['time']:.2f}") for line in block.done)
        return [Sheet("Falls", ("", "time"), rows)]

    def drawings(self, block):
        return [Drawing("falls", f"{len(block.done)} falls.", lambda _: Figure())]

    def score(self, run):
        return f"{run.summary['time']:.2f} s of falling"


RECIPE = Recipe(
    name="falls",
    title="Things that fall",
    paper="none",
    expects="They fall.",
    cost="nothing",
    settings=Fall(),
    train=lambda settings, task: None,
    rows=(Row("low", "Low"), Row("high", "High", {"height": 4.0})),
    shows=Falls(),
)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def add(store, row, **changes):
    settings = RECIPE.resolved(RECIPE.row(row), changes)
    run = store.run(settings)
    run.begin({"device": "a tower"})
    run.finish({"time": (2 * settings.height / 9.81) ** 0.5})


def test_a_study_is_told_in_its_own_way(store):
    add(store, "low")
    add(store, "low", seed=1)
    add(store, "high")
    result = result_of(RECIPE, store.records())
    (block,) = result.blocks
    assert not result.further
    assert [len(line.runs) for line in block.lines] == [2, 1]
    assert result.findings[block] == Finding("holds", ("2 heights fell.",))
    (sheet,) = block_sheets(block)
    assert sheet.rows == (("Low", "0.45"), ("High", "0.90"))
    assert [each.name for each in drawings(block)] == ["falls"]
    assert heading(block) == "seeds 0, 1, a tower"
    assert block.equal_time is None
    assert [row[4:6] for row in runs_sheet(result).rows] == [("0.45 s of falling", "–")] * 2 + [
        ("0.90 s of falling", "–")
    ]


def test_a_single_line_and_every_scale_have_their_own_block(store):
    add(store, "low")
    add(store, "high", resolution=20)
    blocks = result_of(RECIPE, store.records()).blocks
    assert [[line.row.name for line in block.done] for block in blocks] == [["low"], ["high"]]


def test_every_form_of_the_report_has_it(store):
    add(store, "low")
    result = result_of(RECIPE, store.records())
    written = page([result])
    for text in ("Things that fall", "1 heights fell.", "0.45 s of falling", "1 falls."):
        assert text in written
    for language in ("markdown", "latex"):
        assert "0.45" in document(result, language)
    (low, high) = to_dict(result)["blocks"][0]["lines"]
    assert [summary["time"] for summary in low["runs"].values()] == [pytest.approx(0.4515, abs=1e-4)]
    assert (high["state"], high["runs"]) == ("not run", {})


def test_what_was_not_run_is_said_without_asking_the_study(store):
    result = result_of(RECIPE, store.records())
    (block,) = result.blocks
    assert result.findings[block].verdict == "not run"
    assert block_sheets(block) == []
    assert drawings(block) == []
    assert "Not run yet" in page([result])
    assert sweep_command(RECIPE) == "effdeg lab sweep falls"
