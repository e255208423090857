"""Theorem 3.1 of the paper: random polynomials along random paths. Is their degree the total degree?"""

import math
import time
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
import torch
from torch import Tensor

import effdeg
from effdeg.functional import chebyshev_nodes, effective_degree, fit, fit_operator
from effdeg_lab.progress import progress_bar
from effdeg_lab.results import MethodRuns, Results
from effdeg_lab.runs import Job, Run
from effdeg_lab.settings import SCALE, Settings
from effdeg_lab.studies import Study, StudyFigure
from effdeg_lab.studies.polynomial_networks import EXAMPLES_PER_PATH, check_counts, estimate_mean
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
# Sums of this many times their terms' sizes, or less, are rounding errors of zero.
_ROUNDING = 1e-14
# Standard errors between two means, the clearest of dozens, before one counts as lower.
_CLEAR_FALL = 4.0
_KINDS = {"effective_degree": "ED", "normalized": "normalized ED"}


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
        check_counts(self, variables=1, highest=1, terms=1, polynomials=2, paths=2)
        if self.degree <= self.highest:
            raise ValueError(
                f"degree={self.degree} leaves no room above the polynomials' own, up to highest={self.highest}: a "
                f"degree that is found too high would not be seen. Use degree={self.highest + 1} or more."
            )
        fit_operator(chebyshev_nodes(self.nodes), self.degree)  # raises unless the nodes determine the fit


@dataclass(frozen=True, eq=False)
class RandomPolynomials:
    """Several polynomials with the same variables and total degree, as one map with an output for each.

    Attributes:
        exponents: For every term, the power of every variable (polynomials or 1, terms, variables).
        coefficients: The factor of every term (polynomials, terms).
        degree: The total degree.
    """

    exponents: Tensor
    coefficients: Tensor
    degree: int

    @classmethod
    def draw(
        cls, count: int, *, variables: int, degree: int, terms: int | None, generator: torch.Generator
    ) -> "RandomPolynomials":
        """Draw polynomials with normal coefficients.

        With ``terms``, each has as many monomials, drawn from all up to the degree, the first from those of the degree
        itself; else all monomials up to the degree.
        """
        if terms is None:
            places = combinations(range(variables + degree), variables)
            exponents = torch.tensor([[_read_exponents(bars) for bars in places]])
        else:
            leading = [_draw_exponents(variables - 1, degree, generator) for _ in range(count)]
            others = [_draw_exponents(variables, degree, generator) for _ in range(count * (terms - 1))]
            first = torch.tensor([[*powers, degree - sum(powers)] for powers in leading])
            rest = torch.tensor(others, dtype=torch.long).view(count, terms - 1, variables)
            exponents = torch.cat([first[:, None], rest], dim=1)
        coefficients = torch.randn(count, exponents.shape[1], dtype=torch.float64, generator=generator)
        return cls(exponents, coefficients, degree)

    def to(self, device: torch.device) -> "RandomPolynomials":
        """Move to a device."""
        return replace(self, exponents=self.exponents.to(device), coefficients=self.coefficients.to(device))

    def scale(self, inputs: Tensor) -> "RandomPolynomials":
        """Return multiples of the polynomials that have a standard deviation of one over these inputs."""
        return replace(self, coefficients=self.coefficients / self(inputs).std(0)[:, None])

    def __call__(self, inputs: Tensor) -> Tensor:
        """Compute all polynomials at every point."""
        powers = torch.ones_like(inputs)
        table = [powers]
        for _ in range(self.degree):
            powers = powers * inputs
            table.append(powers)
        by_power = torch.stack(table, dim=-1)
        monomials = by_power[:, 0, self.exponents[..., 0]]
        for variable in range(1, inputs.shape[1]):
            monomials = monomials * by_power[:, variable, self.exponents[..., variable]]
        return torch.einsum("npt,pt->np", monomials, self.coefficients)

    def compute_leading_coefficients(self, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the Chebyshev coefficient of the total degree D along paths from the leading part P_D alone.

        Along x + t v/2, t from -1 to 1, the power t^D has the factor P_D(v/2) (the paper's Lemma), and t^D is
        T_D/2^(D-1) but for lower degrees.

        Args:
            directions: The differences v of the ends of the paths (paths, variables).

        Returns:
            The coefficients (paths, polynomials), and whether each vanishes: the degree along the path is then lower.
        """
        leads = self.exponents.sum(-1) == self.degree
        leading = torch.where(leads, self.coefficients, 0.0)
        values, sizes = (replace(self, coefficients=each)(directions / 2) for each in (leading, leading.abs()))
        return values / 2 ** (self.degree - 1), values.abs() <= _ROUNDING * sizes.abs()


def _draw_exponents(variables: int, degree: int, generator: torch.Generator) -> list[int]:
    """Draw a monomial from all up to a degree, each as likely as any other."""
    places = torch.randperm(variables + degree, generator=generator)[:variables]
    return _read_exponents(sorted(places.tolist()))


def _read_exponents(places: "tuple[int, ...] | list[int]") -> list[int]:
    """Read exponents off bars among stars: the stars between a bar and the one before it."""
    return [place - before - 1 for before, place in zip([-1, *places], places, strict=False)]


def draw_examples(kind: str, count: int, variables: int, generator: torch.Generator) -> Tensor:
    """Draw examples, in float64."""
    if kind == "normal":
        return torch.randn(count, variables, dtype=torch.float64, generator=generator)
    if kind == "lattice":
        return torch.randint(-1, 2, (count, variables), generator=generator).double()
    return 2 * torch.rand(count, variables, dtype=torch.float64, generator=generator) - 1


def find_degrees(coefficients: Tensor, threshold: float) -> Tensor:
    """Find the highest degree whose coefficient exceeds a share of the largest one; 0 where there is none."""
    sizes = coefficients.abs()
    degrees = torch.arange(sizes.shape[-2], device=sizes.device)
    return (degrees[:, None] * (sizes > threshold * sizes.amax(-2, keepdim=True))).amax(-2)


def run_paths(settings: PathDegrees, job: Job) -> None:
    """Follow random polynomials of every total degree along paths, with and without noise."""
    state = job.start() or {"entries": [], "seconds": 0.0}
    title = f"{settings.variables} variables, seed {settings.seed}"
    with progress_bar(title, settings.highest, enabled=job.progress) as update:
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
        rise = min(float(found["found"].diff().min()) for found in dense)
        return judge_all([
            judge("paths with a vanishing leading coefficient or an unexplained degree", lost, (lost, lost), below=1),
            judge("least rise of the mean degree found", rise, (rise, rise), above=0.0),
        ])

    def tables(self, results: Results) -> list[Table]:
        """Return the degrees found, what noise does to them, effective degrees, and where these fall."""
        found = {each.method.name: combine_seeds(each) for each in results.done}
        return [
            _tabulate_degrees(results, found),
            _tabulate_noise(results, found),
            _tabulate_effective(
                results, found, "effective_degree", "ED of polynomials with a standard deviation of one"
            ),
            _tabulate_effective(results, found, "normalized", "Normalized ED"),
            _tabulate_extremes(results, found),
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
            "bars are standard errors."
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


def _tabulate_degrees(results: Results, found: dict[str, pd.DataFrame]) -> Table:
    last = max(next(iter(found.values())).index)
    rows = []
    for method in results.methods:
        cells = [method.state, *[NOTHING] * 4]
        if method.runs:
            each = found[method.method.name]
            count, dropped, vanishing = (int(each[name].sum()) for name in ("followed", "dropped", "vanishing"))
            cells = [f"{count:,}", f"{vanishing:,}", f"{dropped - vanishing:,}"]
            cells += [f"{each['found'].iloc[-1]:.3f}", f"{each['found_coarsely'].iloc[-1]:.2f}"]
        rows.append((method.method.title, *cells))
    head = ("", "followed", "leading coefficient zero", "too small for float64", f"found at total degree {last}")
    notes = (
        f"The degree found is that of the highest Chebyshev coefficient above {_THRESHOLD:g} of the largest one; "
        f"in the last column, above {_COARSE:g}.",
        "Followed: polynomials times paths, all total degrees together.",
        *results.departures,
    )
    title = f"The degree found along paths: {results.heading}"
    return Table(title, (*head, f"above {_COARSE:.0%} of the largest"), tuple(rows), notes)


def _tabulate_noise(results: Results, found: dict[str, pd.DataFrame]) -> Table:
    first = next(iter(found.values()))
    middle, sizes = first.index[len(first) // 2], _list_sizes(first)
    rows = []
    for method in results.methods:
        cells = [method.state, *[NOTHING] * len(sizes)]
        if method.runs:
            each = found[method.method.name].loc[middle]
            cells = [f"{each['found']:.2f}; {each['effective_degree.value']:.3f}"]
            for size in sizes:
                cells.append(f"{each[f'noise.{size}.found']:.2f}; {each[f'noise.{size}.effective_degree']:.3f}")
        rows.append((method.method.title, *cells))
    title = f"Total degree {middle} with noise on the values: degree found; ED"
    notes = ("The noise is relative to the polynomials' standard deviation, which is one.",)
    return Table(title, ("", "no noise", *sizes), tuple(rows), notes)


def _tabulate_effective(results: Results, found: dict[str, pd.DataFrame], kind: str, title: str) -> Table:
    degrees = next(iter(found.values())).index
    shown = [degree for degree in degrees if degree in {1, 2, 3, 5, 7, degrees[-1]}]
    rows = []
    for method in results.methods:
        cells = [NOTHING] * len(shown)
        if method.runs:
            each = found[method.method.name].loc[shown]
            values = zip(each[f"{kind}.value"], each[f"{kind}.stderr"], strict=True)
            cells = [f"{value:.2f} ± {stderr:.2f}" for value, stderr in values]
        rows.append((method.method.title, *cells))
    head = ("", *(f"degree {degree}" for degree in shown))
    notes = ("±: standard error over polynomials and paths.",)
    return Table(f"{title}, by total degree", head, tuple(rows), notes)


def _tabulate_extremes(results: Results, found: dict[str, pd.DataFrame]) -> Table:
    sizes = _list_sizes(next(iter(found.values())))
    rows = []
    for method in results.done:
        each = found[method.method.name]
        cells = [f"{each[f'noise.{sizes[0]}.found'].min():.2f}"]
        for size in sizes:
            cells.append(f"{(each[f'noise.{size}.effective_degree'] / each['effective_degree.value']).max() - 1:.1%}")
        cells += [_describe_fall(each[f"{kind}.value"], each[f"{kind}.stderr"]) for kind in _KINDS]
        rows.append((method.method.title, *cells))
    head = ("", f"least degree found at {sizes[0]}", *(f"ED raised at {size}" for size in sizes))
    head += tuple(f"{kind} falls from" for kind in _KINDS.values())
    notes = (f"A fall counts from {_CLEAR_FALL:g} standard errors on; the clearest is shown.",)
    return Table("What noise does at most, and where ED falls as the total degree rises", head, tuple(rows), notes)


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
    from effdeg_lab.figures import Label, colors_of

    with open_figure(theme, (12, 3.9)) as (colors, figure):
        clean, *noisy = figure.subplots(1, 3, width_ratios=[1.25, 1, 1])
        labels = []
        for method in results.done:
            found, color = combine_seeds(method)["found"], colors_of(results.recipe, theme)[method.method.name]
            face = color if _has_density(method) else colors.ground
            clean.plot(found.index, found, color=color, lw=1.5, marker="o", ms=4.5, mfc=face)
            labels.append(Label(method.method.title, found.index[-1], found.iloc[-1], color))
        last = max(label.x for label in labels)
        clean.plot((0, last), (0, last), color=colors.faint, lw=6, solid_capstyle="round", zorder=1)
        clean.set_ylim(0, last + 0.5)
        clean.set_title("degree found along paths")
        _label_degrees(clean, labels, colors)
        found = combine_seeds(_choose_for_noise(results))
        names = {"found": ("found", "degree found, with noise")}
        names["effective_degree"] = ("effective_degree.value", "effective degree, with the same noise")
        for axes, (name, (clean_name, title)) in zip(noisy, names.items(), strict=True):
            curves = found[[clean_name, *(f"noise.{size}.{name}" for size in _list_sizes(found))]]
            _draw_noise(axes, curves, _list_sizes(found), colors)
            axes.set_title(title)
    return figure


def _draw_noise(axes: "Axes", curves: pd.DataFrame, sizes: list[str], colors: "Theme") -> None:
    """Draw what becomes of three total degrees as noise grows."""
    shown = curves.iloc[sorted({min(1, len(curves) - 1), len(curves) // 2, len(curves) - 1})]
    for (degree, curve), color in zip(shown.iterrows(), (colors.simple, colors.ink, colors.complex), strict=False):
        axes.plot(range(len(curve)), curve, color=color, lw=1.5, marker="o", ms=3.5)
        axes.annotate(
            f"D = {degree}",
            (0, curve.iloc[0]),
            (-7, 0),
            textcoords="offset points",
            color=color,
            ha="right",
            va="center",
            fontsize=8.5,
        )
    axes.set_xlim(-1.4, len(sizes) + 0.2)
    axes.set_ylim(0, 1.08 * float(shown.to_numpy().max()))
    axes.set_xticks(range(len(sizes) + 1), ["0", *(f"$10^{{{round(math.log10(float(size)))}}}$" for size in sizes)])
    axes.set_xlabel("noise, in standard deviations of the values")
    axes.grid(color=colors.faint, lw=0.6)
    axes.set_axisbelow(True)


def _plot_effective(results: Results, theme: str) -> "Figure":
    """Draw raw and normalized effective degrees against the total degree."""
    from effdeg.plots import open_figure
    from effdeg_lab.figures import Label, colors_of

    titles = ("effective degree, polynomials of equal variance", "normalized effective degree")
    with open_figure(theme, (12, 3.9)) as (colors, figure):
        for axes, kind, title in zip(figure.subplots(1, 2), _KINDS, titles, strict=True):
            labels = []
            for method in results.done:
                found, color = combine_seeds(method), colors_of(results.recipe, theme)[method.method.name]
                values = found[f"{kind}.value"]
                axes.errorbar(found.index, values, found[f"{kind}.stderr"], color=color, lw=1.5, marker="o", ms=3.5)
                labels.append(Label(method.method.title, found.index[-1], values.iloc[-1], color))
            axes.set_ylim(bottom=0)
            axes.set_title(title)
            _label_degrees(axes, labels, colors)
    return figure


def _label_degrees(axes: "Axes", labels: list[Any], colors: "Theme") -> None:
    from matplotlib.ticker import MultipleLocator

    from effdeg_lab.figures import label_ends

    axes.set_xlim(0.7, max(label.x for label in labels) + 0.3)
    axes.xaxis.set_major_locator(MultipleLocator(1))
    axes.set_xlabel("total degree")
    axes.grid(color=colors.faint, lw=0.6)
    axes.set_axisbelow(True)
    label_ends(axes, labels)
