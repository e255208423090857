import json
import sys
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import nn

from benchmarks import __main__ as benchmarks
from benchmarks import comparisons, engine, imagenet, streaming, together, training
from effdeg import Penalty


@pytest.mark.parametrize(("argument", "status"), [("--help", 0), ("proxy_cost", 2)])
def test_help_and_unknown_cases_run_nothing(argument, status, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", argument])
    monkeypatch.setattr(benchmarks, "_keep", lambda *_: pytest.fail("a case was run"))
    with pytest.raises(SystemExit) as ended:
        benchmarks.main()
    assert ended.value.code == status
    printed = "".join(capsys.readouterr())
    assert "measure_overhead" in printed
    assert ("proxy_cost: not a case on this machine" in printed) is (status == 2)


def test_a_way_to_train_networks_at_once_that_fails_leaves_the_others(monkeypatch):
    small = replace(together.CASES[1], count=2, steps=2)
    monkeypatch.setattr(together, "CASES", (small, replace(small, settings=replace(small.settings, regularizer="sam"))))
    one, other = together.networks_at_once()["rows"]
    assert one["one after another"] > 0 < one["stacked"]
    assert other["one after another"] > 0
    assert "sam" in other["why, stacked"]


class Recording(nn.Sequential):
    """A small model that notes how many examples each call runs, and whether it is in training."""

    calls: list[tuple[int, bool]]

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))

    def forward(self, x):
        Recording.calls.append((len(x), self.training))
        return super().forward(x)


def test_steps_of_relatives_run_what_they_should(monkeypatch):
    """On 4 examples, and 4 unlabeled ones, which the teacher runs too."""
    monkeypatch.setattr(comparisons, "device", lambda: torch.device("cpu"))
    monkeypatch.setattr(comparisons, "_batch", lambda: 4)
    monkeypatch.setitem(comparisons.MODELS, "ViT-Tiny", Recording)
    seen = {}
    for name in comparisons.RELATIVES:
        Recording.calls = []
        comparisons._step("ViT-Tiny", name)()
        seen[name] = sorted(Recording.calls, reverse=True)
    once, twice, teacher = [(4, True)], [(8, True)], (4, False)
    assert seen == {
        **dict.fromkeys(("plain", "mixup", "cutmix"), once),
        **dict.fromkeys(("regmixup", "ed", "ed, anchor=self"), twice),
        "ict, unlabeled": [*twice, teacher],
        "ed, unlabeled, teacher": [(12, True), teacher],
    }
    rows = comparisons.relative_costs_vit()["rows"]
    assert [row["method"] for row in rows] == [*comparisons.RELATIVES]
    assert rows[0]["ratio"] == 1


def test_throughput_of_a_small_network_and_of_one_that_does_not_fit(monkeypatch):
    make_task = engine.make_task

    def refuse_ed(settings, *given):
        if settings.augment.endswith("flip") and settings.regularizer == "ed":
            raise torch.OutOfMemoryError("no room\nat all")
        return make_task(settings, *given)

    monkeypatch.setattr(imagenet, "STEPS", 1)
    monkeypatch.setattr(imagenet, "REPEATS", 1)
    monkeypatch.setattr(engine, "make_task", refuse_ed)
    monkeypatch.setattr(imagenet, "STREAMED_STEPS", 2)
    monkeypatch.setattr(streaming, "FILES", 2)
    (record,) = imagenet.imagenet_throughput(["original-8"])
    plain, large = record["rows"]
    streamed = imagenet._measure(imagenet.TRIALS["strong-8-photos"], "plain")
    for row in (plain, streamed):
        assert row["images_per_second"] == pytest.approx(8e3 / row["milliseconds"])
    assert (plain["variant"], plain["recipe"], plain["source"]) == ("original-8", "original", "device")
    assert large["error"] == "out of memory: no room"
    assert 0 < streamed["waited"] < 1
    with pytest.raises(ValueError, match="weak-8: not a variant of imagenet_throughput, which has strong-8, original-"):
        next(imagenet.imagenet_throughput(["weak-8"]))


def test_variants_of_a_step_are_timed(monkeypatch):
    """On a CPU with a small network; what differs between variants is on a GPU."""
    monkeypatch.setattr(engine, "STEPS", 1)
    rows = engine.engine_speedups()["rows"]
    assert [(row["variant"], row["method"]) for row in rows] == [*product(engine.VARIANTS, ("plain", "ed"))]
    assert [row["ratio"] for row in rows[:2]] == [1, 1]


def test_a_naive_penalty_is_the_penalty():
    penalty, model = Penalty.efficient(damping=1e-7), nn.Sequential(nn.Flatten(), nn.Linear(12, 10))
    x, y = torch.randn(16, 3, 2, 2), torch.randint(10, (16,))
    outputs, degrees = zip(*(_seeded(each, model, x, y) for each in (penalty, training.Naive(penalty))), strict=True)
    torch.testing.assert_close(outputs[0], outputs[1])
    torch.testing.assert_close(degrees[0], degrees[1], rtol=1e-3, atol=1e-4)


def _seeded(penalty, *given):
    torch.manual_seed(0)
    return penalty(*given)


def test_a_benchmark_that_is_killed_leaves_what_it_had_measured(monkeypatch, tmp_path):
    def imagenet_throughput(variants=()):
        yield {"name": "speed", "rows": [{"variant": "first", "method": "plain", "milliseconds": 1.0}]}
        raise KeyboardInterrupt

    kept = {"variant": "last", "method": "plain", "milliseconds": 2.0}
    file = tmp_path / f"{'gpu' if torch.cuda.is_available() else 'cpu'}.json"
    cases = {"imagenet_throughput": {"name": "speed", "rows": [kept]}}
    file.write_text(json.dumps({"environment": benchmarks._environment(), "cases": cases}))
    for name in ("ON_CPU", "ON_GPU"):
        monkeypatch.setattr(benchmarks, name, [imagenet_throughput])
    monkeypatch.setattr(benchmarks, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "imagenet_throughput"])
    with pytest.raises(KeyboardInterrupt):
        benchmarks.main()
    rows = json.loads(file.read_text())["cases"]["imagenet_throughput"]["rows"]
    assert [(row["variant"], row["milliseconds"]) for row in rows] == [("last", 2.0), ("first", 1.0)]
