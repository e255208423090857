import io

import pytest
from rich.console import Console

from effdeg_lab.core.recipe import Reported
from effdeg_lab.show.tables import Table, bold_largest, to_latex, to_markdown, to_terminal

ODD = Table(
    "50% & more_of #1 {x} ~ ^ \\ $",
    ("", "λ_max | x"),
    (("a_b|c", "1 ± 2×"), ("*d*", "–")),
    ("α ≤ 3, as `effdeg_lab` says.",),
    frozenset({(0, 1)}),
)
CELLS = ("87.80 ± 1.17", "82.31 ± 0.10", "+1.53 (+0.91 to +2.16)*", "96.38", "2.02 ± 0.08")
HEADS = ("", "paper, in percent, %", "here, %", "against Baseline", "training, %", "ED")
NAMES = ("effective_degree_normalized_random_pixels", "[red] sharpness", "Baseline")
WIDE = Table("By price", HEADS, tuple((name, *CELLS) for name in NAMES))


def test_markdown_escapes_all_but_code():
    assert to_markdown(ODD).splitlines() == [
        r"**50% & more\_of #1 {x} ~ ^ \ $**",
        "",
        r"|  | λ\_max \| x |",
        "|---|---:|",
        r"| a\_b\|c | **1 ± 2×** |",
        r"| \*d\* | – |",
        "",
        "α ≤ 3, as `effdeg_lab` says.",
    ]


def test_latex():
    text = to_latex(ODD, "tab:odd")
    assert r"\caption{50\% \& more\_of \#1 \{x\} \textasciitilde{} \textasciicircum{} \textbackslash{} \$.}" in text
    assert r"    a\_b\textbar{}c & \textbf{1 $\pm$ 2$\times$} \\" in text
    assert r"    *d* & -- \\" in text
    assert r"$\alpha$ $\le$ 3" in text


@pytest.mark.parametrize("width", [60, 160])
def test_no_number_is_broken_in_a_terminal(width):
    console = Console(width=width, file=io.StringIO())
    console.print(to_terminal(WIDE, width))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    for part in ("87.80", "1.17", "(+0.91 to +2.16)*" if width >= 80 else "+2.16)*", "96.38", "0.08"):
        assert text.count(part) == 3
    assert text.count("[red]") == 1


def test_a_table_without_rows_has_no_columns():
    console = Console(width=80, file=io.StringIO())
    console.print(to_terminal(Table("1 model: seed 0, [CPU]", ("measure", "Pearson"), ()), 80))
    assert console.file.getvalue() == "1 model: seed 0, [CPU]\n"


def test_the_largest_stands_out_if_there_are_several():
    one, three = Reported(1.0), Reported(3.0)
    assert bold_largest([one, None, three, three], 2) == {(2, 2), (3, 2)}
    assert bold_largest([one, None], 2) == frozenset()


def test_columns_without_room_follow_with_the_names_again():
    heads = ("", *(f"shift {number}" for number in range(14)))
    rows = tuple((name, *(f"{row}{number:02d}.5 ± 1.17" for number in range(14))) for row, name in enumerate(NAMES[1:]))
    table = Table("Shifts", heads, rows, bold=frozenset({(1, 0), (0, 13)}))
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(to_terminal(table, 80))
    text = console.file.getvalue()
    for cell in (f"{row}{number:02d}.5" for row in range(2) for number in range(14)):
        assert text.count(cell) == 1
    parts = text.count("sharpness")
    assert parts == text.count("(continued)") + 1 > 1
    assert text.count("\x1b[1mBaseline") == parts
    assert "\x1b[1m012.5" in text
    console = Console(width=80, file=io.StringIO())
    console.print(to_terminal(table, 80))
    assert max(map(len, console.file.getvalue().splitlines())) <= 80
