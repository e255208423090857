"""The tables of the estimator's errors."""

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.lines import Line
from effdeg.lab.report.notes import scale_notes
from effdeg.lab.report.sheet import NOTHING, Sheet
from effdeg.lab.report.sheets import heading
from effdeg.lab.studies.estimator.choices import (
    UNBIASED,
    WRONG,
    best_split,
    cheapest,
    count_warnings,
    fewest_nodes,
    upper_half_warns,
    warns,
)
from effdeg.lab.studies.estimator.grid import DEGREES, NODES, SAMPLINGS
from effdeg.lab.studies.estimator.outcomes import (
    DEFAULT,
    TOLERANCE,
    WHOLE,
    EstimatorOutcome,
    averaged,
    default_of,
    outcomes_of,
)
from effdeg.measure._measurement import RESIDUAL_LIMIT, UPPER_HALF_LIMIT

BUDGETS = (1_000, 10_000, 100_000)


def costs(block: Block) -> Sheet:
    """Show the cheapest settings by function and sampling, and the defaults beside them."""
    head = ("", "sampling", "nodes", "degree", "bias, %", "spread of paths", "of it nodes", "paths", "forward passes")
    rows: list[tuple[str, ...]] = []
    strong = set()
    for line in block.done:
        outcomes = averaged(line)
        found = {sampling: cheapest(outcomes, sampling) for sampling in SAMPLINGS}
        best = min((each.passes for each in found.values() if each), default=None)
        for sampling, each in found.items():
            if each and each.passes == best:
                strong.add((len(rows), len(head) - 1))
            rows.append((line.row.title, *_cost(sampling, each)))
        rows.append((line.row.title, *_cost("default", default_of(outcomes))))
    notes = (
        f"The cheapest setting whose mean is within {UNBIASED:.0%} of {WHOLE} and of the exact value at its own "
        f"degree, with as many paths as bring the standard error to {TOLERANCE:.0%}: (spread / {TOLERANCE:g})².",
        "Bias: against the whole value.",
        "Spread of paths: standard deviation between paths over the mean; of it nodes: what random nodes alone cause "
        "on one and the same path.",
        f"default: {DEFAULT[1]} {DEFAULT[0]} nodes, degree {DEFAULT[2]}, as in effdeg.measure, whose 400 paths are "
        f"{400 * DEFAULT[1]:,} forward passes.",
        f"Tried: {', '.join(map(str, NODES))} nodes, degrees {', '.join(map(str, DEGREES))}.",
        *scale_notes(block),
    )
    return Sheet(f"To get ±{TOLERANCE:.0%}: {heading(block)}", head, tuple(rows), notes, frozenset(strong))


def needed_nodes(block: Block) -> Sheet:
    """Show how many nodes a degree takes, by function and sampling."""
    rows = []
    for line in block.done:
        outcomes = averaged(line)
        for sampling in SAMPLINGS:
            found = [fewest_nodes(outcomes, sampling, degree) for degree in DEGREES]
            rows.append((line.row.title, sampling, *(NOTHING if each is None else str(each) for each in found)))
    notes = (
        f"The number of nodes, of those tried, from which on the bias against the exact value at the same degree is at "
        f"most {UNBIASED:.0%}; {NOTHING} where {NODES[-1]} are too few or more do not help.",
    )
    head = ("", "sampling", *(f"degree {degree}" for degree in DEGREES))
    return Sheet("Nodes that a degree takes", head, tuple(rows), notes)


def splits(block: Block) -> Sheet:
    """Show the best split of a number of forward passes into paths and nodes, beside the default's."""
    head = ("", "forward passes", "sampling", "nodes", "degree", "paths", "error, %", "default: paths", "error, %")
    rows = []
    for line in block.done:
        outcomes = averaged(line)
        default = default_of(outcomes)
        for passes in BUDGETS:
            best = best_split(outcomes, passes)
            setting = (best.sampling, str(best.nodes), str(best.degree), f"{passes // best.nodes:,}")
            found = [f"{100 * each.error(passes):.2g}" for each in (best, default)]
            rows.append((line.row.title, f"{passes:,}", *setting, found[0], f"{passes // default.nodes:,}", found[1]))
    notes = (
        "Error: the root of bias² + variance against the whole value, as a share of it; the bias at the setting's own "
        "degree counts where it is larger.",
        "Of all settings tried, the best; a user does not know it before, and should stay on the side of more nodes.",
    )
    return Sheet("The best use of a number of forward passes", head, tuple(rows), notes)


def warnings(block: Block) -> Sheet:
    """Show how often a measurement warns when it should, by each of its two rules."""
    head = (
        "",
        "wrong",
        "residual warns",
        "cannot tell",
        "silent",
        "needless",
        "upper half warns",
        "silent",
        "needless",
    )
    rows = [(line.row.title, *_counted(_single(line))) for line in block.done]
    if len(rows) > 1:
        rows.append(("all", *_counted([each for line in block.done for each in _single(line)])))
    notes = (
        f"Wrong: more than {WRONG:.0%} from {WHOLE}; counted over settings and seeds.",
        f"Residual: the first rule of effdeg.Measurement, a residual above {RESIDUAL_LIMIT:g}; with nodes = degree + 1 "
        "it says that it cannot tell.",
        f"Upper half: its second rule, more than {UPPER_HALF_LIMIT:.0%} in the upper half of the degrees, "
        "which is what the last doubling of the degree brought. For a piecewise linear function it is not silent up "
        "to degree 40, and should not be: the value goes on growing.",
        "Needless: warned of although it is right.",
    )
    return Sheet("Whether a measurement warns when it is wrong", head, tuple(rows), notes)


def _cost(label: str, found: EstimatorOutcome | None) -> tuple[str, ...]:
    if found is None:
        return (label, *[NOTHING] * 7)
    return (
        label,
        str(found.nodes),
        str(found.degree),
        f"{100 * found.whole_bias:+z.2f}",
        f"{found.spread:.2f}",
        f"{found.within:.3f}",
        f"{found.paths:,}",
        f"{found.passes:,}",
    )


def _single(line: Line) -> list[EstimatorOutcome]:
    return [each for run in line.runs for each in outcomes_of(run)]


def _counted(outcomes: list[EstimatorOutcome]) -> tuple[str, ...]:
    ours = count_warnings(outcomes, warns, untold=True)
    other = count_warnings(outcomes, upper_half_warns, untold=False)
    return (
        f"{ours.wrong:,} of {len(outcomes):,}",
        *(f"{count:,}" for count in (ours.caught, ours.untold, ours.missed, ours.needless)),
        *(f"{count:,}" for count in (other.caught, other.missed, other.needless)),
    )
