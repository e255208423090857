"""What the pages say is what the runs gave: every table between marks, and every figure that is shown."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]


def test_tables_are_those_of_the_results():
    spec = importlib.util.spec_from_file_location("make_figures", ROOT / "docs" / "make_figures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pages = module.filled()
    assert set(pages) == set(PAGES)
    for page, text in pages.items():
        assert text == page.read_text(), f"{page.name} is not what results/ give: make figures"


def test_every_mark_is_filled_and_every_figure_is_there():
    for page in PAGES:
        text = page.read_text()
        assert not re.findall(r"<!-- (?!end)[^>]* -->\n<!-- end -->", text)
        for file in re.findall(r"(?:src|srcset)=\"([^\"]+\\.png)\"", text):
            assert (page.parent / file).is_file(), f"{page.name} shows {file}"
