"""The benchmarks' command line: what it cannot run it refuses, instead of printing an empty table."""

import json
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from benchmarks import __main__ as benchmarks
from benchmarks import comparisons, imagenet, streaming, together


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
    small = replace(together.CASES[1], counts=(1, 2), steps=2)
    monkeypatch.setattr(together, "CASES", (small, replace(small, settings=replace(small.settings, regularizer="sam"))))
    monkeypatch.setattr(together, "_make_stack", partial(_refuse_two, together._make_stack))
    one, two, late, *_ = together.networks_at_once()["rows"]
    assert one["one after another"] > 0 < one["stacked"]
    assert two["one after another"] > 0
    assert two["why, stacked"] == "RuntimeError: no room for two"
    assert late["one after another"] > 0
    assert "sam" in late["why, stacked"]


def _refuse_two(make, case, count):
    if count == 2:
        raise RuntimeError("no room for two\nat all")
    return make(case, count)


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
    make_network = imagenet.make_network

    def refuse_ed(settings, *given):
        if settings.augment.endswith("flip") and settings.regularizer == "ed":
            raise torch.OutOfMemoryError("no room\nat all")
        return make_network(settings, *given)

    monkeypatch.setattr(imagenet, "STEPS", 1)
    monkeypatch.setattr(imagenet, "REPEATS", 1)
    monkeypatch.setattr(imagenet, "make_network", refuse_ed)
    monkeypatch.setattr(imagenet, "STREAMED_STEPS", 2)
    monkeypatch.delenv("EFFDEG_DATA", raising=False)
    records = imagenet.imagenet_throughput()
    strong, penalized, original, large, streamed, both = (row for record in records for row in record["rows"])
    for row in (strong, penalized, original, streamed, both):
        assert row["images_per_second"] == pytest.approx(8e3 / row["milliseconds"])
    assert (strong["recipe"], original["recipe"], penalized["method"]) == ("strong", "original", "ed")
    assert penalized["share"] == pytest.approx(1 - strong["milliseconds"] / penalized["milliseconds"])
    assert large["error"] == "out of memory: no room"
    assert 0 < streamed["waited"] < 1
    assert (both["source"], original["source"]) == ("photos", "device")
    assert "share" not in both  # it waits for images
    (record,) = imagenet.imagenet_throughput(["original-8"])
    assert [(row["variant"], row["method"]) for row in record["rows"]] == [
        ("original-8", "plain"),
        ("original-8", "ed"),
    ]
    with pytest.raises(FileNotFoundError, match="tiny-imagenet is needed: set EFFDEG_DATA"):
        next(imagenet.imagenet_throughput(["strong-8", "strong-8-tiny-imagenet"]))
    with pytest.raises(ValueError, match="weak-8: not a variant of imagenet_throughput, which has strong-8, original-"):
        next(imagenet.imagenet_throughput(["weak-8"]))


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


def test_decoding_is_timed(monkeypatch):
    monkeypatch.setattr(streaming, "IMAGES", 96)
    monkeypatch.setattr(streaming, "FILES", 2)
    monkeypatch.setattr(streaming.os, "sched_getaffinity", lambda _: {0}, raising=False)
    rows = streaming.decoding_speed()["rows"]
    assert [(row["decoder"], row["processes"]) for row in rows] == [("pillow", 0), ("pillow", 1)]
    assert all(row["images_per_second"] > 0 for row in rows)
