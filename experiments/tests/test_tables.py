import io

import pytest
from rich.console import Console

from effdeg_lab.tables import Table, bold_largest, to_latex, to_markdown, to_terminal

ODD = Table(
    "50% & more_of #1 {x} ~ ^ \\ $",
    ("", "λ_max | x"),
    (("a_b|c", "1 ± 2×"), ("*d*", "–")),
    ("α ≤ 3, as `effdeg_lab` says.",),
    frozenset({(0, 1)}),
)
NAMES = ("effective_degree_normalized_random_pixels", "[red] sharpness", "Baseline")
WIDE = Table(
    "By price",
    ("", "paper (300 epochs), %", "here, %", "against Baseline", "training, %", "ED"),
    tuple((name, "87.80 ± 1.17", "82.31 ± 0.10", "+1.53 (+0.91 to +2.16)*", "96.38", "2.02 ± 0.08") for name in NAMES),
)


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
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_no_number_is_broken_in_a_terminal(width):
    console = Console(width=width, file=io.StringIO())
    console.print(to_terminal(WIDE, width))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for part in ("87.80", "1.17", "82.31", "+1.53", "(+0.91 to +2.16)*", "96.38", "2.02", "0.08"):
        assert text.count(part) == 3
    if width >= 80:
        assert "[red]" in text
        assert "normalized_" in text  # names are broken after underscores


def test_the_largest_stands_out_if_there_are_several():
    assert bold_largest([1.0, None, 3.0, 3.0], 2) == {(2, 2), (3, 2)}
    assert bold_largest([1.0, None], 2) == frozenset()
