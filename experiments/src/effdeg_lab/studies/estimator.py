"""Does the estimator tell the truth? Its bias, variance and warnings on functions that are known exactly."""

import math
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

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
from effdeg_lab.settings import Settings, setting
from effdeg_lab.studies import Study, StudyFigure
from effdeg_lab.studies.known_functions import KnownFunction, exact_degrees, make_kinks, make_polynomial, make_sine
from effdeg_lab.tables import NOTHING, Table
from effdeg_lab.verdicts import Verdict, judge, judge_all

Sampling = Literal["cosine", "chebyshev", "uniform"]
SAMPLINGS: tuple[Sampling, ...] = ("cosine", "chebyshev", "uniform")
NODES = (3, 4, 6, 8, 15, 16, 24, 32, 48, 64, 100, 200)
DEGREES = (2, 3, 5, 7, 10, 14, 20, 40)
SCHEMES = tuple((sampling, nodes) for sampling in SAMPLINGS for nodes in NODES)
DEFAULT = ("cosine", 200, 40)  # of effdeg.measure
# Where the exact value is kept: at all fitted degrees, and beyond, to see whether it keeps growing.
EXACT_AT = (*range(41), *(round(40 * 2 ** (step / 4)) for step in range(1, 17)))
TOLERANCE = 0.02  # the standard error that the tables of costs are about
UNBIASED = 0.01  # a bias that this standard error hides
WRONG = 0.05  # an error that a measurement should warn of
BUDGETS = (1_000, 10_000, 100_000)  # forward passes to be split into paths and nodes

_DRAWN_PATHS = 200  # paths whose nodes are drawn repeatedly: enough for a standard deviation to a few per cent
_KEYS = ["sampling", "nodes", "degree"]


@dataclass(frozen=True)
class Estimation(Settings):
    """The settings of one run. The seed decides the function, the examples, the paths and the nodes.

    Attributes:
        function: What is measured: a random ``polynomial`` map, a ``sine``, or a random ReLU network with one hidden
            layer, whose ``kinks`` along a path are known.
        frequency: The sine's ω, for inputs between -1 and 1. Its exact series must end before degree 640.
        units: The hidden units of the network.
        examples: The number of examples that the paths join.
        paths: The number of paths of every measurement.
        draws: How often nodes are drawn on the same paths, to see how much the value varies with random nodes alone.
    """

    function: Literal["polynomial", "sine", "kinks"] = "polynomial"
    frequency: float = setting(4.0, above=0, most=400)
    units: int = setting(32, least=1)
    examples: int = setting(2000, scale=True, least=2)
    paths: int = setting(2000, scale=True, least=2)
    draws: int = setting(8, scale=True, least=2)


def run(settings: Estimation, job: Job) -> None:
    """Measure one known function in every way, along the same paths."""
    subject = Subject(settings, job.device)
    state = job.start() or {"done": 0, "seconds": 0.0}
    begin = time.perf_counter() - state["seconds"]
    title = f"{settings.function}, seed {settings.seed}"
    with Turn(job), progress_bar(title, len(SCHEMES), enabled=job.progress) as update:
        for done, (sampling, nodes) in enumerate(SCHEMES, start=1):
            if done > state["done"]:
                for entry in subject.measure(sampling, nodes):
                    job.log(entry)
                state.update(done=done, seconds=time.perf_counter() - begin)
                job.save(state)
                job.stop_if_asked(lambda: state)
            update(done, f"{nodes} {sampling} nodes")
    exact = subject.exact[:, list(EXACT_AT)].mean(0).tolist()
    job.finish({"degrees": list(EXACT_AT), "exact": exact, "seconds": time.perf_counter() - begin})


class Subject:
    """A known function on its paths. Everything drawn follows from the seed, so a resumed run draws the same again."""

    def __init__(self, settings: Estimation, device: torch.device) -> None:
        self._settings = settings
        makers: dict[str, Callable[..., KnownFunction]] = {
            "polynomial": make_polynomial,
            "sine": partial(make_sine, settings.frequency),
            "kinks": partial(make_kinks, settings.units),
        }
        generator = torch.Generator().manual_seed(settings.seed)
        self.inputs, self.evaluate, self.expand = makers[settings.function](settings.examples, generator, device)
        # Pairs depend on the seed alone: these are the pairs of every measurement.
        first, second = self._trace("cosine", nodes=1).pairs.to(device).unbind(1)
        self._first, self._second = self.inputs[first], self.inputs[second]
        self.exact = exact_degrees(self.expand(self._first, self._second, EXACT_AT[-1])).cpu()

    def measure(self, sampling: Sampling, nodes: int) -> list[dict[str, Any]]:
        """Measure at every degree that the nodes determine, and compare with the exact values path by path."""
        trace, degrees, entries = self._trace(sampling, nodes), [each for each in DEGREES if each < nodes], []
        within = self.spread_within_paths(nodes, degrees) if sampling == "cosine" else [0.0] * len(degrees)
        for degree, spread in zip(degrees, within, strict=True):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", IllConditionedFit)  # fits that go wrong are a part of the study
                measured = trace.fit(degree=degree, output="identity")
            error, exact = measured.per_path - self.exact[:, degree], float(self.exact[:, degree].mean())
            entry = {"sampling": sampling, "nodes": nodes, "degree": degree, "value": measured.value, "exact": exact}
            entries.append({
                **entry,
                "std": float(measured.per_path.std()),
                "within": spread,
                "bias": float(error.mean()) / exact,
                "bias_stderr": float(error.std()) / math.sqrt(len(error)) / exact,
                "residual": measured.residual,
                "upper_half": measured.upper_half,
                # With as many nodes as coefficients a measurement says that it cannot tell, whatever the residual.
                "warned": nodes > degree + 1 and measured.residual > measured.RESIDUAL_LIMIT,
            })
        return entries

    def spread_within_paths(self, nodes: int, degrees: list[int]) -> list[float]:
        """Draw the nodes of some paths repeatedly; return the root mean variance of a path's value, for each degree."""
        first, second = self._first[:_DRAWN_PATHS, None], self._second[:_DRAWN_PATHS, None]
        generator = torch.Generator().manual_seed(self._settings.seed * 1_000_003 + nodes)
        found = []
        for _ in range(self._settings.draws):
            alpha = cosine_nodes(nodes, len(first), generator=generator).to(first.device)
            points = torch.lerp(second, first, alpha[..., None]).flatten(0, 1)
            values = self.evaluate(points).view(*alpha.shape, -1)
            found.append(torch.stack([effective_degree(fit(values, alpha, degree)) for degree in degrees]))
        return [math.sqrt(float(variance)) for variance in torch.stack(found).var(0).mean(-1)]

    def _trace(self, sampling: Sampling, nodes: int) -> effdeg.Trace:
        drawn: Any = {"paths": self._settings.paths, "seed": self._settings.seed}
        return effdeg.trace(self.evaluate, self.inputs, nodes=nodes, sampling=sampling, batch_size=8192, **drawn)


def read_exact(run: Run) -> "pd.Series[float]":
    """Return the exact values, indexed by degree."""
    return pd.Series((run.summary or {})["exact"], index=(run.summary or {})["degrees"])


def read_outcomes(runs: Iterable[Run]) -> pd.DataFrame:
    """Return what every setting gave in every run; ``spread`` and ``within`` are shares of the estimate.

    ``bias`` is relative to the exact value at the same degree, ``whole_bias`` to the limit of high degrees. A piecewise
    linear function has no limit; its value at degree 40 is used.
    """
    frames = []
    for each in runs:
        found, exact = pd.DataFrame(each.metrics), read_exact(each)
        whole = exact[DEFAULT[2] if each.settings["function"] == "kinks" else EXACT_AT[-1]]
        spread, within = found["std"] / found["value"], found["within"] / found["value"]
        frames.append(found.assign(whole_bias=found["value"] / whole - 1, spread=spread, within=within))
    return pd.concat(frames, ignore_index=True)


def average(runs: Iterable[Run]) -> pd.DataFrame:
    """Average the outcomes over seeds, and add the ``paths`` and forward ``passes`` that the tolerance takes."""
    groups = read_outcomes(runs).groupby(_KEYS, sort=False)
    found = groups.mean(numeric_only=True).assign(seeds=groups.size()).reset_index()
    # Every seed has its own function: how much these differ is seen only between seeds.
    between = groups["bias"].std().to_numpy() / np.sqrt(found["seeds"])
    found["bias_stderr"] = found["bias_stderr"].where(found["seeds"] == 1, between)
    found["paths"] = np.ceil((found["spread"] / TOLERANCE) ** 2).astype(int)
    return found.assign(passes=found["nodes"] * found["paths"])


def find_default(outcomes: pd.DataFrame) -> "pd.Series[Any]":
    """Find what the defaults of effdeg.measure gave."""
    return outcomes[(outcomes[_KEYS] == list(DEFAULT)).all(axis=1)].iloc[0]


def find_cheapest(outcomes: pd.DataFrame, sampling: str) -> "pd.Series[Any] | None":
    """Find the setting that reaches the tolerance with the fewest forward passes; None if all are biased."""
    # In both ways: a setting is not good because errors of two kinds happen to cancel.
    unbiased = (outcomes[["bias", "whole_bias"]].abs() <= UNBIASED).all(axis=1)
    good = outcomes[unbiased & (outcomes["sampling"] == sampling)]
    return None if good.empty else good.iloc[good["passes"].argmin()]


def find_fewest_nodes(outcomes: pd.DataFrame) -> "pd.Series[int]":
    """Find the number of nodes from which on the bias is small, by sampling and degree, where there is one."""
    down = outcomes.set_index(["sampling", "degree"]).sort_values("nodes", ascending=False)
    unbiased = (down["bias"].abs() <= UNBIASED).groupby(level=[0, 1]).cummin()
    return down.loc[unbiased, "nodes"].groupby(level=[0, 1]).min()


def compute_errors(outcomes: pd.DataFrame, passes: int) -> "pd.Series[float]":
    """Return the root mean square errors that a number of forward passes leaves; nan for fewer than two paths."""
    bias = outcomes[["bias", "whole_bias"]].abs().max(axis=1)
    deviation = (1 + outcomes["whole_bias"]) * outcomes["spread"] * np.sqrt(outcomes["nodes"] / passes)
    errors: pd.Series[float] = np.hypot(bias, deviation).where(2 * outcomes["nodes"] <= passes)
    return errors


class EstimatorStudy(Study):
    """The estimator against exact values. It claims that the defaults of effdeg.measure have a bias of at most 1%."""

    def claim(self, results: Results) -> Verdict:
        """Judge the bias of the defaults at their degree for every function; the largest comes first."""
        parts = []
        for each in results.done:
            found = find_default(average(each.runs))
            # With one seed the standard error is that over paths.
            count = found["seeds"] if found["seeds"] > 1 else each.runs[0].settings["paths"]
            margin = float(stats.t.ppf(0.975, count - 1) * found["bias_stderr"])
            bias = float(found["bias"])
            quantity = f"relative bias of the defaults, {each.method.title}:"
            parts.append(judge(quantity, bias, (bias - margin, bias + margin), above=-UNBIASED, below=UNBIASED))
        return judge_all(sorted(parts, key=lambda part: -abs(part.value or 0.0)))

    def tables(self, results: Results) -> list[Table]:
        """Return costs, nodes for each degree, splits of forward passes, and warnings."""
        averaged = {each.method.title: average(each.runs) for each in results.done}
        costs = _make_costs(averaged, results.heading)
        return [costs, _make_nodes(averaged), _make_splits(averaged), _make_warnings(results)]

    def figures(self, results: Results) -> list[StudyFigure]:
        """Return the figures."""

        def draw(name: str, theme: str) -> Any:
            from effdeg_lab.studies import estimator_figures  # loads matplotlib

            return estimator_figures.DRAW[name](results, theme)

        return [StudyFigure(name, caption, partial(draw, name)) for name, caption in _CAPTIONS.items()]

    def headline(self, run: Run) -> str:
        """Return the bias of the defaults of effdeg.measure."""
        return f"{find_default(average([run]))['bias']:+.2%} at {DEFAULT[1]}/{DEFAULT[2]}"


def _make_costs(averaged: dict[str, pd.DataFrame], heading: str) -> Table:
    rows: list[tuple[str, ...]] = []
    bold = set()
    for title, outcomes in averaged.items():
        found: dict[str, Any] = {sampling: find_cheapest(outcomes, sampling) for sampling in SAMPLINGS}
        least = min((one["passes"] for one in found.values() if one is not None), default=None)
        for label, one in {**found, "default": find_default(outcomes)}.items():
            if one is None:
                rows.append((title, label, *[NOTHING] * 7))
                continue
            if label != "default" and one["passes"] == least:
                bold.add((len(rows), 8))
            shares = (f"{100 * one['whole_bias']:+z.2f}", f"{one['spread']:.2f}", f"{one['within']:.3f}")
            cost = (f"{one['paths']:,}", f"{one['passes']:,}")
            rows.append((title, label, str(one["nodes"]), str(one["degree"]), *shares, *cost))
    notes = (
        f"The cheapest with a bias of at most {UNBIASED:.0%} of the whole value (of ReLU networks: at degree 40).",
        "Spread of paths: standard deviation between paths over the mean; of it nodes: what random nodes alone cause.",
    )
    numbers = ("nodes", "degree", "bias, %", "spread of paths", "of it nodes", "paths", "forward passes")
    title = f"Cost of a standard error of {TOLERANCE:.0%}: {heading}"
    return Table(title, ("", "sampling", *numbers), tuple(rows), notes, frozenset(bold))


def _make_nodes(averaged: dict[str, pd.DataFrame]) -> Table:
    rows = []
    for title, outcomes in averaged.items():
        fewest = find_fewest_nodes(outcomes)
        for sampling in SAMPLINGS:
            rows.append((title, sampling, *(str(fewest.get((sampling, degree), NOTHING)) for degree in DEGREES)))
    notes = (f"Nodes from which on the bias relative to the exact value at this degree is at most {UNBIASED:.0%}.",)
    columns = ("", "sampling", *(f"degree {degree}" for degree in DEGREES))
    return Table("Nodes that a degree needs", columns, tuple(rows), notes)


def _make_splits(averaged: dict[str, pd.DataFrame]) -> Table:
    rows = []
    for title, outcomes in averaged.items():
        for passes in BUDGETS:
            found = outcomes.assign(error=compute_errors(outcomes, passes))
            best, default = found.iloc[found["error"].argmin()], find_default(found)
            used = [(f"{passes // one['nodes']:,}", f"{100 * one['error']:.2g}") for one in (best, default)]
            rows.append((title, f"{passes:,}", *(str(best[key]) for key in _KEYS), *used[0], *used[1]))
    notes = ("Error: the root of bias² + variance, as a share of the whole value; the best of all settings tried.",)
    columns = ("", "forward passes", "sampling", "nodes", "degree", "paths", "error, %", "default: paths", "error, %")
    return Table("The best use of a number of forward passes", columns, tuple(rows), notes)


def _make_warnings(results: Results) -> Table:
    single = {each.method.title: read_outcomes(each.runs) for each in results.done}
    rows = []
    for title, outcomes in (single | {"all": pd.concat(single.values())}).items():
        wrong, blind = outcomes["whole_bias"].abs() > WRONG, outcomes["nodes"] == outcomes["degree"] + 1
        residual, upper = outcomes["warned"], outcomes["upper_half"] > effdeg.Measurement.UPPER_HALF_LIMIT
        by_residual = [wrong & residual, wrong & blind, wrong & ~residual & ~blind, ~wrong & residual]
        masks = [*by_residual, wrong & upper, wrong & ~upper, ~wrong & upper]
        rows.append((title, f"{wrong.sum():,} of {len(wrong):,}", *(f"{mask.sum():,}" for mask in masks)))
    notes = (
        f"Wrong: more than {WRONG:.0%} from the whole value; counted over settings and seeds.",
        "Needless: warned although the value is right. With nodes = degree + 1 the residual cannot tell.",
    )
    warned = ("residual warns", "cannot tell", "silent", "needless", "upper half warns", "silent", "needless")
    return Table("Whether a measurement warns when it is wrong", ("", "wrong", *warned), tuple(rows), notes)


_CAPTIONS = {
    "bias": "Bias relative to the exact value at the same degree, by number of nodes. Gray: within 1%.",
    "degrees": "The exact value up to degree K as a share of that up to 40; dots: estimates on 200 cosine nodes.",
    "split": "Error (root of bias² + variance) of a number of forward passes, by cosine nodes, at their best degree.",
    "warnings": "The error against what a measurement sees of it; dotted: limits. Hollow: nodes = degree + 1.",
}
