"""How well do coarse settings of the estimator track the precise one, over a pool of trained models?"""

from typing import Any, ClassVar

import pandas as pd

from effdeg.pools import Score, rank
from effdeg_lab.core.recipe import Study
from effdeg_lab.core.results import Results
from effdeg_lab.core.runs import Run
from effdeg_lab.experiments.pools.study import format_score
from effdeg_lab.show.tables import Table
from effdeg_lab.show.verdicts import Verdict, judge

# Nodes/degree: a cheap penalty, the efficient one, one in between, the precise one, and two that measure well.
ALSO = ("3/2", "4/3", "8/5", "15/7", "32/20", "64/40")
EFFICIENT = "4/3"  # the paper's efficient penalty, which the claim is about
TRACKS = 0.9  # a setting tracks the precise value if the interval of the rank correlation lies above this
FEWEST = 5  # the rank correlation of fewer models means nothing
VARIANTS = {"value": "raw, on probabilities", "normalized": "normalized, on logits"}


def read_models(results: Results) -> pd.DataFrame:
    """Return a row for each model, setting and variant, the precise setting last.

    A ``configuration`` may have several seeds. ``ratio_at_degree`` is relative to the fit of the same degree on the
    nodes of the precise measurement.
    """
    points = [tuple(point.values()) for point in results.recipe.points()]
    precise_name = f"{results.scale['measure_nodes']}/{results.scale['measure_degree']}"
    rows: list[dict[str, Any]] = []
    for each in results.done:
        by_point = [(tuple(run.settings[key] for key in results.recipe.axes), run) for run in each.runs]
        # The user may have run points that are not in the recipe.
        for point, run in sorted(by_point, key=lambda found: [*points, found[0]].index(found[0])):
            summary: dict[str, Any] = run.summary or {}
            precise = summary["effective_degree"]
            model = {"configuration": f"{each.method.name} {point}", "model": run.name}
            for setting, found in {**summary["measured_also"], precise_name: precise}.items():
                for key, variant in VARIANTS.items():
                    prefix = "" if key == "value" else f"{key}_"
                    value, reference = found[key], precise[key]
                    rows.append({
                        **model,
                        "setting": setting,
                        "variant": variant,
                        "value": value,
                        "precise": reference,
                        "ratio": value / reference,
                        "ratio_at_degree": value / found.get(f"{key}_at_degree", reference),
                        "path_correlation": found.get(f"{prefix}per_path_correlation"),
                    })
    return pd.DataFrame(rows)


def _split(models: pd.DataFrame, column: str) -> dict[str, pd.DataFrame]:
    return {str(name): found for name, found in models.groupby(column, sort=False)}


def score_settings(models: pd.DataFrame) -> dict[str, Score]:
    """Score how closely each coarse setting ranks the models as the precise one does; empty for too few models."""
    table = models.pivot_table("value", ["model", "configuration"], "setting", sort=False).reset_index()
    if len(table) < FEWEST:
        return {}
    _, _, *names, precise = table.columns
    # Seeds of one configuration are not independent models.
    clusters = ["configuration"] if table["configuration"].duplicated().any() else []
    records = table[[*clusters, precise, *names]].to_dict("records")
    try:
        ranking = rank(records, target=precise, measures=names, hyperparameters=clusters, resamples=2000)
    except ValueError:  # all models have the same value
        return {}
    return dict(ranking.scores)


class TrackingStudy(Study):
    """Compares coarse settings with the precise one. It claims that 4 nodes and degree 3 rank models as it does."""

    needs: ClassVar[str | None] = f"measured_also.{EFFICIENT}.value"
    needs_all: ClassVar[bool] = False

    def claim(self, results: Results) -> Verdict:
        models = _split(read_models(results), "variant")[VARIANTS["value"]]
        score = score_settings(models).get(EFFICIENT)
        if score is None or score.spearman is None:
            return Verdict("not decided")
        quantity = f"rank correlation of {EFFICIENT} with {models['setting'].iloc[-1]}"
        return judge(quantity, score.spearman.value, score.spearman.interval, above=TRACKS)

    def tables(self, results: Results) -> list[Table]:
        variants = _split(read_models(results), "variant")
        return [_make_correlations(results, *variant) for variant in variants.items()]

    def headline(self, run: Run) -> str:
        precise, efficient = (run.value(f"{key}.value") for key in ("effective_degree", f"measured_also.{EFFICIENT}"))
        return f"ED {precise:.3f}, with {EFFICIENT} {efficient:.3f}"


def _make_correlations(results: Results, variant: str, models: pd.DataFrame) -> Table:
    scores, rows = score_settings(models), []
    for name, found in list(_split(models, "setting").items())[:-1]:
        score, ratio, at_degree = scores.get(name), found["ratio"], found["ratio_at_degree"]
        correlations = [score.pearson, score.spearman, score.kendall] if score else [None] * 3
        rows.append((
            name,
            *map(format_score, correlations),
            f"{ratio.mean():.2f} ± {ratio.std():.2f}",
            f"{at_degree.mean():.3f} ± {at_degree.std():.3f}",
            f"{found['path_correlation'].mean():.2f}",
        ))
    notes = (
        "Correlations with the precise value over models (95% intervals) and over the paths of one; ± over models.",
        "At its degree: relative to the fit of the same degree on the nodes of the precise measurement.",
    )
    columns = ("nodes/degree", "Pearson", "Spearman", "Kendall", "ratio to precise", "at its degree", "between paths")
    over = f"the precise one ({models['setting'].iloc[-1]}) over {results.size} models"
    return Table(f"How coarse settings track {over}, {variant}: {results.heading}", columns, tuple(rows), notes)
