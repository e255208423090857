"""Every line at the price of one: what the others reach when they may train as long, by the clock."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from effdeg.lab.report.lines import Line
from effdeg.lab.report.spread import Spread

# A run counts as one of equal time if it took no longer than this, and no less than that, of the reference's time.
_LONGEST, _SHORTEST = 1.05, 0.8


@dataclass(frozen=True, eq=False)
class EqualTime:
    """What lines reach in the time of a reference line.

    Attributes:
        reference: The name of the line whose time is given to all.
        seconds: That time.
        lines: By name, each line as it was run in about that time, with its epochs; absent if it was not.
        longer: By name, the shortest runs of the lines of which all runs took longer.
    """

    reference: str
    seconds: float
    lines: Mapping[str, tuple[Line, int]]
    longer: Mapping[str, Line]

    def accuracy(self, name: str) -> Spread | None:
        """Return the accuracy of a line at this time."""
        return self.lines[name][0].accuracy if name in self.lines else None

    def epochs(self, name: str) -> int | None:
        """Return the epochs that a line was trained for in this time."""
        return self.lines[name][1] if name in self.lines else None

    def missing(self, lines: Iterable[Line]) -> list[Line]:
        """Return those of some lines that were run, but neither in this time nor in more."""
        known = {*self.lines, *self.longer}
        return [line for line in lines if line.runs and line.row.name not in known]


def equal_time(lines: Sequence[Line], candidates: Mapping[str, Mapping[int, Line]], epochs: int) -> EqualTime | None:
    """Find what each line reaches in the time of the line ``ed``, or of the dearest if there is no such line.

    Only ends of finished runs count: in the middle of a longer run the rate has not come down yet.

    Args:
        lines: The lines of a table.
        candidates: For each line, how it went with other numbers of epochs and the same strengths.
        epochs: The epochs of the table.

    Returns:
        What was found; None if the reference was not run.
    """
    reference = next((line for line in lines if line.row.name == "ed"), None)
    if reference is None:
        reference = max(lines, key=lambda line: line.milliseconds_per_step or 0.0)
    if reference.seconds is None:
        return None
    found, longer = {reference.row.name: (reference, epochs)}, {}
    for line in lines:
        if line is reference:
            continue
        times = {
            count: _relative(other, reference)
            for count, other in candidates[line.row.name].items()
            if _comparable(other, reference)
        }
        within = [count for count, time in times.items() if _SHORTEST <= time <= _LONGEST]
        if within:
            count = max(within, key=lambda count: times[count])
            found[line.row.name] = (candidates[line.row.name][count], count)
        elif times and min(times.values()) > _LONGEST:
            longer[line.row.name] = candidates[line.row.name][min(times, key=lambda count: times[count])]
    return EqualTime(reference.row.name, reference.seconds, found, longer)


def _comparable(line: Line, reference: Line) -> bool:
    """Times can be compared on the same machines alone."""
    return line.seconds is not None and line.machines == reference.machines


def _relative(line: Line, reference: Line) -> float:
    return (line.seconds or 0.0) / (reference.seconds or 1.0)
