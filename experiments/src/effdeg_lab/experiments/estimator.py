"""Is the estimator right? Its bias, variance and warnings on functions whose effective degree is known exactly."""

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import Generator, Tensor
from torch.nn.functional import pad

import effdeg
from effdeg.functional import cosine_nodes, effective_degree, fit
from effdeg.measuring import IllConditionedFit
from effdeg_lab.core.recipe import Method, Recipe, Study, StudyFigure
from effdeg_lab.core.results import Results
from effdeg_lab.core.runs import Job, Run
from effdeg_lab.core.settings import Settings, setting
from effdeg_lab.engine.loop import measure_each
from effdeg_lab.show.figures import Figure, Label, add_grid, label_ends, open_figure, styles_of
from effdeg_lab.show.tables import NOTHING, Table
from effdeg_lab.show.verdicts import Verdict, judge, judge_all

_OUTPUTS = 3


class KnownFunction(NamedTuple):
    """A function, examples to connect by paths, and the function's coefficients along such paths."""

    inputs: Tensor  # of shape (examples, variables)
    evaluate: Callable[[Tensor], Tensor]
    # Maps the first ends of paths (t = 1), the second ends (t = -1) and a degree to the coefficients of T_k(t), of
    # shape (paths, degree + 1, outputs).
    expand: Callable[[Tensor, Tensor, int], Tensor]


def make_polynomial(examples: int, generator: Generator, device: torch.device) -> KnownFunction:
    """Make a random polynomial map of total degree 5, of three variables between -1 and 1."""
    highest = 5
    monomials = sorted((each for each in product(range(highest + 1), repeat=3) if sum(each) <= highest), key=sum)
    weights = torch.randn(len(monomials), _OUTPUTS, dtype=torch.float64, generator=generator).to(device)
    inputs = 2 * torch.rand(examples, 3, dtype=torch.float64, generator=generator).to(device) - 1

    def evaluate(x: Tensor) -> Tensor:
        powers = x.T[:, None] ** torch.arange(highest + 1, device=device)[:, None]
        one, two, three = (powers[variable, list(each)] for variable, each in enumerate(zip(*monomials, strict=True)))
        return (one * two * three).T @ weights

    def expand(first: Tensor, second: Tensor, degree: int) -> Tensor:
        # Along a path, variables are linear in t: build monomials by multiplying by one variable at a time.
        center, half = (first + second) / 2, (first - second) / 2
        one = torch.eye(1, highest + 1, dtype=torch.float64, device=device).expand(len(first), -1)
        series: dict[tuple[int, ...], Tensor] = {(0, 0, 0): one}
        for monomial in monomials[1:]:
            variable = next(index for index, power in enumerate(monomial) if power)
            before = tuple(power - (index == variable) for index, power in enumerate(monomial))
            series[monomial] = _multiply_by_linear(series[before], center[:, variable], half[:, variable])
        return pad(torch.stack(list(series.values()), dim=-1) @ weights, (0, 0, 0, degree - highest))

    return KnownFunction(inputs, evaluate, expand)


def _multiply_by_linear(series: Tensor, constant: Tensor, slope: Tensor) -> Tensor:
    """Multiply Chebyshev series by constant + slope t, by t T_k = (T_{k+1} + T_{|k-1|}) / 2; the last term is zero."""
    by_t = torch.zeros_like(series)
    by_t[:, 1:] += series[:, :-1] / 2
    by_t[:, :-1] += series[:, 1:] / 2
    by_t[:, 1] += series[:, 0] / 2
    return constant[:, None] * series + slope[:, None] * by_t


def make_sine(examples: int, generator: Generator, device: torch.device, *, frequency: float) -> KnownFunction:
    """Make sin(ω x) of one variable between -1 and 1; sin(a + b t) has the Jacobi–Anger expansion.

    Its coefficients are c_0 = J_0(b) sin a, and c_k = 2 J_k(b) sin(a + k π / 2).
    """
    # |b| is at most ω, and J_k(b) vanishes beyond about k = |b|; with 60 more orders the rest is negligible.
    order = 2 * math.ceil((frequency + 60) / 2)

    def expand(first: Tensor, second: Tensor, degree: int) -> Tensor:
        center, half = ((frequency * each[:, 0]) / 2 for each in (first + second, first - second))
        orders = torch.arange(order + 1, dtype=torch.float64, device=device)
        found = 2 * _bessel(half, order) * torch.sin(center[:, None] + orders * (math.pi / 2))
        found[:, 0] /= 2
        return pad(found, (0, degree - order))[..., None]

    inputs = 2 * torch.rand(examples, 1, dtype=torch.float64, generator=generator).to(device) - 1
    return KnownFunction(inputs, lambda x: torch.sin(frequency * x), expand)


def _bessel(x: Tensor, order: int) -> Tensor:
    """Return J_0(x) … J_order(x), of shape ``(points, order + 1)``, for an even order well above |x|.

    The ratios J_k / J_{k-1} = 1 / (2k / x - J_{k+1} / J_k) are computed from above: the recurrence is stable in that
    direction only, and ratios, unlike values, cannot overflow. J_0 follows from J_0 + 2 J_2 + 2 J_4 + … = 1. SciPy's
    ``jv`` is off by 1e-5 where k and x are hundreds and close to each other.
    """
    ratios = [torch.zeros_like(x)]
    for k in range(order, 0, -1):
        ratios.append(x / (2 * k - x * ratios[-1]))
    relative = torch.stack([torch.ones_like(x), *ratios[:0:-1]], dim=-1).cumprod(-1)
    return relative / (2 * relative[:, ::2].sum(-1, keepdim=True) - 1)


def make_kinks(examples: int, generator: Generator, device: torch.device, *, units: int) -> KnownFunction:
    """Make a random ReLU network with one hidden layer on ten normal variables: along a line, each unit has a kink."""
    shapes = ((10, units), (units,), (units, _OUTPUTS), (examples, 10))
    drawn = [torch.randn(shape, dtype=torch.float64, generator=generator).to(device) for shape in shapes]
    hidden, bias, output, inputs = drawn[0] / math.sqrt(10), drawn[1], drawn[2] / math.sqrt(units), drawn[3]

    def expand(first: Tensor, second: Tensor, degree: int) -> Tensor:
        center, half = (first + second) / 2 @ hidden + bias, (first - second) / 2 @ hidden
        found = torch.zeros(len(first), degree + 1, _OUTPUTS, dtype=torch.float64, device=device)
        # One unit at a time, so that memory does not grow with the number of units.
        for constant, slope, weights in zip(center.T, half.T, output, strict=True):
            found += expand_relu(constant, slope, degree)[..., None] * weights
        return found

    return KnownFunction(inputs, lambda x: (x @ hidden + bias).relu() @ output, expand)


def expand_relu(constant: Tensor, slope: Tensor, degree: int) -> Tensor:
    """Expand max(0, u + w t) with a nonzero slope w, for each path; returns ``(paths, degree + 1)``.

    For w > 0 it is positive for t above s = -u / w, that is, with t = cos φ, for φ below θ = arccos s (s clipped to
    [-1, 1]). With S_j = ∫ cos(jφ) dφ from 0 to θ, which is sin(jθ) / j for j > 0 and θ for j = 0,

        c_k = (2/π) ∫ (u + w cos φ) cos kφ dφ = (2/π) (u S_k + w (S_{k-1} + S_{k+1}) / 2),

    and half of that for k = 0, where S_{-1} = S_1. For w < 0, replace t by -t, where T_k(-t) = (-1)^k T_k(t). For a
    kink inside the path, c_k decays only as k⁻², so the sum of k |c_k| grows as log K without limit.
    """
    size = slope.abs()
    angle = torch.arccos((-constant / size).clamp(-1, 1))[:, None]
    orders = torch.arange(1, degree + 2, dtype=torch.float64, device=slope.device)
    integrals = torch.cat([angle, torch.sin(orders * angle) / orders], dim=1)
    below = torch.cat([integrals[:, 1:2], integrals[:, :-2]], dim=1)
    found = (2 / math.pi) * (constant[:, None] * integrals[:, :-1] + size[:, None] * (below + integrals[:, 1:]) / 2)
    found[:, 0] /= 2
    found[:, 1::2] *= slope.sign()[:, None]
    return found


Sampling = Literal["cosine", "chebyshev", "uniform"]
SAMPLINGS: tuple[Sampling, ...] = ("cosine", "chebyshev", "uniform")
NODES = (3, 4, 6, 8, 15, 16, 24, 32, 48, 64, 100, 200)
DEGREES = (2, 3, 5, 7, 10, 14, 20, 40)
SCHEMES = tuple((sampling, nodes) for sampling in SAMPLINGS for nodes in NODES)
DEFAULT = ("cosine", 200, 40)  # of effdeg.measure
# Exact values are stored at all fitted degrees, and at higher ones, to see whether they keep growing.
EXACT_AT = (*range(41), *(round(40 * 2 ** (step / 4)) for step in range(1, 17)))
TOLERANCE = 0.02  # the relative standard error that the tables of costs aim for
UNBIASED = 0.01  # a bias that is negligible next to this standard error
WRONG = 0.05  # an error that a measurement should warn of

_DRAWN_PATHS = 200  # paths whose nodes are drawn repeatedly: enough for a standard deviation to a few percent
_KEYS = ["sampling", "nodes", "degree"]


@dataclass(frozen=True)
class Estimation(Settings):
    """The settings of one run. The seed determines the function, the examples, the paths and the nodes."""

    # The network has one hidden layer, and its kinks on a path are known.
    function: Literal["polynomial", "sine", "kinks"] = setting(
        "polynomial", "a random polynomial map, a sine, or a random ReLU network"
    )
    frequency: float = setting(4.0, "the sine's ω: its exact series must end before degree 640", above=0, most=400)
    units: int = setting(32, "hidden units of the network", least=1)
    examples: int = setting(2000, "examples that the paths connect", scale=True, least=2, smoke=50)
    paths: int = setting(2000, "paths of every measurement", scale=True, least=2, smoke=20)
    draws: int = setting(8, "draws of nodes on the same paths, to isolate their effect", scale=True, least=2, smoke=2)


def run(settings: Estimation, job: Job) -> None:
    """Measure one known function with every setting, along the same paths."""
    subject = Subject(settings, job.device)
    seconds = measure_each(
        job, f"{settings.function}, seed {settings.seed}", SCHEMES, lambda each: subject.measure(*each)
    )
    exact = subject.exact[:, list(EXACT_AT)].mean(0).tolist()
    job.finish({"degrees": list(EXACT_AT), "exact": exact, "seconds": seconds})


class Subject:
    """A known function and its paths. All random draws follow from the seed, so a resumed run repeats them."""

    def __init__(self, settings: Estimation, device: torch.device) -> None:
        self._settings = settings
        makers: dict[str, Callable[..., KnownFunction]] = {
            "polynomial": make_polynomial,
            "sine": partial(make_sine, frequency=settings.frequency),
            "kinks": partial(make_kinks, units=settings.units),
        }
        generator = torch.Generator().manual_seed(settings.seed)
        self.inputs, self.evaluate, self.expand = makers[settings.function](settings.examples, generator, device)
        # Pairs depend only on the seed: these are the pairs of every measurement.
        first, second = self._trace("cosine", nodes=1).pairs.to(device).unbind(1)
        self._first, self._second = self.inputs[first], self.inputs[second]
        # For every degree K, the sum of k |c_k| over k up to K, averaged over outputs.
        coefficients = self.expand(self._first, self._second, EXACT_AT[-1])
        degrees = torch.arange(coefficients.shape[1], dtype=torch.float64, device=device)
        self.exact = (degrees[:, None] * coefficients.abs()).mean(-1).cumsum(-1).cpu()

    def measure(self, sampling: Sampling, nodes: int) -> list[dict[str, Any]]:
        """Measure at every degree below the number of nodes, and compare with the exact values path by path."""
        trace, degrees, entries = self._trace(sampling, nodes), [each for each in DEGREES if each < nodes], []
        within = self.spread_within_paths(nodes, degrees) if sampling == "cosine" else [0.0] * len(degrees)
        for degree, spread in zip(degrees, within, strict=True):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", IllConditionedFit)  # bad fits are part of the study
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
                # With as many nodes as coefficients, the residual says nothing.
                "warned": nodes > degree + 1 and measured.residual > measured.RESIDUAL_LIMIT,
            })
        return entries

    def spread_within_paths(self, nodes: int, degrees: list[int]) -> list[float]:
        """Draw the nodes of some paths repeatedly; return the root mean variance of a path's value at each degree."""
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
    return pd.Series((run.summary or {})["exact"], index=(run.summary or {})["degrees"])


def read_outcomes(runs: Iterable[Run]) -> pd.DataFrame:
    """Return the outcome of every setting in every run; ``spread`` and ``within`` are relative to the estimate.

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
    """Average the outcomes over seeds, and add the ``paths`` and forward ``passes`` needed to reach the tolerance."""
    groups = read_outcomes(runs).groupby(_KEYS, sort=False)
    found = groups.mean(numeric_only=True).assign(seeds=groups.size()).reset_index()
    # Every seed has its own function, and only the spread between seeds shows how much these differ.
    between = groups["bias"].std().to_numpy() / np.sqrt(found["seeds"])
    found["bias_stderr"] = found["bias_stderr"].where(found["seeds"] == 1, between)
    found["paths"] = np.ceil((found["spread"] / TOLERANCE) ** 2).astype(int)
    return found.assign(passes=found["nodes"] * found["paths"])


def find_default(outcomes: pd.DataFrame) -> "pd.Series[Any]":
    return outcomes[(outcomes[_KEYS] == list(DEFAULT)).all(axis=1)].iloc[0]


def find_cheapest(outcomes: pd.DataFrame, sampling: str) -> "pd.Series[Any] | None":
    """Find the setting that reaches the tolerance with the fewest forward passes; None if all are biased."""
    # By both measures of bias: two kinds of errors may happen to cancel in one of them.
    unbiased = (outcomes[["bias", "whole_bias"]].abs() <= UNBIASED).all(axis=1)
    good = outcomes[unbiased & (outcomes["sampling"] == sampling)]
    return None if good.empty else good.iloc[good["passes"].argmin()]


def find_fewest_nodes(outcomes: pd.DataFrame) -> "pd.Series[int]":
    """Find the smallest number of nodes from which the bias stays small, by sampling and degree, if there is one."""
    down = outcomes.set_index(["sampling", "degree"]).sort_values("nodes", ascending=False)
    unbiased = (down["bias"].abs() <= UNBIASED).groupby(level=[0, 1]).cummin()
    return down.loc[unbiased, "nodes"].groupby(level=[0, 1]).min()


class EstimatorStudy(Study):
    """The estimator against exact values. It claims that the defaults of effdeg.measure have a bias of at most 1%."""

    def claim(self, results: Results) -> Verdict:
        parts = []
        for each in results.done:
            found = find_default(average(each.runs))
            # With one seed, the standard error is over paths.
            count = found["seeds"] if found["seeds"] > 1 else each.runs[0].settings["paths"]
            bias, margin = float(found["bias"]), float(stats.t.ppf(0.975, count - 1) * found["bias_stderr"])
            quantity = f"relative bias of the defaults, {each.method.title}"
            parts.append(judge(quantity, bias, (bias - margin, bias + margin), above=-UNBIASED, below=UNBIASED))
        return judge_all(sorted(parts, key=lambda part: -abs(part.value or 0.0)))

    def tables(self, results: Results) -> list[Table]:
        averaged = {each.method.title: average(each.runs) for each in results.done}
        return [_make_costs(averaged, results.heading), _make_nodes(averaged), _make_warnings(results)]

    def figures(self, results: Results) -> list[StudyFigure]:
        caption = "The exact value up to degree K as a share of that up to 40; dots: estimates on 200 cosine nodes."
        return [StudyFigure("degrees", caption, partial(_draw_degrees, results))]

    def headline(self, run: Run) -> str:
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


def _draw_degrees(results: Results, theme: str) -> Figure:
    with open_figure(theme, (8.5, 4.2)) as (colors, figure):
        axes, labels = figure.subplots(), []
        for each in results.done:
            style = styles_of(results.recipe, theme)[each.method.name]
            exact = pd.DataFrame([read_exact(run) for run in each.runs])
            share = exact.div(exact[40], axis=0).mean().drop(0)
            axes.plot(share.index, share, color=style.color, ls=style.line, lw=1.6)
            found = average(each.runs).query("sampling == 'cosine' and nodes == 200")
            estimates = (1 + found["bias"]) * found["degree"].map(share)
            axes.plot(found["degree"], estimates, style.marker, ms=4.5, color=style.color)
            labels.append(Label(each.method.title, float(share.index[-1]), float(share.iloc[-1]), style.color))
        axes.axvline(40, color=colors.ink, lw=0.8, ls=":")
        axes.set(title="effective degree up to K, relative to K = 40", xlabel="degree K", xscale="log", ylim=(0, None))
        axes.xaxis.set_major_formatter("{x:g}")
        add_grid(axes, colors)
        label_ends(axes, labels)
    return figure


RECIPES = (
    Recipe(
        name="estimator",
        title="Does the estimator tell the truth?",
        paper="none; appendix C.4 for uniform nodes",
        expects="Bias and variance of the estimator are left open; uniform nodes become unstable at high degree.",
        cost="25 s per run on one CPU core, 7 min in all",
        settings=Estimation(),
        run=run,
        methods=(
            Method("polynomial", "polynomial of degree 5", {"function": "polynomial"}),
            Method("sine-4", "sin 4x", {"function": "sine", "frequency": 4.0}),
            Method("sine-16", "sin 16x", {"function": "sine", "frequency": 16.0}),
            Method("sine-64", "sin 64x", {"function": "sine", "frequency": 64.0}),
            Method("kinks-4", "ReLU network, 4 units", {"function": "kinks", "units": 4}),
            Method("kinks-64", "ReLU network, 64 units", {"function": "kinks", "units": 64}),
        ),
        study=EstimatorStudy(),
    ),
)
