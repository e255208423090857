"""The tables of all pools to pick from, and their figure: ``python docs/picking.py [RUNS] [FIGURE]``."""

import sys
from pathlib import Path

from effdeg.io import write_figure
from effdeg_lab.core.runs import RunFolder
from effdeg_lab.experiments.picking.study import make_tables, plot_pools, read_all_pools
from effdeg_lab.show.tables import to_markdown

RESULTS = Path(__file__).parent.parent / "results"


def main(runs: Path = RESULTS, figure: Path | None = None) -> None:
    """Print the tables, and draw the figure into a file."""
    pools = read_all_pools(RunFolder(runs).read())
    if not pools:
        raise SystemExit(f"{runs} has no finished run of a pool to pick from.")
    print("\n".join(to_markdown(table) for table in make_tables(pools)))
    if figure is not None:
        write_figure(plot_pools(pools, "light"), figure)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
