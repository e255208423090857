"""How far coarse measurements follow the precise one, over a pool of trained models."""

from collections.abc import Mapping, Sequence

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.drawing import Drawing
from effdeg.lab.report.sheet import Sheet
from effdeg.lab.report.verdicts import Finding, Verdict
from effdeg.lab.report.wording import listed
from effdeg.lab.store import Record
from effdeg.lab.studies.estimator.models import FEWEST, LABELS, Measured, groups_of, models_of, tracked
from effdeg.lab.studies.estimator.tracking_sheets import correlations, costs, precise, ratio, within_groups
from effdeg.ranking import Score, Statistic

# The paper's efficient penalty, which the question is about.
EFFICIENT = "4/3"
# A setting tracks the precise value if the rank correlation is at least this, by the lower end of its interval.
TRACKS = 0.9


class Tracking:
    """Coarse measurements beside the precise one, model by model."""

    def finding(self, block: Block) -> Finding:
        """State whether 4 nodes and degree 3 track the precise raw value.

        They do if the 95% interval of Spearman's correlation lies above 0.9, they do not if it lies below, and else it
        is not decided.
        """
        models = models_of(block)
        scores = {variant: tracked(models, variant) for variant in LABELS}
        if EFFICIENT not in scores["value"]:
            return Finding(
                "not decided", (f"{len(models)} models were measured with {EFFICIENT} too: nothing to compare.",)
            )
        efficient = scores["value"][EFFICIENT].spearman
        sentences = [
            f"Over {len(models)} models, {EFFICIENT} nodes/degree have a rank correlation of {efficient} with "
            f"{precise(block)}, raw; it is said to track it from {TRACKS:g} on, the interval included. The value "
            f"itself is {ratio(models, EFFICIENT, 'value')} times the precise one.",
            *(_others(scores[variant], name) for variant, name in LABELS.items()),
            *_within(models),
        ]
        return Finding(_verdict(efficient), tuple(sentences))

    def sheets(self, block: Block) -> list[Sheet]:
        """Return the tables: how the settings follow the precise value, and what an error bar costs with each."""
        models = models_of(block)
        if not models:
            return []
        ranked = [correlations(block, models, variant) for variant in LABELS]
        return [*ranked, *within_groups(models), costs(block, models)]

    def drawings(self, block: Block) -> list[Drawing]:
        """Return the figure."""
        from effdeg.lab.studies.estimator.tracking_figure import plot_tracking

        models = models_of(block)
        if len(models) < FEWEST:
            return []
        caption = (
            f"What coarse settings (nodes/degree) measure against {precise(block)}, for {len(models)} trained models, "
            "with standard errors; dotted: equal. ρ is Spearman's rank correlation."
        )
        return [Drawing("tracking", caption, lambda theme: plot_tracking(models, precise(block), theme=theme))]

    def score(self, run: Record) -> str:
        """Describe what the precise and the efficient setting found."""
        summary = run.summary or {}
        degree, also = summary["effective_degree"]["value"], (summary.get("measured_also") or {}).get(EFFICIENT)
        return f"ED {degree:.3f}" + (f", with {EFFICIENT} {also['value']:.3f}" if also else "")


def _verdict(found: Statistic | None) -> Verdict:
    if found is None or found.interval is None or found.interval[0] < TRACKS <= found.interval[1]:
        return "not decided"
    return "aim met" if found.interval[0] >= TRACKS else "aim missed"


def _others(scores: Mapping[str, Score], name: str) -> str:
    """State which of all settings track."""
    groups: dict[Verdict, list[str]] = {"aim met": [], "aim missed": [], "not decided": []}
    for setting, score in scores.items():
        groups[_verdict(score.spearman)].append(setting)
    words = {
        "aim met": ("{} tracks it", "{} track it"),
        "aim missed": ("{} does not", "{} do not"),
        "not decided": ("of {} it is not decided", "of {} it is not decided"),
    }
    said = [words[verdict][len(found) > 1].format(listed(found)) for verdict, found in groups.items() if found]
    return f"{name[0].upper()}{name[1:]}: {'; '.join(said) or 'no setting was compared'}."


def _within(models: Sequence[Measured]) -> list[str]:
    """Describe how the efficient setting does among models that were trained alike, where there are several kinds."""
    found = [
        f"{score.spearman.value:z.2f} ({group})"
        for group, members in groups_of(models).items()
        if (score := tracked(members, "value").get(EFFICIENT)) and score.spearman
    ]
    return [f"Among models trained alike the rank correlation is {listed(found)}, raw."] if len(found) > 1 else []
