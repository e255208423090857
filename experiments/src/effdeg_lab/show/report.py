"""What was found of a recipe, in all its forms: text, plain numbers, and one page with all recipes."""

import hashlib
import io
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from markupsafe import Markup

from effdeg.io import render_html
from effdeg_lab.core.recipe import SMOKE_NOTE, Recipe, StudyFigure
from effdeg_lab.core.results import Results, Selection, collect, list_others
from effdeg_lab.core.runs import Run
from effdeg_lab.core.settings import format_setting
from effdeg_lab.show import tables
from effdeg_lab.show.columns import format_duration, format_values, write_sweep_command
from effdeg_lab.show.figures import pair_colors
from effdeg_lab.show.tables import NOTHING, Table
from effdeg_lab.show.verdicts import Verdict

_MOST_OTHERS = 3  # groups of runs with other settings that are listed
_COLOR = re.compile(r"#[0-9a-f]{6}\b")
_TAG = re.compile("<[^>]*>")
_STYLE = re.compile(r'style="([^"]*)"')
# Smaller numbers may be factors, of which every digit counts.
_LONG_NUMBER = re.compile(r"(?<![\w.])-?[1-9]\d*\.\d{3,}")


@dataclass(frozen=True, eq=False)
class Report:
    """What was found of a recipe, scale by scale, its own first, and the finished runs it comes from."""

    recipe: Recipe
    results: tuple[Results, ...]
    verdicts: tuple[Verdict, ...]
    runs: tuple[Run, ...]
    tuning_runs: tuple[Run, ...]
    others: tuple[tuple[dict[str, Any], list[Run]], ...]  # its runs with other settings, by the changes that show them

    @property
    def shown(self) -> bool:
        """Whether it has runs of its own, or other recipes' runs of all its methods."""
        own = any(run.recipe == self.recipe.name for run in self.runs)
        planned = len(self.recipe.methods) * len(self.recipe.points())
        return own or any(results.size >= planned for results in self.results)

    @property
    def tuning(self) -> Table | None:
        """What was tried to tune the methods, and what was chosen; None if nothing was tuned."""
        title, columns = "Tuning on held-out training examples", ("values", "held out", "epochs", "held-out accuracy")
        rows: list[tuple[str, ...]] = []
        bold: set[tuple[int, int]] = set()
        for each in self.results[0].methods:
            choice, name = each.choice, each.method.title
            scale = (f"{choice.held_out:,}", str(choice.epochs)) if choice else (NOTHING, NOTHING)
            for tried, score in choice.tried if choice else []:
                if choice and tried == choice.changes:
                    bold |= {(len(rows), 1), (len(rows), 4)}
                rows.append((name, format_values(tried), *scale, f"{100 * score:.2f}%"))
            if each.runs and each.values_used and each.values_used != (choice and choice.changes):
                rows.append((name, format_values(each.values_used), NOTHING, NOTHING, "used, not tuned"))
        chosen = ("Bold: chosen. A value at an end of what was tried may not be the best there is.",)
        notes = chosen if bold else ()
        return Table(title, ("method", *columns), tuple(rows), notes, frozenset(bold)) if rows else None

    def list_parts(self) -> Iterator[str | Table]:
        """Iterate over what a reader is shown: what the paper found, what was found here, and the tables."""
        yield f"{self.recipe.title} ({self.recipe.paper})"
        yield from [SMOKE_NOTE] if self.recipe.smoke else []
        yield f"{self.recipe.source}: {self.recipe.expects}"
        shown = {run.file for run in self.results[0].runs}
        for index, (results, verdict) in enumerate(zip(self.results, self.verdicts, strict=True)):
            if index > 0 and results.size == 1:  # nothing to compare it with
                # The heading has the epochs.
                differs = [departure for departure in results.departures if not departure.startswith("epochs ")]
                if not shown.issuperset(run.file for run in results.runs):  # not another method's at the first scale
                    yield f"Also run: {'; '.join([f'{results.done[0].method.title}, {results.heading}', *differs])}."
                continue
            yield f"Here: {verdict}."
            yield from [f"Differs from the recipe: {'; '.join(results.departures)}."] if results.departures else []
            yield from (*results.different_data, *results.different_code)
            yield from list_tables(results)
        yield from [self.tuning] if self.tuning else []
        if self.recipe.departs and self.results[0].changes:  # it may be about what was changed
            yield f"About the recipe itself: `effdeg-lab show {self.recipe.name}`"
        elif self.recipe.departs:
            yield f"{self.recipe.departs_heading}: {self.recipe.departs}"
        yield from self.describe_others()
        if not self.runs:
            yield f"To run it ({self.recipe.cost}): `{write_sweep_command(self.recipe)}`"

    def describe_others(self) -> Iterator[str]:
        """Iterate over sentences on the runs with other settings, each with the command that shows them."""
        for changes, runs in self.others[:_MOST_OTHERS]:
            folder, names = runs[0].file.parent.parent, {run.method for run in runs}
            methods = ", ".join(each.name for each in self.recipe.methods if each.name in names)
            count = f"{len(runs)} finished runs" if len(runs) > 1 else "1 finished run"
            command = write_table_command(self.recipe, folder, changes)
            yield f"With other settings: {count} of {methods}. To see them: `{command}`"
        if rest := sum(len(runs) for _, runs in self.others[_MOST_OTHERS:]):
            yield f"And {rest} more with still other settings."


def report_on(recipe: Recipe, runs: Sequence[Run], changes: Mapping[str, Any] | None = None) -> Report:
    """Put together what was found of a recipe, in runs with some settings only if ``changes`` names them."""
    # The recipe's own scale first, if it compares anything.
    results = sorted(collect(recipe, runs, changes), key=lambda each: each.size < 2 or bool(each.departures))
    verdicts = [recipe.study.judge(each) for each in results]

    selection, tuned = Selection(recipe, runs, changes), [method for method in recipe.methods if method.tune]
    final = {run.file: run for method in recipe.methods for run in selection.list_runs(method) if run.finished}
    tuning = {run.file: run for method in tuned for run in selection.list_tuning_runs(method) if run.finished}
    tuning_runs = tuple(run for file, run in tuning.items() if file not in final)
    others = tuple(list_others(recipe, runs, changes))
    return Report(recipe, tuple(results), tuple(verdicts), tuple(final.values()), tuning_runs, others)


def write_table_command(recipe: Recipe, runs: Path, changes: Mapping[str, Any]) -> str:
    asked = "".join(f" --set {shlex.quote(f'{name}={format_setting(value)}')}" for name, value in changes.items())
    return f"effdeg-lab table {recipe.name} --runs {shlex.quote(str(runs))}{asked}"


def list_tables(results: Results) -> list[Table]:
    return results.recipe.study.tables(results) if results.done else []


def to_text(report: Report, language: Literal["markdown", "latex"]) -> str:
    """Write what the paper found, what was found here, and the tables."""
    markdown = language == "markdown"
    escape = tables.escape_markdown if markdown else tables.escape_latex
    parts, number = list[str](), 0
    for part in report.list_parts():
        if isinstance(part, str):
            parts.append(escape(part))
        else:
            number += 1
            label = f"tab:{report.recipe.name}-{number}"
            parts.append((tables.to_markdown(part) if markdown else tables.to_latex(part, label)).rstrip("\n"))
    parts[0] = f"### {parts[0]}" if markdown else f"% Needs \\usepackage{{booktabs}}.\n\\subsection*{{{parts[0]}}}"
    return "\n\n".join(parts) + "\n"


def to_dict(report: Report) -> dict[str, Any]:
    return {
        **{key: getattr(report.recipe, key) for key in ("name", "title", "paper", "expects", "departs")},
        "changes": dict(report.results[0].changes),
        "results": [
            {
                "scale": dict(results.scale),
                "verdict": asdict(verdict),
                "tables": [{**asdict(table), "bold": sorted(table.bold)} for table in list_tables(results)],
                "runs": {run.name: run.summary for run in results.runs},
            }
            for results, verdict in zip(report.results, report.verdicts, strict=True)
        ],
        "tuning": {each.method.name: asdict(each.choice) for each in report.results[0].methods if each.choice},
    }


def render_page(reports: Sequence[Report], report_progress: Callable[[int, str], object] = lambda *_: None) -> str:
    """Write the page of several recipes, which needs no other file, no network and no scripts.

    Before each recipe, ``report_progress`` is called with the number of recipes that are done and the next one's name.
    """
    shown = [report for report in reports if report.shown]

    def begin(report: Report) -> str:
        report_progress(reports.index(report), report.recipe.name)
        return ""

    return render_html(
        files("effdeg_lab.show").joinpath("report.html.j2").read_text(encoding="utf-8"),
        shown=shown,
        absent=[report for report in reports if not report.shown],
        runs=len({run.file for report in shown for run in report.runs}),
        tuning_runs=len({run.file for report in shown for run in report.tuning_runs}),
        machines=sorted({name for report in shown for results in report.results for name in results.machines}),
        begin=begin,
        draw=draw,
        format_code=format_code,
        format_duration=format_duration,
        list_tables=list_tables,
        write_sweep_command=write_sweep_command,
    )


def format_code(text: str) -> Markup:
    """Return text as HTML, with code where it has backticks."""
    return Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(Markup.escape(text))))


def draw(figure: StudyFigure) -> Markup:
    """Draw a figure as SVG in the colors of the reader's theme; the same runs give the same bytes."""
    svg, dark = _draw_svg(figure, "light"), pair_colors()
    if not dark.keys() >= {*_COLOR.findall(svg)}:  # its own, such as those of a color map: drawn again to pair them
        dark = dict(zip(_COLOR.findall(svg), _COLOR.findall(_draw_svg(figure, "dark")), strict=False))
    svg = _COLOR.sub(lambda color: f"light-dark({color[0]}, {dark.get(color[0], color[0])})", svg)
    # A class for each style: most styles are repeated hundreds of times.
    names = {style: f"s{hashlib.sha256(style.encode()).hexdigest()[:8]}" for style in _STYLE.findall(svg)}
    rules = "".join(f".{name}{{{style}}}" for style, name in names.items())
    svg = _STYLE.sub(lambda style: f'class="{names[style[1]]}"', svg)
    label = f'<svg role="img" aria-label="{Markup.escape(figure.caption)}" '
    return Markup(svg.replace("<defs>", f"<style>{rules}</style>\n<defs>", 1).replace("<svg ", label, 1))


def _draw_svg(figure: StudyFigure, theme: str) -> str:
    import matplotlib as mpl

    stream = io.BytesIO()
    # Text stays text: outlines of letters would take more room than everything else.
    with mpl.rc_context({"svg.hashsalt": figure.name, "svg.fonttype": "none"}):
        figure.draw(theme).savefig(stream, format="svg", metadata={"Date": None})
    _, start, svg = stream.getvalue().decode().partition("<svg")
    # A hundredth of a point is more than a screen shows. Numbers that are read are not in tags.
    short = _TAG.sub(lambda tag: _LONG_NUMBER.sub(lambda number: f"{float(number[0]):.2f}", tag[0]), start + svg)
    return re.sub(r"\n\s*", "\n", short)
