"""What a reader of a table should know: how its runs depart from the recipe, and where strengths come from."""

from collections.abc import Callable, Mapping
from typing import Any

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.naming import title
from effdeg.lab.report.wording import listed, percent, points, setting, strengths
from effdeg.lab.settings import to_dict
from effdeg.lab.tuning import Choice

# What two runs of one experiment differ in anyhow, and what changes the records of a run but not its end.
_UNTOLD = {"seed", "evaluate_every", "measure_every", "measure_also"}
_TOLD = {
    "epochs": "{} epochs instead of {}",
    "held_out": "{} held-out training examples instead of {}",
    "measure_paths": "effective degree on {} paths instead of {}",
    "measure_nodes": "effective degree with {} nodes on a path instead of {}",
    "measure_degree": "effective degree up to degree {} instead of {}",
    "proxy_examples": "proxies on {} examples instead of {}",
}
# Two settings that say one thing.
_WARM_UP = {"warm_up", "warm_up_epochs"}
_TRAINING_IMAGES = {"cifar10": 50_000, "mnist": 60_000, "mnist-cifar": 10_000}


def scale_notes(block: Block) -> list[str]:
    """Describe in what the runs differ from the recipe in scale, and which lines failed."""
    own = to_dict(block.recipe.settings)
    apart = settings_apart(own, own | dict(block.scale))
    found = []
    if apart and (block.done or (block.pool and block.pool.table)):
        shortened = block.epochs < own.get("epochs", 0)
        found.append(f"{'Shortened' if shortened else 'Unlike the recipe'}: {'; '.join(apart)}.")
    found += [f"{line.row.title} failed: {line.failure}" for line in block.lines if line.failure]
    return found


def strength_notes(block: Block) -> list[str]:
    """Describe where the lines' strengths come from, and which others were run."""
    lines = [line for line in block.done if line.strengths]
    own = [title(line) for line in lines if line.choice is None and line.strengths == line.own]
    found = [f"The recipe's own strength, not tuned: {listed(own)}".rstrip(".") + "."] if own else []
    tuned = {}
    for line in lines:
        used = f"{line.row.title}: {strengths(line.strengths)}"
        if line.choice is None:
            found += [f"{used}, set by hand, not tuned."] * (line.strengths != line.own)
        elif line.strengths == line.choice.changes:
            tuned[title(line)] = line.choice
            tried = listed([f"{strengths(each)}: {percent(score)}" for each, score in line.choice.tried])
            found.append(
                f"{used}, the best of {len(line.choice.tried)}, tuned in runs of {line.choice.epochs} epochs on "
                f"{block.recipe.tuning['held_out']:,} held-out examples ({tried})."
            )
        else:
            found.append(f"{used}; the tuned one, {strengths(line.choice.changes)}, was not run at this scale.")
        if line.also:
            also = listed([f"{strengths(each)} ({points(spread)}%)" for each, spread in line.also])
            found.append(f"{line.row.title} was also run with {also}, which is not shown.")
    return found + _edges(tuned, block.epochs)


def spread_notes(block: Block) -> list[str]:
    """Describe what stands behind ± and ED."""
    spreads = [line for line in block.lines if len(line.runs) > 1 or (line.row.paper and line.row.paper.std)]
    said = ["standard deviation over seeds for accuracies"] * bool(spreads)
    with_degree = any(line.effective_degree for line in block.lines)
    said += ["standard error for effective degrees (ED)"] * with_degree
    found = [f"±: {', '.join(said)}."] if said else []
    if with_degree and "measure_paths" in block.scale:
        found.append("ED: at the end of training, {measure_paths} paths × {measure_nodes} nodes.".format(**block.scale))
    return found


def settings_apart(own: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Name the settings that are not the recipe's own, but for those that do not change how a run ends."""
    names = [name for name in own if name not in _UNTOLD and own[name] != found[name]]
    said = [_apart(name, own[name], found[name], str(own.get("data"))) for name in names if name not in _WARM_UP]
    if _WARM_UP & {*names}:
        said.append(f"a warm-up of {_warm_up(found)} instead of {_warm_up(own)}")
    return said


def _warm_up(settings: Mapping[str, Any]) -> str:
    epochs = settings["warm_up_epochs"]
    return f"{settings['warm_up']:.3g} of training" if epochs is None else f"{epochs:g} epochs"


def _apart(name: str, own: Any, found: Any, data: str) -> str:
    if name == "limit" and found is not None:
        all_of_them = f"{_TRAINING_IMAGES[data]:,}" if data in _TRAINING_IMAGES else "all"
        return f"{found:,} of {all_of_them} training examples" if own is None else f"{found:,} examples, not {own:,}"
    if name == "compile":
        return "compiled" if found else "not compiled"
    return _TOLD.get(name, f"{name} {{}} instead of {{}}").format(setting(found), setting(own))


def _edges(tuned: Mapping[str, Choice], epochs: int) -> list[str]:
    """Note where the best of several strengths is the last that was tried in its direction."""
    several = {name: choice for name, choice in tuned.items() if len(choice.tried) > 1}
    weakest, strongest = ([name for name, each in several.items() if _is(each, end)] for end in (min, max))
    if not weakest and not strongest:
        return []
    if len(weakest) == len(several) > 1:
        all_of_them = "Both" if len(several) == 2 else f"All {len(several)}"
        found = f"{all_of_them} tuned lines chose the weakest strength that was tried"
    else:
        ends = {"weakest": weakest, "strongest": strongest}
        chosen = [f"the {word} for {listed(titles)}" for word, titles in ends.items() if titles]
        found = f"Of the strengths that were tried, tuning chose {', and '.join(chosen)}"
    lengths = sorted({several[name].epochs for name in weakest})
    if not lengths or lengths[-1] >= epochs:
        return [f"{found}: the best may lie beyond."]
    took = " to ".join(dict.fromkeys([str(lengths[0]), str(lengths[-1])]))
    return [
        f"{found}; they were tuned in {took} epochs and used for {epochs}, and short runs favour weak regularization."
    ]


def _is(choice: Choice, end: Callable[[list[Any]], Any]) -> bool:
    """Whether a choice lies at an end of what was tried, in all its strengths."""
    return all(value == end([tried[name] for tried, _ in choice.tried]) for name, value in choice.changes.items())
