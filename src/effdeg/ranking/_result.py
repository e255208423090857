"""The result of ranking a pool of models."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from effdeg._utils.checks import check_choice
from effdeg._utils.imports import require
from effdeg.ranking._advantage import Advantage
from effdeg.ranking._pool import FEWEST_CLUSTERS, Pool
from effdeg.ranking._score import STATISTICS, Score, Statistic
from effdeg.ranking._tables import Array, counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FEW_CLUSTERS = 8


@dataclass(frozen=True, eq=False, repr=False)
class Ranking:
    """How well each of several measures ranks a pool of models.

    Attributes:
        pool: The models.
        scores: Each measure's score by its name, by Kendall's tau, best first; undefined ones last.
        resampled: Each statistic by name, resamples × measures in the order of ``pool.measures``; nan where undefined.
        level: The probability of the intervals.
        seed: What determined the resamples.
        unvaried: Hyperparameters in which alone no two models differ: they take no part in Psi and sign errors.
    """

    pool: Pool
    scores: Mapping[str, Score]
    resampled: Mapping[str, Array]
    level: float
    seed: int
    unvaried: Sequence[str] = ()

    @property
    def resamples(self) -> int:
        """How many resamples the intervals come from."""
        return len(self.resampled["kendall"]) if self.resampled else 0

    def compare(self, measure: str, other: str, statistic: str = "kendall") -> Advantage:
        """Test whether one measure ranks the pool better than another, on the same resamples.

        Args:
            measure: The measure that may be better.
            other: The one it is held against.
            statistic: ``"kendall"``, ``"pearson"``, ``"spearman"``, ``"psi"``, ``"sign_error"``, ``"worst_sign_error"``
                or ``"conditional_information"``.

        Returns:
            The advantage, its interval and p value. Signed values count: a measure that falls where the gap rises ranks
            wrongly. Compare by Kendall's tau if in doubt: by Pearson's r the test is somewhat anticonservative (8% at a
            nominal 5%).
        """
        check_choice("statistic", statistic, STATISTICS)
        values = self._value(measure, statistic), self._value(other, statistic)
        columns = [list(self.pool.measures).index(name) for name in (measure, other)]
        samples = self.resampled[statistic][:, columns]
        return Advantage.of((measure, other), statistic, values, samples, self.level)

    def plot(self, measures: Sequence[str] | None = None, *, theme: str = "light") -> "Figure":
        """Draw the gap against each measure (the 12 best by default), with a linear fit. Needs ``effdeg[plots]``."""
        require("matplotlib", extra="plots", purpose="a figure")
        from effdeg.ranking._plots import plot_ranking

        return plot_ranking(self, measures, theme=theme)

    def warnings(self) -> list[str]:
        """Return, in sentences, what a reader should not overlook."""
        found = [*self.notes(), *self._falling()]
        return [f"note: {each}." for each in found]

    def notes(self) -> list[str]:
        """Return the warnings that are not advice to rank a measure the other way round, without full stops."""
        found = [f"{name} is {reason}" for name, reason in self.pool.undefined.items()]
        if self.pool.left_out:
            found.append(f"not ranked, since they hold text: {', '.join(self.pool.left_out)}")
        if self.unvaried:
            found.append(f"no two models differ in {' or '.join(self.unvaried)} alone: left out of Ψ and sign errors")
        if self.resampled and self.pool.clustered and self.pool.cluster_count < _FEW_CLUSTERS:
            rest = "cannot be resampled: there are no intervals"
            if self.pool.cluster_count >= FEWEST_CLUSTERS:
                rest = "are few to resample: intervals are rough"
            found.append(f"{self.pool.describe_clusters()} {rest}. Name every hyperparameter in which models differ")
        return found

    def rows(self) -> list[list[str]]:
        """Return a table of texts: its head, then a row per measure; :meth:`warnings` says why one is undefined."""
        hyper = bool(self.pool.hyperparameters)
        head = ["measure", "Pearson", "Spearman", "Kendall", *(["Ψ", "sign error", "CMI"] if hyper else [])]
        rows = [head]
        for score in self.scores.values():
            if score.spearman is None:
                rows.append([score.measure, "undefined", *[""] * (len(head) - 2)])
                continue
            row = [score.measure, _cell(score.pearson), _short(score.spearman), _cell(score.kendall)]
            if hyper:
                mean, worst = _short(score.sign_error), _short(score.worst_sign_error)
                row += [_short(score.psi), f"{mean}/{worst}", _short(score.conditional_information)]
            rows.append(row)
        return rows

    def legend(self) -> str:
        """Describe what the columns of :meth:`rows` mean."""
        text = self.describe_intervals()
        if self.resampled and self.pool.hyperparameters:
            text += "; Ψ granulated Kendall; sign error mean/worst; CMI conditional mutual information"
        return f"{text}."

    def describe_intervals(self) -> str:
        """Describe where the intervals come from, without a full stop."""
        if not self.resampled:
            return "no measure can be ranked"
        text = f"{self.level * 100:g}% intervals"
        if self.pool.clustered:
            return f"{text} resample the {self.pool.describe_clusters()}, with all their models, {self.resamples} times"
        return f"{text}: Pearson's by Fisher's z, Kendall's tau-b from {self.resamples} resamples"

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the resamples as plain numbers, names and lists."""
        return {
            "target": self.pool.target,
            "models": len(self.pool),
            "hyperparameters": list(self.pool.hyperparameters),
            "clusters": self.pool.cluster_count,
            "resamples": self.resamples,
            "level": self.level,
            "seed": self.seed,
            "ranking": list(self.scores),
            "scores": {name: _plain(asdict(score)) for name, score in self.scores.items()},
            "notes": self.warnings(),
        }

    def title(self) -> str:
        """Describe what was ranked."""
        measures = counted(len(self.scores), "measure")
        return f"{counted(len(self.pool), 'model')}, {measures} of {self.pool.target}, best first"

    def __str__(self) -> str:
        return "\n".join([self.title(), *aligned(self.rows()), self.legend(), *self.warnings()])

    def __repr__(self) -> str:
        return f"Ranking({' > '.join(self.scores)})"

    @property
    def falling(self) -> list[str]:
        """The measures that beyond doubt go against the gap."""
        kendalls = {name: score.kendall for name, score in self.scores.items()}
        return [name for name, tau in kendalls.items() if tau and tau.interval and tau.interval[1] < 0]

    def _falling(self) -> list[str]:
        names = self.falling
        if not names:
            return []
        fall, them = ("falls", "it") if len(names) == 1 else ("fall", "them")
        target = "the gap" if self.pool.target == "gap" else self.pool.target
        turned = [name[1:] if name in self.pool.turned else f"-{name}" for name in names]
        return [
            f"{', '.join(names)} {fall} as {target} rises: if larger is meant to be better, rank {them} as "
            f"{', '.join(turned)}"
        ]

    def _value(self, measure: str, statistic: str) -> float:
        check_choice("measure", measure, self.scores)
        score = self.scores[measure]
        found: Statistic | None = getattr(score, statistic)
        if found is None:
            absent = "no two models are neighbours" if self.pool.hyperparameters else "no hyperparameters were named"
            raise ValueError(f"{measure!r} cannot be compared by {STATISTICS[statistic]}: {score.undefined or absent}.")
        return found.value


def aligned(rows: list[list[str]], width: int | None = None) -> list[str]:
    """Align a table's columns; if it is wider than ``width``, with intervals below their numbers."""
    cells = [[cell.split("\n") for cell in row] for row in rows]
    widths = [max(len(line) for cell in column for line in cell) for column in zip(*cells, strict=True)]
    if width is not None and sum(widths) + 2 * (len(widths) - 1) > width:
        return aligned([[cell.replace(" (", "\n(") for cell in row] for row in rows])
    return [
        "  ".join(f"{part:<{size}}" for part, size in zip(line, widths, strict=True)).rstrip()
        for row in cells
        for line in zip_longest(*row, fillvalue="")
    ]


def _cell(statistic: Statistic | None) -> str:
    return str(statistic).replace(" to ", "…")


def _short(statistic: Statistic | None) -> str:
    return "–" if statistic is None else f"{statistic.value:z.2f}"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)
