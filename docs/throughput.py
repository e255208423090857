"""How fast ViT-S/16 trains on ImageNet, from ``results/benchmarks``, and how long the paper's Table 3 would take."""

import math
from typing import Any

import speed

from effdeg_lab import find_recipe

# The training images of ImageNet.
IMAGES = 1_281_167
CASE = "imagenet_throughput"
NOTE = (
    "These hours assume that decoding keeps up, in as many processes as the last column has, each with a core of its "
    "own and as fast as one of 16 in the table above, with Pillow. They leave out the evaluations: of 10,000 training "
    "images and all test images, and at the end of all training images. Eight GPUs are taken to be eight times as fast "
    "as one with a batch of 128, which counts neither communication nor that steps of several processes are not "
    "captured."
)
RECIPES = ("original", "strong")
# The images of a benchmark.
SOURCES = {"device": "on the GPU", "tiny-imagenet": "files of Tiny-ImageNet", "photos": "JPEGs of 500 × 375"}
# Torch's kernels of attention.
KERNELS = {"cudnn": "cuDNN", "efficient": "memory-efficient", "flash": "flash"}
DECODERS = {"pillow": "Pillow", "torchvision": "torchvision"}
# GPUs that share a batch of 1,024, by what each has of it.
GPUS = {1024: 1, 128: 8}


def is_measured() -> bool:
    """Return whether a step was measured."""
    return bool(speed.read_rows(CASE))


def make_table() -> str:
    """Tabulate the images per second, the memory and the penalty's share of every measured step."""
    lines = [
        "| recipe | batch | step | images | method | images/s | ms per step | memory | times plain "
        "| the penalty's share | the GPU waited |",
        "|---|---:|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    order = list(SOURCES)
    rows = speed.read_rows(CASE)
    for row in sorted(rows, key=lambda row: (order.index(row.get("source", "device")), row["recipe"], -row["batch"])):
        kind = "compiled, captured" if row["captured"] else "eager"
        source = SOURCES[row.get("source", "device")]
        cells = [row["recipe"], f"{row['batch']:,}", kind, source, speed.METHODS[row["method"]]]
        waited = f"{row['waited']:.0%}" if "waited" in row else ""
        lines.append(f"| {' | '.join([*cells, *_format_speed(row), waited])} |")
    return "\n".join(lines) + "\n"


def _format_speed(row: dict[str, Any]) -> list[str]:
    if "milliseconds" not in row:
        return ["does not fit", "", "", "", ""]
    # Steps on images in files may wait for these, which is not the penalty's share; older records have it.
    compared = "ratio" in row and "waited" not in row
    ratio, share = (f"{row['ratio']:.2f}×", f"{row['share']:.0%}") if compared else ("", "")
    return [
        f"{row['images_per_second']:,.0f}",
        f"{row['milliseconds']:.1f}",
        f"{row['peak_GiB']:.1f} GiB",
        ratio,
        share,
    ]


def make_attention_table() -> str:
    """Tabulate how long each kernel of attention takes by the number of tokens, and where its gradients are NaN."""
    rows = speed.read_rows("attention_kernels")
    kernels = list(dict.fromkeys(row["kernel"] for row in rows))
    found = {(row["tokens"], row["kernel"]): row for row in rows}
    lines = [f"| tokens | {' | '.join(KERNELS[each] for each in kernels)} |", f"|---:|{'---:|' * len(kernels)}"]
    for tokens in dict.fromkeys(row["tokens"] for row in rows):
        cells = [_format_kernel(found[tokens, each]) for each in kernels]
        lines.append(f"| {tokens} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def make_decoding_table() -> str:
    """Tabulate how fast processes decode images, and how long they take for a run of the paper's Table 3."""
    rows = speed.read_rows("decoding_speed")
    if not rows:
        return "Not measured yet: `python -m benchmarks decoding_speed`.\n"
    decoders = list(dict.fromkeys(row["decoder"] for row in rows))
    found = {(row["processes"], row["decoder"]): row["images_per_second"] for row in rows}
    images = find_recipe("imagenet-vit-strong").settings.to_dict()["epochs"] * IMAGES
    columns = [cell for each in decoders for cell in (f"{DECODERS[each]}, images/s", "hours of a run")]
    lines = [f"| processes | {' | '.join(columns)} |", f"|---:|{'---:|' * len(columns)}"]
    for count in dict.fromkeys(row["processes"] for row in rows if row["processes"]):
        speeds = [found[count, each] for each in decoders]
        cells = [cell for each in speeds for cell in (f"{each:,.0f}", f"{images / each / 3600:.1f}")]
        lines.append(f"| {count} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _find_decoding_speed() -> tuple[int, float]:
    """Return the largest number of processes that was tried with Pillow, and its images per second."""
    rows = [row for row in speed.read_rows("decoding_speed") if row.get("decoder") == "pillow"]
    return max(((row["processes"], row["images_per_second"]) for row in rows), default=(0, math.inf))


def _format_kernel(row: dict[str, Any]) -> str:
    return f"{row['milliseconds']:.2f} ms" + ("" if row["finite"] else ", NaN")


def make_hours() -> str:
    """Tabulate the hours of each run of the paper's Table 3, and of all of them, on one GPU and on eight."""
    rows = {
        (row["recipe"], row["batch"], row["method"]): row
        for row in speed.read_rows(CASE)
        if row["captured"] and "waited" not in row
    }
    lines = [
        "| hours of one run | GPUs | plain | with the penalty | decoding processes, plain and with the penalty |",
        "|---|---:|---:|---:|---:|",
    ]
    totals, (processes, decoded) = list[str](), _find_decoding_speed()
    for batch, gpus in GPUS.items():
        total = limited = 0.0
        for name in RECIPES:
            recipe = find_recipe(f"imagenet-vit-{name}")
            images = recipe.settings.to_dict()["epochs"] * IMAGES
            speeds = [rows.get((name, batch, each), {}).get("images_per_second") for each in speed.METHODS]
            hours = [images / each / gpus / 3600 if each else math.nan for each in speeds]
            total += len(recipe.seeds) * sum(hours)
            limited += len(recipe.seeds) * sum(max(each, images / decoded / 3600) for each in hours)
            cells = ["not measured" if math.isnan(each) else f"{each:.1f}" for each in hours]
            needed = [math.ceil(gpus * each * processes / decoded) if each else 0 for each in speeds]
            cells.append(", ".join(map(str, needed)) if all(needed) else "")
            lines.append(f"| {name} | {gpus} | {' | '.join(cells)} |")
        if math.isnan(total):
            continue
        cost = f"**{total:.1f}**" + (f" ({gpus * total:.0f} GPU hours)" if gpus > 1 else "")
        totals.append(f"| **all of Table 3, 3 seeds** | {gpus} | | {cost} | |")
        if processes and gpus == 1:
            totals.append(f"| **the same with {processes} decoding processes** | 1 | | **{limited:.0f}** | |")
    return "\n".join([*lines, *totals, "", NOTE]) + "\n"
