"""One page for each table and figure of the paper, and for recipes beyond it: numbers, command, verdict, what differs.

Numbers come from recipes and ``results/``; titles and status of the paper's items from the table of ``docs/paper.md``;
what was found, in words, from ``docs/findings``, whose other files are the list of recipes beyond the paper.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import lab_tables

from effdeg_lab import Recipe, Table, all_recipes
from effdeg_lab.core.results import Results
from effdeg_lab.show.columns import write_sweep_command
from effdeg_lab.show.report import Report, draw, list_tables, report_on, write_table_command
from effdeg_lab.show.tables import escape_markdown, to_markdown

DOCS = Path(__file__).parent
INDEX = DOCS / "paper.md"
FINDINGS = DOCS / "findings"
ITEM = re.compile(r"^\| ((Table|Figure) (\d+)): ([^|]+?) \|", re.MULTILINE)


@dataclass(frozen=True)
class Item:
    """A table or figure of the paper, as a row of the index has it."""

    name: str  # as "Table 1"
    title: str
    finding: str
    status: str

    @property
    def page(self) -> str:
        """The name of its page."""
        return self.name.lower().replace(" ", "-")


def read_items() -> list[Item]:
    """Read the tables and figures of the paper from the index."""
    rows = [line.strip("| \n").split(" | ") for line in INDEX.read_text().splitlines() if ITEM.match(line)]
    return [Item(*head.split(": ", 1), finding, status) for head, _, finding, status in rows]


def link_items(text: str) -> str:
    """Link the tables and figures in the index to their pages."""
    return ITEM.sub(lambda found: f"| [{found[1]}](/paper/{found[2].lower()}-{found[3]}.md): {found[4]} |", text)


def find_recipes(item: Item) -> list[Recipe]:
    """Return the recipes of a table or figure, by what each says of itself."""
    kind, number = item.name.split()
    return [each for each in all_recipes().values() if number in _list_numbers(each.paper, kind)]


def _list_numbers(paper: str, kind: str) -> list[str]:
    """Return the numbers of the tables, or figures, that a recipe reproduces; not of those that it only resembles."""
    found = re.match(rf"(?:Tables? [\d, and]+, )?{kind}s? (\d+(?:(?:, | and )\d+)*)", paper)
    return re.findall(r"\d+", found[1]) if found else []


def list_beyond() -> list[str]:
    """List the recipes that have a page of their own without being a table or figure of the paper."""
    items = {item.page for item in read_items()}
    return sorted(file.stem for file in FINDINGS.glob("*.md") if file.stem not in items)


def find_page(name: str) -> str:
    """Return where the site shows what ``docs/findings/NAME.md`` says."""
    return f"beyond/{name}.md" if name in all_recipes() else f"paper/{name}.md"


def write() -> None:
    """Write all pages; a page that has not changed is left alone, and Sphinx does not read it again."""
    pages = {f"paper/{item.page}.md": render(item) for item in read_items()}
    pages |= {find_page(name): render_recipe(name) for name in list_beyond()}
    for place, text in pages.items():
        page = DOCS / place
        page.parent.mkdir(exist_ok=True)
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def render(item: Item) -> str:
    """Write the page of a table or figure."""
    parts = [f"# {item.name}: {item.title}", f"Status: **{item.status}**. [All items](/paper.md)."]
    if item.finding != "–":
        parts.append(f"**In short.** {_lower_links(item.finding)}.")
    if (FINDINGS / f"{item.page}.md").exists():
        parts += ["## What we found", read_findings(item.page)[1]]
    recipes = find_recipes(item)
    for recipe in recipes:
        parts += [f"## {recipe.title}"] if len(recipes) > 1 else []
        first = next(each for each in read_items() if recipe in find_recipes(each))
        if first == item:
            parts += describe(find_report(recipe.name), level=2 + (len(recipes) > 1))
        else:
            parts.append(f"The runs are those of [{first.name}](/paper/{first.page}.md), which shows them all.")
    return "\n\n".join(parts) + "\n"


def render_recipe(name: str) -> str:
    """Write the page of a recipe beyond the paper."""
    title, text = read_findings(name)
    return "\n\n".join([title, "[All recipes](/beyond.md).", text, *describe(find_report(name), level=2)]) + "\n"


def read_findings(name: str) -> tuple[str, str]:
    """Return the title and the text of what was found, with links as the site's pages have them."""
    title, _, text = (FINDINGS / f"{name}.md").read_text().partition("\n")
    return title, re.sub(r"\]\((?=[\w-]+\.md)", "](../findings/", text.strip())


def _lower_links(text: str) -> str:
    """Write links of the index so that they lead to the same pages from a folder below."""
    return re.sub(r"\]\((?=[\w-]+[./])", "](../", text.replace("](../", "](../../"))


@cache
def find_report(name: str) -> Report:
    """Return what was found of a recipe."""
    return report_on(all_recipes()[name], lab_tables.runs())


def describe(report: Report, level: int) -> list[str]:
    """Return the parts of a page that come from a recipe and its runs."""
    recipe, mark = report.recipe, "#" * level
    parts = [f"**{recipe.source}.** {escape_markdown(recipe.expects)}"]
    shown = [{}, *(changes for changes, _ in report.others)]
    commands = [write_sweep_command(recipe), *(write_table_command(recipe, Path("results"), each) for each in shown)]
    parts += [
        f"{mark} Command",
        "\n".join(["```sh", *commands, "```"]),
        f"Cost: {recipe.cost}.",
    ]
    if not report.runs:
        parts += [f"{mark} Paper and here", *_show_paper(recipe)]
    elif not report.shown:
        parts.append("Nothing of its own was run: the numbers below are of runs that it shares with other recipes.")
    for results, verdict in zip(report.results, report.verdicts, strict=True) if report.runs else ():
        if results is not report.results[0] and results.size == 1:  # nothing to compare it with
            continue
        parts += [
            f"{mark} Here: {escape_markdown(results.heading)}",
            f"Verdict: **{verdict.word}**{_explain(str(verdict))}.",
        ]
        parts += (
            [f"Differs from the recipe: {escape_markdown('; '.join(results.departures))}."]
            if results.departures
            else []
        )
        parts += [to_markdown(table).rstrip() for table in list_tables(results)]
        if results is report.results[0] and report.shown:
            parts += show_figures(results)
    parts += [to_markdown(report.tuning).rstrip()] if report.tuning and report.shown else []
    parts += [f"{mark} {recipe.departs_heading}", escape_markdown(recipe.departs)] if recipe.departs else []
    return parts


def _explain(verdict: str) -> str:
    _, _, reason = verdict.partition(": ")
    return f": {escape_markdown(reason)}" if reason else ""


def _show_paper(recipe: Recipe) -> list[str]:
    """Return the paper's numbers, where it has any, of a recipe that was not run."""
    rows = tuple((each.title, str(each.paper or "–"), "not run") for each in recipe.methods)
    known = any(each.paper for each in recipe.methods)
    return [to_markdown(Table("The paper's numbers" if known else "Methods", ("", "paper", "here"), rows)).rstrip()]


@cache
def show_figures(results: Results) -> list[str]:
    """Return the figures of results with their captions: those in docs/figures, others drawn for the reader's theme."""
    found = []
    for figure in results.recipe.study.figures(results):
        name = f"{results.recipe.name}-{figure.name}"
        if (DOCS / "figures" / f"{name}-light.png").exists():
            alt = re.sub(r"[][]", "", figure.caption)
            images = [f"![{alt}](/figures/{name}-{theme}.png){{.only-{theme}}}" for theme in ("light", "dark")]
            shown = "\n".join(images)
        else:
            shown = f'```{{raw}} html\n<figure class="drawn">\n{draw(figure)}\n</figure>\n```'
        found += [shown, f"*{escape_markdown(figure.caption)}*"]
    return found
