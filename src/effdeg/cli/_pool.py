"""``effdeg pool``: a table of many checkpoints of one model, for ``effdeg rank``."""

import csv
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import effdeg
from effdeg._utils.checks import shorten
from effdeg._utils.files import check_target, replace_nonfinite
from effdeg.cli import _options as o
from effdeg.cli._output import print_json, print_notes, print_table, print_to_stderr


@o.unbundle
def pool(
    model: Annotated[
        str,
        o.argument(
            help="**package.module:callable** (called without arguments, it returns the model), or a Hugging Face "
            "model folder."
        ),
    ],
    data: Annotated[
        str,
        o.option(
            help="Examples that the models were not trained on, as for **effdeg measure**. Labels in the file "
            "give the test accuracy."
        ),
    ],
    weights: Annotated[
        list[Path],
        o.option(
            help="A checkpoint (.safetensors, .pt, .ckpt, Hugging Face model folder), or a folder of them; repeat for "
            "several."
        ),
    ],
    out: Annotated[Path, o.option(help="The table (.csv). An existing table is continued.")],
    *,
    train: Annotated[
        str | None, o.option(help="Training examples with labels, for the gap and for proxies that need labels.")
    ] = None,
    proxies: Annotated[
        list[str] | None, o.option("--proxy", help="Another proxy, such as sharpness@0.05; repeat for several.")
    ] = None,
    proxy_examples: o.ProxyExamples = 2048,
    path_options: o.PathOptions,
    degree: o.Degree = 40,
    components: Annotated[
        list[int] | None,
        o.option(metavar="N", help="Also reduce the outputs to N principal components; repeat for several."),
    ] = None,
    device_options: o.DeviceOptions,
    read_options: o.ReadOptions,
    workers: Annotated[int, typer.Option(help="Background processes that load examples.", min=0)] = 0,
    quiet: o.Quiet = False,
    json: o.Json = False,
) -> None:
    """Measure many checkpoints of one model: a table of effective degrees, confidence, other proxies and accuracies.

    The table can be ranked with **effdeg rank**. Each row is written as soon as it is measured; after an interruption,
    the same command continues. A checkpoint that cannot be measured is left out with a warning, and the exit code is 1.
    """
    check_target("--out", out, {".csv"})
    from effdeg.pools._pool import name_checkpoints

    files = name_checkpoints(weights)
    examples = read_options.load(data)
    training = read_options.load_labeled(train, "--train")
    running = device_options.settings()
    architecture: Any = o.NamedModel(model, None, path_options.seed).load()
    with o.prepare_run([], examples):
        try:
            rows = effdeg.measure_pool(
                architecture,
                files,
                o.pair_with_labels(examples.inputs, o.read_labels(data)),
                train=training,
                proxies=proxies or (),
                proxy_examples=proxy_examples,
                **asdict(path_options),
                degree=degree,
                components=components or (),
                **running,
                workers=workers,
                out=out,
                progress=not (json or quiet),
            )
        except KeyboardInterrupt:
            print_to_stderr("stopped; the same command continues.")
            raise
    with out.open(encoding="utf-8", newline="") as stream:
        others = sorted({row["model"] for row in csv.DictReader(stream)} - {row["model"] for row in rows})
    console = Console(quiet=json)
    if json:
        print_json(replace_nonfinite({"rows": rows, "out": str(out), "other_models": others}))
    chosen = {"model", "effective_degree", "train_accuracy", "test_accuracy", "gap", *(proxies or ())}
    columns = [name for name in rows[0] if "_stderr" not in name and name != "sha256"]
    shown = [name for name in columns if name in chosen or ("effective_degree" in name and "@" in name)]
    print_table(console, "pool (±: standard error)", rows.cells(shown))
    console.print(escape(f"written: {out}"))
    console.print(f"not shown: {', '.join(name for name in columns if name not in shown)}", highlight=False)
    if others:
        them = shorten(others, 5)
        print_notes(console, [f"note: {out} also has rows of checkpoints that weights= does not name: {them}."])
    if len(rows) < len(files):
        raise typer.Exit(1)
