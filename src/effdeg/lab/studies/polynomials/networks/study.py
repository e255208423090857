"""How the polynomial networks are told."""

from effdeg.lab.records import Record
from effdeg.lab.report.blocks import Block
from effdeg.lab.report.drawing import Drawing
from effdeg.lab.report.sheet import Sheet
from effdeg.lab.report.verdicts import Finding
from effdeg.lab.studies.polynomials.networks.findings import finding
from effdeg.lab.studies.polynomials.networks.sheets import sheets


class PolynomialNetworks:
    """The paper's table beside exact values and networks'."""

    def finding(self, block: Block) -> Finding:
        """State whether the effective degree sees the degrees of the maps, and how good the paper's numbers are."""
        return finding(block)

    def sheets(self, block: Block) -> list[Sheet]:
        """Return the tables."""
        return sheets(block)

    def drawings(self, block: Block) -> list[Drawing]:
        """Return the columns as panels, and the fits along training."""
        from effdeg.lab.studies.polynomials.networks.figures import plot_fits, plot_values

        values = (
            "Above, the five columns for the six tasks, of degrees 1, 2 and 5, then doubled: exact values, networks' "
            "and the paper's. Below, how far the latter two are off the exact ones, with 95% intervals; shaded, where "
            "95% of means over 100 paths would lie."
        )
        fits = (
            "The error of the fits on fresh inputs, relative to the outputs' standard deviation; dashed, doubled maps."
        )
        return [
            Drawing("values", values, lambda theme: plot_values(block, theme=theme)),
            Drawing("fits", fits, lambda theme: plot_fits(block, theme=theme)),
        ]

    def score(self, run: Record) -> str:
        """Describe how well a network fits, and its effective degree beside the map's."""
        summary = run.summary or {}
        network, exact = (summary[what]["chebyshev"]["value"] for what in ("network", "exact"))
        return f"relative error {summary['test_error']:.1e}, ED {network:.3f}, exact {exact:.3f}"
