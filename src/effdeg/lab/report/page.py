"""The report as one page: no other files, no network, no scripts; light or dark as its reader's screen is."""

import base64
import io
import re
from collections.abc import Sequence
from html import escape

import matplotlib as mpl

from effdeg._utils.checks import pluralize
from effdeg._version import __version__
from effdeg.lab.report.blocks import Block
from effdeg.lab.report.drawing import Drawing
from effdeg.lab.report.figures import drawings
from effdeg.lab.report.result import RecipeResult
from effdeg.lab.report.shared_runs import run_and_not
from effdeg.lab.report.sheet import NOTHING, Sheet
from effdeg.lab.report.sheets import block_sheets, further, heading, runs_sheet, tuning_sheet
from effdeg.lab.report.style import STYLE
from effdeg.lab.report.verdicts import Finding
from effdeg.lab.report.wording import sweep_command

_SIGNS = {
    "holds": "✓",
    "aim met": "✓",
    "does not hold": "✗",
    "aim missed": "✗",
    "not decided": "≈",
    "not in the paper": "·",
    "not run": "·",
}


_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_MARKER = re.compile(r"\bm[0-9a-f]{10}\b")
# Smaller ones may be factors, of which every digit counts.
_LONG_NUMBER = re.compile(r"(?<![\w.])-?[1-9]\d*\.\d{3,}")

_TERMS = (
    "<p>The <b>effective degree</b> (ED) of a network says how much its outputs bend along straight paths between "
    "examples: at some <b>nodes</b> on each path polynomials up to some <b>degree</b> are fitted to the outputs, and "
    "every coefficient counts by its size times its degree. As a penalty ED has <b>anchors</b>: the true labels stand "
    "in for the outputs at the two ends of a path. The <b>gap</b> is training accuracy minus test accuracy; λ is the "
    "weight of a penalty, ρ the radius of SAM and ASAM, and α the parameter of mixup’s Beta distribution.</p>"
)


def page(results: Sequence[RecipeResult]) -> str:
    """Write the page of several experiments; those that no run of their own was done of are listed at its end."""
    shown, absent = run_and_not(results)
    parts = [_head(shown, absent), *map(_experiment, shown)]
    if absent:
        parts.append(_absent(absent))
    tuned = [(result, sheet) for result in shown if (sheet := tuning_sheet(result))]
    if tuned:
        parts.append('<section id="tuning"><h2>How strengths were tuned</h2>')
        parts += [f"<h3>{escape(result.recipe.title)}</h3>{_table(sheet)}" for result, sheet in tuned]
        parts.append("</section>")
    if shown:
        parts.append('<section id="runs"><h2>All runs</h2>')
        parts += [_runs(result) for result in shown]
        parts.append("</section>")
    return "\n".join([
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width"><title>effdeg lab: the paper beside our runs</title>',
        f"<style>{STYLE}</style></head><body>",
        *parts,
        f"<footer>Written by effdeg {escape(__version__)} (<code>effdeg lab report</code>).</footer></body></html>\n",
    ])


def _head(shown: Sequence[RecipeResult], absent: Sequence[tuple[RecipeResult, str]]) -> str:
    runs = {run.folder.name for result in shown for _, run in result.runs}
    tuning = {run.folder.name for result in shown for _, run in result.tuning_runs}
    machines = sorted({machine for result in shown for block in result.blocks for machine in block.machines})
    where = f" on {escape(', '.join(machines))}" if machines else ""
    where += f", after {len(tuning)} that tuned strengths" if tuning else ""
    rows = []
    for result in shown:
        block, recipe = result.blocks[0], result.recipe
        found = result.findings[block]
        rows.append(
            f'<tr><td><a href="#{_anchor(result)}">{escape(recipe.title)}</a><br><span class="faint">'
            f"{escape(recipe.paper)} · {escape(heading(block))}</span></td>"
            f"<td>{_verdict(found)}</td><td>{escape(found.sentences[0])}</td></tr>"
        )
    table = f'<div class="wide"><table class="overview">{"".join(rows)}</table></div>' if rows else ""
    links = ['<a href="#absent">not run yet</a>'] * bool(absent)
    links += ['<a href="#tuning">tuning</a>'] * any(result.tuning for result in shown)
    links += ['<a href="#runs">all runs</a>'] * bool(shown)
    return (
        "<header><h1>The paper’s experiments, run again</h1>"
        "<p><em>Quantifying and Optimizing Simplicity via Polynomial Representations</em> (Zhang et al., ICML 2026): "
        f"its numbers beside those of {pluralize(len(runs), 'run')}{where}. {pluralize(len(shown), 'experiment')} of "
        f"{len(shown) + len(absent)} {'was' if len(shown) == 1 else 'were'} run.</p>"
        f"{_TERMS}{table}<nav>{' · '.join(links)}</nav></header>"
    )


def _experiment(result: RecipeResult) -> str:
    recipe = result.recipe
    first, *others = result.blocks
    parts = [
        f'<section id="{_anchor(result)}"><h2>{escape(recipe.title)}</h2>',
        f'<p class="faint">{escape(recipe.paper)} · <code>effdeg lab sweep {escape(recipe.name)}</code></p>',
        f'<dl><dt>The paper</dt><dd>{escape(recipe.expects)}</dd><dt>Here</dt><dd class="finding">',
        f"{_verdict(result.findings[first])} {escape(str(result.findings[first]))}</dd></dl>",
        _block(first),
    ]
    known = {line.row.name for line in first.done}
    for block in others:
        new = {line.row.name for line in block.done} - known
        known |= new
        # What shows no new line need not be in the way.
        parts.append(
            f"<details{' open' * bool(new)}><summary>Also at another scale: {escape(heading(block))}</summary>"
            f'<p class="finding">{_verdict(result.findings[block])} {escape(str(result.findings[block]))}</p>'
            f"{_block(block)}</details>"
        )
    if found := further(result):
        parts.append(f"<p>Also run, with nothing to compare it with at its scale:</p>{_list(found)}")
    if recipe.departs:
        parts.append(f'<p class="note"><b>Not the paper’s.</b> {escape(recipe.departs)}</p>')
    return "\n".join([*parts, "</section>"])


def _block(block: Block) -> str:
    sheets = "".join(_table(sheet) for sheet in block_sheets(block))
    figures = "".join(_figure(drawing) for drawing in drawings(block))
    return f"{sheets}{figures}"


def _absent(results: Sequence[tuple[RecipeResult, str]]) -> str:
    rows = []
    for result, shares in results:
        recipe = result.recipe
        about = " · ".join([recipe.paper, *([shares] if shares else [])])
        rows.append(
            f"<tr><td>{escape(recipe.title)}<br><span class='faint'>{escape(about)}</span></td>"
            f"<td>{escape(recipe.cost)}</td><td><code>{escape(sweep_command(recipe))}</code></td></tr>"
        )
    head = "<tr><th>experiment</th><th>cost</th><th>to run it</th></tr>"
    table = f'<div class="wide"><table>{head}{"".join(rows)}</table></div>'
    return f'<section id="absent"><h2>Not run yet</h2>{table}</section>'


def _runs(result: RecipeResult) -> str:
    sheet = runs_sheet(result)
    summary = f"{escape(result.recipe.title)}: {pluralize(len(sheet.rows), 'run')}"
    return f"<details><summary>{summary}</summary>{_table(sheet, 'words')}</details>"


def _table(sheet: Sheet, kind: str = "numbers") -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in sheet.head)
    rows = []
    for number, row in enumerate(sheet.rows):
        cells = []
        for column, cell in enumerate(row):
            names = ["strong"] * ((number, column) in sheet.strong)
            names += ["faint"] * (cell in {NOTHING, "not run", "not finished", "failed"} or cell.startswith("took "))
            attribute = f' class="{" ".join(names)}"' if names else ""
            # Names may be broken behind their underscores.
            text = escape(cell) if column else escape(cell).replace("_", "_<wbr>")
            cells.append(f"<td{attribute}>{text}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    # Not a caption, which would scroll with a table that is wider than the screen.
    title = f'<p class="caption">{escape(sheet.title)}</p>'
    table = f'<table class="{kind}"><tr>{head}</tr>{"".join(rows)}</table>'
    return f'{title}<div class="wide">{table}</div>{_list(sheet.notes, "note")}'


def _figure(drawn: Drawing) -> str:
    caption = escape(drawn.caption)
    light, dark = (_svg(drawn, theme) for theme in ("light", "dark"))
    if _shape(light) == _shape(dark):
        image = f'<img src="{_source(_in_either_theme(light, dark))}" alt="{caption}">'
    else:
        image = (
            f'<picture><source srcset="{_source(dark)}" media="(prefers-color-scheme: dark)">'
            f'<img src="{_source(light)}" alt="{caption}"></picture>'
        )
    return f'<figure><div class="wide">{image}</div><figcaption>{caption}</figcaption></figure>'


def _in_either_theme(light: str, dark: str) -> str:
    """Join two drawings that differ in their colours alone, which are then looked up by the reader's theme."""
    inks = list(zip(_COLOUR.findall(light), _COLOUR.findall(dark), strict=True))
    names = {pair: f"--c{number}" for number, pair in enumerate(dict.fromkeys(inks))}
    each = iter(inks)
    both = _COLOUR.sub(lambda _: f"var({names[next(each)]})", light)
    either = [" ".join(f"{name}: {pair[theme]};" for pair, name in names.items()) for theme in (0, 1)]
    style = f":root {{ {either[0]} }} @media (prefers-color-scheme: dark) {{ :root {{ {either[1]} }} }}"
    return both.replace("<defs>", f"<defs><style>{style}</style>", 1)


def _shape(svg: str) -> str:
    """Return a drawing without its colours, and without the names of its markers, which follow from these."""
    return _MARKER.sub("", _COLOUR.sub("", svg))


def _source(svg: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def _svg(drawn: Drawing, theme: str) -> str:
    stream = io.BytesIO()
    # Without the date and with a fixed salt the same runs give the same page.
    with mpl.rc_context({"svg.hashsalt": "effdeg"}):
        drawn.draw(theme).savefig(stream, format="svg", metadata={"Date": None})
    # A hundredth of a point is more than a screen shows.
    short = _LONG_NUMBER.sub(lambda found: f"{float(found[0]):.2f}", stream.getvalue().decode())
    return re.sub(r"\n\s*", "\n", short)


def _verdict(found: Finding) -> str:
    verdict = found.verdict
    return f'<span class="verdict {verdict.replace(" ", "-")}">{_SIGNS[verdict]} {verdict}</span>'


def _list(sentences: Sequence[str], name: str = "") -> str:
    attribute = f' class="{name}"' if name else ""
    # What stands between backquotes is code.
    items = [re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(each)) for each in sentences]
    return f"<ul{attribute}>{''.join(f'<li>{item}</li>' for item in items)}</ul>" if items else ""


def _anchor(result: RecipeResult) -> str:
    return escape(result.recipe.name.replace(":", "-"))
