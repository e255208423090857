from dataclasses import replace

import numpy as np
import pytest

from effdeg.lab.report import result_of
from effdeg.lab.report.figures import plot_curves
from effdeg.lab.report.sheets import block_sheets
from effdeg.lab.store import Store
from tests.lab.report.stores import METHODS, add


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs"


def found(folder, changes=None, recipe=METHODS):
    return result_of(recipe, Store(folder).records(), changes)


def test_nothing_was_run(folder):
    result = found(folder)
    (block,) = result.blocks
    assert [line.state for line in block.lines] == ["not run"] * 4
    assert (block.epochs, block.seeds, block.machines, block.equal_time) == (20, [], [], None)
    assert not result.further
    assert not result.runs


def test_a_line_averages_its_seeds(folder):
    accuracies = [0.80, 0.83, 0.81]
    for seed, accuracy in enumerate(accuracies):
        add(folder, METHODS, "plain", accuracy, step=1 + 0.1 * seed, degree=3 + seed, seed=seed)
        add(folder, METHODS, "ed", accuracy + 0.02 + 0.001 * seed, step=2.2, seed=seed)
    (block,) = found(folder).blocks
    plain, mixup, _, ed = block.lines
    assert list(plain.accuracies) == [0, 1, 2]
    assert plain.accuracy.mean == pytest.approx(np.mean(accuracies))
    assert plain.accuracy.std == pytest.approx(np.std(accuracies, ddof=1))
    assert plain.train_accuracy == pytest.approx(0.99)
    assert plain.effective_degree == pytest.approx((4, 0.03 / np.sqrt(3)))
    assert (plain.seconds_per_epoch, plain.seconds) == pytest.approx((1.1, 22))
    assert block.price(ed) == pytest.approx(2)
    assert block.difference(ed).value == pytest.approx(0.021)
    assert block.difference(ed).beyond_noise
    assert block.difference(plain) is None
    assert mixup.accuracy is None
    assert mixup.state == "not run"
    assert block.seeds == [0, 1, 2]


def test_blocks_are_of_one_scale(folder):
    for epochs in (10, 40):
        for row in ("plain", "ed"):
            add(folder, METHODS, row, 0.8 + epochs / 1000, epochs=epochs)
    for row in ("plain", "ed"):
        add(folder, METHODS, row, 0.7, epochs=10, limit=50)
    add(folder, METHODS, "plain", 0.9, epochs=10, lr=0.5)
    result = found(folder)
    assert [(block.epochs, block.scale["limit"]) for block in result.blocks] == [(40, None), (10, None), (10, 50)]
    assert [block.lines[0].accuracy.mean for block in result.blocks] == pytest.approx([0.84, 0.81, 0.7])
    assert [block.epochs for block in found(folder, {"epochs": 10}).blocks] == [10, 10]
    (block,) = found(folder, {"epochs": 10, "limit": 50}).blocks
    assert block.lines[0].accuracy.mean == 0.7
    (block,) = found(folder, {"lr": 0.5}).blocks
    assert block.lines[0].accuracy.mean == 0.9


def test_a_long_run_of_one_line_does_not_push_the_table_aside(folder):
    for row in ("plain", "mixup", "sam", "ed"):
        add(folder, METHODS, row, 0.8, epochs=10)
    for row in ("plain", "ed"):
        add(folder, METHODS, row, 0.9, epochs=30)
    add(folder, METHODS, "mixup", 0.95, epochs=300)
    result = found(folder)
    assert [block.epochs for block in result.blocks] == [30, 10]
    assert [(block.epochs, [line.row.name for line in block.done]) for block in result.further] == [(300, ["mixup"])]
    add(folder, METHODS, "sam", 0.9, epochs=300)
    assert [block.epochs for block in found(folder).blocks] == [300, 30, 10]
    wide = replace(METHODS, rows=(*METHODS.rows, replace(METHODS.rows[0], name="copy", changes={"batch": 8})))
    add(folder, wide, "copy", 0.8, epochs=10)
    assert [block.epochs for block in found(folder, recipe=wide).blocks] == [10, 300, 30]


def test_a_single_line_is_shown_if_there_is_no_other(folder):
    add(folder, METHODS, "ed", 0.9)
    result = found(folder)
    (block,) = result.blocks
    assert block.line("ed").accuracy.mean == 0.9
    assert block.equal_time is None
    assert not result.further


def test_the_tuned_strength_is_shown_and_never_the_best_on_the_test_set(folder):
    for weight, tuned, final in ((7.0, 0.70, 0.95), (20.0, 0.75, 0.85), (3.0, 0.6, 0.99)):
        add(folder, METHODS, "ed", tuned, weight=weight, held_out=100, epochs=10)
        add(folder, METHODS, "ed", final, weight=weight)
    line = found(folder).blocks[0].line("ed")
    assert line.strengths == {"weight": 20.0}
    assert line.own == {"weight": 7.0}
    assert line.choice.changes == {"weight": 20.0}
    assert line.accuracy.mean == 0.85
    others = {strengths["weight"]: spread.mean for strengths, spread in line.also}
    assert others == {7.0: 0.95, 3.0: 0.99}
    (block,) = found(folder, {"weight": 3.0}).blocks
    assert block.line("ed").accuracy.mean == 0.99


def test_without_tuning_the_own_strength_is_shown_else_that_with_most_seeds(folder):
    for seed in (0, 1):
        add(folder, METHODS, "ed", 0.85, weight=3.0, seed=seed)
    add(folder, METHODS, "ed", 0.95, weight=20.0)
    line = found(folder).blocks[0].line("ed")
    assert (line.strengths, line.choice) == ({"weight": 3.0}, None)
    add(folder, METHODS, "ed", 0.80, weight=7.0)
    assert found(folder).blocks[0].line("ed").strengths == {"weight": 7.0}


def test_runs_that_did_not_end(folder):
    add(folder, METHODS, "plain", 0.8)
    add(folder, METHODS, "mixup", 0.8, finished=False)
    run = add(folder, METHODS, "sam", 0.8, finished=False)
    (run / "failure.txt").write_text("Traceback\n  somewhere\nRuntimeError: it diverged\n")
    (block,) = found(folder).blocks
    assert [line.state for line in block.lines] == ["run", "not finished", "failed", "not run"]
    assert block.line("sam").failure == "RuntimeError: it diverged"


def test_equal_time_takes_the_longest_that_is_not_longer(folder):
    add(folder, METHODS, "ed", 0.88, step=2.0, epochs=10)
    add(folder, METHODS, "plain", 0.80, epochs=10)
    for epochs, accuracy in ((17, 0.81), (19, 0.82), (20, 0.83), (22, 0.99)):
        add(folder, METHODS, "plain", accuracy, epochs=epochs)
    add(folder, METHODS, "mixup", 0.85, epochs=10)
    add(folder, METHODS, "mixup", 0.87, epochs=15)
    add(folder, METHODS, "sam", 0.86, step=4.0, epochs=10)
    add(folder, METHODS, "sam", 0.84, step=4.0, epochs=5)
    block = next(block for block in found(folder).blocks if block.epochs == 10)
    at = block.equal_time
    assert (at.reference, at.seconds) == ("ed", 20)
    assert (at.accuracy("plain").mean, at.epochs("plain")) == (0.83, 20)
    assert (at.accuracy("mixup"), at.epochs("mixup")) == (None, None)  # 15 s are no 20 s
    assert (at.accuracy("sam").mean, at.epochs("sam")) == (0.84, 5)
    assert (at.accuracy("ed").mean, at.epochs("ed")) == (0.88, 10)
    assert [line.row.name for line in at.missing(block.lines)] == ["mixup"]


def test_lines_that_took_longer_at_equal_time(folder):
    add(folder, METHODS, "ed", 0.88, step=2.0, epochs=10)
    for row, step in (("sam", 4.0), ("mixup", 2.5)):
        add(folder, METHODS, row, 0.80, step=step, epochs=10)
    add(folder, METHODS, "sam", 0.85, step=4.0, epochs=8)
    add(folder, METHODS, "mixup", 0.85, step=2.5, epochs=4)
    block = next(block for block in found(folder).blocks if block.epochs == 10)
    assert {name: line.seconds for name, line in block.equal_time.longer.items()} == {"sam": 32}
    # Mixup took more with 10 epochs and less with 4: it could have been given the time.
    assert [line.row.name for line in block.equal_time.missing(block.lines)] == ["mixup"]


def test_equal_time_averages_seeds_and_compares_like_with_like(folder):
    for seed, accuracy in ((0, 0.82), (1, 0.84)):
        add(folder, METHODS, "ed", 0.88, step=2.0 + seed, epochs=10, seed=seed)
        add(folder, METHODS, "plain", 0.80, epochs=10, seed=seed)
        add(folder, METHODS, "plain", accuracy, epochs=25, seed=seed)
    add(folder, METHODS, "mixup", 0.8, epochs=10)
    add(folder, METHODS, "mixup", 0.9, epochs=25, alpha=0.2)
    add(folder, METHODS, "sam", 0.9, epochs=25, device="a faster machine")
    block = next(block for block in found(folder).blocks if block.epochs == 10)
    at = block.equal_time
    assert at.seconds == 25
    assert (at.accuracy("plain").mean, at.accuracy("plain").count) == (pytest.approx(0.83), 2)
    assert at.accuracy("mixup") is None  # another strength than in the table
    assert at.accuracy("sam") is None  # another machine


def test_equal_time_of_a_line_that_was_not_run_for_as_many_epochs(folder):
    for row in ("plain", "ed"):
        add(folder, METHODS, row, 0.8, step=2.0, epochs=10)
    add(folder, METHODS, "mixup", 0.9, epochs=20, alpha=0.2)
    (block,) = found(folder).blocks
    assert block.line("mixup").state == "not run"
    assert (block.equal_time.accuracy("mixup").mean, block.equal_time.epochs("mixup")) == (0.9, 20)


def test_without_ed_the_dearest_sets_the_time(folder):
    recipe = replace(METHODS, rows=METHODS.rows[:3])
    for row, step in (("plain", 1.0), ("mixup", 1.1), ("sam", 2.0)):
        add(folder, recipe, row, 0.8, step=step)
    assert found(folder, recipe=recipe).blocks[0].equal_time.reference == "sam"


def test_prices_of_other_machines_are_not_compared(folder):
    add(folder, METHODS, "plain", 0.8)
    add(folder, METHODS, "sam", 0.8, step=0.1, device="a faster machine")
    (block,) = found(folder).blocks
    assert block.price(block.line("sam")) is None
    assert block.machines == ["Thinking Machine", "a faster machine"]


def test_runs_that_shared_a_gpu_have_no_times(folder):
    for row in ("plain", "ed"):
        add(folder, METHODS, row, 0.8, shared=True)
    (block,) = found(folder).blocks
    assert block.machines == ["Thinking Machine (shared)"]
    assert block.equal_time is None
    assert {(line.seconds, line.seconds_per_epoch, line.milliseconds_per_step) for line in block.done} == {(None,) * 3}
    (sheet,) = block_sheets(block)
    assert sheet.title.startswith("At equal epochs")
    plot_curves(block)
