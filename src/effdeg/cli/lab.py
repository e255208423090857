"""``effdeg lab``: the paper's experiments, to be run again."""

import typer

from effdeg.cli import lab_recipes, lab_report, lab_run, lab_sweep

group = typer.Typer(rich_markup_mode="rich")
group.command("list")(lab_recipes.list_all)
group.command("show")(lab_recipes.show)
group.command("run")(lab_run.run)
group.command("sweep", cls=lab_sweep.Command)(lab_sweep.sweep)
group.command("table")(lab_report.table)
group.command("report")(lab_report.report)
