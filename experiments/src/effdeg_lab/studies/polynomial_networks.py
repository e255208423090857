"""Appendix I of the paper: networks that are polynomials learn six polynomial maps, whose effective degree is known."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import effdeg
from effdeg_lab.engine.loop import Turn
from effdeg_lab.engine.settings import check_fit, check_least
from effdeg_lab.progress import progress_bar
from effdeg_lab.results import MethodRuns, Results
from effdeg_lab.runs import Job, Run
from effdeg_lab.settings import SCALE, Settings
from effdeg_lab.studies import Study, StudyFigure
from effdeg_lab.studies.methods import format_duration
from effdeg_lab.studies.polynomials import (
    COLUMNS,
    DEGREES,
    EXAMPLES_PER_PATH,
    HALF_SIDE,
    Column,
    compute_closed_forms,
    compute_map,
    draw_inputs,
    integrate_columns,
)
from effdeg_lab.tables import NOTHING, Table
from effdeg_lab.verdicts import Verdict, judge, judge_all

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from effdeg.plots import Theme

NETWORK_DEGREE = 8
"""The total degree of a network, which squares three times."""
_FRESH_INPUTS, _EVALUATE_EVERY = 10_000, 10
# A network that misses its map by more says nothing about the map.
_LARGEST_ERROR = 0.01
# Half the width of a 95% interval, in standard errors of means over thousands of paths.
_HALF_INTERVAL = 1.96
# About as many paths as the paper may have taken, judging by the scatter of its numbers.
_FEW_PATHS = 100


@dataclass(frozen=True)
class PolynomialFit(Settings):
    """The settings of one run: a network is fitted to a map, then both are measured along the same paths.

    Attributes:
        task: Which of the six maps.
        width: Units in each of the three hidden layers.
        examples: Inputs to train on.
        steps: Steps of Levenberg and Marquardt's method.
        paths: Paths to measure along.
        nodes: Nodes on each path.
        degree: The highest degree of the fits.
        pairs: Pairs of inputs over which the map's exact values are integrated.
    """

    task: int = 1
    width: int = 16
    examples: int = field(default=1000, metadata=SCALE)
    steps: int = field(default=100, metadata=SCALE)
    paths: int = field(default=20_000, metadata=SCALE)
    nodes: int = field(default=16, metadata=SCALE)
    degree: int = field(default=10, metadata=SCALE)
    pairs: int = field(default=2**18, metadata=SCALE)

    def check(self) -> None:
        """Raise ``ValueError`` if the values do not fit together."""
        if self.task not in DEGREES:
            raise ValueError(f"task={self.task} is not one of the six maps: choose from 1 to 6.")
        check_least(self, 1, "width", "steps")
        check_least(self, 2, "examples", "paths", "pairs")
        if self.degree < NETWORK_DEGREE:
            raise ValueError(
                f"degree={self.degree} is too low: a network that squares three times is a polynomial of degree "
                f"{NETWORK_DEGREE}. Use degree={NETWORK_DEGREE} or more."
            )
        check_fit(self.nodes, self.degree)


class PolynomialNetwork(nn.Module):
    """Three hidden layers with square activations and a linear output layer, in float64."""

    scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [3, *[width] * 3, 3]
        layers = [nn.Linear(*pair) for pair in pairwise(sizes)]
        self.layers = nn.ModuleList(layers)
        # What the outputs are multiplied by, so that weights of ordinary size reach outputs of any size.
        self.register_buffer("scale", torch.ones(3))
        for number, layer in enumerate(layers):
            # Squares of small numbers vanish and those of large ones explode: every unit begins at a size around one.
            size = 1 / math.sqrt(sizes[number])
            nn.init.normal_(layer.weight, std=size / HALF_SIDE if number == 0 else size)
            nn.init.normal_(layer.bias, std=0.5)
        self.double()

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the polynomial."""
        *hidden, last = self.layers
        for layer in hidden:
            inputs = layer(inputs).square()
        outputs: Tensor = self.scale * last(inputs)
        return outputs

    def jacobian(self, inputs: Tensor) -> Tensor:
        """Differentiate the outputs by all weights, in the order of ``parameters()``: (points, 3, weights)."""
        weights = {name: weight.detach() for name, weight in self.named_parameters()}
        differentiate = jacrev(lambda weights, point: functional_call(self, weights, (point,)))
        parts = vmap(differentiate, in_dims=(None, 0))(weights, inputs)
        return torch.cat([parts[name].flatten(2) for name in weights], dim=-1)


def take_levenberg_marquardt_step(
    residuals: Callable[[Tensor], Tensor], jacobian: Tensor, weights: Tensor, damping: float
) -> tuple[Tensor, float]:
    """Take a step that lowers the sum of squared residuals r, with more and more damping until one is found.

    The step solves (JᵀJ + damping) d = -Jᵀr with the Jacobian J of r at these weights. Half of what r's curvature along
    d asks for in the same equation is added to it: this "geodesic acceleration" (Transtrum and Sethna 2012, as is the
    bound on it) lets steps follow bent valleys.

    Returns:
        The new weights, or the old ones if no attempt lowers the sum of squares, and the damping for the next step.
    """
    look, most_curvature, attempts = 0.1, 0.75, 20
    now = residuals(weights)
    squares = now.square().sum()
    gram = jacobian.mT @ jacobian
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    for _ in range(attempts):
        factor, failed = torch.linalg.cholesky_ex(gram + damping * identity)
        if not failed:
            straight = torch.cholesky_solve((-jacobian.mT @ now)[:, None], factor)[:, 0]
            ahead = residuals(weights + look * straight)
            curvature = 2 / look * ((ahead - now) / look - jacobian @ straight)
            bend = torch.cholesky_solve((-jacobian.mT @ curvature)[:, None], factor)[:, 0] / 2
            moved = weights + straight + bend
            gentle = 4 * bend.norm() <= most_curvature * straight.norm()
            if gentle and residuals(moved).square().sum() < squares:
                return moved, max(damping / 5, 1e-15)
        damping *= 4
    return weights, damping


def run_fit(settings: PolynomialFit, job: Job) -> None:
    """Fit a network to a map, then measure both along the same paths."""
    # Tasks 4 to 6 are learned from other weights and inputs than 1 to 3: that their values are twice as large is then a
    # result. The paths are the same for all tasks, which makes it a sharp one.
    own = torch.Generator().manual_seed(len(DEGREES) * settings.seed + settings.task)
    shared = torch.Generator().manual_seed(settings.seed)
    inputs = draw_inputs(settings.examples, own).to(job.device)
    fresh = draw_inputs(_FRESH_INPUTS, own).to(job.device)
    ends = draw_inputs(EXAMPLES_PER_PATH * settings.paths, shared)
    torch.manual_seed(int(torch.randint(2**32, (), generator=own)))
    network = PolynomialNetwork(settings.width).to(job.device)
    network.scale.copy_(compute_map(settings.task, inputs).std(0))

    state = job.start() or {"step": 0, "damping": 0.01, "seconds": 0.0, "last": {}}
    if "network" in state:
        network.load_state_dict(state["network"])
    with Turn(job.device, announce=job.progress):
        _train(network, inputs, fresh, settings, job, state)
        measure = partial(measure_columns, ends=ends, settings=settings, device=job.device)
        summary = {
            **{key: state["last"][key] for key in ("train_error", "test_error", "step", "seconds")},
            "parameters": sum(each.numel() for each in network.parameters()),
            "network": measure(network),
            "same_paths": measure(partial(compute_map, settings.task)),
            "exact": integrate_columns(settings.task, pairs=settings.pairs, seed=settings.seed),
        }
    job.finish(summary, {name: value.cpu() for name, value in network.state_dict().items()})


def measure_columns(
    model: Callable[[Tensor], Tensor], ends: Tensor, settings: PolynomialFit, device: torch.device
) -> dict[str, dict[str, float]]:
    """Measure every column along the same paths: by name, the value and its standard error."""
    # At Chebyshev nodes, principal components are those of the Chebyshev measure, whatever the number of nodes.
    trace = effdeg.trace(
        model,
        ends,
        paths=settings.paths,
        nodes=settings.nodes,
        sampling="chebyshev",
        seed=settings.seed,
        device=device,
    )
    found = {}
    for column in COLUMNS:
        fitted = trace.fit(degree=settings.degree, basis=column.basis, output="identity", components=column.components)
        value, stderr = fitted.estimate(normalized=column.normalized)
        found[column.name] = {"value": value, "stderr": stderr}
    return found


@torch.no_grad()
def _train(
    network: PolynomialNetwork, inputs: Tensor, fresh: Tensor, settings: PolynomialFit, job: Job, state: dict[str, Any]
) -> None:
    """Train to the end, evaluating and saving on the way; ``state`` is kept up to date."""

    def get_state() -> dict[str, Any]:
        return {**state, "network": network.state_dict()}

    targets = compute_map(settings.task, inputs)
    with progress_bar(f"task {settings.task}, seed {settings.seed}", settings.steps, enabled=job.progress) as update:
        while state["step"] < settings.steps:
            job.stop_if_asked(get_state)
            begin = time.perf_counter()
            state["damping"] = _take_step(network, inputs, targets, state["damping"])
            state["seconds"] += time.perf_counter() - begin
            state["step"] += 1
            if state["step"] % _EVALUATE_EVERY == 0 or state["step"] == settings.steps:
                state["last"] = {
                    "step": state["step"],
                    "seconds": state["seconds"],
                    "train_error": _compute_error(network, settings.task, inputs),
                    "test_error": _compute_error(network, settings.task, fresh),
                    "damping": state["damping"],
                }
                job.log(state["last"])
                job.save(get_state())
            update(state["step"], f"relative error {state['last']['test_error']:.1e}" if state["last"] else "")


def _take_step(network: PolynomialNetwork, inputs: Tensor, targets: Tensor, damping: float) -> float:
    # Divided by the root of their number, the residuals have their mean square for a sum of squares.
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
    """Return the root mean square error, relative to the output's standard deviation, of the worst output."""
    wanted = compute_map(task, inputs)
    errors = (network(inputs) - wanted).square().mean(0).sqrt() / wanted.std(0)
    return float(errors.max())


@dataclass(frozen=True)
class Cell:
    """A cell of the paper's table: the paper's number, the exact one, and what the networks of all seeds measure."""

    paper: float
    exact: float
    closed: bool  # whether the exact number is a closed form, not an integral
    value: float
    stderr: float
    path_std: float  # of a single path's value


class PolynomialNetworks(Study):
    """The paper's table next to exact values and those of networks.

    The claim holds if, in every column, tasks 1, 2, 3 and tasks 4, 5, 6 rise, tasks 4 to 6 measure twice what tasks 1
    to 3 do, and the same where it is normalized (within 1%). Without all tasks, or with networks that miss their map by
    more than 1%, nothing is decided.
    """

    def claim(self, results: Results) -> Verdict:
        """Judge whether the effective degree follows the degrees and the scale of the maps."""
        if len(results.done) < len(results.methods):
            return Verdict("not decided")
        worst = float(np.max([run.value("test_error") for each in results.done for run in each.runs]))
        if not worst <= _LARGEST_ERROR:  # which nan is not, either
            return Verdict("not decided", "relative error of the worst fit", worst, wanted=(-math.inf, _LARGEST_ERROR))
        rises = [
            judge(name, rise, (rise - _HALF_INTERVAL * stderr, rise + _HALF_INTERVAL * stderr), above=0.0)
            for name, rise, stderr in _compute_rises(results)
        ]
        # A map and its double are measured along the same paths, so that their ratio has no noise from paths.
        ratios = [
            judge(f"{column.title}, doubled outputs over outputs", ratio, (ratio, ratio), above=low, below=high)
            for column in COLUMNS
            for low, high in [(0.99 * column.factor, 1.01 * column.factor)]
            for ratio in _compute_ratios(results, column)
        ]
        return judge_all([*rises, *ratios])

    def tables(self, results: Results) -> list[Table]:
        """Return how well the networks fit, the columns of the paper's table, and the numbers behind the verdict."""
        return [
            _tabulate_fits(results),
            _tabulate_cells(results, COLUMNS[:2], "Raw and normalized: the paper's, the exact map's, the network's"),
            _tabulate_cells(results, COLUMNS[2:], "In another basis, and of principal components of the outputs"),
            _tabulate_checks(results),
        ]

    def figures(self, results: Results) -> list[StudyFigure]:
        """Return the columns as panels, and the fits along training."""
        values = (
            "Above, the five columns for the six tasks, of degrees 1, 2 and 5, then doubled: exact values, networks' "
            "and the paper's. Below, how far the latter two are off the exact ones, with 95% intervals; shaded, where "
            "95% of means over 100 paths would lie."
        )
        fits = (
            "The error of the fits on fresh inputs, relative to the outputs' standard deviation; dashed, doubled maps."
        )
        return [
            StudyFigure("values", values, partial(_plot_values, results)),
            StudyFigure("fits", fits, partial(_plot_fits, results)),
        ]

    def headline(self, run: Run) -> str:
        """Return how well a network fits, and its effective degree next to the map's."""
        network, exact = (run.value(f"{name}.chebyshev.value") for name in ("network", "exact"))
        return f"relative error {run.value('test_error'):.1e}, ED {network:.3f}, exact {exact:.3f}"


def _get_task(method: MethodRuns) -> int:
    return int(method.method.changes["task"])


def _read_cells(results: Results) -> dict[tuple[int, str], Cell]:
    """Return what was found, by task and the name of the column."""
    cells = {}
    for method in results.done:
        task = _get_task(method)
        closed = compute_closed_forms(task)
        for column in COLUMNS:
            stderrs = method.values(f"network.{column.name}.stderr")
            cells[task, column.name] = Cell(
                paper=column.paper[task - 1],
                exact=closed.get(column.name, float(method.values(f"exact.{column.name}.value").mean())),
                closed=column.name in closed,
                value=float(method.values(f"network.{column.name}.value").mean()),
                stderr=math.hypot(*stderrs) / len(stderrs),
                path_std=float(stderrs.mean()) * math.sqrt(results.scale["paths"]),
            )
    return cells


def _compute_rises(results: Results) -> list[tuple[str, float, float]]:
    """List the rises between neighboring degrees, each with its standard error: the least certain first."""
    cells, rises = _read_cells(results), []
    for column, (lower, higher) in product(COLUMNS, ((1, 2), (2, 3), (4, 5), (5, 6))):
        one, other = cells.get((lower, column.name)), cells.get((higher, column.name))
        if one and other:
            name = f"{column.title}, task {higher} less task {lower}"
            rises.append((name, other.value - one.value, math.hypot(one.stderr, other.stderr)))
    return sorted(rises, key=lambda rise: rise[1] / rise[2])


def _compute_ratios(results: Results, column: Column) -> list[float]:
    """List the ratios of networks of doubled maps to those of the maps, seed by seed."""
    by_task = {_get_task(each): each.values(f"network.{column.name}.value") for each in results.done}
    return [ratio for task in by_task if task + 3 in by_task for ratio in (by_task[task + 3] / by_task[task]).dropna()]


def _tabulate_fits(results: Results) -> Table:
    rows = []
    for method in results.methods:
        cells = [method.state, NOTHING, NOTHING]
        if method.runs:
            networks, maps = (
                method.frame[[f"{name}.{column.name}.value" for column in COLUMNS]].to_numpy()
                for name in ("network", "same_paths")
            )
            cells = [
                f"{method.values('test_error').max():.1e}",
                f"{abs(networks / maps - 1).max():.3%}",
                format_duration(method.time()),
            ]
        rows.append((method.method.title, str(DEGREES[_get_task(method)]), *cells))
    notes = (
        "The error is that on fresh inputs, in units of the outputs' standard deviation: the worst output and seed.",
        "ED is compared along the same paths, in the column where it differs most.",
        *(f"{each.method.title} failed: {each.failure}" for each in results.methods if each.failure),
    )
    head = ("", "degree", "relative error of the fit", "ED off the map's by at most", "training")
    return Table(f"How well the networks fit: {results.heading}", head, tuple(rows), notes)


def _tabulate_cells(results: Results, columns: Sequence[Column], title: str) -> Table:
    cells, rows = _read_cells(results), []
    for method in results.methods:
        task = _get_task(method)
        row = [method.method.title]
        for column in columns:
            row += [f"{column.paper[task - 1]:.2f}", NOTHING, method.state]
            if cell := cells.get((task, column.name)):
                row[-2:] = [f"{cell.exact:.3f}{'*' if cell.closed else ''}", f"{cell.value:.3f} ± {cell.stderr:.3f}"]
        rows.append(tuple(row))
    head = [name for column in columns for name in (f"{column.title}: paper", "exact", "network")]
    notes = (
        "±: standard error over the paths of all seeds; every seed draws its own networks, inputs and paths.",
        "Exact: the map's own value over all pairs of inputs; * in closed form, else integrated, to within 0.001.",
    )
    return Table(title, ("", *head), tuple(rows), notes)


def _tabulate_checks(results: Results) -> Table:
    cells, rises = _read_cells(results), _compute_rises(results)
    rows = [
        ("least rise between degrees, in standard errors", f"{rises[0][1] / rises[0][2]:.0f}" if rises else NOTHING)
    ]
    for name, normalized in (("ED", False), ("normalized ED", True)):
        columns = [column for column in COLUMNS if column.normalized == normalized]
        ratios = [ratio for column in columns for ratio in _compute_ratios(results, column)]
        found = f"{min(ratios):.4f} to {max(ratios):.4f}" if ratios else NOTHING
        rows.append((f"doubling the outputs multiplies {name} by", found))
    near = sum(abs(cell.paper / cell.exact - 1) <= 0.05 for cell in cells.values())
    scatter = math.fsum(((cell.paper - cell.exact) / cell.path_std) ** 2 for cell in cells.values())
    rows += [
        ("the paper's numbers within 5% of the exact ones", f"{near} of {len(cells)}"),
        ("paths in the paper, if its differences are noise", f"about {float(f'{len(cells) / scatter:.1g}'):.0f}"),
    ]
    return Table("Order, scale and the paper's numbers, over all columns", ("", "found"), tuple(rows))


def _plot_values(results: Results, theme: str) -> "Figure":
    """Draw the columns: values above, differences from the exact ones below."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    from effdeg.plots import open_figure

    tasks, cells = [_get_task(each) for each in results.methods], _read_cells(results)
    with open_figure(theme, (11, 4.8)) as (colors, figure):
        panels = figure.subplots(2, len(COLUMNS), sharex=True, sharey="row", height_ratios=[1.3, 1])
        for column, (above, below) in zip(COLUMNS, panels.T, strict=True):
            for place, task in enumerate(tasks):
                if cell := cells.get((task, column.name)):
                    _draw_cell(above, below, place, cell, colors)
            above.set_title(column.title)
            below.axhline(0, color=colors.ink, lw=1.2, zorder=1)
            below.set_xlabel("task")
        for axes in panels.flat:
            axes.set_xticks(range(len(tasks)), [str(task) for task in tasks])
            axes.axvline(2.5, color=colors.faint, lw=1)
            axes.grid(axis="y", color=colors.faint, lw=0.6)
            axes.set_axisbelow(True)
        panels[0, 0].set_yscale("log")
        panels[0, 0].set_yticks((0.3, 1, 3, 10), ("0.3", "1", "3", "10"))
        panels[0, 0].set_yticks((), minor=True)
        panels[0, 0].set_ylabel("effective degree")
        panels[1, 0].set_ylabel("off the exact value, %")
        handles = [
            Line2D([], [], color=colors.ink, lw=1.6, label="exact map"),
            Line2D([], [], ls="", marker="o", color=colors.simple, label="network, here"),
            Line2D([], [], ls="", marker="o", mec=colors.complex, mfc=colors.ground, mew=1.4, label="network, paper"),
            Patch(color=colors.faint, lw=0, label=f"95% of means over {_FEW_PATHS} paths"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8.5)
    return figure


def _draw_cell(above: "Axes", below: "Axes", place: int, cell: Cell, colors: "Theme") -> None:
    left, right, unit = place - 0.18, place + 0.18, 100 / cell.exact
    above.plot((place - 0.42, place + 0.42), (cell.exact, cell.exact), color=colors.ink, lw=1.4, zorder=1)
    above.plot(left, cell.value, "o", color=colors.simple, ms=4.5)
    above.plot(right, cell.paper, "o", mec=colors.complex, mfc="none", mew=1.3, ms=5)
    few, margin = (unit * _HALF_INTERVAL * each for each in (cell.path_std / math.sqrt(_FEW_PATHS), cell.stderr))
    below.bar(place, 2 * few, 0.84, -few, color=colors.faint, lw=0, zorder=0)
    below.errorbar(left, unit * cell.value - 100, margin, fmt="o", color=colors.simple, ms=4, elinewidth=1.6)
    below.plot(right, unit * cell.paper - 100, "o", mec=colors.complex, mfc="none", mew=1.3, ms=5)


def _plot_fits(results: Results, theme: str) -> "Figure":
    """Draw the error of the fits along training."""
    from effdeg.plots import open_figure
    from effdeg_lab.figures import Label, label_ends

    with open_figure(theme, (7.2, 3.6)) as (colors, figure):
        axes = figure.subplots()
        axes.set_yscale("log")
        axes.set(title="relative error of the fit, on fresh inputs", xlabel="steps of Levenberg and Marquardt's method")
        axes.grid(color=colors.faint, lw=0.6)
        axes.set_axisbelow(True)
        labels = []
        for method in results.done:
            task = _get_task(method)
            color = (colors.ink, colors.simple, colors.complex)[(task - 1) % 3]
            for run in method.runs:
                steps, errors = ([entry[key] for entry in run.metrics] for key in ("step", "test_error"))
                axes.plot(steps, errors, color=color, lw=1.1, ls="-" if task <= 3 else "--", alpha=0.8)
            end = statistics.geometric_mean(run.metrics[-1]["test_error"] for run in method.runs)
            labels.append(Label(method.method.title, results.scale["steps"], end, color))
        axes.set_xlim(0, results.scale["steps"])
        label_ends(axes, labels)
    return figure
