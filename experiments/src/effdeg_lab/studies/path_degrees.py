"""Theorem 3.1 of the paper: random polynomials along random paths. Is their degree the total degree?"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import effdeg
from effdeg.functional import effective_degree, fit
from effdeg_lab.engine.loop import Turn
from effdeg_lab.engine.settings import check_fit, check_least
from effdeg_lab.progress import progress_bar
from effdeg_lab.results import MethodRuns, Results
from effdeg_lab.runs import Job, Run
from effdeg_lab.settings import SCALE, Settings
from effdeg_lab.studies import Study, StudyFigure
from effdeg_lab.studies.polynomials import EXAMPLES_PER_PATH, RandomPolynomials, draw_examples, estimate_mean
from effdeg_lab.tables import NOTHING, Table
from effdeg_lab.verdicts import Verdict, judge, judge_all

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from effdeg.plots import Theme

# Coefficients below this share of the largest count as rounding errors; a coarse threshold would ignore noise, too.
_THRESHOLD, _COARSE = 1e-13, 1e-2
# Noise that is added to the values, in units of the polynomials' standard deviation.
_NOISE = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
# Examples that a polynomial's standard deviation is taken over.
_SCALING = 1000
# Standard errors between two means, the clearest of dozens, before one counts as lower.
_CLEAR_FALL = 4.0
_KINDS = ("effective_degree", "normalized")


@dataclass(frozen=True)
class PathDegrees(Settings):
    """The settings of one run: random polynomials of every total degree, each followed along random paths.

    Attributes:
        variables: Variables of the polynomials.
        terms: Random monomials of each; by default all of its degree and below.
        inputs: Where the examples lie: ``uniform`` on [-1, 1] in every variable, ``normal``, or on the ``lattice`` of
            the values -1, 0 and 1, which has no density.
        highest: The highest total degree; all from 1 on are tried.
        polynomials: Polynomials of each total degree.
        paths: Paths along which all polynomials of a total degree are followed.
        nodes: Nodes on each path.
        degree: The highest degree of the fits.
    """

    variables: int = 3
    terms: int | None = None
    inputs: Literal["uniform", "normal", "lattice"] = "uniform"
    highest: int = field(default=10, metadata=SCALE)
    polynomials: int = field(default=20, metadata=SCALE)
    paths: int = field(default=1000, metadata=SCALE)
    nodes: int = field(default=64, metadata=SCALE)
    degree: int = field(default=16, metadata=SCALE)

    def check(self) -> None:
        """Raise ``ValueError`` if the values do not fit together."""
        check_least(self, 1, "variables", "highest", "terms")
        check_least(self, 2, "polynomials", "paths")
        if self.degree <= self.highest:
            raise ValueError(
                f"degree={self.degree} leaves no room above the polynomials' own, up to highest={self.highest}: a "
                f"degree that is found too high would not be seen. Use degree={self.highest + 1} or more."
            )
        check_fit(self.nodes, self.degree)


def find_degrees(coefficients: Tensor, threshold: float) -> Tensor:
    """Find the highest degree whose coefficient exceeds a share of the largest one; 0 where there is none."""
    sizes = coefficients.abs()
    degrees = torch.arange(sizes.shape[-2], device=sizes.device)
    return (degrees[:, None] * (sizes > threshold * sizes.amax(-2, keepdim=True))).amax(-2)


def run_paths(settings: PathDegrees, job: Job) -> None:
    """Follow random polynomials of every total degree along paths, with and without noise."""
    state = job.start() or {"entries": [], "seconds": 0.0}
    title = f"{settings.variables} variables, seed {settings.seed}"
    with (
        Turn(job.device, announce=job.progress),
        progress_bar(title, settings.highest, enabled=job.progress) as update,
    ):
        for degree in range(len(state["entries"]) + 1, settings.highest + 1):
            job.stop_if_asked(lambda: state)
            begin = time.perf_counter()
            entry = follow_polynomials(settings, degree, job.device)
            state["seconds"] += time.perf_counter() - begin
            state["entries"].append(entry)
            job.log(entry)
            job.save(state)
            update(degree, "")
    job.finish({"degrees": state["entries"], "seconds": state["seconds"]})


def follow_polynomials(settings: PathDegrees, degree: int, device: torch.device) -> dict[str, Any]:
    """Follow random polynomials of one total degree along paths.

    Returns:
        How often the degree along a path is the total degree and, where it is not, why; the effective degree, raw and
        normalized; and the degree found and the effective degree with noise.
    """
    # Drawn from seed and degree alone, so that a resumed run needs no memory of it.
    seed = settings.seed * 1_000_003 + degree
    generator = torch.Generator().manual_seed(seed)
    examples = draw_examples(settings.inputs, EXAMPLES_PER_PATH * settings.paths, settings.variables, generator)
    polynomials = RandomPolynomials.draw(
        settings.polynomials, variables=settings.variables, degree=degree, terms=settings.terms, generator=generator
    ).scale(examples[:_SCALING])
    trace = effdeg.trace(
        polynomials.to(device),
        examples,
        paths=settings.paths,
        nodes=settings.nodes,
        sampling="chebyshev",
        seed=seed,
        device=device,
    )
    values, alpha = trace.values("identity"), trace.alpha[0]
    coefficients = fit(values, alpha, settings.degree)
    first, second = examples[trace.pairs].unbind(1)
    leading, vanishing = polynomials.compute_leading_coefficients(first - second)
    found = find_degrees(coefficients, _THRESHOLD)
    dropped = found < degree
    # Twice the threshold: a coefficient at its very edge may fall on either side.
    visible = leading.abs() > 2 * _THRESHOLD * coefficients.abs().amax(1)
    noises = torch.randn(values.shape, dtype=torch.float64, generator=generator)
    noisy = {size: fit(values + size * noises, alpha, settings.degree) for size in _NOISE}
    return {
        "degree": degree,
        "followed": found.numel(),
        "found": float(found.double().mean()),
        "found_coarsely": float(find_degrees(coefficients, _COARSE).double().mean()),
        "too_high": int((found > degree).sum()),
        "dropped": int(dropped.sum()),
        "vanishing": int((dropped & vanishing).sum()),
        "unexplained": int((dropped & ~vanishing & visible).sum()),
        "effective_degree": _average(coefficients, normalized=False),
        "normalized": _average(coefficients, normalized=True),
        "noise": [
            {
                "size": size,
                "found": float(find_degrees(each, _THRESHOLD).double().mean()),
                "effective_degree": float(effective_degree(each).mean()),
            }
            for size, each in noisy.items()
        ],
    }


def _average(coefficients: Tensor, *, normalized: bool) -> dict[str, float]:
    """Average the effective degree; both the polynomials and the paths, which they share, are draws."""
    each = effective_degree(coefficients.movedim(-1, 0)[..., None], normalized=normalized)
    over_polynomials, over_paths = estimate_mean(each.mean(1)), estimate_mean(each.mean(0))
    stderr = math.hypot(over_polynomials["stderr"], over_paths["stderr"])
    return {"value": over_polynomials["value"], "stderr": stderr}


class DegreesAlongPaths(Study):
    """Theorem 3.1 in numbers, and what it does not say.

    The theorem holds here if, for every method whose examples have a density, no leading coefficient vanishes, no path
    has a degree above the total degree, none below it but where the leading coefficient is too small for float64, and
    the mean degree found rises with the total degree. A lattice, which the theorem excludes, decides nothing.
    """

    def claim(self, results: Results) -> Verdict:
        """Judge whether paths keep the total degree, where the examples have a density."""
        dense = [combine_seeds(each) for each in results.done if _has_density(each)]
        if not dense:
            return Verdict("not decided")
        lost = sum(int(found[["vanishing", "unexplained", "too_high"]].to_numpy().sum()) for found in dense)
        rise = min(float(np.diff(found["found"], prepend=0.0).min()) for found in dense)
        return judge_all([
            judge("paths with a vanishing leading coefficient or an unexplained degree", lost, (lost, lost), below=1),
            judge("least rise of the mean degree found", rise, (rise, rise), above=0.0),
        ])

    def tables(self, results: Results) -> list[Table]:
        """Return the degrees found, what noise does to them, effective degrees, and the extremes of both."""
        first = combine_seeds(results.done[0])
        degrees, sizes = list(first.index), _list_sizes(first)
        middle, last = degrees[len(degrees) // 2], degrees[-1]
        shown = [degree for degree in degrees if degree in {1, 2, 3, 5, 7, last}]
        heads = [f"degree {degree}" for degree in shown]
        raw, normalized = (partial(_describe_effective, kind=kind, degrees=shown) for kind in _KINDS)
        errors = "±: standard error over polynomials and paths."
        found = ("followed", "leading coefficient zero", "too small for float64", f"found at total degree {last}")
        extremes = (f"least degree found at {sizes[0]}", *(f"ED raised at {size}" for size in sizes))
        return [
            _tabulate(
                results,
                f"The degree found along paths: {results.heading}",
                (*found, f"above {_COARSE:.0%} of the largest"),
                _describe_degrees,
                f"The degree found is that of the highest Chebyshev coefficient above {_THRESHOLD:g} of the largest "
                f"one; in the last column, above {_COARSE:g}.",
                "Followed: polynomials times paths, all total degrees together.",
                *(f"{each.method.title} failed: {each.failure}" for each in results.methods if each.failure),
            ),
            _tabulate(
                results,
                f"Total degree {middle} with noise on the values: degree found; ED",
                ("no noise", *sizes),
                partial(_describe_noise, degree=middle),
                "The noise is relative to the polynomials' standard deviation, which is one.",
            ),
            _tabulate(
                results, "ED of polynomials with a standard deviation of one, by total degree", heads, raw, errors
            ),
            _tabulate(results, "Normalized ED, by total degree", heads, normalized, errors),
            _tabulate(
                results,
                "What noise does at most, and where ED falls as the total degree rises",
                (*extremes, "ED falls from", "normalized ED falls from"),
                _describe_extremes,
                f"A fall counts from {_CLEAR_FALL:g} standard errors on; the clearest is shown.",
            ),
        ]

    def figures(self, results: Results) -> list[StudyFigure]:
        """Return the degrees found, with and without noise, and the effective degrees."""
        degrees = (
            "Left, the mean degree found along paths against the total degree. Middle, for three total degrees D, the "
            "same with noise on the values; right, their effective degree with the same noise "
            f"({_choose_for_noise(results).method.title})."
        )
        effective = (
            "The effective degree against the total degree, raw (polynomials scaled to equal variance) and normalized; "
            "bars are standard errors; hollow, examples without a density."
        )
        return [
            StudyFigure("degrees", degrees, partial(_plot_degrees, results)),
            StudyFigure("effective", effective, partial(_plot_effective, results)),
        ]

    def headline(self, run: Run) -> str:
        """Return how often the degree found is the total degree."""
        entries = pd.DataFrame((run.summary or {})["degrees"])
        count, dropped, vanishing = (int(entries[key].sum()) for key in ("followed", "dropped", "vanishing"))
        return f"total degree found on {count - dropped:,} of {count:,}; leading coefficient zero on {vanishing:,}"


def combine_seeds(method: MethodRuns) -> pd.DataFrame:
    """Combine what the seeds of a method found, one row for each total degree: counts are sums, the rest are means.

    Columns are those of the entries; with noise, ``noise.1e-06.found`` and ``noise.1e-06.effective_degree``.
    """
    entries = pd.json_normalize([
        entry | {"noise": {f"{each['size']:.0e}": each for each in entry["noise"]}}
        for run in method.runs
        for entry in (run.summary or {})["degrees"]
    ])
    groups = entries.groupby("degree")
    found = groups.mean()
    for name in ("followed", "too_high", "dropped", "vanishing", "unexplained"):
        found[name] = groups[name].sum()
    for kind in _KINDS:
        # Seeds are independent, each with its own standard error.
        found[f"{kind}.stderr"] = groups[f"{kind}.stderr"].agg(lambda each: math.hypot(*each) / len(each))
    return found


def _has_density(method: MethodRuns) -> bool:
    return bool(method.runs[0].settings["inputs"] != "lattice")


def _choose_for_noise(results: Results) -> MethodRuns:
    """Choose the method that noise is shown for: the second whose examples have a density, or what there is."""
    dense = [method for method in results.done if _has_density(method)] or results.done
    return dense[min(1, len(dense) - 1)]


def _list_sizes(found: pd.DataFrame) -> list[str]:
    return [name.split(".")[1] for name in found.columns if name.startswith("noise.") and name.endswith(".size")]


def _tabulate(
    results: Results,
    title: str,
    columns: Sequence[str],
    describe: Callable[[pd.DataFrame], list[str]],
    *notes: str,
) -> Table:
    """Make a table with a row for each method, which says so if it was not run."""
    rows = []
    for method in results.methods:
        cells = describe(combine_seeds(method)) if method.runs else [method.state, *[NOTHING] * (len(columns) - 1)]
        rows.append((method.method.title, *cells))
    return Table(title, ("", *columns), tuple(rows), notes)


def _describe_degrees(found: pd.DataFrame) -> list[str]:
    count, dropped, vanishing = (int(found[name].sum()) for name in ("followed", "dropped", "vanishing"))
    degree, coarse = found[["found", "found_coarsely"]].iloc[-1]
    return [f"{count:,}", f"{vanishing:,}", f"{dropped - vanishing:,}", f"{degree:.3f}", f"{coarse:.2f}"]


def _describe_noise(found: pd.DataFrame, degree: int) -> list[str]:
    names = [("found", "effective_degree.value")]
    names += [(f"noise.{size}.found", f"noise.{size}.effective_degree") for size in _list_sizes(found)]
    row = found.loc[degree]
    return [f"{row[one]:.2f}; {row[other]:.3f}" for one, other in names]


def _describe_effective(found: pd.DataFrame, kind: str, degrees: list[int]) -> list[str]:
    estimates = found.loc[degrees, [f"{kind}.value", f"{kind}.stderr"]].to_numpy()
    return [f"{value:.2f} ± {stderr:.2f}" for value, stderr in estimates]


def _describe_extremes(found: pd.DataFrame) -> list[str]:
    sizes, clean = _list_sizes(found), found["effective_degree.value"]
    rises = [(found[f"noise.{size}.effective_degree"] / clean).max() - 1 for size in sizes]
    falls = [_describe_fall(found[f"{kind}.value"], found[f"{kind}.stderr"]) for kind in _KINDS]
    return [f"{found[f'noise.{sizes[0]}.found'].min():.2f}", *(f"{rise:.1%}" for rise in rises), *falls]


def _describe_fall(values: "pd.Series[float]", stderrs: "pd.Series[float]") -> str:
    """Name the clearest fall between two total degrees, if it is beyond the noise."""
    falls = [
        ((values[lower] - values[higher]) / math.hypot(stderrs[lower], stderrs[higher]), lower, higher)
        for lower, higher in combinations(values.index, 2)
    ]
    clearest, lower, higher = max(falls, default=(0.0, 0, 0))
    if clearest < _CLEAR_FALL:
        return NOTHING
    return f"{values[lower]:.2f} (degree {lower}) to {values[higher]:.2f} ({higher})"


def _plot_degrees(results: Results, theme: str) -> "Figure":
    """Draw the degree found against the total degree, and what noise does to it and to the effective degree."""
    from effdeg.plots import open_figure

    with open_figure(theme, (12, 3.9)) as (colors, figure):
        clean, noisy, effective = figure.subplots(1, 3, width_ratios=[1.25, 1, 1])
        last = results.scale["highest"]
        clean.plot((0, last), (0, last), color=colors.faint, lw=6, solid_capstyle="round", zorder=1)
        clean.set_ylim(0, last + 0.5)
        clean.set_title("degree found along paths")
        _draw_methods(clean, results, theme, "found")
        found = combine_seeds(_choose_for_noise(results))
        noisy.set_title("degree found, with noise")
        _draw_noise(noisy, found, "found", "found", colors)
        effective.set_title("effective degree, with the same noise")
        _draw_noise(effective, found, "effective_degree.value", "effective_degree", colors)
    return figure


def _plot_effective(results: Results, theme: str) -> "Figure":
    """Draw raw and normalized effective degrees against the total degree."""
    from effdeg.plots import open_figure

    with open_figure(theme, (12, 3.9)) as (_, figure):
        raw, normalized = figure.subplots(1, 2)
        raw.set_title("effective degree, polynomials of equal variance")
        _draw_methods(raw, results, theme, "effective_degree.value", "effective_degree.stderr")
        normalized.set_title("normalized effective degree")
        _draw_methods(normalized, results, theme, "normalized.value", "normalized.stderr")
    return figure


def _draw_methods(axes: "Axes", results: Results, theme: str, value: str, stderr: str = "") -> None:
    """Draw a line for each method, with hollow markers if its examples have no density."""
    from matplotlib.ticker import MultipleLocator

    from effdeg.plots import THEMES
    from effdeg_lab.figures import Label, colors_of, label_ends

    labels = []
    for method in results.done:
        found, color = combine_seeds(method), colors_of(results.recipe, theme)[method.method.name]
        face = color if _has_density(method) else THEMES[theme].ground
        axes.errorbar(found.index, found[value], found.get(stderr), color=color, lw=1.5, marker="o", ms=4, mfc=face)
        labels.append(Label(method.method.title, found.index[-1], found[value].iloc[-1], color))
    axes.set_xlim(0.7, results.scale["highest"] + 0.3)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MultipleLocator(1))
    axes.set_xlabel("total degree")
    axes.grid(color=THEMES[theme].faint, lw=0.6)
    axes.set_axisbelow(True)
    label_ends(axes, labels)


def _draw_noise(axes: "Axes", found: pd.DataFrame, clean: str, name: str, colors: "Theme") -> None:
    """Draw what becomes of three total degrees as noise grows."""
    sizes = _list_sizes(found)
    places = sorted({min(1, len(found) - 1), len(found) // 2, len(found) - 1})
    curves = found[[clean, *(f"noise.{size}.{name}" for size in sizes)]].iloc[places]
    for degree, color in zip(curves.index, (colors.simple, colors.ink, colors.complex), strict=False):
        axes.plot(range(len(sizes) + 1), curves.loc[degree], color=color, lw=1.5, marker="o", ms=3.5)
        axes.text(-0.2, curves.loc[degree, clean], f"D = {degree}", ha="right", va="center", color=color, fontsize=8.5)
    axes.set_xlim(-1.4, len(sizes) + 0.2)
    axes.set_ylim(0, 1.08 * float(curves.to_numpy().max()))
    axes.set_xticks(range(len(sizes) + 1), ["0", *(f"$10^{{{round(math.log10(float(size)))}}}$" for size in sizes)])
    axes.set_xlabel("noise, in standard deviations of the values")
    axes.grid(color=colors.faint, lw=0.6)
    axes.set_axisbelow(True)
