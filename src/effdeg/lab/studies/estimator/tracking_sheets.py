"""The tables of how coarse measurements follow the precise one."""

from collections.abc import Sequence

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.notes import scale_notes
from effdeg.lab.report.sheet import NOTHING, Sheet
from effdeg.lab.report.sheets import heading
from effdeg.lab.studies.estimator.models import FEWEST, LABELS, Measured, groups_of, settings_in, spread_of, tracked
from effdeg.lab.studies.estimator.outcomes import TOLERANCE


def proper_name(block: Block) -> str:
    """Name the measurement proper for short: nodes/degree."""
    return f"{block.scale['measure_nodes']}/{block.scale['measure_degree']}"


def precise(block: Block) -> str:
    """Name the value that the others are held against, in a sentence."""
    return f"the precise value ({proper_name(block)})"


def ratio(models: Sequence[Measured], name: str, variant: str) -> str:
    """Write what a setting gives as a share of the precise value, with its standard deviation over models."""
    return "{:.2f} ± {:.2f}".format(*spread_of([model.ratio(name, variant) for model in models]))


def correlations(block: Block, models: Sequence[Measured], variant: str) -> Sheet:
    """Show how each setting ranks the models, and its value beside the precise one."""
    scores = tracked(models, variant)
    path = "per_path_correlation" if variant == "value" else "normalized_per_path_correlation"
    rows = []
    for name in settings_in(models):
        score = scores.get(name)
        found = [None] * 3 if score is None else [score.pearson, score.spearman, score.kendall]
        rows.append((
            name,
            *(NOTHING if each is None else str(each).replace(" to ", "…") for each in found),
            ratio(models, name, variant),
            "{:.3f} ± {:.3f}".format(*spread_of([model.ratio_at_degree(name, variant) for model in models])),
            f"{spread_of([model.also[name][path] for model in models])[0]:.2f}",
        ))
    notes = (
        f"{len(models)} models; correlations with {precise(block)}, with 95% intervals; ± standard deviation over "
        "models.",
        "At its degree: against the fit of the same degree on the nodes of the precise measurement, so that what is "
        "left is the error of few nodes.",
        "Between paths: the correlation of single paths' values with their precise ones, averaged over models.",
        *scale_notes(block),
    )
    head = ("nodes/degree", "Pearson", "Spearman", "Kendall", "ratio to precise", "at its degree", "between paths")
    title = f"How coarse settings follow the precise value, {LABELS[variant]}: {heading(block)}"
    # Said once, below the first of the two tables.
    return Sheet(title, head, tuple(rows), notes if variant == "value" else ())


def within_groups(models: Sequence[Measured]) -> list[Sheet]:
    """Show the rank correlations among models that were trained alike; nothing unless there are several groups."""
    groups = {name: members for name, members in groups_of(models).items() if len(members) >= FEWEST}
    names = settings_in(models)
    if len(groups) < 2:
        return []
    rows = []
    for variant, label in LABELS.items():
        for group, members in groups.items():
            scores = tracked(members, variant)
            found = [scores[name].spearman if name in scores else None for name in names]
            cells = [f"{each.value:z.2f}" if each else NOTHING for each in found]
            rows.append((label, group, str(len(members)), *cells))
    notes = (
        "Spearman's rank correlation with the precise value. High within groups and low over all of them means that a "
        "coarse setting does not see what sets the groups apart.",
    )
    return [Sheet("Among models that were trained alike", ("", "group", "models", *names), tuple(rows), notes)]


def costs(block: Block, models: Sequence[Measured]) -> Sheet:
    """Show what the tolerance costs on trained models, as the table of known functions does."""
    rows = []
    for variant, label in LABELS.items():
        for name in [*settings_in(models), proper_name(block)]:
            biases = [model.ratio(name, variant) - 1 for model in models]
            own = [model.ratio_at_degree(name, variant) - 1 for model in models]
            paths = sorted(model.needed_paths(name, variant) for model in models)
            nodes = int(name.partition("/")[0])
            typical, most = paths[len(paths) // 2], paths[-1]
            rows.append((
                label,
                name,
                _bias(biases),
                _bias(own),
                f"{typical:,} ({most:,})",
                f"{nodes * typical:,} ({nodes * most:,})",
            ))
    notes = (
        f"Paths that bring the standard error to {TOLERANCE:.0%}, from the standard error on {models[0].paths} paths: "
        f"the median over {len(models)} models, and the most for any.",
        f"Bias: against {precise(block)}, and against the same degree on its nodes; the mean over models, and the "
        "largest for any.",
    )
    head = ("", "nodes/degree", "bias, %", "at its degree, %", "paths", "forward passes")
    return Sheet(f"To get ±{TOLERANCE:.0%} on trained models", head, tuple(rows), notes)


def _bias(values: Sequence[float]) -> str:
    return f"{100 * spread_of(values)[0]:+z.1f} ({100 * max(values, key=abs):+z.1f})"
