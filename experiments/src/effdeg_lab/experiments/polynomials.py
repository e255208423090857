"""Appendix I of the paper: polynomial networks learn six polynomial maps, whose effective degree is known."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.polynomial.chebyshev import cheb2poly
from numpy.polynomial.legendre import poly2leg
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import effdeg
from effdeg_lab.core.progress import progress_bar
from effdeg_lab.core.recipe import Method, Recipe, Study, StudyFigure
from effdeg_lab.core.results import Results
from effdeg_lab.core.runs import Job, Run
from effdeg_lab.core.settings import Settings, check_fit, setting
from effdeg_lab.engine.loop import GpuLock
from effdeg_lab.show.figures import Figure, add_grid, open_figure
from effdeg_lab.show.tables import NOTHING, Table
from effdeg_lab.show.verdicts import Verdict, judge, judge_all

DEGREES = {1: 1, 2: 2, 3: 5, 4: 1, 5: 2, 6: 5}
"""The total degree of each map, by task."""
EXAMPLES_PER_PATH = 10
"""Error bars treat paths as independent: with this many examples per path, few examples are on two paths."""

_HALF_SIDE = 2.0  # inputs are uniform on [-2, 2]³: the paper does not say so, but its numbers follow from it
_SCRAMBLINGS = 16  # independent ones, of Sobol points; their spread gives the error of the mean
_LARGEST_ERROR = 0.01  # a network with a larger error says nothing about its map
_HALF_INTERVAL = 1.96  # half the width of a 95% interval, in standard errors of means over thousands of paths
_FEW_PATHS = 100  # about as many as the paper may have used, judging by the scatter of its numbers


class Column(NamedTuple):
    """A column of the paper's table: one way to measure the effective degree."""

    name: str
    title: str
    paper: tuple[float, ...]  # the paper's numbers for tasks 1 to 6
    closed: tuple[float, ...]  # closed forms for the first tasks, where known; docs/results/polynomials.md derives them
    basis: Literal["chebyshev", "legendre"] = "chebyshev"
    components: int | None = None
    factor: int = 2  # by which it grows if the outputs are doubled; 1 if it is normalized

    def get_closed_form(self, task: int) -> float | None:
        """Return the exact value for a task if it is known in closed form."""
        place, factor = (task - 1, 1) if task <= 3 else (task - 4, self.factor)
        return factor * self.closed[place] if place < len(self.closed) else None


# Half the mean distance between two inputs; in a unit cube, that distance is Robbins' constant.
_LENGTH = 2 * 0.6617071822671762
COLUMNS = (
    Column("chebyshev", "ED (Chebyshev)", (0.72, 1.17, 2.92, 1.34, 2.33, 5.30), (2 / 3, 32 / 27)),
    Column("normalized", "normalized ED", (0.29, 0.78, 1.17, 0.28, 0.82, 1.17), ((24 + math.log(15)) / 96,), factor=1),
    Column("legendre", "ED (Legendre)", (0.73, 1.33, 3.64, 1.35, 2.63, 6.64), (2 / 3, 4 / 3), basis="legendre"),
    Column("pca-1", "ED (PCA-1)", (1.40, 2.12, 5.32, 2.67, 4.13, 9.62), (_LENGTH,), components=1),
    Column("pca-2", "ED (PCA-2)", (0.70, 1.34, 3.40, 1.34, 2.62, 6.16), (_LENGTH / 2,), components=2),
)


@dataclass(frozen=True)
class PolynomialFit(Settings):
    """The settings of one run, which fits a network to a map, then measures both along the same paths."""

    task: int = setting(1, "which of the six maps", least=1, most=6)
    width: int = setting(16, "units in each of the three hidden layers", least=1, smoke=8)
    examples: int = setting(1000, "inputs to train on", scale=True, least=2, smoke=50)
    steps: int = setting(100, "of the Levenberg–Marquardt method", scale=True, least=1, smoke=5)
    paths: int = setting(20_000, "paths of the measurement", scale=True, least=2, smoke=50)
    nodes: int = setting(16, "nodes on each path", scale=True)
    degree: int = setting(10, "of the fits; networks square three times, so they have degree 8", scale=True, least=8)
    pairs: int = setting(2**18, "of inputs, to integrate the map's exact values over", scale=True, least=2, smoke=256)

    def check(self) -> None:
        check_fit(self.nodes, self.degree)


def compute_map(task: int, inputs: Tensor) -> Tensor:
    """Compute a map from R³ to R³; tasks 4 to 6 are tasks 1 to 3 times two."""
    x1, x2, x3 = inputs.unbind(-1)
    if task > 3:
        return 2 * compute_map(task - 3, inputs)
    if task == 1:
        return torch.stack([x3 + 2, x2 + 3, x1 + 1], dim=-1)
    if task == 2:
        return torch.stack([x1 * x2, x2 * x3, x1 * x3], dim=-1)
    return torch.stack([x1 * x2 * x3, x1**2 * x2 * x3**2, x1**2 * x2 * x3 + x2**2 * x3], dim=-1)


def draw_inputs(count: int, generator: torch.Generator) -> Tensor:
    return _HALF_SIDE * (2 * torch.rand(count, 3, dtype=torch.float64, generator=generator) - 1)


def estimate_mean(sample: Tensor) -> dict[str, float]:
    return {"value": float(sample.mean()), "stderr": float(sample.std()) / math.sqrt(len(sample))}


def integrate_columns(task: int, *, pairs: int, seed: int) -> dict[str, dict[str, float]]:
    """Average the exact columns over scrambled Sobol points, which are pairs of inputs."""
    means = []
    for number in range(_SCRAMBLINGS * seed, _SCRAMBLINGS * (seed + 1)):
        points = torch.quasirandom.SobolEngine(6, scramble=True, seed=number)  # type: ignore[no-untyped-call]
        ends = _HALF_SIDE * (2 * points.draw(max(1, pairs // _SCRAMBLINGS), dtype=torch.float64) - 1)
        columns = compute_columns(task, ends[:, :3], ends[:, 3:])
        means.append(torch.stack([columns[column.name].mean() for column in COLUMNS]))
    samples = torch.stack(means, dim=1)
    return {column.name: estimate_mean(sample) for column, sample in zip(COLUMNS, samples, strict=True)}


def compute_columns(task: int, first: Tensor, second: Tensor) -> dict[str, Tensor]:
    """Compute every column for a map along every path, exactly by interpolation, without effdeg's fits."""
    count = max(DEGREES.values()) + 1
    degrees = torch.arange(count, dtype=torch.float64)[:, None]
    angles = math.pi * (degrees[:, 0] + 0.5) / count
    values = compute_map(task, (first + second)[:, None] / 2 + angles.cos()[:, None] * (first - second)[:, None] / 2)
    chebyshev = torch.where(degrees == 0, 1.0, 2.0).double() / count * (degrees * angles).cos() @ values
    to_legendre = torch.zeros(count, count, dtype=torch.float64)
    for degree, unit in enumerate(np.eye(count)):
        to_legendre[: degree + 1, degree] = torch.tensor(poly2leg(cheb2poly(unit)))
    # Principal components ignore the constant term. In the Chebyshev measure all other T_k have equal variance.
    _, _, directions = torch.linalg.svd(chebyshev[:, 1:], full_matrices=False)
    coefficients = (chebyshev, to_legendre @ chebyshev, chebyshev @ directions.mT)
    raw, legendre, scores = ((degrees * each.abs()).sum(1) for each in coefficients)
    return {
        "chebyshev": raw.mean(-1),
        "normalized": (raw / chebyshev.abs().sum(1)).mean(-1),
        "legendre": legendre.mean(-1),
        "pca-1": scores[:, 0],
        "pca-2": scores[:, :2].mean(-1),
    }


class PolynomialNetwork(nn.Module):
    """Three hidden layers with square activations and a linear output layer, in float64."""

    scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        layers = [nn.Linear(*pair) for pair in pairwise([3, *[width] * 3, 3])]
        self.layers = nn.ModuleList(layers)
        # Multiplies the outputs, so that weights of ordinary size can produce outputs of any size.
        self.register_buffer("scale", torch.ones(3))
        for number, layer in enumerate(layers):
            # Squares of small numbers vanish and those of large ones explode, so all units start around size one.
            size = 1 / math.sqrt(layer.in_features)
            nn.init.normal_(layer.weight, std=size / _HALF_SIDE if number == 0 else size)
            nn.init.normal_(layer.bias, std=0.5)
        self.double()

    def forward(self, inputs: Tensor) -> Tensor:
        *hidden, last = self.layers
        for layer in hidden:
            inputs = layer(inputs).square()
        return torch.mul(self.scale, last(inputs))

    def jacobian(self, inputs: Tensor) -> Tensor:
        """Differentiate the outputs with respect to all weights, ordered as ``parameters()``: (points, 3, weights)."""
        weights = {name: weight.detach() for name, weight in self.named_parameters()}
        differentiate = jacrev(lambda weights, point: functional_call(self, weights, (point,)))
        parts = vmap(differentiate, in_dims=(None, 0))(weights, inputs)
        return torch.cat([parts[name].flatten(2) for name in weights], dim=-1)


def take_levenberg_marquardt_step(
    residuals: Callable[[Tensor], Tensor], jacobian: Tensor, weights: Tensor, damping: float
) -> tuple[Tensor, float]:
    """Return weights with a lower sum of squared residuals r, if 20 attempts find any, and the next damping.

    The step d solves (JᵀJ + damping) d = -Jᵀr with the Jacobian J of r at the weights. "Geodesic acceleration"
    (Transtrum and Sethna 2012, also for the bound on it) adds half the solution of the same equation with r's second
    derivative along d in place of r, so that steps follow curved valleys.
    """
    look, most_curvature = 0.1, 0.75
    now = residuals(weights)
    gram = jacobian.mT @ jacobian
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    for _ in range(20):
        factor, failed = torch.linalg.cholesky_ex(gram + damping * identity)
        if not failed:
            straight = torch.cholesky_solve((-jacobian.mT @ now)[:, None], factor)[:, 0]
            ahead = residuals(weights + look * straight)
            curvature = 2 / look * ((ahead - now) / look - jacobian @ straight)
            bend = torch.cholesky_solve((-jacobian.mT @ curvature)[:, None], factor)[:, 0] / 2
            moved = weights + straight + bend
            gentle = 4 * bend.norm() <= most_curvature * straight.norm()
            if gentle and residuals(moved).square().sum() < now.square().sum():
                return moved, max(damping / 5, 1e-15)
        damping *= 4
    return weights, damping


@torch.no_grad()
def run_fit(settings: PolynomialFit, job: Job) -> None:
    """Fit a network to a map, then measure both along the same paths."""
    # Tasks 4 to 6 start from other weights and inputs than tasks 1 to 3, so that values twice as large are a result.
    # All tasks share their paths, which makes the comparison precise.
    own = torch.Generator().manual_seed(len(DEGREES) * settings.seed + settings.task)
    inputs, fresh = (draw_inputs(count, own).to(job.device) for count in (settings.examples, 10_000))
    ends = draw_inputs(EXAMPLES_PER_PATH * settings.paths, torch.Generator().manual_seed(settings.seed))
    torch.manual_seed(int(torch.randint(2**32, (), generator=own)))
    network = PolynomialNetwork(settings.width).to(job.device)
    network.scale.copy_(compute_map(settings.task, inputs).std(0))

    state = job.start() or {"step": 0, "damping": 0.01, "seconds": 0.0, "last": {}, "network": network.state_dict()}
    network.load_state_dict(state["network"])
    title = f"task {settings.task}, seed {settings.seed}"
    with GpuLock(job), progress_bar(title, settings.steps, enabled=job.progress) as update:
        while state["step"] < settings.steps:
            job.stop_if_asked(lambda: state | {"network": network.state_dict()})
            begin = time.perf_counter()
            state["damping"] = _take_step(network, settings.task, inputs, state["damping"])
            state["seconds"] += time.perf_counter() - begin
            state["step"] += 1
            if state["step"] % 10 == 0 or state["step"] == settings.steps:
                errors = [_compute_error(network, settings.task, points) for points in (inputs, fresh)]
                state["last"] = {key: state[key] for key in ("step", "seconds", "damping")}
                state["last"] |= dict(zip(("train_error", "test_error"), errors, strict=True))
                job.log(state["last"])
                job.save(state | {"network": network.state_dict()})
            update(state["step"], f"relative error {state['last']['test_error']:.1e}" if state["last"] else "")
        summary = {
            **{key: state["last"][key] for key in ("train_error", "test_error", "step", "seconds")},
            "parameters": sum(each.numel() for each in network.parameters()),
            "network": _measure_columns(network, ends, settings, job.device),
            "same_paths": _measure_columns(partial(compute_map, settings.task), ends, settings, job.device),
            "exact": integrate_columns(settings.task, pairs=settings.pairs, seed=settings.seed),
        }
    job.finish(summary, {name: value.cpu() for name, value in network.state_dict().items()})


def _take_step(network: PolynomialNetwork, task: int, inputs: Tensor, damping: float) -> float:
    targets = compute_map(task, inputs)
    # The root of the number of residuals turns their sum of squares into the mean square.
    size = network.scale * math.sqrt(targets.numel())

    def compute_residuals(weights: Tensor) -> Tensor:
        vector_to_parameters(weights, network.parameters())
        off: Tensor = network(inputs) - targets
        return (off / size).flatten()

    jacobian = (network.jacobian(inputs) / size[:, None]).flatten(0, 1)
    before = parameters_to_vector(network.parameters())
    after, damping = take_levenberg_marquardt_step(compute_residuals, jacobian, before, damping)
    vector_to_parameters(after, network.parameters())
    return damping


def _compute_error(network: PolynomialNetwork, task: int, inputs: Tensor) -> float:
    """Return the root mean square error of the worst output, relative to the output's standard deviation."""
    wanted = compute_map(task, inputs)
    return float(((network(inputs) - wanted).square().mean(0).sqrt() / wanted.std(0)).max())


def _measure_columns(
    model: Callable[[Tensor], Tensor], ends: Tensor, settings: PolynomialFit, device: torch.device
) -> dict[str, dict[str, float]]:
    # At Chebyshev nodes, principal components are those of the Chebyshev measure for any number of nodes.
    options: dict[str, Any] = {"paths": settings.paths, "nodes": settings.nodes, "seed": settings.seed}
    trace = effdeg.trace(model, ends, sampling="chebyshev", device=device, **options)
    found = {}
    for column in COLUMNS:
        fitted = trace.fit(degree=settings.degree, basis=column.basis, output="identity", components=column.components)
        found[column.name] = estimate_mean(fitted.sample(normalized=column.factor == 1))
    return found


class PolynomialNetworks(Study):
    """The paper's table next to exact values and those of networks."""

    def claim(self, results: Results) -> Verdict:
        """Judge whether, in every column, ED rises with the degree and grows by the factor (within 1%)."""
        if len(results.done) < len(results.methods):
            return Verdict("not decided")
        worst = float(np.max([run.value("test_error") for each in results.done for run in each.runs]))
        if not worst <= _LARGEST_ERROR:  # true for nan, too
            return Verdict("not decided", "relative error of the worst fit", worst, wanted=(-math.inf, _LARGEST_ERROR))
        rises, ratios = [], []
        for column, (lower, higher) in product(COLUMNS, ((1, 2), (2, 3), (4, 5), (5, 6))):
            _, (low, high), stderrs = zip(*(_read_cell(results, task, column) for task in (lower, higher)), strict=True)
            rise, margin = high - low, _HALF_INTERVAL * math.hypot(*stderrs)
            name = f"{column.title}, task {higher} minus task {lower}"
            rises.append((rise / margin, judge(name, rise, (rise - margin, rise + margin), above=0.0)))
        for column, task in product(COLUMNS, (1, 2, 3)):
            # A map and its double are measured along the same paths, which therefore add no noise to their ratio.
            once, twice = (each.values(f"network.{column.name}.value") for each in results.methods[task - 1 :: 3])
            name = f"{column.title}, doubled outputs over outputs"
            bounds = {"above": 0.99 * column.factor, "below": 1.01 * column.factor}
            ratios += [judge(name, ratio, (ratio, ratio), **bounds) for ratio in (twice / once).dropna()]
        rises.sort(key=lambda rise: rise[0])  # the least certain first
        return judge_all([*(verdict for _, verdict in rises), *ratios])

    def tables(self, results: Results) -> list[Table]:
        first = _tabulate_cells(results, COLUMNS[:2], "Raw and normalized: the paper's, the exact map's, the network's")
        others = _tabulate_cells(results, COLUMNS[2:], "In another basis, and of principal components of the outputs")
        return [first, others]

    def figures(self, results: Results) -> list[StudyFigure]:
        """Plot the columns, and the errors of the fits during training."""
        values = "The columns of the table, and below, differences from the exact values; bars are 95% intervals."
        return [StudyFigure("values", values, partial(_plot_values, results))]

    def headline(self, run: Run) -> str:
        """Return the error of a network, and its effective degree next to the map's."""
        network, exact = (run.value(f"{name}.chebyshev.value") for name in ("network", "exact"))
        return f"relative error {run.value('test_error'):.1e}, ED {network:.3f}, exact {exact:.3f}"


def _read_cell(results: Results, task: int, column: Column) -> tuple[float, float, float]:
    """Return the exact value, and that of the networks with its standard error."""
    runs, closed = results.methods[task - 1], column.get_closed_form(task)
    exact, value = (float(runs.values(f"{name}.{column.name}.value").mean()) for name in ("exact", "network"))
    stderrs = runs.values(f"network.{column.name}.stderr")
    return exact if closed is None else closed, value, math.hypot(*stderrs) / len(stderrs)


def _tabulate_cells(results: Results, columns: Sequence[Column], title: str) -> Table:
    rows = []
    for task, method in zip(DEGREES, results.methods, strict=True):
        row = [method.method.title]
        for column in columns:
            row += [f"{column.paper[task - 1]:.2f}", NOTHING, method.state]
            if method.runs:
                exact, value, stderr = _read_cell(results, task, column)
                star = "" if column.get_closed_form(task) is None else "*"
                row[-2:] = [f"{exact:.3f}{star}", f"{value:.3f} ± {stderr:.3f}"]
        rows.append(tuple(row))
    heads = [head for column in columns for head in (f"{column.title}: paper", "exact", "network")]
    notes = ("±: standard error over the paths of all seeds.", "*: in closed form, else integrated, to within 0.001.")
    return Table(title, ("", *heads), tuple(rows), notes)


def _plot_values(results: Results, theme: str) -> Figure:
    tasks = np.array([task for task, method in zip(DEGREES, results.methods, strict=True) if method.runs])
    # The ratio of standard errors over a few paths to those over all paths.
    growth = math.sqrt(len(results.seeds) * results.scale["paths"] / _FEW_PATHS)
    with open_figure(theme, (11, 4.8)) as (look, figure):
        panels = figure.subplots(2, len(COLUMNS), sharex=True, sharey="row", height_ratios=[1.3, 1])
        for column, (above, below) in zip(COLUMNS, panels.T, strict=True):
            exact, value, stderr = np.array([_read_cell(results, task, column) for task in tasks]).T
            paper = np.array(column.paper)[tasks - 1]
            for axes, unit, base in ((above, np.ones(len(tasks)), 0.0), (below, 100 / exact, 100.0)):
                margin = _HALF_INTERVAL * unit * stderr
                few, level = growth * margin, unit * exact - base
                label = f"95% of means over {_FEW_PATHS} paths"
                axes.bar(tasks, 2 * few, 0.84, level - few, color=look.faint, label=label)
                axes.hlines(level, tasks - 0.42, tasks + 0.42, color=look.ink, lw=1.4, label="exact map")
                ours, theirs = unit * value - base, unit * paper - base
                axes.errorbar(tasks - 0.18, ours, margin, fmt="o", ms=4.5, color=look.simple, label="network, here")
                axes.plot(tasks + 0.18, theirs, "o", ms=5, mfc="none", color=look.complex, label="network, paper")
                add_grid(axes, look, "y")
            above.set(title=column.title, yscale="log")
            below.set(xlabel="task", xticks=tasks)
        panels[0, 0].set_ylabel("effective degree")
        panels[1, 0].set_ylabel("off the exact value, %")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8.5)
    return figure


RECIPES = (
    Recipe(
        name="pnn",
        title="Polynomial networks",
        paper="Table 12, appendix I",
        expects=(
            "In every column, ED rises with the map's degree and doubles with its outputs, unless it is normalized."
        ),
        cost="35 s per run on one CPU core, 10 min in all",
        settings=PolynomialFit(),
        run=run_fit,
        methods=tuple(Method(f"task-{task}", f"Task {task}", {"task": task}) for task in DEGREES),
        departs=(
            "The paper does not state the width, the inputs, or how it trains and measures: here the width is 16, "
            "inputs are uniform on [-2, 2]³, from which its numbers follow, training uses the Levenberg–Marquardt "
            "method in float64, and 20,000 paths have 16 Chebyshev nodes and fits of degree 10, above the networks' 8."
        ),
        study=PolynomialNetworks(),
    ),
)
