"""``effdeg lab run``: one run of an experiment."""

import json as json_module
from contextlib import suppress
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from effdeg._utils.distributed import broadcast_from_first, process_group, rank_and_size
from effdeg.cli import _lab_options as lo
from effdeg.cli import _options as o
from effdeg.lab import Recipe, Row, Store, Task, chosen, find_recipe
from effdeg.lab.settings import RunSettings, digest, parsed, to_dict

_FACTS = {
    "training accuracy": "{train_accuracy:.2%}",
    "gap": "{gap:.2%}",
    "effective degree": "{effective_degree[value]:.4g} ± {effective_degree[stderr]:.2g} {measured_on}",
    "training time": "{seconds:.1f} s, {seconds_per_epoch:.3g} s per epoch, {milliseconds_per_step:.3g} ms per step",
}


def run(
    name: lo.Name,
    method: Annotated[
        str | None, typer.Option(help="The line of its table; the first if not given.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides everything that is drawn.")] = 0,
    changes: lo.Changes = None,
    data: lo.Data = None,
    runs: lo.Runs = lo.RUNS,
    device: lo.Device = None,
    json: o.Json = False,
) -> None:
    """Carry out one run, or what is left of it; one that is finished is shown.

    Strengths such as the weight of the penalty are those that a sweep has tuned, if one has, unless --set says
    otherwise. Under torchrun the processes share the work.
    """
    found = find_recipe(name)
    row = found.rows[0] if method is None else found.row(method)
    wanted = {"seed": seed, **parsed(found.settings, changes or ())}
    where, store = o.pick_device(device), Store(runs)
    found.resolved(row, wanted)  # what is wrong with it is said before processes are joined
    console = Console(highlight=False)
    with process_group():
        # The first decides for all: what another sees in the folder may already be something else.
        strengths, about_strengths = broadcast_from_first(
            _tuned(found, row, store, wanted) if rank_and_size()[0] == 0 else ({}, "")
        )
        settings = found.resolved(row, {**strengths, **wanted})
        work = store.run(settings)
        speaks = rank_and_size()[0] == 0 and not json
        if speaks:
            console.print(f"[bold]{escape(found.name)}[/]: {escape(row.title)}, seed {settings.seed}")
            if about_strengths:
                console.print(escape(about_strengths), soft_wrap=True)
        finished = broadcast_from_first(work.finished)
        if not finished:
            found.train(settings, Task(work, data, where, progress=speaks))
        if rank_and_size()[0] > 0:
            return
    record = work.record()
    if record is None or record.summary is None:
        raise ValueError(f"{found.name} has ended without a summary: its train must call task.run.finish(summary).")
    if json:
        what = {"recipe": found.name, "method": row.name, "run": digest(settings), "folder": str(work.folder)}
        how = {"settings": to_dict(settings), "tuned": bool(strengths), "environment": record.environment}
        print(json_module.dumps({**what, **how, "summary": record.summary}))
        return
    if finished:
        console.print(f"finished before; delete {escape(str(work.folder))} to run it again", soft_wrap=True)
    tested = "held-out" if getattr(settings, "held_out", 0) else "test"
    if found.study is not None:
        console.print(escape(found.study.score(record)), soft_wrap=True)
    how = {"measured_on": _measured_on(settings)}
    console.print(_table(record.summary | how, record.environment, tested=tested))
    console.print(f"kept in {escape(str(work.folder))}", soft_wrap=True)


def _tuned(found: Recipe[Any], row: Row, store: Store, wanted: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the strengths that were tuned, unless the user has set one, and a sentence about it."""
    if not (found.tuning and row.strengths) or row.strengths.keys() & wanted.keys():
        return {}, ""
    choice = chosen(found, row, store.records(), changes={**wanted, **found.tuning})
    if choice is None:
        own = {key: getattr(found.resolved(row, {}), key) for key in row.strengths}
        command = f"effdeg lab sweep {found.name} --method {row.name}"
        return {}, f"{lo.assignments(own)}, not tuned yet: {command} tunes it, and then runs it with every seed"
    how = f"the best of {len(choice.tried)} on {found.tuning['held_out']:,} held-out examples"
    return choice.changes, f"{lo.assignments(choice.changes)}, {how} ({choice.score:.2%} after {choice.epochs} epochs)"


def _measured_on(settings: RunSettings) -> str:
    """Describe how the effective degree was measured at the end: during training it is measured more coarsely."""
    known = to_dict(settings)
    return f"({known['measure_paths']} paths × {known['measure_nodes']} nodes)" if "measure_paths" in known else ""


def _table(summary: dict[str, Any], environment: dict[str, Any], *, tested: str) -> Table:
    table = Table.grid(padding=(0, 2))
    for label, text in {f"{tested} accuracy": "[bold]{test_accuracy:.2%}[/]", **_FACTS}.items():
        with suppress(KeyError, TypeError):  # an experiment of one's own may have other results
            table.add_row(label, text.format_map(summary))
    table.add_row("device", escape(environment["device"]))
    return table
