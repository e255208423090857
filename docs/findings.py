"""The one table of findings: each row a number from ``results/`` and what follows from its interval.

``tests/docs/test_findings.py`` pins the last column. Where it changes, the page of that row has to be read again.
"""

import re
from dataclasses import dataclass

from records import find_results, read_column, write_table
from tables import LABELS, MEASURES, POOLS, TEXTS, TINY, rank_pool

from effdeg_lab.show.tables import escape_markdown

INTERVAL = re.compile(r"\(([-+−\d.]+)(?:…| to )([-+−\d.]+)\)")


@dataclass(frozen=True)
class Finding:
    """A row of the table: a value of ED with its interval, and those of others."""

    question: str
    page: str  # of docs/results
    value: str
    others: dict[str, str]
    seeds: int

    @property
    def conclusion(self) -> str:
        """What the interval says, or that there is none."""
        interval = INTERVAL.search(self.value.replace("−", "-"))
        if interval is None:
            return "no interval"
        low, high = float(interval[1]), float(interval[2])
        return "above zero" if low > 0 else "below zero" if high < 0 else "not significant"


def compare(question: str, page: str, name: str, number: int, column: str, *others: str, ed: str = "ED") -> Finding:
    """Return the difference of ED from plain training in a column of a table, next to those of other methods."""
    cells = read_column(name, number, column)
    runs = next(method.runs for method in find_results(name).done if method.method.title == ed)
    return Finding(
        question, page, cells[ed], {other: cells[other] for other in others}, len({run.seed for run in runs})
    )


def order(question: str, title: str, *others: str) -> Finding:
    """Return Kendall's τ of normalized ED with the gap among models that fit, next to that of other measures."""
    taus = {label: str(rank_pool(title)[MEASURES[label]].kendall) for label in ("normalized ED", *others)}
    return Finding(question, "ordering-models", taus.pop("normalized ED"), taus, 1)


def order_one_width() -> Finding:
    """Return the same among ResNet-9s of one width, which hardly depends on width's effect on the gap."""
    taus = read_column(POOLS["ResNet-9"], 2, "within network")
    others = {"sharpness": taus["sharpness@0.05"], "confidence": taus["-confidence_test"]}
    return Finding("τ, ResNet-9s of one width", "ordering-models", taus[MEASURES["normalized ED"]], others, 1)


def list_findings() -> list[Finding]:
    """List all findings."""
    plain, shifts = "against Plain", "shifts, against"
    few = ("Mixup", "FixMatch")
    return [
        order("τ with the gap, ResNet-18s", "ResNet-18", "raw ED", "margin, labels"),
        order("τ, ResNet-9s", "ResNet-9", "decision regions", "confidence"),
        order_one_width(),
        order("τ, ViT-Tinys", "ViT-Tiny", "average sharpness, labels"),
        order("τ, fine-tuned DeiT-Tinys", "DeiT-Tiny, fine-tuned", "decision regions"),
        order("τ, MLPs", "MLP", "confidence"),
        compare("ViT-Tiny, 300 epochs", "cifar10-contest", "cifar10-contest", 1, "against", "Mixup", "CutMix"),
        compare(
            *("ViT-Tiny, in the time of 300 plain epochs", "cifar10-contest", "cifar10-contest", 1, "against"),
            *("Mixup", "CutMix"),
            ed="ED, 166 epochs",
        ),
        compare(
            *("ViT-Tiny, class token, 300 epochs", "cifar10-methods", "cifar10-methods@epochs=300", 1, "against"),
            "Mixup",
        ),
        compare("ResNet-9, equal time", "relatives", "cifar10-relatives", 1, plain, "Mixup", "CutMix"),
        *(
            compare(title, "few-labels", "cifar10-few-labels", 1 + 3 * place, plain, *few, ed="ED, labels only")
            for place, title in enumerate(LABELS.values())
        ),
        compare("100 digits", "digits", "digits-methods", 1, "against", "Mixup"),
        *(
            compare(f"GLUE: {task}", "glue", name, 1, plain, "Mixup" if "mpnet" not in task else "R-Drop")
            for task, name in TEXTS.items()
        ),
        compare("PACS, photos", "shifts", "finetune-shifts", 1, "test, against", "Mixup"),
        compare("PACS, under shifts", "shifts", "finetune-shifts", 1, shifts, "Mixup"),
        compare("CIFAR-10, under shifts", "shifts", "finetune-shifts-cifar10", 1, shifts, "Mixup"),
        *(
            compare(f"Tiny-ImageNet, {kind} recipe", "tiny-imagenet", name, 1, plain, "Mixup", "CutMix")
            for kind, name in TINY.items()
        ),
        compare("Procgen: Dodgeball", "procgen", "procgen-dodgeball", 1, "against PPO", "mixreg"),
        compare("Procgen: StarPilot", "procgen", "procgen-starpilot", 1, "against PPO", "mixreg"),
        compare(
            *("MNIST–CIFAR, digit randomized", "mnist-cifar", "mnist-cifar", 2, "MNIST randomized: against"),
            "Simple half swapped",
        ),
    ]


def make_table() -> str:
    """Tabulate the findings: ED next to others, seeds, and what the interval says."""
    rows = []
    for row in list_findings():
        names = {name: name.lower() if name[1:].islower() else name for name in row.others}
        others = "; ".join(f"{names[name]} {value.partition(' ')[0].rstrip('*')}" for name, value in row.others.items())
        link = f"[{row.question}]({row.page}.md)"
        rows.append([link, row.value.rstrip("*"), escape_markdown(others), str(row.seeds), row.conclusion])
    return write_table(["", "ED", "for comparison", "seeds", "interval of ED"], rows)
