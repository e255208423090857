"""The estimator: paths are run and fitted block by block, and only a few numbers per path are kept."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from effdeg._models.inference import Model
from effdeg._models.layers import Layer
from effdeg._models.outputs import Described, Output, OutputReader, output_name
from effdeg._models.paths import BLOCK, Sampling
from effdeg._utils.checks import check_choice, check_components, check_count, check_damping, check_fit, check_number
from effdeg._utils.device import receive, send
from effdeg._utils.distributed import broadcast_from_first, rank_and_size, sum_over_ranks
from effdeg._utils.progress import Update, progress_bar
from effdeg._utils.shapes import Float
from effdeg._utils.statistics import format_estimate, mean_and_stderr
from effdeg.functional import DAMPING, effective_degree, evaluate, fit, project
from effdeg.functional._bases import BASES, Basis
from effdeg.functional._conditioning import warn_if_ill_conditioned
from effdeg.measure._measurement import Measurement, Settings
from effdeg.measure._walk import Route, open_walk

Rows = tuple[slice, Callable[[], Tensor]]
"""A block of paths and its rows of the table, to be called for."""

DEGREE, NORMALIZED, MISSED, VARIATION = range(4)
"""The first columns of a table of paths (:meth:`Fit.table`); the sizes of the coefficients follow, degree 0 first."""

FEWEST_PATHS = 4 * BLOCK
"""A tolerance is not believed before this many paths: the standard error of fewer is itself too uncertain."""


@dataclass(frozen=True)
class Fit:
    """How values along a path become numbers."""

    degree: int
    basis: Basis
    components: int | None
    damping: float

    @classmethod
    def on(cls, nodes: int, *, degree: int, basis: Basis, components: int | None, damping: float) -> "Fit":
        """Return a fit on ``nodes`` nodes, or raise if there is none."""
        check_count("nodes", nodes, least=1)
        check_fit(nodes, degree, least_degree=1)
        check_choice("basis", basis, BASES)
        check_damping(damping)
        if components is not None:
            check_components(components, nodes)
        return cls(int(degree), basis, None if components is None else int(components), damping)

    @property
    def columns(self) -> int:
        """The number of columns of a table."""
        return VARIATION + 1 + self.degree + 1

    def table(self, values: Float[Tensor, "paths nodes outputs"], alpha: Tensor) -> Float[Tensor, "paths columns"]:
        """Reduce each path to a row: degree, normalized degree, variation missed, variation, and |c_k| for each k."""
        # They are fitted where they are, unless that device has no float64.
        values = values.to("cpu" if values.device.type == "mps" else values.device).double()
        broken = ~values.isfinite().all(-1).all(-1)
        values = values.masked_fill(broken[:, None, None], 0.0)
        alpha = send(alpha, values.device)
        if self.components is not None:
            # There are no more components than outputs, and zeros in their place would only thin out the mean.
            values = project(values, min(self.components, values.shape[-1]))
        coefficients = fit(values, alpha, self.degree, self.basis, self.damping)
        missed = (values - evaluate(coefficients, alpha, self.basis)).square().sum((-2, -1))
        variation = (values - values.mean(-2, keepdim=True)).square().sum((-2, -1))
        columns = [effective_degree(coefficients), effective_degree(coefficients, normalized=True), missed, variation]
        table = torch.cat([torch.stack(columns, dim=-1), coefficients.abs().mean(-1)], dim=-1)
        # Outputs that are not numbers become rows that are not numbers, which the reader of the table reports.
        return table.masked_fill(broken[:, None], torch.nan)


def measure(
    model: Model,
    inputs: Any,
    *,
    paths: int = 400,
    nodes: int = 200,
    degree: int = 40,
    basis: Basis = "chebyshev",
    sampling: Sampling = "cosine",
    output: Output = "softmax",
    components: int | None = None,
    at: Layer | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    tolerance: float | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    damping: float = DAMPING,
    progress: bool | str = False,
) -> Measurement:
    """Measure the effective degree of a model: how crooked its outputs are along straight lines between examples.

    The defaults are the paper's protocol for comparing trained models. No labels are needed. The paths depend only on
    ``seed`` and the number of examples, so two models measured with one seed are compared on the same paths. The model
    comes back exactly as it was: mode, device, gradients, random state. Memory does not grow with ``paths``. Under
    ``torch.distributed`` the paths are shared out among the processes and every process gets the whole result.

    Args:
        model: Any callable; an ``nn.Module`` is run in evaluation mode. It may return a tensor of any shape with the
            batch first, an object with ``.logits``, a dict or a tuple (``logits``, else the first tensor, is taken).
        inputs: The examples: a tensor; a tuple, dict or dataclass of tensors (a tuple holds the arguments of the model,
            not inputs and labels; a dict its keywords); a ``Dataset``; a ``DataLoader``; an iterator of batches; or a
            list of ``(input, label)`` examples. Labels are left out of the items of the last four: examples with labels
            are ``TensorDataset(images, labels)``. NaN and infinite numbers are refused.
        paths: How many paths, or, with ``tolerance``, how many at most.
        nodes: How many points on each path (the paper's r).
        degree: The highest degree of the fitted polynomials (the paper's K).
        basis: ``"chebyshev"`` or ``"legendre"``.
        sampling: ``"cosine"`` (random, stratified), ``"chebyshev"`` or ``"uniform"`` nodes.
        output: ``"softmax"`` (over the last dimension), ``"sigmoid"``, ``"identity"``, or a function of what the
            model returned.
        components: Reduce each path's values to this many principal components first; for outputs in the hundreds.
        at: Let the paths live at the output of this layer (a name or a module) instead of at the inputs. For token ids.
        seed: Determines pairs and nodes.
        batch_size: Points per forward pass; by default 1024, on the CPU 256. Halved when memory runs out.
        tolerance: Stop as soon as the standard error is below this share of the value, for example 0.02.
        device: Run the model there; by default where it is.
        dtype: Run the model in this precision; by default in its own. A half-precision model is best measured with
            ``torch.float32``: its own rounding looks like wiggles.
        damping: The paper's eps in the fit.
        progress: Show a progress bar; a string is its title.

    Returns:
        The measurement, with its error bar.

    Warns:
        IllConditionedFit: If the nodes cannot carry the degree, before the model is run.
    """
    fitted = Fit.on(nodes, degree=degree, basis=basis, components=components, damping=damping)
    read = OutputReader(output)
    if tolerance is not None:
        tolerance = check_number("tolerance", tolerance, "0.02 stops at a standard error of 2%")
    warn_if_ill_conditioned(sampling, nodes, degree, stacklevel=2)
    with (
        open_walk(
            model,
            inputs,
            paths=paths,
            nodes=nodes,
            sampling=sampling,
            at=at,
            seed=seed,
            batch_size=batch_size,
            device=device,
            dtype=dtype,
        ) as walk,
        progress_bar(
            progress if isinstance(progress, str) else f"effective degree of {walk.model}",
            paths,
            enabled=bool(progress) and rank_and_size()[0] == 0,
        ) as update,
    ):
        stretches = walk.run(read, update=update)
        rows = ((s.block, receive(fitted.table(s.by_path(), s.alpha))) for s in stretches)
        table = collect(late(rows), walk.route, columns=fitted.columns, tolerance=tolerance, update=update)
    # The first paths are the first process's.
    described = broadcast_from_first(read.described)
    return as_measurement(
        table,
        walk.route.pairs,
        fitted,
        described,
        **walk.record(),
        paths=len(walk.route.pairs),
        nodes=walk.route.nodes,
        output=output_name(output),
        tolerance=tolerance,
    )


def as_measurement(
    table: Float[Tensor, "paths columns"], pairs: Tensor, fitted: Fit, described: Described, **settings: Any
) -> Measurement:
    """Summarize the rows of :meth:`Fit.table`; the settings are those that neither the fit nor the outputs tell."""
    missed, variation = table[:, MISSED].sum().item(), table[:, VARIATION].sum().item()
    spectrum = table[:, VARIATION + 1 :]
    stderr = [mean_and_stderr(column)[1] for column in spectrum.unbind(1)]
    # A function has no precision but that of what it returns, and autocast may return less than the weights have.
    known = filter(None, (settings["dtype"], described.dtype))
    settings["dtype"] = max(known, key=lambda name: torch.finfo(getattr(torch, name)).eps)
    return Measurement(
        per_path=table[:, DEGREE].clone(),
        per_path_normalized=table[:, NORMALIZED].clone(),
        pairs=pairs[: len(table)].clone(),
        spectrum=spectrum.mean(0),
        spectrum_stderr=torch.tensor(stderr, dtype=torch.float64),
        residual=missed / variation if variation > 0 else 0.0,
        settings=Settings(**(asdict(fitted) | asdict(described) | settings)),
    )


def check_finite(table: Tensor, pairs: Tensor, start: int = 0) -> None:
    """Raise if a path's row is not finite, naming the path."""
    broken = (~table.isfinite()).any(-1).nonzero().flatten() + start
    if len(broken):
        path = int(broken[0])
        first, second = pairs[path].tolist()
        raise ValueError(
            f"the model's outputs are NaN or infinite on path {path}, between the examples {first} and {second}"
            f"{f' (and on {len(broken) - 1} more paths)' if len(broken) > 1 else ''}. "
            "Look at the model's outputs there; in half precision, dtype=torch.float32 may be enough."
        )


def collect(rows: Iterator[Rows], route: Route, *, columns: int, tolerance: float | None, update: Update) -> Tensor:
    """Gather the rows of all processes, and stop where the tolerance is met, at the same path on any number of them."""
    size = rank_and_size()[1]
    stops = [block.stop for block in route.blocks()]
    table = torch.zeros(stops[-1], columns, dtype=torch.float64)
    seen = 0
    for start in range(0, len(stops), size):
        if (mine := next(rows, None)) is not None:
            block, arrived = mine
            table[block] = arrived()
        last = start + size >= len(stops)
        if size > 1 and tolerance is None and not last:
            continue
        total = sum_over_ranks(table)
        for stop in [stop for stop in stops[: start + size] if stop > seen]:
            check_finite(total[seen:stop], route.pairs, seen)
            seen = stop
            mean, stderr = mean_and_stderr(total[:stop, DEGREE])
            update(None, format_estimate(mean, stderr))
            if tolerance is not None and stop >= FEWEST_PATHS and stderr <= tolerance * abs(mean):
                return total[:stop]
    return total


def late(items: Iterable[Rows]) -> Iterator[Rows]:
    """Hand over each item when the next is under way, so that a GPU is not idle while the host waits for a result."""
    previous = None
    for item in items:
        if previous is not None:
            yield previous
        previous = item
    if previous is not None:
        yield previous
