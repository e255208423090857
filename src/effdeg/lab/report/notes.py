"""What a reader of a table should know: how its runs depart from the recipe, and where strengths come from."""

from collections.abc import Mapping
from typing import Any

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.wording import listed, percent, points, setting, strengths
from effdeg.lab.settings import to_dict
from effdeg.lab.tuning import Choice


def scale_notes(block: Block) -> list[str]:
    """Say in what the runs differ from the recipe in scale, and which lines failed."""
    own = to_dict(block.recipe.settings)
    apart = settings_apart({key: own[key] for key in block.scale}, block.scale)
    found = []
    if apart and (block.done or (block.pool and block.pool.table)):
        shortened = block.epochs < own.get("epochs", 0)
        found.append(f"{'Shortened' if shortened else 'Unlike the recipe'}: {'; '.join(apart)}.")
    found += [f"{line.row.title} failed: {line.failure}" for line in block.lines if line.failure]
    return found


def strength_notes(block: Block) -> list[str]:
    """Say where the lines' strengths come from, and which others were run."""
    lines = [line for line in block.done if line.strengths]
    own = [line.row.title for line in lines if line.choice is None and line.strengths == line.own]
    found = [f"The recipe's own strength, not tuned: {listed(own)}".rstrip(".") + "."] if own else []
    for line in lines:
        used = f"{line.row.title}: {strengths(line.strengths)}"
        if line.choice is None:
            found += [f"{used}, set by hand, not tuned."] * (line.strengths != line.own)
        elif line.strengths == line.choice.changes:
            tried = listed([f"{strengths(each)}: {percent(score)}" for each, score in line.choice.tried])
            held_out = f"{block.recipe.tuning['held_out']:,} held-out examples"
            found.append(
                f"{used}, the best of {len(line.choice.tried)} on {held_out} ({tried}){_at_the_edge(line.choice)}."
            )
        else:
            found.append(f"{used}; the tuned one, {strengths(line.choice.changes)}, was not run at this scale.")
        if line.also:
            also = listed([f"{strengths(each)} ({points(spread)}%)" for each, spread in line.also])
            found.append(f"{line.row.title} was also run with {also}, which is not shown.")
    return found


def _at_the_edge(choice: Choice) -> str:
    """Say so where the best of several strengths is the last that was tried in its direction."""
    for name, value in choice.changes.items():
        tried = [each[name] for each, _ in choice.tried]
        for extreme, word in ((min, "smallest"), (max, "largest")):
            if min(tried) < max(tried) and value == extreme(tried):
                return f"; it is the {word} that was tried, so the best may lie beyond"
    return ""


def settings_apart(own: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Name the settings, the seed apart, that are not the recipe's own."""
    pairs = {name: (setting(found[name]), setting(own[name])) for name in own if own[name] != found[name]}
    pairs.pop("seed", None)
    return [
        f"{there} epochs instead of {here}" if name == "epochs" else f"{name} {there} instead of {here}"
        for name, (there, here) in pairs.items()
    ]
