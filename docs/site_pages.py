"""What Sphinx needs to read pages that are written for GitHub as well, and to run the gallery.

A page may have blocks of its own, which only the site fills:

    ```{page} CONTRIBUTING.md#glossary    a file of the repository, or a section of it
    ```{programs}                         the programs of examples/
    ```{rooms}                            the drawing of the packages
    ```{live}                             the live picture
"""

import ast
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rooms
import torch
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parent
ROOT = DOCS.parent
LIVE = DOCS / "live" / "live.html"
# Where the site has what lies elsewhere in the repository.
MOVED = {
    "README.md": "index.md",
    "docs/README.md": "index.md",
    "examples": "programs.md",
    "experiments": "experiments.md",
    "experiments/README.md": "experiments.md",
    "CONTRIBUTING.md": "contributing/index.md",
    "CHANGELOG.md": "contributing/changes.md",
}
FENCE = re.compile(r"^(```+).*?^\1", re.DOTALL | re.MULTILINE)
PICTURE = re.compile(
    r"<picture>\s*<source [^>]*srcset=\"(?P<dark>[^\"]+)\"[^>]*>\s*"
    r"<img (?=[^>]*src=\"(?P<light>[^\"]+)\")(?=[^>]*alt=\"(?P<alt>[^\"]+)\")[^>]*>\s*</picture>"
)


def connect(app: "Sphinx") -> None:
    """Connect all of this to Sphinx."""
    app.connect("source-read", read_page)
    app.connect("autodoc-process-docstring", escape_bars)


def read_page(app: "Sphinx", name: str, source: list[str]) -> None:
    """Fill the blocks of a page, and rewrite what GitHub shows but Sphinx does not."""
    file = Path(app.env.doc2path(name))
    for other in re.findall(r"^```\{page\} ([^#\n]+)", source[0], flags=re.MULTILINE):
        app.env.note_dependency(ROOT / other)  # when it changes, the page is read again
    if file.suffix == ".md":
        source[0] = adapt(fill_blocks(source[0]), file)
    elif name.startswith("api/"):
        source[0] = add_summary(source[0])


def add_summary(text: str) -> str:
    """Open a page of the API with a table of its functions and classes."""
    names = re.findall(r"^\.\. auto(?:function|class|exception):: (\S+)$", text, flags=re.MULTILINE)
    modules = set(re.findall(r"^\.\. (?:currentmodule|automodule):: (\S+)$", text, flags=re.MULTILINE))
    if len(names) < 2 or len(modules) != 1:
        return text
    first = re.search(r"^(?:[^\n]+\n-+\n+)?\.\. auto(?!module)", text, flags=re.MULTILINE)
    assert first
    table = "".join(f"   {name.removeprefix(f'{min(modules)}.')}\n" for name in names)
    return f"{text[: first.start()]}.. autosummary::\n   :nosignatures:\n\n{table}\n{text[first.start() :]}"


def fill_blocks(text: str) -> str:
    """Fill the blocks that only the site has."""
    blocks = {
        "page": read_section,
        "programs": lambda _: list_programs(),
        "rooms": lambda _: f"```{{raw}} html\n{rooms.draw()}\n```",
        "live": lambda _: show_live_picture(),
    }
    return re.sub(
        rf"^```\{{({'|'.join(blocks)})\}} ?(.*)\n```$",
        lambda found: blocks[found[1]](found[2]),
        text,
        flags=re.MULTILINE,
    )


def read_section(target: str) -> str:
    """Return a file of the repository, or what stands under one of its headings, with links that work in the site."""
    name, _, anchor = target.partition("#")
    text = (ROOT / name).read_text()
    if anchor:
        title = anchor.replace("-", " ")
        parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)
        sections = [part.partition("\n") for part in parts]
        text = next(body for head, _, body in sections if head.lower().strip("# ") == title)
        text = re.sub("^#(?=## )", "", text, flags=re.MULTILINE)
    return adapt(text, ROOT / name)


def adapt(text: str, file: Path) -> str:
    """Turn the pictures, links and marks of a page, which lies in a folder of the repository, into Sphinx's."""
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\0{len(kept) - 1}\0"

    text = FENCE.sub(keep, text)
    text = re.sub(r"`[^`\n]+`", keep, text)
    text = PICTURE.sub(
        lambda found: (
            f"![{found['alt']}]({found['light']}){{.only-light}}\n![{found['alt']}]({found['dark']}){{.only-dark}}"
        ),
        text,
    )
    text = re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", lambda found: _rewrite_link(*found.groups(), file=file), text)
    text = re.sub("<!-- .*? -->", "", text)
    while "\0" in text:  # code within a link is kept within what is kept
        text = re.sub("\0(\\d+)\0", lambda found: kept[int(found[1])], text)
    return text


def _rewrite_link(picture: str, label: str, target: str, *, file: Path) -> str:
    """Return a link as Sphinx reads it from anywhere; what the site does not have is named without a link."""
    path, _, anchor = target.partition("#")
    if re.match("[a-z]+:", target) or not path or target.startswith("/"):
        return f"{picture}[{label}]({target})"
    place = Path(os.path.normpath(file.parent / path))
    name = place.relative_to(ROOT).as_posix()
    if name in MOVED:
        place = DOCS / MOVED[name]
    elif name.startswith("examples/"):
        place, anchor = DOCS / "programs.md", place.name.replace("_", "-").removesuffix(".py")
    if not place.is_relative_to(DOCS) or place.is_dir():
        return label
    return f"{picture}[{label}](/{place.relative_to(DOCS).as_posix()}{f'#{anchor}' if anchor else ''})"


def list_programs() -> str:
    """Return all programs of examples/, each under a heading with what it says about itself."""
    parts = []
    for file in sorted((ROOT / "examples").glob("*.py")):
        doc = ast.get_docstring(ast.parse(file.read_text())) or ""
        code = f"```{{literalinclude}} /../examples/{file.name}\n:language: python\n```"
        about = re.sub(r"``([^`]+)``", r"`\1`", doc.partition("\n\n")[0].partition("\n    ")[0])
        parts.append(
            f"({file.stem.replace('_', '-')})=\n## {file.stem.replace('_', ' ').capitalize()}\n{about}\n\n"
            f"````{{dropdown}} {file.name}\n{code}\n````"
        )
    return "\n\n".join(parts)


def show_live_picture() -> str:
    """Return the live picture as raw HTML, or, while there is none, the figure of the method."""
    if not LIVE.exists():
        light, dark = ("figures/method-light.png", "figures/method-dark.png")
        alt = (
            "Paths between digits, the outputs of a network along two of them, fitted polynomials, their coefficients."
        )
        return f"![{alt}]({light}){{.only-light}}\n![{alt}]({dark}){{.only-dark}}"
    page = LIVE.read_text()
    found = re.search(r"<body[^>]*>(.*)</body>", page, flags=re.DOTALL)
    assert found, f"{LIVE} has no body"
    styles = "".join(re.findall(r"<link[^>]*stylesheet[^>]*>", page))
    scripts = "".join(re.findall(r"<script src=[^>]*></script>", page.partition("<body")[0]))
    html = re.sub(r"((?:src|href)=\")(?=[\w-]+\.(?:js|css)\")", r"\1_static/", styles + scripts + found[1])
    return f"````{{raw}} html\n{html}\n````"


def save_figures(_: object, block_vars: Mapping[str, Any], gallery_conf: Mapping[str, Any]) -> str:
    """Save the figures that a block of an example has made: effdeg's figures are not those of pyplot."""
    from sphinx_gallery.scrapers import figure_rst

    found, paths = block_vars["example_globals"], []
    saved = found.setdefault("_saved_figures", [])
    for value in list(found.values()):
        if isinstance(value, Figure) and not any(value is each for each in saved):
            saved.append(value)
            paths.append(next(block_vars["image_path_iterator"]))
            value.savefig(paths[-1], dpi=200)
    return figure_rst(paths, gallery_conf["src_dir"], found["ALT"]) if paths else ""


def reset_random_state(gallery_conf: Mapping[str, Any], example: str) -> None:  # noqa: ARG001
    """Let every example start from the same random state, with one thread, as a page is built anywhere."""
    torch.manual_seed(0)
    torch.set_num_threads(1)


def escape_bars(app: "Sphinx", what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:  # noqa: ARG001
    """Escape the bars of absolute values in docstrings, which reStructuredText takes for its own; examples stay."""
    if what == "data" and lines and lines[0] in (type(value).__doc__ or ""):
        lines.clear()  # a constant without a text has that of its type
    example = False
    for index, line in enumerate(lines):
        example = line.lstrip().startswith(">>> ") or (example and bool(line.strip()))
        if not example:
            parts = re.split("(``.*?``)", line)
            lines[index] = "".join(part if part.startswith("``") else part.replace("|", r"\|") for part in parts)
