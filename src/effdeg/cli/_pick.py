"""``effdeg pick``: which of several models will generalize best, without labels."""

from collections import UserDict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import effdeg
from effdeg.cli import _options as o
from effdeg.cli._compare import match_models
from effdeg.cli._output import check_plot, print_json, print_notes, print_table, write_plot

if TYPE_CHECKING:
    from effdeg._adapters.inference import Model


@o.unbundle
def pick(
    models: o.Models,
    data: o.Data,
    *,
    weights: Annotated[
        list[Path] | None,
        o.option(
            help="Checkpoints (.safetensors, .pt, .ckpt, Hugging Face model folders) or folders of them, for one "
            "model; or one for each model. Repeat for several."
        ),
    ] = None,
    labels: Annotated[
        int, o.option(metavar="N", help="Use the labels of the first N examples, which are in the same file.", min=0)
    ] = 0,
    train: Annotated[str | None, o.option(help="Training examples with labels: do the models fit them?")] = None,
    change: Annotated[
        list[str] | None,
        o.option(
            help="What should not change a class, such as mirror, shift(4) or mirror+shift(4); repeat to draw one of "
            "several for each example."
        ),
    ] = None,
    at: Annotated[str | None, o.option(help="The layer that embeds token ids.")] = None,
    examples: Annotated[int, typer.Option(help="Number of examples, drawn with the seed.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the examples and the changes.")] = 0,
    device_options: o.DeviceOptions,
    read_options: o.ReadOptions,
    keep: Annotated[
        Path | None, o.option(help="Keep what is observed of each model in this folder, to continue later.")
    ] = None,
    plot: o.Plot = None,
    quiet: o.Quiet = False,
    json: o.Json = False,
) -> None:
    """Choose the model that will generalize best, without labels.

    A model is good if it classifies examples and changed copies of them alike, and agrees with the other models. A few
    labels (--labels) show how far to trust that.
    """
    check_plot(plot)
    named = match_models(models, weights or [], seed)
    settings = device_options.settings()
    changes = o.parse_changes(change)
    loaded = read_options.load(data)
    known = o.read_labels(data, f"--labels {labels}: --data") if labels else None
    if known is not None and len(known) < labels:
        raise ValueError(f"--labels {labels}: {data} holds {len(known)} labels.")
    training = read_options.load_labeled(train, "--train")
    with o.prepare_run(named.values(), loaded):
        choice = effdeg.pick(
            _Models(named),
            loaded.inputs,
            labels=None if known is None else known[:labels],
            train=training,
            change=changes,
            at=at,
            examples=examples,
            seed=seed,
            keep=keep,
            progress=not (json or quiet),
            **settings,
        )
    console = Console(quiet=json)
    if json:
        print_json(choice.to_dict() | {"data": loaded.source})
    console.print(escape(choice.describe()), highlight=False)
    print_table(console, choice.legend(), choice.rows())
    console.print(escape(f"data: {loaded.source} ({loaded.preprocessing or 'as they are'}), {choice.conditions()}"))
    print_notes(console, choice.warnings())
    write_plot(plot, choice.plot, console)


class _Models(UserDict[str, Any]):
    """Models that are loaded when they are asked for, one at a time."""

    def __getitem__(self, name: str) -> "Model":
        model: Model = self.data[name].load()
        return model
