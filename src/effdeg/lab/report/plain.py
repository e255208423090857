"""A result as plain numbers, names and lists."""

from dataclasses import asdict
from typing import Any

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.lines import Line
from effdeg.lab.report.prices import price_list
from effdeg.lab.report.result import RecipeResult
from effdeg.lab.report.verdicts import Finding


def to_dict(result: RecipeResult) -> dict[str, Any]:
    """Return all that a report shows."""
    recipe = result.recipe
    return {
        "recipe": recipe.name,
        "title": recipe.title,
        "paper": recipe.paper,
        "expects": recipe.expects,
        "departs": recipe.departs,
        "blocks": [_block(block, result.findings[block]) for block in result.blocks],
        "further": [_block(block, result.findings[block]) for block in result.further],
        "tuning": {name: asdict(choice) for name, choice in result.tuning.items()},
    }


def _block(block: Block, found: Finding) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "scale": dict(block.scale),
        "seeds": block.seeds,
        "machines": block.machines,
        "verdict": found.verdict,
        "finding": str(found),
    }
    if block.pool is not None:
        ranking = block.pool.ranking
        return plain | {
            "models": [dict(row) for row in block.pool.table],
            "ranking": None if ranking is None else ranking.to_dict(),
            "given_training_accuracy": block.pool.given_training,
            "comparisons": [asdict(advantage) for advantage in block.pool.advantages()],
        }
    if block.recipe.study is not None:
        return plain | {"lines": [_studied(line) for line in block.lines]}
    at = block.equal_time
    plain["lines"] = [_line(block, line) for line in block.lines]
    if block.recipe.shows == "prices":
        shares = {priced.line.row.name: priced.share for priced in price_list(block)}
        plain["lines"] = [line | {"share_of_gain": shares[line["name"]]} for line in plain["lines"]]
    plain["equal_time"] = None if at is None else {"reference": at.reference, "seconds": at.seconds}
    return plain


def _studied(line: Line) -> dict[str, Any]:
    """Return all that the runs of a study's line came to."""
    runs = {run.folder.name: run.summary for run in line.runs}
    return {"name": line.row.name, "title": line.row.title, "state": line.state, "runs": runs}


def _line(block: Block, line: Line) -> dict[str, Any]:
    difference, at = block.difference(line), block.equal_time
    degree, same_time = line.effective_degree, at.accuracy(line.row.name) if at else None
    return {
        "name": line.row.name,
        "title": line.row.title,
        "state": line.state,
        "paper": None if line.row.paper is None else asdict(line.row.paper),
        "accuracy": None if line.accuracy is None else asdict(line.accuracy),
        "seeds": list(line.accuracies),
        "difference": difference and asdict(difference),
        "train_accuracy": line.train_accuracy,
        "effective_degree": degree and {"value": degree[0], "stderr": degree[1]},
        "strengths": dict(line.strengths) | dict(line.fixed),
        "tuned": line.choice is not None and line.strengths == line.choice.changes,
        "seconds_per_epoch": line.seconds_per_epoch,
        "milliseconds_per_step": line.milliseconds_per_step,
        "price": block.price(line),
        "seconds": line.seconds,
        "at_equal_time": same_time and asdict(same_time) | {"epochs": at and at.epochs(line.row.name)},
        "runs": [run.folder.name for run in line.runs],
    }
