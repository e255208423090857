"""``effdeg lab``: the paper's experiments, to be run again."""

import typer

from effdeg.cli import _lab_recipes as lab_recipes
from effdeg.cli import _lab_report as lab_report
from effdeg.cli import _lab_run as lab_run
from effdeg.cli import _lab_sweep as lab_sweep

group = typer.Typer(rich_markup_mode="rich")
group.command("list")(lab_recipes.list_all)
group.command("show")(lab_recipes.show)
group.command("run")(lab_run.run)
group.command("sweep", cls=lab_sweep.Command)(lab_sweep.sweep)
group.command("table")(lab_report.table)
group.command("report")(lab_report.report)
