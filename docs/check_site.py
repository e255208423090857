"""Check the built site: nothing comes from elsewhere, and every picture has a text. Sphinx checks the links.

python docs/check_site.py docs/_build/html
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

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
    """What is wrong with a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.problems: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of a tag."""
        values = {name: value or "" for name, value in attrs}
        shown = tag != "link" or values.get("rel") in {"stylesheet", "icon", "preload"}
        loaded = [value for name, value in values.items() if (tag, name) in LOADED and shown]
        self.problems += [f"loads {value}" for value in loaded if re.match("([a-z]+:)?//", value)]
        # Sphinx shows the file's name for a picture without a text; an empty text is that of a decoration.
        if tag == "img" and re.search(r"\.(png|svg)$", values.get("alt", ".png")):
            self.problems.append(f"shows {values.get('src')} without a text")


def find_problems(folder: Path) -> list[str]:
    """Return what is wrong with the pages and style sheets of a folder, one line each."""
    found = {file: Page(file.read_text()).problems for file in sorted(folder.rglob("*.html"))}
    for file in folder.rglob("*.css"):
        outside = re.findall(r"@import[^;]*https?:[^;]*|url\(['\"]?https?:[^)]*", file.read_text())
        found[file] = [f"loads {target}" for target in outside]
    return [
        f"{file.relative_to(folder).as_posix()} {problem}" for file, problems in found.items() for problem in problems
    ]


if __name__ == "__main__":
    sys.exit("\n".join(find_problems(Path(sys.argv[1]).resolve())) or None)
