"""Check the built site: nothing comes from elsewhere, every link within it leads somewhere, every picture has a text.

python docs/check_site.py docs/_build/html
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser loads by itself; a link that a reader follows may lead elsewhere.
LOADED = {
    ("script", "src"),
    ("img", "src"),
    ("link", "href"),
    ("source", "srcset"),
    ("iframe", "src"),
    ("video", "src"),
}


class Page(HTMLParser):
    """What a page loads, links to, can be linked at, and shows without a text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.silent: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of a tag."""
        found = dict(attrs)
        self.anchors |= {found["id"] or ""} if "id" in found else set()
        if tag == "link" and found.get("rel") not in {"stylesheet", "icon", "preload"}:
            return
        self.loaded += [value or "" for name, value in attrs if (tag, name) in LOADED]
        if tag == "a" and found.get("href"):
            self.links.append(found["href"] or "")
        # Sphinx shows the file's name for a picture without a text; an empty text is that of a decoration.
        if tag == "img" and (found.get("alt") is None or re.search(r"\.(png|svg)$", found["alt"] or "")):
            self.silent.append(found.get("src") or "")


def find_problems(folder: Path) -> list[str]:
    """Return what is wrong with the pages and style sheets of a folder, one line each."""
    files = sorted(folder.rglob("*.html"))
    pages = {file: Page(file.read_text()) for file in files}
    problems = []
    for file, page in pages.items():
        name = file.relative_to(folder).as_posix()
        problems += [f"{name} loads {each}" for each in page.loaded if urlsplit(each).netloc]
        problems += [f"{name} shows {each} without a text" for each in page.silent]
        for each in (*page.links, *page.loaded):
            if not urlsplit(each).scheme and not urlsplit(each).netloc and not _leads_somewhere(file, each, pages):
                problems.append(f"{name} links to {each}, which is not there")
    for file in folder.rglob("*.css"):
        outside = re.findall(r"@import[^;]*https?:[^;]*|url\(['\"]?https?:[^)]*", file.read_text())
        problems += [f"{file.relative_to(folder).as_posix()} loads {each}" for each in outside]
    return problems


def _leads_somewhere(file: Path, target: str, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(target)
    place = (file.parent / unquote(parts.path)).resolve() if parts.path else file
    if place.is_dir():
        place /= "index.html"
    return place.exists() and (
        not parts.fragment or place not in pages or unquote(parts.fragment) in pages[place].anchors
    )


if __name__ == "__main__":
    found = find_problems(Path(sys.argv[1]).resolve())
    sys.exit("\n".join(found) or None)
