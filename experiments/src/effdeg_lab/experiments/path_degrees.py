"""Theorem 3.1 of the paper: is the degree of a random polynomial along a random path its total degree?"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import effdeg
from effdeg.functional import effective_degree, fit
from effdeg_lab.core.recipe import Method, Recipe, Study, StudyFigure
from effdeg_lab.core.results import MethodRuns, Results
from effdeg_lab.core.runs import Job, Run, read_run
from effdeg_lab.core.settings import Settings, check_fit, setting
from effdeg_lab.engine.loop import measure_each
from effdeg_lab.experiments.polynomials import EXAMPLES_PER_PATH, estimate_mean
from effdeg_lab.show.figures import Figure, Label, add_grid, label_ends, open_figure, styles_of
from effdeg_lab.show.tables import NOTHING, Table
from effdeg_lab.show.verdicts import Verdict, judge, judge_all

_THRESHOLD = 1e-13  # coefficients below this share of the largest count as rounding errors
_COARSE = 1e-2  # a threshold that would also ignore noise
_ROUNDING = 1e-14  # a sum of at most this share of its terms' absolute values counts as zero
_NOISE = {f"{size:.0e}": size for size in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)}  # in standard deviations of the polynomials
_KINDS = ("effective_degree", "normalized")


@dataclass(frozen=True)
class PathDegrees(Settings):
    """The settings of one run: random polynomials of every total degree, each followed along random paths."""

    variables: int = setting(3, "of the polynomials", least=1)
    terms: int | None = setting(None, "random monomials per polynomial; by default all up to its degree", least=1)
    # Uniform on [-1, 1] in every variable, or on the lattice of the values -1, 0 and 1, which has no density.
    inputs: Literal["uniform", "normal", "lattice"] = setting("uniform", "distribution of the ends of paths")
    highest: int = setting(10, "highest total degree; all from 1 up to it are tried", scale=True, least=1, smoke=3)
    polynomials: int = setting(20, "polynomials of each total degree", scale=True, least=2, smoke=3)
    paths: int = setting(1000, "shared by all polynomials of one total degree", scale=True, least=2, smoke=20)
    nodes: int = setting(64, "nodes on each path", scale=True)
    degree: int = setting(16, "degree of the fits", scale=True)

    def check(self) -> None:
        if self.degree <= self.highest:
            raise ValueError(
                f"degree={self.degree} is not above the polynomials' own degrees, up to highest={self.highest}: a "
                f"degree that is found too high would not be seen. Use degree={self.highest + 1} or more."
            )
        check_fit(self.nodes, self.degree)


@dataclass(frozen=True, eq=False)
class Polynomials:
    """Polynomials of one total degree, as a map with one output per polynomial.

    Exponents have the shape (polynomials or 1, terms, variables), coefficients (polynomials, terms).
    """

    exponents: Tensor
    coefficients: Tensor
    degree: int

    def __call__(self, inputs: Tensor) -> Tensor:
        exponents = self.exponents.to(inputs.device)
        powers = torch.stack([torch.ones_like(inputs), *[inputs] * self.degree], dim=-1).cumprod(-1)
        monomials = powers[:, 0, exponents[..., 0]]
        for variable in range(1, inputs.shape[1]):
            monomials = monomials * powers[:, variable, exponents[..., variable]]
        return torch.einsum("npt,pt->np", monomials, self.coefficients.to(inputs.device))

    def compute_leading_coefficients(self, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the Chebyshev coefficient of the total degree D along paths, and whether it vanishes.

        Along x + t v/2, t from -1 to 1, the coefficient of t^D is P_D(v/2), with the leading part P_D (the paper's
        Lemma), and t^D is T_D/2^(D-1) plus lower degrees. The directions v are the differences of the ends.
        """
        leading = torch.where(self.exponents.sum(-1) == self.degree, self.coefficients, 0.0)
        values, sizes = (replace(self, coefficients=each)(directions / 2) for each in (leading, leading.abs()))
        return values / 2 ** (self.degree - 1), values.abs() <= _ROUNDING * sizes.abs()


def draw_polynomials(settings: PathDegrees, degree: int, generator: torch.Generator) -> Polynomials:
    """Draw polynomials with normal coefficients, with all monomials up to the degree or random ones, one of it."""
    count, variables = settings.polynomials, settings.variables

    def read_exponents(bars: Iterable[int]) -> list[int]:
        """Read exponents as the numbers of stars between bars: each monomial is one way to place the bars."""
        return [int(gap) - 1 for gap in np.diff(sorted(bars), prepend=-1)]

    def draw_exponents(variables: int) -> list[int]:
        return read_exponents(torch.randperm(variables + degree, generator=generator)[:variables].tolist())

    if settings.terms is None:
        exponents = torch.tensor([list(map(read_exponents, combinations(range(variables + degree), variables)))])
    else:
        leading = [draw_exponents(variables - 1) for _ in range(count)]
        first = torch.tensor([[*powers, degree - sum(powers)] for powers in leading])
        others = [draw_exponents(variables) for _ in range(count * (settings.terms - 1))]
        rest = torch.tensor(others, dtype=torch.long).view(count, settings.terms - 1, variables)
        exponents = torch.cat([first[:, None], rest], dim=1)
    coefficients = torch.randn(count, exponents.shape[1], dtype=torch.float64, generator=generator)
    return Polynomials(exponents, coefficients, degree)


def _draw_examples(settings: PathDegrees, generator: torch.Generator) -> Tensor:
    shape = EXAMPLES_PER_PATH * settings.paths, settings.variables
    if settings.inputs == "normal":
        return torch.randn(shape, dtype=torch.float64, generator=generator)
    if settings.inputs == "lattice":
        return torch.randint(-1, 2, shape, generator=generator).double()
    return 2 * torch.rand(shape, dtype=torch.float64, generator=generator) - 1


def find_degrees(coefficients: Tensor, threshold: float) -> Tensor:
    """Find the highest degree whose coefficient exceeds a share of the largest one; 0 if there is none."""
    sizes = coefficients.abs()
    degrees = torch.arange(sizes.shape[-2], device=sizes.device)
    return (degrees[:, None] * (sizes > threshold * sizes.amax(-2, keepdim=True))).amax(-2)


def run_paths(settings: PathDegrees, job: Job) -> None:
    """Follow random polynomials of every total degree along paths, with and without noise."""

    def follow(degree: int) -> list[dict[str, Any]]:
        return [follow_polynomials(settings, degree, job.device)]

    title = f"{settings.variables} variables, seed {settings.seed}"
    seconds = measure_each(job, title, range(1, settings.highest + 1), follow)
    job.finish({"degrees": read_run(job.file).metrics, "seconds": seconds})


def follow_polynomials(settings: PathDegrees, degree: int, device: torch.device) -> dict[str, Any]:
    """Follow random polynomials of one total degree along paths: the degrees found, why they drop, and ED."""
    # The random state depends only on the seed and the degree, so that a resumed run draws the same.
    seed = settings.seed * 1_000_003 + degree
    generator = torch.Generator().manual_seed(seed)
    examples = _draw_examples(settings, generator)
    drawn = draw_polynomials(settings, degree, generator)
    polynomials = replace(drawn, coefficients=drawn.coefficients / drawn(examples[:1000]).std(0)[:, None])
    options: dict[str, Any] = {"paths": settings.paths, "nodes": settings.nodes, "seed": seed}
    trace = effdeg.trace(polynomials, examples, sampling="chebyshev", device=device, **options)
    values, alpha = trace.values("identity"), trace.alpha[0]
    coefficients = fit(values, alpha, settings.degree)
    first, second = examples[trace.pairs].unbind(1)
    leading, vanishing = polynomials.compute_leading_coefficients(first - second)
    found = find_degrees(coefficients, _THRESHOLD)
    dropped = found < degree
    # Twice the threshold: a coefficient at the threshold may fall on either side.
    visible = leading.abs() > 2 * _THRESHOLD * coefficients.abs().amax(1)
    noises, noisy = torch.randn(values.shape, dtype=torch.float64, generator=generator), []
    for size in _NOISE.values():
        each = fit(values + size * noises, alpha, settings.degree)
        degrees, effective = find_degrees(each, _THRESHOLD).double(), effective_degree(each)
        noisy.append({"size": size, "found": float(degrees.mean()), "effective_degree": float(effective.mean())})
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
        "noise": noisy,
    }


def _average(coefficients: Tensor, *, normalized: bool) -> dict[str, float]:
    """Average the effective degree; its error includes the draw of polynomials and that of paths, which they share."""
    each = effective_degree(coefficients.movedim(-1, 0)[..., None], normalized=normalized)
    over_polynomials, over_paths = estimate_mean(each.mean(1)), estimate_mean(each.mean(0))
    return over_polynomials | {"stderr": math.hypot(over_polynomials["stderr"], over_paths["stderr"])}


class DegreesAlongPaths(Study):
    """Theorem 3.1 in numbers, and what it does not say."""

    def claim(self, results: Results) -> Verdict:
        """Judge whether paths keep the total degree, for examples with a density.

        No leading coefficient may vanish, no degree may be wrong unless the leading coefficient is too small for
        float64, and the mean degree found must rise with the total degree.
        """
        dense = [_combine_seeds(each) for each in results.done if each.runs[0].settings["inputs"] != "lattice"]
        if not dense:
            return Verdict("not decided")
        lost = sum(int(found[["vanishing", "unexplained", "too_high"]].to_numpy().sum()) for found in dense)
        rise = min(float(np.diff(found["found"], prepend=0.0).min()) for found in dense)
        return judge_all([
            judge("paths with a vanishing leading coefficient or an unexplained degree", lost, (lost, lost), below=1),
            judge("least rise of the mean degree found", rise, (rise, rise), above=0.0),
        ])

    def tables(self, results: Results) -> list[Table]:
        last = results.scale["highest"]
        middle = last // 2 + 1
        counts = ("polynomials × paths", "leading coefficient zero", "too small for float64")
        degrees = (*counts, f"found at total degree {last}", f"above {_COARSE:.0%} of the largest")
        heads = [degrees, ("no noise", *_NOISE)]
        rows = []
        for each in results.methods:
            cells = [[each.state, *[NOTHING] * (len(head) - 1)] for head in heads]
            if each.runs:
                cells = _describe(_combine_seeds(each), middle)
            rows.append([(each.method.title, *own) for own in cells])
        threshold = f"The degree found: that of the highest coefficient above {_THRESHOLD:g} of the largest one."
        notes = {
            f"The degree found along paths: {results.heading}": [threshold, *results.failures],
            f"Total degree {middle} with noise, in standard deviations of the values: degree found; ED": [],
        }
        tables = zip(notes, heads, zip(*rows, strict=True), strict=True)
        return [Table(title, ("", *head), own, tuple(notes[title])) for title, head, own in tables]

    def figures(self, results: Results) -> list[StudyFigure]:
        measured = "The effective degree against the total degree; bars are standard errors over polynomials and paths."
        return [StudyFigure("effective", measured, partial(_plot, results))]

    def headline(self, run: Run) -> str:
        entries = pd.DataFrame((run.summary or {})["degrees"])
        count, dropped, vanishing = entries[["followed", "dropped", "vanishing"]].sum()
        return f"total degree found on {count - dropped:,} of {count:,}; leading coefficient zero on {vanishing:,}"


def _combine_seeds(method: MethodRuns) -> pd.DataFrame:
    """Combine the seeds of a method, in one row for each total degree: sums of counts, and means of the rest."""
    entries = pd.json_normalize([
        entry | dict(zip(_NOISE, entry["noise"], strict=True))
        for run in method.runs
        for entry in (run.summary or {})["degrees"]
    ])
    groups = entries.drop(columns="noise").groupby("degree")
    found = groups.mean()
    for name in ("followed", "too_high", "dropped", "vanishing", "unexplained"):
        found[name] = groups[name].sum()
    for kind in _KINDS:
        # Seeds are independent, each with its own standard error.
        found[f"{kind}.stderr"] = groups[f"{kind}.stderr"].agg(lambda each: math.hypot(*each) / len(each))
    return found


def _describe(found: pd.DataFrame, middle: int) -> list[list[str]]:
    count, dropped, vanishing = (found[name].sum() for name in ("followed", "dropped", "vanishing"))
    degree, coarse = found[["found", "found_coarsely"]].iloc[-1]
    noise = [["found", "effective_degree.value"], *([f"{name}.found", f"{name}.effective_degree"] for name in _NOISE)]
    return [
        [f"{count:,}", f"{vanishing:,}", f"{dropped - vanishing:,}", f"{degree:.3f}", f"{coarse:.2f}"],
        ["{:.2f}; {:.3f}".format(*found.loc[middle, names]) for names in noise],
    ]


def _plot(results: Results, theme: str) -> Figure:
    most = list(_NOISE)[-1]
    quantities = {
        "effective degree": "effective_degree.value",
        f"with noise of {most}": f"{most}.effective_degree",
        "normalized effective degree": "normalized.value",
    }
    with open_figure(theme, (12, 3.9)) as (look, figure):
        panels, labels = figure.subplots(1, len(quantities), sharey=True), []
        for axes, (title, name) in zip(panels, quantities.items(), strict=True):
            for method in results.done:
                found, style = _combine_seeds(method), styles_of(results.recipe, theme)[method.method.name]
                stderr = found[name.replace("value", "stderr")] if name.endswith("value") else None
                shape = {"color": style.color, "ls": style.line, "marker": style.marker}
                axes.errorbar(found.index, found[name], stderr, **shape, lw=1.5, ms=4)
                if axes is panels[0]:
                    labels.append(Label(method.method.title, found.index[-1], found[name].iloc[-1], style.color))
            axes.set(title=title, xlabel="total degree")
            add_grid(axes, look)
        panels[0].set_ylim(0, 1.05 * panels[0].get_ylim()[1])
        label_ends(panels[0], labels)
    return figure


RECIPES = (
    Recipe(
        name="path-degrees",
        title="The degree of polynomials along paths",
        paper="Theorem 3.1",
        expects=(
            "The degree along a path is almost surely the total degree, so averages over paths are in the same order."
        ),
        cost="5 to 45 s per run on one CPU core, 4 min in all",
        settings=PathDegrees(),
        run=run_paths,
        methods=(
            Method("dense-2", "2 variables, all terms", {"variables": 2}),
            Method("dense-3", "3 variables, all terms"),
            Method("sparse-10", "10 variables, 20 terms", {"variables": 10, "terms": 20, "inputs": "normal"}),
            Method("monomial-3", "3 variables, one term", {"terms": 1}),
            Method("lattice-3", "one term, on a lattice", {"terms": 1, "inputs": "lattice"}),
        ),
        departs="The paper proves it and has no experiment.",
        study=DegreesAlongPaths(),
    ),
)
