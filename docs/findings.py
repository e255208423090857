"""What was found, as one table: each row a number from ``results/`` and what follows from its interval.

``tests/docs/test_findings.py`` pins the last column. Where it changes, the page of that row has to be read again.
"""

import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from records import find_cell, find_pool, find_results, read_cases, shorten, write_table
from tables import FASTEST, MEASURES, POOLS, bound_networks, correlate, find_decoding_hours, rank_pool

from effdeg_lab.show.tables import escape_markdown

SAME_WIDTH = ("cifar10-random-pool", 4)
INTERVAL = re.compile(r"\(([-+\d.]+)(?:…| to )([-+\d.]+)\)")


@dataclass(frozen=True)
class Finding:
    """A row of the table."""

    question: str
    page: str  # of docs/results
    value: Callable[[], str]
    others: dict[str, Callable[[], str]]
    seeds: str

    @property
    def conclusion(self) -> str:
        """What the interval says, or that there is none."""
        found = INTERVAL.search(self.value())
        if found is None:
            return "no interval"
        low, high = float(found[1]), float(found[2])
        return "above zero" if low > 0 else "below zero" if high < 0 else "not significant"


def _cell(name: str, number: int, row: str, column: str) -> Callable[[], str]:
    return lambda: find_cell(name, number, row, column)


def _against(question: str, page: str, name: str, number: int, ed: str = "ED", *others: str, column: str) -> Finding:
    """Return the difference of ED from plain training in points, next to those of other methods."""
    compared = {other: _cell(name, number, other, column) for other in others}
    runs = next(each.runs for each in find_results(name).done if each.method.title == ed)
    seeds = len({run.settings["seed"] for run in runs})
    return Finding(question, page, _cell(name, number, ed, column), compared, str(seeds))


def _tau(question: str, title: str, *others: str) -> Finding:
    """Return Kendall's τ of normalized ED with the gap among models that fit, next to that of other measures."""

    def find(label: str) -> str:
        return str(rank_pool(POOLS[title]).scores[MEASURES[label]].kendall)

    compared = {other: lambda other=other: find(other) for other in others}
    return Finding(question, "ordering-models", lambda: find("normalized ED"), compared, "1")


def list_findings() -> list[Finding]:
    """List all findings."""
    plain, shift = "against Plain", "shifts, against"
    few = [
        _against(
            f"ResNet-9, {n:,} labels",
            "few-labels",
            "cifar10-few-labels",
            2 + 3 * i,
            "ED, labels only",
            "Mixup",
            "FixMatch",
            column=plain,
        )
        for i, n in enumerate((250, 1000, 4000))
    ]
    glue = [
        _against(f"GLUE: {task}", "glue", name, 1, "ED", *others, column=plain)
        for task, name, others in (
            ("RTE, MiniLM", "glue-rte", ("Mixup",)),
            ("MRPC, MiniLM", "glue-mrpc", ("Mixup",)),
            ("CoLA, MiniLM", "glue-cola", ("Mixup",)),
            ("RTE, mpnet", "glue-rte@model=all-mpnet-base-v2", ("R-Drop",)),
        )
    ]
    tiny = [
        _against(f"Tiny-ImageNet, {kind} recipe", "tiny-imagenet", name, 1, "ED", "Mixup", "CutMix", column=plain)
        for kind, name in (("original", "tiny-imagenet-vit"), ("strong", "tiny-imagenet-vit-strong"))
    ]
    games = [
        _against(f"Procgen: {game}", "procgen", f"procgen-{game.lower()}", 1, "ED", "mixreg", column="against PPO")
        for game in ("Dodgeball", "StarPilot")
    ]
    width = {name: _cell(*SAME_WIDTH, MEASURES[name], "within network") for name in list(MEASURES)[:1]}
    same_width = {"sharpness": "sharpness@0.05", "confidence": "-confidence_test"}
    return [
        _tau("τ with the gap, ResNet-18s", "ResNet-18", "raw ED", "margin, labels"),
        _tau("τ, ResNet-9s", "ResNet-9", "decision regions", "confidence"),
        Finding(
            "τ, ResNet-9s of one width",
            "ordering-models",
            width["normalized ED"],
            {label: _cell(*SAME_WIDTH, name, "within network") for label, name in same_width.items()},
            "1",
        ),
        _tau("τ, ViT-Tinys", "ViT-Tiny", "average sharpness, labels"),
        _tau("τ, fine-tuned DeiT-Tinys", "DeiT-Tiny, fine-tuned", "decision regions"),
        _tau("τ, MLPs", "MLP", "confidence"),
        _against("ViT-Tiny, 300 epochs", "cifar10-contest", "cifar10-contest", 1, "ED", "Mixup", column="against"),
        _against(
            *("ViT-Tiny, class token, 300 epochs", "cifar10-methods", "cifar10-methods@epochs=300", 1, "ED", "Mixup"),
            column="against",
        ),
        _against(*("ResNet-9, equal time", "relatives", "cifar10-relatives", 2, "ED", "Mixup", "CutMix"), column=plain),
        *few,
        _against("100 digits", "digits", "digits-methods", 1, "ED", "Mixup", column="against"),
        *glue,
        _against("PACS, photos", "shifts", "finetune-shifts", 1, "ED", "Mixup", column="test, against"),
        _against("PACS, under shifts", "shifts", "finetune-shifts", 1, "ED", "Mixup", column=shift),
        _against("CIFAR-10, under shifts", "shifts", "finetune-shifts-cifar10", 1, "ED", "Mixup", column=shift),
        *tiny,
        *games,
        _against(
            *("MNIST–CIFAR, digit randomized", "mnist-cifar", "mnist-cifar", 2, "ED", "Simple half swapped"),
            column="MNIST randomized: against",
        ),
    ]


def make_table() -> str:
    """Tabulate the findings: ED next to others, seeds, and what the interval says."""
    rows = []
    for each in list_findings():
        others = "; ".join(f"{_lower(name)} {value().partition(' ')[0]}" for name, value in each.others.items())
        question = f"[{each.question}]({each.page}.md)"
        rows.append([question, each.value().rstrip("*"), escape_markdown(others), each.seeds, each.conclusion])
    return write_table(["", "ED", "for comparison", "seeds", "interval of ED"], rows)


def _lower(name: str) -> str:
    return name.lower() if name[1:].islower() else name


def _time(method: str) -> float:
    rows = read_cases()["engine_speedups"]["rows"]
    return next(r["milliseconds"] for r in rows if (r["variant"], r["method"]) == (FASTEST, method))


def find_mpnet_gain() -> str:
    """Return by how much ED is ahead of plain training on RTE with mpnet, without seeds whose plain run failed."""
    results = find_results("glue-rte@model=all-mpnet-base-v2")
    plain, ed = ({run.settings["seed"]: run.summary for run in results.find(name).runs} for name in ("plain", "ed"))
    fitted = [seed for seed, summary in plain.items() if summary["score"] > summary["dev_majority"]]
    return f"{100 * statistics.fmean(ed[seed]['score'] - plain[seed]['score'] for seed in fitted):z.1f}"


def _find_own_ends() -> list[float]:
    part = next(each for each in find_results("cifar10-few-labels").split() if each.point == "labeled 250")
    return list(part.find("ed-self").values("test_accuracy"))


def _ratio(case: str) -> Callable[[], str]:
    return lambda: f"{read_cases()[case]['ratio']:.2f}"


# Numbers within sentences, by the name in their mark.
NUMBERS: dict[str, Callable[[], str]] = {
    "step-over-plain": _ratio("step_over_plain"),
    "fast-example": _ratio("fast_example"),
    "step-fastest": lambda: f"{_time('ed') / _time('plain'):.2f}",
    "epoch-plain": lambda: f"{_time('plain') * (50_000 // 256) / 1e3:.2f}",
    "epoch-ed": lambda: f"{_time('ed') * (50_000 // 256) / 1e3:.2f}",
    "decoding-hours": lambda: f"{find_decoding_hours():.0f}",
    "bound-least": lambda: f"{min(bound_networks()):.0f}",
    "glue-step": lambda: find_cell("glue-rte", 1, "ED", "step").partition("(")[2].removesuffix("×)"),
    "teacher-step": lambda: find_cell("cifar10-few-labels", 6, "ED, ends by a teacher", "step").removesuffix("×"),
    **{
        f"one-width-{label}": lambda name=name: find_cell(*SAME_WIDTH, name, "within network").partition(" ")[0]
        for label, name in (
            ("ed", "effective_degree_normalized_test"),
            ("sharpness", "sharpness@0.05"),
            ("confidence", "-confidence_test"),
        )
    },
    "digits-mixup-equal-time": lambda: find_cell("digits-methods", 2, "Mixup", "at equal time").partition(" ")[0],
    "rte-majority": lambda: f"{100 * find_results('glue-rte').find('plain').values('dev_majority').mean():.1f}",
    "mpnet-gain": find_mpnet_gain,
    "own-ends-least": lambda: f"{100 * min(_find_own_ends()):.0f}",
    "own-ends-most": lambda: f"{100 * max(_find_own_ends()):.0f}",
    "long-copies-20": _cell("cifar10-few-labels-long@weight=20", 1, "ED to copies and between images", "here"),
    "long-teacher-20": _cell("cifar10-few-labels-long@weight=20", 1, "Mean Teacher and ED", "here"),
    "mixup-soup": _cell("finetune-shifts", 4, "Mixup: uniform soup", "mean of shifts"),
    "tiny-high-rate": _cell("tiny-imagenet-vit@lr=0.003,warm_up=0.08881783462119193", 1, "Plain", "here"),
    "vit-raw": lambda: f"{correlate(find_pool(POOLS['ViT-Tiny']).models, 'effective_degree'):.2f}",
    "vit-training": lambda: f"{correlate(find_pool(POOLS['ViT-Tiny']).models, 'train_accuracy'):.2f}",
}


def find_number(name: str) -> str:
    """Return a number by its name."""
    return shorten(NUMBERS[name]())
