"""What an experiment is: settings, the lines of its table, what the paper found, and what tunes and repeats it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, Generic, Literal

from effdeg._utils.checks import check_choice
from effdeg.lab.settings import S, changed
from effdeg.lab.task import Task

if TYPE_CHECKING:
    from effdeg.lab.report.study import StudyReport

# What every generator of random numbers takes.
_SEEDS = 2**32


@dataclass(frozen=True)
class Reported:
    """A number of the paper, in the units of its table; without a spread where the paper gives none."""

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class Row:
    """One line of an experiment's table.

    Attributes:
        name: How it is called on the command line (``--method``).
        title: How it is called in tables.
        changes: In what its runs differ from the recipe's settings.
        paper: What the paper reports for it, if it does.
        strengths: Settings to be tuned for this line, each with the values to try. Where nothing was tuned yet, the
            values in ``changes`` stand.
    """

    name: str
    title: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    paper: Reported | None = None
    strengths: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe(Generic[S]):
    """An experiment.

    Attributes:
        name: How it is called.
        title: What it is, in one line.
        paper: The table or figure of the paper.
        expects: What the paper found.
        cost: How long one run takes, and on what.
        settings: The settings that all lines share: the paper's, but where ``departs`` says otherwise. They have a
            ``seed``, and ``epochs`` if anything is tuned.
        train: Carries out one run.
        rows: The lines of its table.
        departs: Where the settings are not the paper's, and why.
        seeds: The seeds of a full run.
        grid: Hyperparameters whose every combination is run for every line; the axes of a pool.
        tuning: In what the runs that tune strengths differ: what they hold out (``held_out``, never nothing), and how
            long they train. Empty if nothing is tuned.
        shows: What its report shows: ``"methods"``, accuracies line by line, at equal epochs and at equal time;
            ``"prices"``, accuracy against the price of a step; ``"pool"``, how measures rank the models; or a study,
            which tells it in its own way.
    """

    name: str
    title: str
    paper: str
    expects: str
    cost: str
    settings: S
    train: Callable[[S, Task], None]
    rows: tuple[Row, ...]
    departs: str = ""
    seeds: tuple[int, ...] = (0, 1, 2)
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    tuning: Mapping[str, Any] = field(default_factory=dict)
    shows: "Literal['methods', 'prices', 'pool'] | StudyReport" = "methods"

    def __post_init__(self) -> None:
        for name in ("seed", *["epochs"] * bool(self.tuning)):
            if name not in self.settings.__dataclass_fields__:
                raise TypeError(
                    f"{self.name}: its settings, {type(self.settings).__name__}, have no field {name}, which every run "
                    f"needs: add {name}: int."
                )
        if self.tuning:
            self.check_tuning(self.rows, self.tuning)

    def check_tuning(self, rows: Iterable[Row], tuning: Mapping[str, Any]) -> None:
        """Raise unless runs with these changes can tune lines: on held-out examples, by strengths that vary."""
        check_held_out(tuning)
        for row in rows:
            for key in row.strengths.keys() & tuning.keys():
                raise ValueError(
                    f"{key}={tuning[key]} cannot hold for the runs that tune {row.name!r}: {key} is what they try. Set "
                    f"{key} for all runs, and it is not tuned."
                )

    @property
    def study(self) -> "StudyReport | None":
        """What tells its results in its own way; None where accuracies are what it is about."""
        return None if isinstance(self.shows, str) else self.shows

    def row(self, name: str) -> Row:
        """Find a line by its name."""
        check_choice("method", name, [row.name for row in self.rows])
        return next(row for row in self.rows if row.name == name)

    def resolved(self, row: Row, changes: Mapping[str, Any]) -> S:
        """Return the settings of one run: the recipe's, then the line's, then a user's."""
        settings = changed(self.settings, {**row.changes, **changes})
        if not 0 <= settings.seed < _SEEDS:
            raise ValueError(f"seed={settings.seed} is out of range: it must lie between 0 and {_SEEDS - 1}.")
        return settings

    def points(self) -> Iterator[dict[str, Any]]:
        """Walk through the combinations of the grid; one, empty, without a grid."""
        for values in product(*self.grid.values()):
            yield dict(zip(self.grid, values, strict=True))

    def candidates(self, row: Row) -> Iterator[dict[str, Any]]:
        """Walk through the strengths to try for a line; none if nothing is tuned."""
        if row.strengths and self.tuning:
            for values in product(*row.strengths.values()):
                yield dict(zip(row.strengths, values, strict=True))


def check_held_out(tuning: Mapping[str, Any]) -> None:
    """Raise unless runs with these changes hold out examples: strengths must not be tuned on the test set."""
    held_out = tuning.get("held_out", 0)
    if held_out < 1:
        raise ValueError(
            f"held_out={held_out} would have the test set decide strengths: runs that tune must hold out training "
            "examples, held_out=1 or more."
        )
