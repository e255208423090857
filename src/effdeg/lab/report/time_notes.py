"""What a reader of times should know."""

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.equal_time import EqualTime
from effdeg.lab.report.naming import title
from effdeg.lab.report.wording import listed, points, sweep_command
from effdeg.lab.settings import to_dict


def rough_notes(block: Block) -> list[str]:
    """Warn where times cannot be relied on."""
    return ["Times on a CPU are rough: other work on it slows some runs more than others."] if block.rough else []


def equal_time_notes(block: Block, at: EqualTime) -> list[str]:
    """Describe how runs of equal time were found, what took longer, and how to run what is missing."""
    found = ["At equal time every line is shown by the longest of its finished runs that took 80 to 105% of that time."]
    reference = at.accuracy(at.reference)
    for word in ("lower", "higher"):
        ended = [
            f"{title(line)} ({points(line.accuracy)}%)"
            for line in at.longer.values()
            if line.accuracy and reference and (line.accuracy.mean < reference.mean) == (word == "lower")
        ]
        if ended:
            found.append(
                f"In more time than that, {listed(ended)} ended {word} than {block.line(at.reference).row.title}."
            )
    if at.longer or at.missing(block.lines):
        found.append(f"To run what is missing: `{_equal_time_command(block, at)}`")
    return found


def _equal_time_command(block: Block, at: EqualTime) -> str:
    """Write the command that runs what is missing, at the scale shown; in the runs' own folder with their strengths."""
    own, parts = to_dict(block.recipe.settings), [sweep_command(block.recipe), "--runs RUNS --no-tune"]
    if block.seeds != list(block.recipe.seeds):
        parts.append(f"--seeds {','.join(map(str, block.seeds))}")
    for name, value in block.scale.items():
        if value != own[name]:
            text = ",".join(value) if isinstance(value, list) else str(value).lower()
            parts.append(f"--set {name}={text}")
    return " ".join([*parts, f"--equal-time {at.reference}"])
