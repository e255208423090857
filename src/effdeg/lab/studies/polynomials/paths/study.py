"""How the degrees along paths are told."""

from effdeg.lab.records import Record
from effdeg.lab.report.blocks import Block
from effdeg.lab.report.drawing import Drawing
from effdeg.lab.report.sheet import Sheet
from effdeg.lab.report.verdicts import Finding
from effdeg.lab.studies.polynomials.paths.findings import finding
from effdeg.lab.studies.polynomials.paths.sheets import sheets
from effdeg.lab.studies.polynomials.paths.values import shown_with_noise


class DegreesAlongPaths:
    """Theorem 3.1 in numbers, and what it does not say."""

    def finding(self, block: Block) -> Finding:
        """State whether the degree along paths is the total degree, and what noise does to it."""
        return finding(block)

    def sheets(self, block: Block) -> list[Sheet]:
        """Return the tables."""
        return sheets(block)

    def drawings(self, block: Block) -> list[Drawing]:
        """Return the degrees found, with and without noise, and the effective degrees."""
        from effdeg.lab.studies.polynomials.paths.figures import plot_degrees, plot_effective

        degrees = (
            "Left, the mean degree found along paths against the total degree. Middle, for three total degrees D, the "
            "same with noise on the values; right, their effective degree with the same noise "
            f"({shown_with_noise(block).row.title})."
        )
        effective = (
            "The effective degree against the total degree, raw (polynomials scaled to equal variance) and normalized; "
            "bars are standard errors."
        )
        return [
            Drawing("degrees", degrees, lambda theme: plot_degrees(block, theme=theme)),
            Drawing("effective", effective, lambda theme: plot_effective(block, theme=theme)),
        ]

    def score(self, run: Record) -> str:
        """Describe how often the degree found is the total degree."""
        entries = (run.summary or {})["degrees"]
        count, dropped, vanishing = (
            sum(entry[key] for entry in entries) for key in ("followed", "dropped", "vanishing")
        )
        return f"total degree found on {count - dropped:,} of {count:,}; leading coefficient zero on {vanishing:,}"
