"""Does the estimator tell the truth? Its bias, variance and warnings on functions that are known exactly."""

import math
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import torch
from scipy import stats

import effdeg
from effdeg.functional import cosine_nodes, effective_degree, fit
from effdeg.measure import IllConditionedFit
from effdeg_lab.engine.loop import Turn
from effdeg_lab.progress import progress_bar
from effdeg_lab.results import Results
from effdeg_lab.runs import Job, Run
from effdeg_lab.settings import SCALE, Settings
from effdeg_lab.studies import Study, StudyFigure
from effdeg_lab.studies.known_functions import Kinks, KnownFunction, Polynomial, Sine, exact_degrees
from effdeg_lab.tables import NOTHING, Table
from effdeg_lab.verdicts import Verdict, judge, judge_all

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Sampling = Literal["cosine", "chebyshev", "uniform"]
SAMPLINGS: tuple[Sampling, ...] = ("cosine", "chebyshev", "uniform")
NODES = (3, 4, 6, 8, 15, 16, 24, 32, 48, 64, 100, 200)
DEGREES = (2, 3, 5, 7, 10, 14, 20, 40)
SCHEMES = tuple((sampling, nodes) for sampling in SAMPLINGS for nodes in NODES)
REFERENCE = 40
"""The degree of the default of effdeg.measure."""
DEFAULT = ("cosine", 200, REFERENCE)
"""The defaults of effdeg.measure: sampling, nodes and degree."""
EXACT_AT = (*range(41), *(round(40 * 2 ** (step / 4)) for step in range(1, 17)))
"""Where the exact value is kept: at all fitted degrees, and beyond, to see whether it keeps growing."""
TOLERANCE = 0.02
"""The standard error that the tables of costs are about."""
UNBIASED = 0.01
"""A bias that a standard error of 2% hides."""
WRONG = 0.05
"""An error that a measurement should warn of."""
BUDGETS = (1_000, 10_000, 100_000)
"""Numbers of forward passes to be split into paths and nodes."""

_WHOLE = f"the whole value (the limit of high degrees; where there is none, the exact value at degree {REFERENCE})"
_HIGHEST_FREQUENCY = 400  # the exact series of sin ωx ends soon after degree ω, and is kept up to degree 640
_SETTLED = 1e-6  # what a value may grow by between the last two exact degrees to count as settled
_DRAWN_PATHS = 200  # paths whose nodes are drawn repeatedly: enough for a standard deviation to a few per cent
_POINTS_AT_ONCE = 8192
_KEYS = ["sampling", "nodes", "degree"]


@dataclass(frozen=True)
class Estimation(Settings):
    """The settings of one run. The seed decides the function, the examples, the paths and the nodes.

    Attributes:
        function: What is measured: a random ``polynomial`` map, a ``sine``, or a random ReLU network with one hidden
            layer, whose ``kinks`` along a path are known.
        frequency: The sine's ω, for inputs between -1 and 1.
        units: The hidden units of the network.
        examples: The number of examples that the paths join.
        paths: The number of paths of every measurement.
        draws: How often nodes are drawn on the same paths, to see how much the value varies with random nodes alone.
    """

    function: Literal["polynomial", "sine", "kinks"] = "polynomial"
    frequency: float = 4.0
    units: int = 32
    examples: int = field(default=2000, metadata=SCALE)
    paths: int = field(default=2000, metadata=SCALE)
    draws: int = field(default=8, metadata=SCALE)

    def check(self) -> None:
        """Raise ``ValueError`` if a value is out of range."""
        for name, least in {"units": 1, "examples": 2, "paths": 2, "draws": 2}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} is too small: it must be {least} or more.")
        if not 0 < self.frequency <= _HIGHEST_FREQUENCY:
            raise ValueError(
                f"frequency={self.frequency:g} is not possible: it must be positive, since sin 0x is constant, and at "
                f"most {_HIGHEST_FREQUENCY}, since the exact series is kept up to degree {EXACT_AT[-1]}."
            )


def run(settings: Estimation, job: Job) -> None:
    """Measure one known function in every way, along the same paths."""
    subject = Subject(settings, job.device)
    state = job.start() or {"done": 0, "seconds": 0.0}
    begin = time.perf_counter() - state["seconds"]
    title = f"{settings.function}, seed {settings.seed}"
    with Turn(job.device), progress_bar(title, len(SCHEMES), enabled=job.progress) as update:
        for done, (sampling, nodes) in enumerate(SCHEMES, start=1):
            if done > state["done"]:
                for entry in subject.measure(sampling, nodes):
                    job.log(entry)
                state.update(done=done, seconds=time.perf_counter() - begin)
                job.save(state)
                job.stop_if_asked(lambda: state)
            update(done, f"{nodes} {sampling} nodes")
    job.finish(subject.summarize() | {"seconds": time.perf_counter() - begin})


class Subject:
    """A known function on its paths. Everything drawn follows from the seed, so a resumed run draws the same again."""

    def __init__(self, settings: Estimation, device: torch.device) -> None:
        self._settings = settings
        generator = torch.Generator().manual_seed(settings.seed)
        self.function = make_function(settings, generator, device)
        self.inputs = self.function.draw_inputs(settings.examples, generator)
        # Pairs depend on the seed alone: these are the pairs of every measurement.
        first, second = self._trace("cosine", nodes=1).pairs.to(device).unbind(1)
        self._first, self._second = self.inputs[first], self.inputs[second]
        self._exact = exact_degrees(self.function.expand(self._first, self._second, EXACT_AT[-1])).cpu()

    def measure(self, sampling: Sampling, nodes: int) -> list[dict[str, Any]]:
        """Measure with a number of nodes, at every degree that they determine."""
        trace = self._trace(sampling, nodes)
        degrees = list_degrees(nodes)
        within = self.spread_within_paths(nodes, degrees) if sampling == "cosine" else [0.0] * len(degrees)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IllConditionedFit)  # fits that go wrong are a part of the study
            return [
                {"sampling": sampling, "nodes": nodes, "degree": degree, "within": spread}
                | self._compare_with_exact(trace.fit(degree=degree, output="identity"))
                for degree, spread in zip(degrees, within, strict=True)
            ]

    def summarize(self) -> dict[str, Any]:
        """Return the exact effective degree, as a mean over the paths, at every degree at which it is kept."""
        return {"degrees": list(EXACT_AT), "exact": self._exact[:, list(EXACT_AT)].mean(0).tolist()}

    def spread_within_paths(self, nodes: int, degrees: list[int]) -> list[float]:
        """Draw the nodes of some paths repeatedly; return the root mean variance of a path's value, for each degree."""
        first, second = self._first[:_DRAWN_PATHS, None], self._second[:_DRAWN_PATHS, None]
        generator = torch.Generator().manual_seed(self._settings.seed * 1_000_003 + nodes)
        found = []
        for _ in range(self._settings.draws):
            alpha = cosine_nodes(nodes, len(first), generator=generator).to(first.device)
            points = torch.lerp(second, first, alpha[..., None]).flatten(0, 1)
            values = self.function(points).view(*alpha.shape, -1)
            found.append(torch.stack([effective_degree(fit(values, alpha, degree)) for degree in degrees]))
        return [math.sqrt(float(variance)) for variance in torch.stack(found).var(0).mean(-1)]

    def _trace(self, sampling: Sampling, nodes: int) -> effdeg.Trace:
        settings = self._settings
        return effdeg.trace(
            self.function,
            self.inputs,
            paths=settings.paths,
            nodes=nodes,
            sampling=sampling,
            seed=settings.seed,
            batch_size=_POINTS_AT_ONCE,
        )

    def _compare_with_exact(self, measured: effdeg.Measurement) -> dict[str, Any]:
        """Compare path by path, so that differences between paths do not count as errors."""
        settings = measured.settings
        exact = self._exact[:, settings.degree]
        error, mean = measured.per_path - exact, float(exact.mean())
        return {
            "value": measured.value,
            "std": float(measured.per_path.std()),
            "exact": mean,
            "bias": float(error.mean()) / mean,
            "bias_stderr": float(error.std()) / math.sqrt(len(error)) / mean,
            "residual": measured.residual,
            "upper_half": measured.upper_half,
            # With as many nodes as coefficients a measurement says that it cannot tell, whatever the residual.
            "warned": settings.nodes > settings.degree + 1 and measured.residual > measured.RESIDUAL_LIMIT,
        }


def make_function(settings: Estimation, generator: torch.Generator, device: torch.device) -> KnownFunction:
    """Make the function that the settings name."""
    if settings.function == "polynomial":
        return Polynomial(generator, device)
    if settings.function == "sine":
        return Sine(settings.frequency, device)
    return Kinks(settings.units, generator, device)


def list_degrees(nodes: int) -> list[int]:
    """List the degrees that a number of nodes determines."""
    return [degree for degree in DEGREES if nodes >= degree + 1]


def read_exact(run: Run) -> "pd.Series[float]":
    """Return the exact values, indexed by degree."""
    summary = run.summary or {}
    return pd.Series(summary["exact"], index=summary["degrees"])


def is_settled(exact: "pd.Series[float]") -> bool:
    """Return whether the exact value has a limit: whether it stops growing with the degree."""
    before, last = exact.iloc[-2:]
    return bool(last <= (1 + _SETTLED) * before)


def read_outcomes(runs: Iterable[Run]) -> pd.DataFrame:
    """Return what every setting gave in every run, one row for each sampling, number of nodes, degree and seed.

    ``bias`` is relative to the exact value at the same degree, ``whole_bias`` to the whole value: the limit of high
    degrees or, where there is none, the exact value at degree 40. ``spread`` is the standard deviation between paths,
    ``within`` what random nodes cause of it on one path, both as shares of the estimate.
    """
    frames = []
    for each in runs:
        found, exact = pd.DataFrame(each.metrics), read_exact(each)
        whole = exact.iloc[-1] if is_settled(exact) else exact[REFERENCE]
        frames.append(
            found.assign(
                seed=each.seed,
                whole_bias=found["value"] / whole - 1,
                spread=found["std"] / found["value"],
                within=found["within"] / found["value"],
            )
        )
    return pd.concat(frames, ignore_index=True)


def average(runs: Iterable[Run]) -> pd.DataFrame:
    """Average the outcomes over seeds, setting by setting, and add what the tolerance costs.

    ``paths`` bring the standard error down to the tolerance, and take a number of forward ``passes``.
    """
    groups = read_outcomes(runs).groupby(_KEYS, sort=False)
    found = groups.mean(numeric_only=True).assign(seeds=groups.size()).reset_index()
    # Every seed has its own function: how much these differ is seen only between seeds.
    between = groups["bias"].std().to_numpy() / np.sqrt(found["seeds"])
    found["bias_stderr"] = found["bias_stderr"].where(found["seeds"] == 1, between)
    found["paths"] = np.ceil((found["spread"] / TOLERANCE) ** 2).astype(int)
    found["passes"] = found["nodes"] * found["paths"]
    return found


def find_default(outcomes: pd.DataFrame) -> "pd.Series[Any]":
    """Find what the defaults of effdeg.measure gave."""
    return outcomes[(outcomes[_KEYS] == list(DEFAULT)).all(axis=1)].iloc[0]


def find_cheapest(outcomes: pd.DataFrame, sampling: str) -> "pd.Series[Any] | None":
    """Find the setting that reaches the tolerance with the fewest forward passes; None if all are biased.

    The bias counts relative to the whole value and to the exact value at the setting's own degree: a setting is not
    good because errors of two kinds happen to cancel.
    """
    unbiased = (outcomes[["bias", "whole_bias"]].abs() <= UNBIASED).all(axis=1)
    good = outcomes[unbiased & (outcomes["sampling"] == sampling)]
    return None if good.empty else good.iloc[good["passes"].argmin()]


def find_fewest_nodes(outcomes: pd.DataFrame, sampling: str, degree: int) -> int | None:
    """Find the number of nodes from which on a fit is true to the exact value at its degree; None if it never is."""
    along = outcomes[(outcomes["sampling"] == sampling) & (outcomes["degree"] == degree)]
    along = along.sort_values("nodes", ascending=False)
    good = along[(along["bias"].abs() <= UNBIASED).cummin()]
    return None if good.empty else int(good["nodes"].min())


def compute_errors(outcomes: pd.DataFrame, passes: int) -> "pd.Series[float]":
    """Return the root mean square errors that a number of forward passes leaves, as shares of the whole value.

    The larger of the two biases counts, so that no setting looks good because errors of two kinds cancel. Settings that
    leave fewer than two paths have none.
    """
    bias = outcomes[["bias", "whole_bias"]].abs().max(axis=1)
    deviation = (1 + outcomes["whole_bias"]) * outcomes["spread"] * np.sqrt(outcomes["nodes"] / passes)
    errors: pd.Series[float] = np.hypot(bias, deviation).where(2 * outcomes["nodes"] <= passes)
    return errors


def count_warnings(outcomes: pd.DataFrame, rule: Literal["residual", "upper half"]) -> dict[str, int]:
    """Count how one of the two rules by which a measurement warns does, over settings and seeds."""
    wrong = outcomes["whole_bias"].abs() > WRONG
    if rule == "residual":
        warned, blind = outcomes["warned"] > 0, outcomes["nodes"] == outcomes["degree"] + 1
    else:
        warned, blind = outcomes["upper_half"] > effdeg.Measurement.UPPER_HALF_LIMIT, wrong & False
    masks = {
        "caught": wrong & warned,
        "cannot tell": wrong & ~warned & blind,
        "silent": wrong & ~warned & ~blind,
        "needless": ~wrong & warned,
        "right": ~wrong & ~warned,
    }
    return {name: int(mask.sum()) for name, mask in masks.items()}


class EstimatorStudy(Study):
    """The estimator against exact values. It claims that the defaults of effdeg.measure have a bias of at most 1%."""

    def claim(self, results: Results) -> Verdict:
        """Judge the bias of the defaults at their degree for every function; the largest comes first."""
        parts = []
        for each in results.done:
            found = find_default(average(each.runs))
            # With one seed the standard error is that over paths.
            count = found["seeds"] if found["seeds"] > 1 else each.runs[0].settings["paths"]
            margin = stats.t.ppf(0.975, count - 1) * found["bias_stderr"]
            bias = float(found["bias"])
            interval = (float(bias - margin), float(bias + margin))
            quantity = f"relative bias of the defaults, {each.method.title}:"
            parts.append(judge(quantity, bias, interval, above=-UNBIASED, below=UNBIASED))
        return judge_all(sorted(parts, key=lambda part: -abs(part.value or 0.0)))

    def tables(self, results: Results) -> list[Table]:
        """Return costs, nodes for each degree, splits of forward passes, warnings, and exact values."""
        make = (_make_costs, _make_nodes, _make_splits, _make_warnings, _make_limits)
        return [each(results) for each in make]

    def figures(self, results: Results) -> list[StudyFigure]:
        """Return the figures."""

        def draw(name: str, theme: str) -> "Figure":
            from effdeg_lab.studies import estimator_figures  # loads matplotlib

            return estimator_figures.DRAW[name](results, theme)

        return [StudyFigure(name, caption, partial(draw, name)) for name, caption in _CAPTIONS.items()]

    def headline(self, run: Run) -> str:
        """Return the bias of the defaults of effdeg.measure."""
        return f"{find_default(average([run]))['bias']:+.2%} at {DEFAULT[1]}/{DEFAULT[2]}"


def _make_costs(results: Results) -> Table:
    rows: list[tuple[str, ...]] = []
    bold = set()
    columns = (
        "",
        "sampling",
        "nodes",
        "degree",
        "bias, %",
        "spread of paths",
        "of it nodes",
        "paths",
        "forward passes",
    )
    for each in results.done:
        outcomes = average(each.runs)
        found: dict[str, Any] = {sampling: find_cheapest(outcomes, sampling) for sampling in SAMPLINGS}
        least = min((one["passes"] for one in found.values() if one is not None), default=None)
        for label, one in {**found, "default": find_default(outcomes)}.items():
            if one is None:
                rows.append((each.method.title, label, *[NOTHING] * 7))
                continue
            if label != "default" and one["passes"] == least:
                bold.add((len(rows), len(columns) - 1))
            numbers = (f"{100 * one['whole_bias']:+z.2f}", f"{one['spread']:.2f}", f"{one['within']:.3f}")
            cells = (str(one["nodes"]), str(one["degree"]), *numbers, f"{one['paths']:,}", f"{one['passes']:,}")
            rows.append((each.method.title, label, *cells))
    notes = (
        f"The cheapest setting whose mean is within {UNBIASED:.0%} of {_WHOLE} and of the exact value at its own "
        f"degree, with the paths that bring the standard error to {TOLERANCE:.0%}: (spread / {TOLERANCE:g})².",
        "Bias: relative to the whole value.",
        "Spread of paths: standard deviation between paths over the mean; of it nodes: what random nodes alone cause "
        "on one path.",
        f"default: {DEFAULT[1]} {DEFAULT[0]} nodes, degree {DEFAULT[2]}, as in effdeg.measure, whose 400 paths are "
        f"{400 * DEFAULT[1]:,} forward passes.",
        f"Tried: {', '.join(map(str, NODES))} nodes, degrees {', '.join(map(str, DEGREES))}.",
    )
    title = f"Cost of a standard error of {TOLERANCE:.0%}: {results.heading}"
    return Table(title, columns, tuple(rows), notes, frozenset(bold))


def _make_nodes(results: Results) -> Table:
    rows = []
    for each in results.done:
        outcomes = average(each.runs)
        for sampling in SAMPLINGS:
            found = [find_fewest_nodes(outcomes, sampling, degree) for degree in DEGREES]
            rows.append((each.method.title, sampling, *(NOTHING if one is None else str(one) for one in found)))
    notes = (
        "The number of nodes, of those tried, from which on the bias relative to the exact value at the same degree is "
        f"at most {UNBIASED:.0%}; {NOTHING} where {NODES[-1]} are too few or more do not help.",
    )
    columns = ("", "sampling", *(f"degree {degree}" for degree in DEGREES))
    return Table("Nodes that a degree needs", columns, tuple(rows), notes)


def _make_splits(results: Results) -> Table:
    rows = []
    for each in results.done:
        outcomes = average(each.runs)
        for passes in BUDGETS:
            found = outcomes.assign(error=compute_errors(outcomes, passes))
            best, default = found.iloc[found["error"].argmin()], find_default(found)
            setting = (best["sampling"], str(best["nodes"]), str(best["degree"]))
            used = [(f"{passes // one['nodes']:,}", f"{100 * one['error']:.2g}") for one in (best, default)]
            rows.append((each.method.title, f"{passes:,}", *setting, *used[0], *used[1]))
    notes = (
        "Error: the root of bias² + variance relative to the whole value, as a share of it; the bias at the setting's "
        "own degree counts where it is larger.",
        "The best of all settings tried, which a user does not know beforehand: rather use more nodes.",
    )
    columns = ("", "forward passes", "sampling", "nodes", "degree", "paths", "error, %", "default: paths", "error, %")
    return Table("The best use of a number of forward passes", columns, tuple(rows), notes)


def _make_warnings(results: Results) -> Table:
    by_title = {each.method.title: read_outcomes(each.runs) for each in results.done}
    if len(by_title) > 1:
        by_title["all"] = pd.concat(by_title.values(), ignore_index=True)
    rows = []
    for title, outcomes in by_title.items():
        residual, upper = count_warnings(outcomes, "residual"), count_warnings(outcomes, "upper half")
        counts = [residual[name] for name in ("caught", "cannot tell", "silent", "needless")]
        counts += [upper[name] for name in ("caught", "silent", "needless")]
        wrong = upper["caught"] + upper["silent"]
        rows.append((title, f"{wrong:,} of {len(outcomes):,}", *(f"{count:,}" for count in counts)))
    notes = (
        f"Wrong: more than {WRONG:.0%} from {_WHOLE}; counted over settings and seeds.",
        f"Residual: the first rule of effdeg.Measurement, a residual above {effdeg.Measurement.RESIDUAL_LIMIT:g}; with "
        "nodes = degree + 1 it says that it cannot tell.",
        f"Upper half: its second rule, more than {effdeg.Measurement.UPPER_HALF_LIMIT:.0%} in the upper half of the "
        "degrees, which is what the last doubling of the degree added. It always warns of a piecewise linear function "
        "up to degree 40, and should: the value keeps growing.",
        "Needless: warned although the value is right.",
    )
    warned = ("residual warns", "cannot tell", "silent", "needless", "upper half warns", "silent", "needless")
    return Table("Whether a measurement warns when it is wrong", ("", "wrong", *warned), tuple(rows), notes)


def _make_limits(results: Results) -> Table:
    rows = []
    for each in results.done:
        exact = [read_exact(run) for run in each.runs]
        growth = float(np.mean([one.iloc[-1] / one[REFERENCE] - 1 for one in exact]))
        rows.append((each.method.title, f"{growth:+.0%}", "yes" if all(map(is_settled, exact)) else "no"))
    columns = ("", f"growth from degree {REFERENCE} to {EXACT_AT[-1]}", "has a limit")
    notes = ("A function without a limit has an effective degree only at a stated degree.",)
    return Table(f"The exact value beyond degree {REFERENCE}, where the defaults stop", columns, tuple(rows), notes)


_CAPTIONS = {
    "bias": "Bias relative to the exact value at the same degree, against the number of nodes: a line for each degree "
    f"of the fit, labeled with it at its beginning. Gray: within {UNBIASED:.0%}.",
    "degrees": f"The exact effective degree up to degree K, as a share of that up to {REFERENCE}, and the estimates on "
    f"{NODES[-1]} cosine nodes (dots). A smooth function has a limit; a piecewise linear one grows with log K.",
    "cost": f"Forward passes for a standard error of {TOLERANCE:.0%} with the cheapest setting whose bias is at most "
    f"{UNBIASED:.0%}, labeled nodes/degree, and with the defaults of effdeg.measure (hollow).",
    "split": "Many paths or many nodes? The error (root of bias² + variance) that a fixed number of forward passes "
    "leaves, against the cosine nodes on each path, at the best degree for them; dots at the least error.",
    "warnings": "What a measurement can see of its own error. Left the residual, right the share of the estimate in "
    f"the upper half of the degrees; dotted the limits above which it warns, and an error of {WRONG:.0%} relative to "
    f"{_WHOLE}. Hollow: nodes = degree + 1. What is smaller than the axes reach is drawn at their ends.",
}
