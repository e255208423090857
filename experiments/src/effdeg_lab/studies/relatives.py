"""ED and its relatives: a map of where a method built on ED is ahead of the best that is not."""

from dataclasses import dataclass, field
from typing import get_args

from effdeg_lab.results import Difference, MethodRuns, Results
from effdeg_lab.studies import StudyFigure
from effdeg_lab.studies.methods import Methods, tested_on
from effdeg_lab.studies.probabilities import MEASURES, Measure, find_best
from effdeg_lab.tables import NOTHING, Table
from effdeg_lab.verdicts import Verdict, Word, judge


@dataclass(frozen=True)
class Relatives(Methods):
    """Compares methods that are built on ED with all others, in accuracy, probabilities and shifts.

    The claim is that in at least one of these, at one point of the grid at least, the best method with ED is ahead of
    the best without, by an interval above zero.
    """

    with_ed: tuple[str, ...] = field(kw_only=True)  # the methods that are built on ED

    def claim(self, results: Results) -> Verdict:
        """Judge the lead that ED has somewhere: the one with the best verdict, of these the first."""
        found = [
            _judge(part, measure, *pair)
            for part in results.split()
            for measure in MEASURES
            if (pair := self._find_best(part, measure))
        ]
        return max(found, key=lambda each: get_args(Word).index(each.word), default=Verdict("not decided"))

    def tables(self, results: Results) -> list[Table]:
        """Return the map, then accuracies, costs and scores at every point of the grid."""
        parts = results.split()
        own = [table for part in parts for table in super(Relatives, self).tables(part)]
        return [*self._map_leads(parts), *own]

    def figures(self, results: Results) -> list[StudyFigure]:
        """Return accuracy during training and scores at the end, at every point of the grid."""
        return [figure for part in results.split() for figure in super(Relatives, self).figures(part)]

    def _find_best(self, results: Results, measure: Measure) -> tuple[MethodRuns, MethodRuns] | None:
        """Return the best method with ED and the best without; None if there are no two."""
        scored = [each for each in results.done if each.spread(measure.key)]
        ours = [each for each in scored if each.method.name in self.with_ed]
        others = [each for each in scored if each.method.name not in self.with_ed]
        return (find_best(measure, ours), find_best(measure, others)) if ours and others else None

    def _map_leads(self, parts: list[Results]) -> list[Table]:
        rows, bold = list[tuple[str, ...]](), set[tuple[int, int]]()
        for part in parts:
            for measure in MEASURES:
                pair = self._find_best(part, measure)
                if pair is None:
                    continue
                lead = find_lead(measure, *pair)
                if lead.interval and lead.interval[0] > 0:
                    bold.add((len(rows), 5))
                values = [measure.write(each.spread(measure.key)) for each in reversed(pair)]
                names = [each.method.title for each in reversed(pair)]
                where = [part.point] if len(parts) > 1 else []
                rows.append((
                    ", ".join([measure.title, *where]),
                    names[0],
                    values[0],
                    names[1],
                    values[1],
                    _write(lead),
                ))
        if not rows:
            return []
        head = ("", "best without ED", "", "best with ED", " ", "lead of ED")
        notes = (
            f"On {tested_on(parts[0])} examples. A lead is positive where ED is better, with a 95% interval, paired by "
            "seed; bold where that is above zero. Both methods were chosen by the means that are compared, and there "
            f"are {len(rows)} comparisons: one in forty would come out bold by chance.",
        )
        return [Table("Where ED is ahead", head, tuple(rows), notes, frozenset(bold))]


def find_lead(measure: Measure, one: MethodRuns, other: MethodRuns) -> Difference:
    """Return by how much a method is better than another, in the measure's unit."""
    sign = 1 if measure.higher_is_better else -1
    return Difference.of(*(dict(sign * each.values(measure.key) / measure.unit) for each in (one, other)))


def _judge(results: Results, measure: Measure, one: MethodRuns, other: MethodRuns) -> Verdict:
    lead = find_lead(measure, one, other)
    where = f" ({results.point})" if results.point else ""
    quantity = f"{measure.title}{where}, lead of {one.method.title} over {other.method.title}:"
    return judge(quantity, lead.value, lead.interval, above=0.0)


def _write(lead: Difference) -> str:
    if lead.interval is None:
        return f"{lead.value:+.3g}" if lead.value else NOTHING
    return f"{lead.value:+.3g} ({lead.interval[0]:+.3g} to {lead.interval[1]:+.3g})"
