"""What was found of a recipe, in all its forms: text, plain numbers, and one page with all recipes."""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import jinja2
from markupsafe import Markup

import effdeg
from effdeg_lab import tables
from effdeg_lab.recipe import Recipe
from effdeg_lab.results import Results, collect, describe_departures, find_kept, matching
from effdeg_lab.runs import Run
from effdeg_lab.studies import StudyFigure
from effdeg_lab.studies.methods import format_duration, format_values, write_sweep_command
from effdeg_lab.tables import NOTHING, Table
from effdeg_lab.verdicts import Verdict

SIGNS = {"holds": "✓", "does not hold": "✗", "not decided": "≈", "no claim": "·", "not run": "·"}

_COLOR = re.compile(r"#[0-9a-f]{6}\b")
_MARKER = re.compile(r"\bm[0-9a-f]{10}\b")
# Smaller numbers may be factors, of which every digit counts.
_LONG_NUMBER = re.compile(r"(?<![\w.])-?[1-9]\d*\.\d{3,}")


@dataclass(frozen=True, eq=False)
class Report:
    """What was found of a recipe.

    Attributes:
        recipe: The recipe.
        results: What was run, scale by scale, the one that says most first.
        verdicts: What each of them says about the claim.
        runs: All its finished runs, each with the name of its method.
        tuning_runs: The finished runs that tuned, likewise.
    """

    recipe: Recipe
    results: tuple[Results, ...]
    verdicts: tuple[Verdict, ...]
    runs: tuple[tuple[str, Run], ...]
    tuning_runs: tuple[tuple[str, Run], ...]

    @property
    def compared(self) -> list[tuple[Results, Verdict]]:
        """The first results, and those with several methods."""
        both = list(zip(self.results, self.verdicts, strict=True))
        return [pair for index, pair in enumerate(both) if index == 0 or pair[0].size > 1]

    @property
    def alone(self) -> list[Results]:
        """The results of a single method, which has nothing to be compared with."""
        return [results for results in self.results[1:] if results.size == 1]

    @property
    def shown(self) -> bool:
        """Whether it has runs of its own, or other recipes' runs of all its methods."""
        own = any(run.recipe == self.recipe.name for _, run in self.runs)
        planned = len(self.recipe.methods) * len(list(self.recipe.points()))
        return own or any(results.size >= planned for results in self.results)

    @property
    def command(self) -> str:
        """The command that runs it."""
        return write_sweep_command(self.recipe)

    @property
    def anchor(self) -> str:
        """Its name on the page."""
        return self.recipe.name.replace(":", "-")

    @cached_property
    def tuning(self) -> Table | None:
        """What was tried to tune the methods, and what was chosen; None if nothing was tuned."""
        rows: list[tuple[str, ...]] = []
        bold: set[tuple[int, int]] = set()
        for each in self.results[0].methods:
            for tried, score in each.choice.tried if each.choice else []:
                if each.choice and tried == each.choice.changes:
                    bold |= {(len(rows), 1), (len(rows), 3)}
                epochs = str(each.choice.epochs if each.choice else NOTHING)
                rows.append((each.method.title, format_values(tried), epochs, f"{100 * score:.2f}%"))
            if each.runs and each.values_used and each.values_used != (each.choice and each.choice.changes):
                rows.append((each.method.title, format_values(each.values_used), NOTHING, "used, not tuned"))
        if not rows:
            return None
        title = f"Tuning on {self.recipe.tuning.get('held_out', 0):,} held-out training examples"
        notes = ("Bold: chosen. A value at an end of what was tried may not be the best there is.",)
        return Table(title, ("method", "values", "epochs", "held-out accuracy"), tuple(rows), notes, frozenset(bold))

    @cached_property
    def run_table(self) -> Table:
        """All runs: how they differ from their method, what came out, and where they ran."""
        places = [method.name for method in self.recipe.methods]
        marked = [(*each, "") for each in self.runs] + [(*each, " (tuning)") for each in self.tuning_runs]
        marked.sort(key=lambda each: (places.index(each[0]), each[2], each[1].value("epochs"), each[1].seed))
        rows = []
        for name, run, mark in marked:
            method = self.recipe.method(name)
            own = self.recipe.resolve(method, self.recipe.tuning if mark else {})
            versions = [
                f"{key} {run.environment[key]}" for key in ("torch", "python", "effdeg") if key in run.environment
            ]
            rows.append((
                run.name,
                method.title + mark,
                str(run.seed),
                "; ".join(describe_departures(own, type(own).complete(run.settings))) or NOTHING,
                self.recipe.study.headline(run),
                format_duration(run.value("seconds")),
                run.machine,
                ", ".join(versions),
            ))
        columns = ("run", "method", "seed", "differs from the recipe", "result", "time", "device", "versions")
        return Table(f"{len(rows)} runs", columns, tuple(rows))


def report_on(recipe: Recipe, runs: Sequence[Run], changes: Mapping[str, Any] | None = None) -> Report:
    """Put together what was found of a recipe.

    Args:
        recipe: The recipe.
        runs: All runs of a folder.
        changes: Keep runs with these settings only.
    """
    results = collect(recipe, runs, changes)
    verdicts = [recipe.study.claim(each) if each.done else Verdict("not run") for each in results]
    found = [
        (method.name, run)
        for method in recipe.methods
        for run in find_kept(runs, recipe, method, changes)
        if run.finished
    ]
    final = {run.file for _, run in found}
    tuning = [
        (method.name, run)
        for method in recipe.methods
        if method.tune
        for run in matching(runs, recipe, method, tuning=True, changes=changes)
        if run.finished and run.file not in final
    ]
    return Report(recipe, tuple(results), tuple(verdicts), tuple(found), tuple(tuning))


def list_tables(results: Results) -> list[Table]:
    """Return the tables of results; none if nothing was run."""
    return results.recipe.study.tables(results) if results.done else []


def to_text(report: Report, language: Literal["markdown", "latex"]) -> str:
    """Write what the paper found, what was found here, and the tables."""
    recipe, markdown = report.recipe, language == "markdown"
    escape = tables.escape_markdown if markdown else tables.escape_latex
    title = escape(f"{recipe.title} ({recipe.paper})")
    parts = [f"### {title}" if markdown else f"% Needs \\usepackage{{booktabs}}.\n\\subsection*{{{title}}}"]
    parts.append(escape(f"The paper: {recipe.expects}"))
    found: list[Table] = []
    for results, verdict in report.compared:
        parts.append(escape("; ".join([f"Here: {verdict}", *results.departures])))
        for table in list_tables(results):
            found.append(table)
            label = f"tab:{report.anchor}-{len(found)}"
            parts.append((tables.to_markdown(table) if markdown else tables.to_latex(table, label)).rstrip("\n"))
    if report.tuning:
        label = f"tab:{report.anchor}-tuning"
        parts.append(tables.to_markdown(report.tuning) if markdown else tables.to_latex(report.tuning, label))
    if recipe.departs:
        parts.append(escape(f"Not the paper's: {recipe.departs}"))
    return "\n\n".join(parts) + "\n"


def to_dict(report: Report) -> dict[str, Any]:
    """Return everything as plain numbers, names and lists."""
    recipe = report.recipe
    return {
        "recipe": recipe.name,
        "title": recipe.title,
        "paper": recipe.paper,
        "expects": recipe.expects,
        "departs": recipe.departs,
        "results": [
            {
                "scale": dict(results.scale),
                "seeds": results.seeds,
                "machines": results.machines,
                "departures": results.departures,
                "verdict": asdict(verdict),
                "methods": [
                    {
                        "name": each.method.name,
                        "title": each.method.title,
                        "state": each.state,
                        "paper": each.method.paper and asdict(each.method.paper),
                        "values": each.values_used and dict(each.values_used),
                        "tuned": each.choice is not None and each.choice.changes == each.values_used,
                        "runs": {run.name: run.summary for run in each.runs},
                    }
                    for each in results.methods
                ],
                **(recipe.study.numbers(results) if results.done else {}),
            }
            for results, verdict in zip(report.results, report.verdicts, strict=True)
        ],
        "tuning": {each.method.name: asdict(each.choice) for each in report.results[0].methods if each.choice},
    }


def render_page(reports: Sequence[Report]) -> str:
    """Write the page of several recipes, which needs no other file, no network and no scripts."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("effdeg_lab", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals |= {"list_tables": list_tables, "list_figures": _list_figures, "signs": SIGNS}
    environment.filters["code"] = _mark_code
    shown = [report for report in reports if report.shown]
    return environment.get_template("report.html.j2").render(
        shown=shown,
        absent=[report for report in reports if not report.shown],
        runs=len({run.file for report in shown for _, run in report.runs}),
        tuning_runs=len({run.file for report in shown for _, run in report.tuning_runs}),
        machines=sorted({name for report in shown for results in report.results for name in results.machines}),
        version=effdeg.__version__,
    )


def _mark_code(text: str) -> Markup:
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(Markup.escape(text))))


def _list_figures(results: Results) -> list[tuple[str, Markup]]:
    figures = results.recipe.study.figures(results) if results.done else []
    return [(figure.caption, draw_in_both_themes(figure)) for figure in figures]


def draw_in_both_themes(figure: StudyFigure) -> Markup:
    """Draw a figure as SVG in the colors of the reader's theme."""
    light, dark = (_draw_svg(figure, theme) for theme in ("light", "dark"))
    shapes = [_MARKER.sub("", _COLOR.sub("", svg)) for svg in (light, dark)]
    if shapes[0] != shapes[1]:  # the drawings differ in more than their colors
        return Markup(f'<div class="in-light">{light}</div><div class="in-dark">{dark}</div>')
    others = iter(_COLOR.findall(dark))
    return Markup(_COLOR.sub(lambda found: f"light-dark({found[0]}, {next(others)})", light))


def _draw_svg(figure: StudyFigure, theme: str) -> str:
    import matplotlib as mpl

    stream = io.BytesIO()
    # Without the date and with a fixed salt the same runs give the same page.
    with mpl.rc_context({"svg.hashsalt": figure.name}):
        figure.draw(theme).savefig(stream, format="svg", metadata={"Date": None})
    svg = stream.getvalue().decode()
    # A hundredth of a point is more than a screen shows.
    short = _LONG_NUMBER.sub(lambda found: f"{float(found[0]):.2f}", svg[svg.index("<svg") :])
    return re.sub(r"\n\s*", "\n", short)
