"""A table and a figure of scores: of predicted probabilities, and on corrupted images."""

from collections.abc import Sequence
from typing import NamedTuple

from effdeg_lab.core.results import Difference, MethodRuns, Results, Spread
from effdeg_lab.show.columns import MethodTable, format_spread
from effdeg_lab.show.tables import NOTHING, Table


class Measure(NamedTuple):
    """A number in the summaries, and how to write it."""

    title: str
    key: str
    unit: float = 1.0
    decimals: int = 3
    higher_is_better: bool = False

    def write(self, spread: Spread | None) -> str:
        return format_spread(spread, factor=1 / self.unit, decimals=self.decimals)


_NLL, _NLL_SCALED = Measure("NLL", "test_loss"), Measure("NLL, scaled", "test_loss_scaled")
_BRIER = Measure("Brier", "test_brier", 1.0, 4)
_ECE = Measure("ECE, %", "test_calibration_error", 0.01, 2)
_ECE_SCALED = Measure("ECE, scaled, %", "test_calibration_error_scaled", 0.01, 2)
_AURC = Measure("AURC × 1000", "test_aurc", 0.001, 2)
_CORRUPTED = Measure("corrupted, %", "corrupted_accuracy", 0.01, 2, higher_is_better=True)
_COLUMNS = (_NLL, _NLL_SCALED, _BRIER, _ECE, _ECE_SCALED, _AURC, _CORRUPTED)
MEASURES = (Measure("accuracy, %", "test_accuracy", 0.01, 2, higher_is_better=True), *_COLUMNS)
"""The measures by which classifiers are judged."""
# Further images of Tiny-ImageNet's classes.
_VAL5 = Measure("val5, %", "shifted.val5", 0.01, 2, higher_is_better=True)
_NOTES = (
    "NLL: negative log-likelihood. ECE: expected calibration error, 15 bins. AURC: area under the risk–coverage curve. "
    "Scaled: after temperature scaling, cross-fitted. Lower is better.",
    "±: standard deviation over seeds. * better than the best of the other methods, † worse: the 95% interval of the "
    "difference, paired by seed, excludes zero.",
)


def list_scores(title: str, results: Results, methods: Sequence[MethodRuns]) -> list[Table]:
    """Return the table of scores; none if no run has them, as in earlier versions."""
    if not any(_BRIER.key in (run.summary or {}) for each in methods for run in each.runs):
        return []
    used = _describe_corrupted(methods)
    table, notes = MethodTable(results, methods), [*_NOTES]
    if used:
        verdict = "Higher is better" if len(used) == 1 else "These numbers cannot be compared"
        notes.append(f"Corrupted: mean accuracy on {' or '.join(used)}. {verdict}.")
    for measure in (*_COLUMNS, _VAL5):
        scored = [each for each in methods if each.spread(measure.key)]
        if not scored:
            continue
        compared = [] if measure is _CORRUPTED and len(used) > 1 else scored
        if len(compared) > 1:
            table.bold.add((methods.index(find_best(measure, compared)), len(table.columns)))
        table.add(measure.title, (_format(measure, each, compared) for each in methods))
    if _VAL5.title in table.columns:
        notes.append("val5: accuracy on images of ImageNet's validation set, of the same classes. Higher is better.")
    return [table.make(title, notes)]


def find_best(measure: Measure, methods: Sequence[MethodRuns]) -> MethodRuns:
    sign = -1 if measure.higher_is_better else 1
    return min(methods, key=lambda each: sign * float(each.values(measure.key).mean()))


def _format(measure: Measure, each: MethodRuns, compared: Sequence[MethodRuns]) -> str:
    """Write a score, with a mark if it differs significantly from the best of the other methods."""
    text = measure.write(each.spread(measure.key))
    others = [other for other in compared if other is not each]
    if text == NOTHING or not others:
        return text
    best = find_best(measure, others)
    difference = Difference.of(*(dict(one.values(measure.key)) for one in (each, best)))
    if difference.interval is None or difference.interval[0] <= 0 <= difference.interval[1]:
        return text
    return text + ("*" if (difference.value > 0) == measure.higher_is_better else "†")


def _describe_corrupted(methods: Sequence[MethodRuns]) -> list[str]:
    text = "{count} corruptions of severity {corrupted_severity}, {corrupted_images:,} images"
    summaries = [run.summary for each in methods for run in each.runs if run.summary and "corrupted" in run.summary]
    return list(dict.fromkeys(text.format(count=len(summary["corrupted"]), **summary) for summary in summaries))
