"""Tables, numbers and the drawing of docs/making-it-fast.md, from ``results/benchmarks/gpu.json``."""

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from effdeg.plots import open_figure

RECORD = Path(__file__).parent.parent / "results" / "benchmarks" / "gpu.json"
NAME = "step-profile"
STEPS_PER_EPOCH = 50_000 // 256
# From the bottom of a bar, with Okabe and Ito's colors; the rest is gray.
COLORS = {
    "fused kernels": "#009e73",
    "matrix products": "#0072b2",
    "attention": "#e69f00",
    "normalization and elementwise": "#cc79a7",
    "reductions": "#56b4e9",
    "casts and copies": "#d55e00",
    "optimizer and clipping": "#b8a900",
    "batch and points": "#8c6bb1",
    "other": "#777777",
    "gaps": "#bbbbbb",
}
METHODS = {"plain": "plain", "ed": "with the penalty"}
# What the lab's engine does now.
KEPT = {
    "64 tokens": "as the model `vit-tiny-mean`",
    "64 tokens, fused": "on a GPU",
    "64 tokens, flat, fused": "on a GPU",
    "flat parameters": "on a GPU",
    "ResNet-18, channels last": "on a GPU",
    "ResNet-18, channels last, flat": "on a GPU",
}
FLOORS = {
    "teraflop": ("FLOPs of the matrix products", "{:.2f} TFLOP"),
    "gigabytes_unfused": ("bytes moved, one kernel per operation", "{:.1f} GB"),
    "floor_of_products": ("least time of the products alone", "{:.2f} ms"),
    "floor_unfused": ("least time, one kernel per operation", "{:.2f} ms"),
    "floor_fused": ("least time, one kernel per half of a block", "{:.2f} ms"),
}


def read_rows(case: str) -> list[dict[str, Any]]:
    """Return the rows of a benchmark on a GPU, none if it was not run."""
    return json.loads(RECORD.read_text())["cases"].get(case, {}).get("rows", [])


def read_profiles() -> list[dict[str, Any]]:
    """Return the profiled steps: plain before and now, then with the penalty."""
    return sorted(read_rows("step_profile"), key=lambda row: list(METHODS).index(row["method"]))


def find_number(case: str, variant: str, method: str, column: str) -> str:
    """Return a number of a variant's row.

    ``epoch`` is the time of an epoch of CIFAR-10 in seconds, ``share`` how many percent of the step the matrix products
    would take at the chip's rate.
    """
    for row in read_rows(case):
        if (row["variant"], row["method"]) == (variant, method) and "milliseconds" in row:
            found = {**row, **row.get("work", {}), "epoch": row["milliseconds"] * STEPS_PER_EPOCH / 1e3}
            if column == "share":
                return f"{found['floor_of_products'] / found['milliseconds']:.0%}"
            return f"{found[column]:.3g}"
    return "(not measured)"


def make_speedup_table(model: str) -> str:
    """Tabulate the variants of one model: milliseconds per step, and relative to the first row."""
    rows = [row for row in read_rows("engine_speedups") if row["model"].startswith(model)]
    if not rows:
        return _not_measured("engine_speedups")
    lines = ["| | plain | | with the penalty | | kept |", "|---|---:|---:|---:|---:|---|"]
    for name in dict.fromkeys(row["variant"] for row in rows):
        found = {row["method"]: row for row in rows if row["variant"] == name}
        cells = [cell for method in METHODS for cell in _format_time(found.get(method))]
        lines.append(f"| {name} | {' | '.join(cells)} | {KEPT.get(name, '')} |")
    return "\n".join(lines) + "\n"


def _format_time(row: dict[str, Any] | None) -> tuple[str, str]:
    if row is None:
        return "", ""
    if "milliseconds" not in row:
        return ("too long to compile", "") if row["error"].startswith("not measured within") else ("fails", "")
    return f"{row['milliseconds']:.2f} ms", f"{row['ratio']:.2f}" if "ratio" in row else ""


def make_profile() -> str:
    """Show and tabulate where the time of a step goes: microseconds and, in brackets, kernels."""
    rows = read_profiles()
    if not rows:
        return _not_measured("step_profile")
    text = "Bars of the time of a step before and after, plain and with the penalty, divided by what its kernels do."
    dark = f'<source media="(prefers-color-scheme: dark)" srcset="figures/{NAME}-dark.png">'
    heads = [_format_title(row) for row in rows]
    lines = [
        f'<picture>{dark}<img alt="{text}" src="figures/{NAME}-light.png"></picture>',
        "",
        f"| µs per step (kernels) | {' | '.join(heads)} |",
        "|---|" + "---:|" * len(rows),
    ]
    for group in COLORS:
        cells = [_format_group(row, group) for row in rows]
        if any(cells):
            lines.append(f"| {group} | {' | '.join(cells)} |")
    sums = [f"**{1e3 * row['milliseconds']:,.0f}** ({sum(row['kernels'].values()):.0f})" for row in rows]
    return "\n".join([*lines, f"| a step | {' | '.join(sums)} |"]) + "\n"


def make_floor_table() -> str:
    """Tabulate the work of a step and the least time that it takes."""
    rows = read_profiles()
    if not rows:
        return _not_measured("step_profile")
    lines = [f"| | {' | '.join(map(_format_title, rows))} |", "|---|" + "---:|" * len(rows)]
    for key, (title, form) in FLOORS.items():
        lines.append(f"| {title} | {' | '.join(form.format(row['work'][key]) for row in rows)} |")
    measured = [f"**{row['milliseconds']:.2f} ms**" for row in rows]
    return "\n".join([*lines, f"| measured | {' | '.join(measured)} |"]) + "\n"


def plot(theme: str) -> Figure:
    """Draw the time of each profiled step as a bar, divided by what its kernels do, with the least times."""
    rows = read_profiles()
    shown = [group for group in COLORS if any(row["microseconds"].get(group, 0.0) > 0 for row in rows)]
    with open_figure(theme, (9.5, 0.55 * len(rows) + 1.7)) as (colors, figure):
        axes = figure.subplots()
        for place, row in enumerate(rows):
            start = 0.0
            for group in shown:
                length = max(0.0, row["microseconds"].get(group, 0.0)) / 1e3
                axes.barh(place, length, 0.62, left=start, color=COLORS[group], label=None if place else group)
                start += length
            for key, style in (("floor_fused", "-"), ("floor_unfused", ":")):
                at, label = row["work"][key], None if place else FLOORS[key][0]
                axes.plot([at, at], [place - 0.42, place + 0.42], style, color=colors.ink, lw=1.6, label=label)
        axes.set_yticks(range(len(rows)), [_format_title(row) for row in rows])
        axes.invert_yaxis()
        axes.set_xlabel("milliseconds per step")
        axes.grid(axis="x", color=colors.faint, lw=0.6)
        axes.set_axisbelow(True)
        figure.legend(loc="outside upper left", ncols=4)
    return figure


def _format_title(row: dict[str, Any]) -> str:
    return f"{METHODS[row['method']]}, {'before' if row['variant'] == 'baseline' else 'now'}"


def _format_group(row: dict[str, Any], group: str) -> str:
    if group not in row["microseconds"]:
        return ""
    count = row["kernels"].get(group)
    return f"{row['microseconds'][group]:,.0f}" + (f" ({count:.0f})" if count else "")


def _not_measured(case: str) -> str:
    return f"*Not measured yet: `python -m benchmarks {case}`.*\n"
