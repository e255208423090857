"""Fine-tuned text encoders on all tasks of GLUE that were run: differences from plain training, and times of a step."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median

from effdeg_lab.core.results import MethodRuns, Results
from effdeg_lab.core.runs import Run
from effdeg_lab.experiments.glue.study import count_exceptions
from effdeg_lab.show.columns import count_seeds, format_difference, format_points
from effdeg_lab.show.tables import escape_markdown


def make_table(several: Sequence[Results]) -> str:
    """Tabulate the scores of the first method, and how far the others are from it, on every task."""
    first = several[0].methods[0].method
    lines = [_write_row(f"against {first.title}, points", map(_name, several)), "|---|" + "---:|" * len(several)]
    plain = (format_points(each.find(first.name).spread("score")) for each in several)
    lines.append(_write_row(f"{first.title}, %", plain))
    for method in several[0].recipe.methods[1:]:
        found = [each.difference(each.find(method.name), key="score") for each in several]
        if any(found):
            # On two lines, so that the columns fit next to each other.
            lines.append(_write_row(method.title, (format_difference(each).replace(" (", "<br>(") for each in found)))
    lines.append(_write_row("seeds", map(count_seeds, several)))
    return "\n".join([*lines, "", escape_markdown(_describe_exceptions(several))]) + "\n"


def _describe_exceptions(several: Sequence[Results]) -> str:
    """Describe how many differences exclude zero, and how many do with intervals that hold for all of them at once."""
    (count, above, below), (_, *at_once) = (count_exceptions(several, at_once=each) for each in (False, True))
    return (
        f"95% intervals, paired by seed; * excludes zero. Of {count} differences, each by its own interval: {above} "
        f"above zero, {below} below; chance alone gives {count / 40:.1f} of each. With intervals that hold for all "
        f"{count} at once (Bonferroni): {at_once[0]} above, {at_once[1]} below."
    )


def make_step_table(several: Sequence[Results]) -> str:
    """Tabulate the time of a step, of runs that were alone and of stacked ones, in milliseconds for each run."""
    columns = {}
    for results in several:
        for title, stacked in (("alone", False), ("stacked", True)):
            cells = {each.method.name: _format_step(each, stacked=stacked) for each in results.done}
            if any(cells.values()):
                columns[f"{_name(results)}, {title}"] = cells
    lines = [_write_row("ms per step and run", columns), "|---|" + "---:|" * len(columns)]
    for method in several[0].recipe.methods:
        row = [cells.get(method.name) or "–" for cells in columns.values()]
        if any(cell != "–" for cell in row):
            lines.append(_write_row(method.title, row))
    machines = ", ".join(dict.fromkeys(name for each in several for name in each.machines))
    note = f"{machines}; medians over epochs, without evaluation. Stacked: the fastest stack, with its number of runs."
    return "\n".join([*lines, "", note]) + "\n"


def _format_step(each: MethodRuns, *, stacked: bool) -> str:
    """Write the time of a step for each run; nothing if there are no such runs."""
    kept = [run for run in each.runs if bool(run.environment.get("together")) == stacked]
    kept = [run for run in kept if stacked or not run.environment.get("shared")]
    if not kept:
        return ""
    found = []
    for run in kept:
        size = run.environment.get("together", 1)
        found.append((1e3 * median(time_steps(run)) / size, size))
    # Stacks may have shared the GPU with others, which their records do not tell.
    return "{:.2f} ({})".format(*min(found)) if stacked else f"{median(time for time, _ in found):.2f}"


def time_steps(run: Run) -> list[float]:
    """Return the mean time of a step in each epoch, in seconds; of a stacked run that of the whole stack."""
    ends = [(0, 0.0), *((entry["step"], entry["seconds"]) for entry in run.metrics)]
    return [(after[1] - before[1]) / (after[0] - before[0]) for before, after in pairwise(ends)]


def _name(results: Results) -> str:
    model = next(run.settings["model"] for each in results.done for run in each.runs)
    return f"{results.recipe.study.task}, {model.removeprefix('all-')}"


def _write_row(name: str, cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(escape_markdown, [name, *cells]))} |"
