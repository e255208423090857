"""Draw the pictures of the README and fill the tables of the docs, from the demo and from ``results/``."""

import json
import re
from collections.abc import Callable
from pathlib import Path

from effdeg.demo import contest
from effdeg.demo.page import plot_contest
from effdeg.demo.story import tell
from effdeg.plots import THEMES, plot_comparison, plot_method

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs" / "figures"
BENCHMARKS = ROOT / "results" / "benchmarks"
TRAINING = {
    "step_over_plain",
    "step_over_same_size",
    "many_classes",
    "joined_forward",
    "step_memory",
    "sam_over_plain",
    "jacobian_over_plain",
}


def draw() -> None:
    """Draw the demo's figures."""
    FIGURES.mkdir(exist_ok=True)
    story = tell(seed=0, report=lambda doing, done: print(f"{done:3d}  {doing}"))
    held = contest.hold(seed=0, report=lambda doing, done: print(f"{done:3d}  {doing}"))
    simpler = story.comparison.ranking[0]
    for theme in THEMES:
        plot_method(story.traces[simpler], theme=theme).savefig(FIGURES / f"method-{theme}.png")
        plot_comparison(story.comparison, theme=theme).savefig(FIGURES / f"comparison-{theme}.png")
        plot_contest(held, theme=theme).savefig(FIGURES / f"contest-{theme}.png")


def fill() -> None:
    """Put the tables made from ``results/`` between their marks in every page."""
    tables = {"benchmarks": benchmarks(), "conditioning": conditioning(), "damping": damping(), "training": training()}
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = page.read_text()
        for name, table in tables.items():
            text = re.sub(rf"(<!-- {name} -->\n).*?(<!-- end -->)", rf"\g<1>{table}\g<2>", text, flags=re.DOTALL)
        page.write_text(text)


def benchmarks() -> str:
    """Tabulate the benchmarks' ratios."""
    records = {name: json.loads((BENCHMARKS / f"{name}.json").read_text()) for name in ("cpu", "gpu")}
    where = [record["environment"] for record in records.values()]
    lines = [
        "| ratio | aim | " + " | ".join(f"{env['processor']} (torch {env['torch']})" for env in where) + " |",
        "|---|---|---|---|",
    ]
    for name, case in records["cpu"]["cases"].items():
        if "ratio" in case:
            found = [record["cases"].get(name) for record in records.values()]
            aims = list(dict.fromkeys(each["target"] for each in found if each))
            cells = [f"**{each['ratio']:.3g}** ({each['detail']})" if each else "a matter of the CPU" for each in found]
            lines.append(f"| {case['name']} | {', on a GPU '.join(aims)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def training() -> str:
    """Tabulate what regularizers add to a training step."""
    record = json.loads((BENCHMARKS / "gpu.json").read_text())
    environment = record["environment"]
    lines = [f"| {environment['processor']}, torch {environment['torch']} | ratio | aim | |", "|---|---|---|---|"]
    for name, case in record["cases"].items():
        if name in TRAINING:
            lines.append(f"| {case['name']} | **{case['ratio']:.3g}** | {case['target']} | {case['detail']} |")
    return "\n".join(lines) + "\n"


def conditioning() -> str:
    """Tabulate the condition numbers of the fit."""
    return _rows("conditioning", lambda head: ".2g" if "," in head else "")


def damping() -> str:
    """Tabulate what damping does to the penalty."""
    formats = {"damping": "g", "change of the value": ".2%", "gradient, rms": ".3g", "gradient, largest": ".3g"}
    return _rows("damping", lambda head: formats.get(head, ""))


def _rows(case: str, spec: Callable[[str], str]) -> str:
    rows = json.loads((BENCHMARKS / "cpu.json").read_text())["cases"][case]["rows"]
    heads = list(rows[0])
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(format(row[head], spec(head)) for head in heads) + " |" for row in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    draw()
    fill()
