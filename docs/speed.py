"""Tables, numbers and the figure of docs/making-it-fast.md, and PPO's speed, from ``results/benchmarks/gpu.json``."""

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from effdeg.plots import open_figure
from effdeg_lab.show.figures import add_grid

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
    "ResNet-18, channels last, flat": "flat parameters alone",
}
FLOORS = {
    "teraflop": ("FLOPs of the matrix products", "{:.2f} TFLOP"),
    "gigabytes_unfused": ("bytes moved, one kernel per operation", "{:.1f} GB"),
    "floor_of_products": ("least time of the products alone", "{:.2f} ms"),
    "floor_unfused": ("least time, one kernel per operation", "{:.2f} ms"),
    "floor_fused": ("least time, if half a block were one kernel", "{:.2f} ms"),
}
FASTEST = "64 tokens, flat, fused"
WIDTH, DEPTH, ROWS = 192, 12, 256 * 64  # of ViT-Tiny; the tokens of a plain step
# Our kernels: what they do, how often in a block, and the values that each reads and writes for a token, in units of
# the width.
KERNELS = {
    "mlp_forward": ("LayerNorm, MLP, residual sum", 1, 7),
    "attention_forward": ("attention, projection, residual sum", 1, 5),
    "mlp_backward": ("MLP, back to its hidden layer", 1, 13),
    "attention_backward": ("projection and attention, back to queries, keys and values", 1, 8),
    "norm_forward": ("LayerNorm before attention", 1, 2),
    "norm_backward": ("LayerNorm and residual sum, back", 2, 4),
}
TILES = {"ROWS": "rows", "COLUMNS": "columns", "CHUNK": "at a time", "num_warps": "warps", "num_stages": "stages"}
# Products by cuBLAS: FLOPs for a token in units of width², values as above, and the blocks that are done at once.
PRODUCTS = {
    "queries, keys, values; inputs' gradients": {
        "qkv": (6, 4, 1),
        "dn of the MLP": (8, 5, 1),
        "dn of attention": (6, 4, 1),
    },
    "weights' gradients, of all blocks at once": {
        "dw1": (8, 5, DEPTH),
        "dw2": (8, 5, DEPTH),
        "dwqkv": (6, 4, DEPTH),
        "dwout": (2, 2, DEPTH),
    },
}


def read_cases() -> dict[str, dict[str, Any]]:
    """Return what every benchmark found on a GPU."""
    return json.loads(RECORD.read_text())["cases"]


def read_rows(case: str) -> list[dict[str, Any]]:
    """Return the rows of a benchmark on a GPU, none if it was not run."""
    return read_cases().get(case, {}).get("rows", [])


def read_profiles() -> list[dict[str, Any]]:
    """Return the profiled steps: plain before and now, then with the penalty."""
    return sorted(read_rows("step_profile"), key=lambda row: list(METHODS).index(row["method"]))


def find_number(case: str, variant: str, method: str, column: str) -> str:
    """Return a number of a variant's row.

    ``epoch`` is the time of an epoch of CIFAR-10 in seconds, ``over AIM`` how much longer it is than an aim, ``share``
    how much of the step the matrix products would take at the chip's rate.
    """
    for row in read_rows(case):
        if (row["variant"], row["method"]) == (variant, method) and "milliseconds" in row:
            found = {**row, **row.get("work", {}), "epoch": row["milliseconds"] * STEPS_PER_EPOCH / 1e3}
            if column == "share":
                return f"{found['floor_of_products'] / found['milliseconds']:.0%}"
            if column.startswith("over "):
                return f"{found['epoch'] / float(column.removeprefix('over ')) - 1:.0%}"
            return f"{found[column]:.3g}"
    return "(not measured)"


def make_speedup_table(model: str) -> str:
    """Tabulate the variants of one model: time of a step, the same relative to the first row, and peak memory."""
    rows = [row for row in read_rows("engine_speedups") if row["model"].startswith(model)]
    if not rows:
        return _not_measured("engine_speedups")
    lines = ["| | plain | | | with the penalty | | | kept |", "|---|---:|---:|---:|---:|---:|---:|---|"]
    for name in dict.fromkeys(row["variant"] for row in rows):
        found = {row["method"]: row for row in rows if row["variant"] == name}
        cells = [cell for method in METHODS for cell in _format_time(found.get(method))]
        lines.append(f"| {name} | {' | '.join(cells)} | {KEPT.get(name, '')} |")
    return "\n".join(lines) + "\n"


def _format_time(row: dict[str, Any] | None) -> tuple[str, str, str]:
    if row is None:
        return "", "", ""
    if "milliseconds" not in row:
        return row["error"] if row["error"].startswith("not measured within") else "fails", "", ""
    memory = f"{row['peak_MiB'] / 1024:.1f} GiB" if row.get("peak_MiB") else ""
    return f"{row['milliseconds']:.2f} ms", f"{row['ratio']:.2f}" if "ratio" in row else "", memory


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


def find_tiles(kernel: str) -> list[dict[str, Any]]:
    """Return the timed tiles of a kernel on the tokens of a plain step, the fastest first."""
    found = [row for row in read_rows("kernel_tiles") if (row["kernel"], row["rows"]) == (kernel, ROWS)]
    return sorted((row for row in found if "error" not in row), key=lambda row: row["microseconds"])


def make_kernel_table() -> str:
    """Tabulate the kernels of a block: their tiles, microseconds, and rates."""
    profiles = [row for row in read_profiles() if (row["variant"], row["method"]) == (FASTEST, "plain")]
    if not profiles or not read_rows("kernel_tiles"):
        return _not_measured("kernel_tiles")
    rates = profiles[0]["work"]["teraflop_per_second"], profiles[0]["work"]["terabytes_per_second"]
    lines = [
        "| µs | tile | alone | slowest tile | in a step | least | TFLOP/s | TB/s |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    total = total_least = 0.0
    for name, (what, count, values) in KERNELS.items():
        fastest, *_, slowest = find_tiles(name)
        time, in_step = fastest["microseconds"], profiles[0]["kernel_times"][name] / (DEPTH * count)
        # In a microsecond, a TFLOP/s does a million FLOPs, and a TB/s moves a million bytes.
        work = fastest.get("TFLOP/s", 0.0) * time, values * WIDTH * 2 * ROWS / 1e6
        least = max(each / rate for each, rate in zip(work, rates, strict=True))
        tile = ", ".join(f"{fastest[key]} {word}" for key, word in TILES.items() if fastest.get(key, 1) > 1)
        cells = [f"`{name}`: {what}", tile, f"{time:.1f}", f"{slowest['microseconds']:.1f}", f"{in_step:.1f}"]
        lines.append(_format_kernel(cells, time, least, work, rates))
        total, total_least = total + count * time, total_least + count * least
    for title, parts in PRODUCTS.items():
        time = sum(find_tiles(name)[0]["microseconds"] / blocks for name, (*_, blocks) in parts.items())
        works = [
            (flops * WIDTH**2 * ROWS / 1e6, values * WIDTH * 2 * ROWS / 1e6) for flops, values, _ in parts.values()
        ]
        least = sum(max(each / rate for each, rate in zip(work, rates, strict=True)) for work in works)
        work = sum(flops for flops, _ in works), sum(moved for _, moved in works)
        lines.append(
            _format_kernel([f"{len(parts)} products: {title}", "", f"{time:.1f}", "", ""], time, least, work, rates)
        )
        total, total_least = total + time, total_least + least
    last = f"| {DEPTH} blocks |  | **{DEPTH * total:,.0f}** |  |  | **{DEPTH * total_least:,.0f}** |  |  |"
    return "\n".join([*lines, last]) + "\n"


def _format_kernel(
    cells: list[str], time: float, least: float, work: tuple[float, float], rates: tuple[float, float]
) -> str:
    shares = [
        f"{each / time:.3g} ({each / time / rate:.0%})" if each else "" for each, rate in zip(work, rates, strict=True)
    ]
    return f"| {' | '.join([*cells, f'{least:.1f}', *shares])} |"


def make_version_table() -> str:
    """Tabulate the time of a block by version of the kernels, in a plain step."""
    rows = json.loads((RECORD.parent / "kernel-versions.json").read_text())["rows"]
    rows = [row for row in rows if row["method"] == "plain"]
    parts = [name for name, value in rows[0].items() if isinstance(value, float) and name != "block"]
    lines = [f"| version | {' | '.join(parts)} | block |", "|---|" + "---:|" * (len(parts) + 1)]
    for row in rows:
        times = " | ".join(f"{row[part]:.0f}" for part in parts)
        lines.append(f"| {row['what']} | {times} | **{row['block']:.0f}** |")
    return "\n".join(lines) + "\n"


def make_network_table() -> str:
    """Tabulate the time of several networks on one GPU, by the way in which they share it."""
    rows = read_rows("networks_at_once")
    if not rows:
        return _not_measured("networks_at_once")
    lines = ["| µs per network and step | networks | in turns | on streams | stacked |", "|---|---:|---:|---:|---:|"]
    for row in rows:
        cells = [_format_way(row, way) for way in ("one after another", "streams", "stacked")]
        lines.append(f"| {row['network']} | {row['networks']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _format_way(row: dict[str, Any], way: str) -> str:
    """Return a time and how many times as fast as in turns it is."""
    if way not in row:
        return "fails" if f"why, {way}" in row else ""
    faster = row.get("one after another", row[way]) / row[way]
    return f"{row[way]:,.0f}" + (f" ({faster:.1f} ×)" if way != "one after another" else "")


def make_ppo_table() -> str:
    """Tabulate the parts of PPO on Procgen, by method and kernels."""
    rows = read_rows("ppo_parts")
    if not rows:
        return _not_measured("ppo_parts")
    lines = ["| | update of a minibatch | rollout | steps per second | memory |", "|---|---:|---:|---:|---:|"]
    for row in rows:
        method, kernels = row["variant"].split("-")
        title = f"{METHODS.get(method, method)}, {'our kernels' if kernels == 'fused' else 'PyTorch’s kernels'}"
        rollout, rate = row["rollout, ms"], row.get("steps per second")
        cells = [f"{row['update, ms']:.1f} ms", f"{rollout:.0f} ms" if rate else "", f"**{rate:,.0f}**" if rate else ""]
        lines.append(f"| {title} | {' | '.join(cells)} | {row['peak_GiB']:.1f} GiB |")
    return "\n".join(lines) + "\n"


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
        add_grid(axes, colors, "x")
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
