"""What was run of an experiment at one scale: equal epochs, examples and precision, so that lines can be compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from effdeg.lab.recipe import Recipe
from effdeg.lab.report.equal_time import EqualTime
from effdeg.lab.report.lines import Line
from effdeg.lab.report.pool import ModelPool
from effdeg.lab.report.spread import SeedDifference
from effdeg.lab.settings import to_dict


@dataclass(frozen=True, eq=False)
class Block:
    """The lines of a table, or a pool, at one scale.

    Attributes:
        recipe: The experiment.
        scale: The settings of scale that all its runs share.
        lines: Every line of the recipe, run or not; none for a pool.
        equal_time: What the lines reach in equal time; None if the line that sets the time was not run.
        pool: The models and their ranking, for a pool.
    """

    recipe: Recipe[Any]
    scale: Mapping[str, Any]
    lines: tuple[Line, ...] = ()
    equal_time: EqualTime | None = None
    pool: ModelPool | None = None

    @property
    def done(self) -> list[Line]:
        """The lines that were run."""
        return [line for line in self.lines if line.runs]

    @property
    def size(self) -> int:
        """How many lines, or models of a pool, were run."""
        return len(self.pool.table) if self.pool else len(self.done)

    @property
    def epochs(self) -> int:
        """The epochs of its runs."""
        return int(self.scale.get("epochs", 0))

    @property
    def seeds(self) -> list[int]:
        """All seeds that were run."""
        return self.pool.seeds if self.pool else sorted({seed for line in self.lines for seed in line.accuracies})

    @property
    def machines(self) -> list[str]:
        """All machines that its runs were done on."""
        if self.pool:
            return list(self.pool.machines)
        return list(dict.fromkeys(machine for line in self.lines for machine in line.machines))

    @property
    def tested_on(self) -> str:
        """What accuracies are of: the test set, or training examples that were held out."""
        held_out = any(run.settings.get("held_out") for line in self.lines for run in line.runs)
        return "held-out" if held_out else "test"

    @property
    def paper(self) -> str:
        """What the paper's numbers are called here: with their epochs where ours are others."""
        epochs = to_dict(self.recipe.settings).get("epochs", self.epochs)
        return "paper" if epochs == self.epochs else f"paper ({epochs} epochs)"

    @property
    def rough(self) -> bool:
        """Whether its times are of a CPU, which others may have used as well."""
        return any("CPU" in machine for machine in self.machines)

    def line(self, name: str) -> Line:
        """Find a line by its name."""
        return next(line for line in self.lines if line.row.name == name)

    def difference(self, line: Line, other: Line | None = None) -> SeedDifference | None:
        """Compare a line with another, by default the first; None if either was not run, or they are the same."""
        other = other or self.lines[0]
        if line is other or not line.runs or not other.runs:
            return None
        return SeedDifference.of(line.accuracies, other.accuracies)

    def price(self, line: Line) -> float | None:
        """Return the time of a step relative to the first line's; None where the machines differ."""
        step, plain = line.milliseconds_per_step, self.lines[0].milliseconds_per_step
        if step is None or plain is None or line.machines != self.lines[0].machines:
            return None
        return step / plain
