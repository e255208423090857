"""What Sphinx needs to read pages that are written for GitHub as well, and to run the gallery.

A page may have blocks that only the site fills:

    ```{page} CONTRIBUTING.md#glossary    a file of the repository, or a section of it
    ```{programs}                         the programs of examples/
    ```{live}                             the live picture
"""

import ast
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parent
ROOT = DOCS.parent
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
TITLES = {
    "accelerate_loop": "Hugging Face Accelerate",
    "cuda_graph": "CUDA graph",
    "distributed": "DDP and FSDP2",
    "finetune_language_model": "Fine-tuning a language model",
    "finetune_text": "Fine-tuning a text encoder",
    "huggingface_trainer": "Hugging Face Trainer",
    "lightning_callback": "PyTorch Lightning",
    "ppo_penalty": "PPO",
    "rank_a_pool": "Ranking a pool",
    "resume": "Resuming",
}
"""The titles of programs whose names do not say it."""
CODE = re.compile(r"^(```+).*?^\1|`[^`\n]+`", re.DOTALL | re.MULTILINE)
PICTURE = re.compile(
    r"<picture>\s*<source [^>]*srcset=\"(?P<dark>[^\"]+)\"[^>]*>\s*"
    r"<img (?=[^>]*src=\"(?P<light>[^\"]+)\")(?=[^>]*alt=\"(?P<alt>[^\"]+)\")[^>]*>\s*</picture>"
)


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
    blocks = {"page": read_section, "programs": lambda _: list_programs(), "live": lambda _: show_live_picture()}
    return re.sub(
        rf"^```\{{({'|'.join(blocks)})\}} ?(.*)\n```$",
        lambda block: blocks[block[1]](block[2]),
        text,
        flags=re.MULTILINE,
    )


def read_section(target: str) -> str:
    """Return a file of the repository, or what stands under one of its headings, with links that work in the site."""
    name, _, anchor = target.partition("#")
    text = (ROOT / name).read_text()
    if anchor:
        parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
        sections = dict(zip(parts[1::2], parts[2::2], strict=True))
        text = next(body for title, body in sections.items() if title.lower().replace(" ", "-") == anchor)
        text = re.sub("^#(?=## )", "", text, flags=re.MULTILINE)
    return adapt(text, ROOT / name)


def adapt(text: str, file: Path) -> str:
    """Turn the pictures, links and marks of a page, which lies in a folder of the repository, into Sphinx's."""
    kept: list[str] = []

    def keep(code: re.Match[str]) -> str:
        kept.append(code[0])
        return f"\0{len(kept) - 1}\0"

    text = CODE.sub(keep, text)
    text = PICTURE.sub(
        lambda found: (
            f"![{found['alt']}]({found['light']}){{.only-light}}\n![{found['alt']}]({found['dark']}){{.only-dark}}"
        ),
        text,
    )
    text = re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", lambda link: _rewrite_link(*link.groups(), file=file), text)
    text = re.sub("<!-- .*? -->", "", text)
    return re.sub("\0(\\d+)\0", lambda code: kept[int(code[1])], text)


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
    elif name.startswith("docs/gallery/"):
        place = DOCS / "examples" / place.with_suffix(".rst").name
    if not place.is_relative_to(DOCS) or place.is_dir():
        return label
    return f"{picture}[{label}](/{place.relative_to(DOCS).as_posix()}{f'#{anchor}' if anchor else ''})"


def list_programs() -> str:
    """Return all programs of examples/, each under a heading with what it says about itself."""
    parts = []
    for file in sorted((ROOT / "examples").glob("*.py")):
        doc = ast.get_docstring(ast.parse(file.read_text())) or ""
        about = re.sub(r"``([^`]+)``", r"`\1`", doc.partition("\n\n")[0].partition("\n    ")[0])
        title = TITLES.get(file.stem, file.stem.replace("_", " ").capitalize())
        parts.append(
            f"({file.stem.replace('_', '-')})=\n## {title}\n{about}\n\n````{{dropdown}} {file.name}\n"
            f"```{{literalinclude}} /../examples/{file.name}\n:language: python\n```\n````"
        )
    return "\n\n".join(parts)


def show_live_picture() -> str:
    """Return the live picture as raw HTML, its files in the site's folder for them."""
    page = (DOCS / "live" / "live.html").read_text()
    head, body = re.split("<body>|</body>", page)[:2]
    styles = "".join(re.findall("<link[^>]*stylesheet[^>]*>", head))
    return (
        "````{raw} html\n" + re.sub(r"((?:src|href)=\")(?=\w+\.(?:js|css)\")", r"\1_static/", styles + body) + "\n````"
    )


def save_figures(_: object, block_vars: Mapping[str, Any], gallery_conf: Mapping[str, Any]) -> str:
    """Save the figures that a block of an example has made: effdeg's figures are not those of pyplot."""
    from sphinx_gallery.scrapers import figure_rst

    names, paths = block_vars["example_globals"], []
    saved = names.setdefault("_saved_figures", [])
    for value in list(names.values()):
        if isinstance(value, Figure) and not any(value is figure for figure in saved):
            saved.append(value)
            paths.append(next(block_vars["image_path_iterator"]))
            value.savefig(paths[-1], dpi=200)
    return figure_rst(paths, gallery_conf["src_dir"], names["ALT"]) if paths else ""


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
