"""How the estimator's errors are told."""

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.drawing import Drawing
from effdeg.lab.report.sheet import Sheet
from effdeg.lab.report.verdicts import Finding, Verdict
from effdeg.lab.report.wording import listed
from effdeg.lab.store import Record
from effdeg.lab.studies.estimator.choices import UNBIASED, WRONG, cheapest, count_warnings, upper_half_warns, warns
from effdeg.lab.studies.estimator.grid import EXACT_AT, SAMPLINGS
from effdeg.lab.studies.estimator.outcomes import (
    REFERENCE,
    TOLERANCE,
    EstimatorOutcome,
    averaged,
    default_of,
    exact_of,
    limit_of,
    outcomes_of,
)
from effdeg.lab.studies.estimator.sheets import costs, needed_nodes, splits, warnings


class Truth:
    """The estimator beside the exact values."""

    def finding(self, block: Block) -> Finding:
        """State whether the defaults of effdeg.measure are right: within 1% of the exact value for every function."""
        found = {line.row.title: averaged(line) for line in block.done}
        defaults = {title: default_of(outcomes) for title, outcomes in found.items()}
        title, worst = max(defaults.items(), key=lambda each: abs(each[1].bias))
        verdict: Verdict = "aim met" if abs(worst.bias) <= UNBIASED else "aim missed"
        sentences = [
            f"With the defaults of effdeg.measure ({worst.nodes} {worst.sampling} nodes, degree {worst.degree}) the "
            f"estimate is at most {abs(worst.bias):.2%} from the exact value at that degree ({title}); the aim is "
            f"{UNBIASED:.0%}.",
            *_costs(found, defaults),
            *_left_out(block),
            *_warnings(block),
        ]
        absent = [line.row.title for line in block.lines if not line.runs]
        return Finding(verdict, (*sentences, *([f"Not run: {listed(absent)}."] if absent else [])))

    def sheets(self, block: Block) -> list[Sheet]:
        """Return the tables."""
        return [costs(block), needed_nodes(block), splits(block), warnings(block)]

    def drawings(self, block: Block) -> list[Drawing]:
        """Return the figures."""
        from effdeg.lab.studies.estimator.drawings import drawings

        return drawings(block)

    def score(self, run: Record) -> str:
        """Describe how far the defaults of effdeg.measure were off."""
        found = default_of(outcomes_of(run))
        return f"{found.bias:+.2%} at {found.name}"


def _costs(found: dict[str, list[EstimatorOutcome]], defaults: dict[str, EstimatorOutcome]) -> list[str]:
    """Describe what the tolerance costs, with the cheapest settings and with the defaults."""
    best = {
        title: min(good, key=lambda each: each.passes)
        for title, outcomes in found.items()
        if (good := [each for sampling in SAMPLINGS if (each := cheapest(outcomes, sampling))])
    }
    if not best:
        return [f"No setting is within {UNBIASED:.0%} of the whole value of any function."]
    ours, theirs = ([outcomes[title].passes for title in best] for outcomes in (best, defaults))
    return [
        f"A standard error of {TOLERANCE:.0%} takes {min(ours):,} to {max(ours):,} forward passes with the cheapest "
        f"settings, {min(theirs):,} to {max(theirs):,} with the defaults: paths differ so much from one another that "
        "few nodes on many paths are better than many on few."
    ]


def _left_out(block: Block) -> list[str]:
    """Describe what the default's degree leaves out, and for which functions no degree is enough."""
    short: list[str] = []
    growing: list[str] = []
    for line in block.done:
        exact = exact_of(line.runs[0])
        growth = exact[EXACT_AT[-1]] / exact[REFERENCE] - 1
        if growth > UNBIASED:
            told = f"{growth:.0%} ({line.row.title})"
            (growing if limit_of(exact) is None else short).append(told)
    said = []
    if short:
        said.append(f"Beyond degree {REFERENCE}, where the defaults stop, the exact value goes on by {listed(short)}.")
    if growing:
        said.append(
            f"From degree {REFERENCE} to {EXACT_AT[-1]} it grows by {listed(growing)}, and on without a limit: "
            "piecewise linear functions have an effective degree at a stated degree only."
        )
    return said


def _warnings(block: Block) -> list[str]:
    """Describe how far a measurement's warnings can be trusted."""
    outcomes = [each for line in block.done for run in line.runs for each in outcomes_of(run)]
    counted = count_warnings(outcomes, warns, untold=True)
    upper = count_warnings(outcomes, upper_half_warns, untold=False)
    if not counted.wrong:
        return []
    return [
        f"Of {counted.wrong:,} measurements that are more than {WRONG:.0%} from the whole value, the residual warns of "
        f"{counted.caught:,}; {counted.untold:,} say that they cannot tell, and {counted.missed:,} say nothing. Of "
        f"{counted.right:,} others it warns of {counted.needless:,}. The upper half of the degrees warns of "
        f"{upper.caught:,} and, without need, of {upper.needless:,}."
    ]
