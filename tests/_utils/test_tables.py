import sys

import pytest

from effdeg._utils.tables import align_columns, fit_columns, make_frame, render_tables

TABLE = [
    ["model", "value (95% interval)", "total_variation", "significant"],
    ["resnet9-lr0.001-mixup", "0.0605 (0.0527 to 0.0682)", "0.5 ± 0.01", "yes"],
    ["vit_tiny", "0.2198 (0.1926 to 0.2471)", "0.25 ± 0.02", "no"],
]


@pytest.mark.parametrize(
    ("width", "tables", "first"),
    [
        (80, 1, "resnet9-lr0.001-mixup  0.0605 (0.0527 to 0.0682)  0.5 ± 0.01       yes"),
        (75, 1, "resnet9-lr0.001-mixup  0.0605              0.5 ± 0.01       yes"),
        (62, 1, "resnet9-lr0.001-mixup  0.0605           0.5        yes"),
        (50, 1, "resnet9-  0.0605           0.5        yes"),
        (32, 2, "resnet9-  0.0605"),
    ],
)
def test_a_table_fits_the_screen(width, tables, first):
    found = fit_columns(TABLE, width)
    lines = [align_columns(table) for table in found]
    assert len(found) == tables
    assert max(len(line) for table in lines for line in table) <= width
    assert first in lines[0]
    # Nothing is cut off.
    text = "".join(cell for table in found for row in table for cell in row[1:])
    assert all(cell.split()[0] in text for row in TABLE[1:] for cell in row[1:])


@pytest.mark.parametrize("name", ["x" * 200, "runs/" + "y" * 90 + "/last.pt"])
def test_a_long_name_is_folded(name):
    for width in (3, 20, 40):
        rows = [["model", "value"], [name, "0.5"]]
        (table,) = fit_columns(rows, width)
        assert table[1][0].replace("\n", "") == name
        if width >= 20:
            assert max(map(len, align_columns(table))) <= width


def test_names_and_notes_are_escaped():
    page = render_tables([("a & b", [["model"], ["<script>"], ["two\nlines"]])], ["1 < 2"])
    assert all(part in page for part in ("a &amp; b", ">&lt;script&gt;</td>", "two<br>lines", "<p>1 &lt; 2</p>"))


def test_a_frame_needs_pandas(monkeypatch):
    assert make_frame([{"a": 1, "b": "x"}, {"a": 2}]).to_dict("list")["a"] == [1, 2]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"a data frame needs pandas: pip install 'effdeg\[pools\]'"):
        make_frame([])
