"""The two halves of a measurement, separately: outputs along paths, kept in memory, and any number of fits to them."""

from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from effdeg._adapters.inference import Model
from effdeg._adapters.layers import Layer
from effdeg._adapters.outputs import Output, OutputReader, as_values
from effdeg._adapters.paths import BLOCK, FIXED, Sampling
from effdeg._adapters.prompts import read_prompts
from effdeg._adapters.settings import FitSettings, PathSettings
from effdeg._utils.distributed import rank_and_size, union_over_ranks
from effdeg._utils.progress import progress_bar
from effdeg._utils.shapes import Float, Int
from effdeg._utils.tree import Tree, check_plain, concatenate, has_rows, map_tensors, take, tensors, tree_map
from effdeg.functional import DAMPING
from effdeg.functional._conditioning import warn_if_ill_conditioned
from effdeg.measuring._estimator import PathTable, as_measurement, check_finite, summarize
from effdeg.measuring._measurement import Measurement
from effdeg.measuring._path_runner import open_path_runner, split_rows
from effdeg.measuring._record import PathRecord, Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FITTED_AT_ONCE = 2**22  # numbers, which bounds the memory of a fit


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """A model's outputs along paths: everything that costs forward passes. :func:`effdeg.trace` returns it.

    Attributes:
        outputs: What the model returned, one row per point, path after path, node after node, on the CPU.
        alpha: The nodes of each path, of shape ``(paths, nodes)``.
        pairs: The indices of the two examples that each path joins, of shape ``(paths, 2)``; α = 1 at the first.
        ends: The first and second end of each path in the plane of the data's two principal directions, for figures.
        settings: Which paths they are, and the model; see :class:`effdeg.Settings`.
    """

    outputs: Tree
    alpha: Float[Tensor, "paths nodes"]
    pairs: Int[Tensor, "paths 2"]
    ends: Float[Tensor, "paths 2 2"]
    settings: PathRecord

    def fit(
        self,
        *,
        degree: int = 40,
        basis: str = "chebyshev",
        output: Output = "softmax",
        components: int | None = None,
        damping: float = DAMPING,
    ) -> Measurement:
        """Fit polynomials to the outputs and measure their effective degree, as :func:`effdeg.measure` does.

        The settings are those of :func:`effdeg.measure`, which explains them.

        Raises:
            ValueError: If a setting is unknown or out of range, or the outputs hold NaN or do not fit ``output``.
            TypeError: If a setting is not a number, or the outputs are not real numbers.

        Warns:
            IllConditionedFit: If the nodes do not support the degree.

        Example:
            >>> import effdeg, torch
            >>> trace = effdeg.trace(torch.square, torch.tensor([[-1.0], [1.0]]), paths=10)
            >>> [round(trace.fit(degree=degree, output="identity").value, 4) for degree in (2, 10)]
            [1.0, 1.0]
        """
        paths, nodes = self.alpha.shape
        fit_settings = FitSettings(degree=degree, basis=basis, output=output, components=components, damping=damping)
        fit_settings.check_nodes(nodes)
        warn_if_ill_conditioned(self.settings.sampling, nodes, degree, stacklevel=2)
        read = OutputReader(output)
        # Fixed nodes are the same on every path: one fit operator serves all of them.
        fixed = self.settings.sampling in FIXED
        numbers = sum(each.numel() for each in tensors(self.outputs))
        step = max(1, _FITTED_AT_ONCE * paths // max(1, numbers))
        slices = [slice(start, start + step) for start in range(0, paths, step)]
        tables = [summarize(self._read(read, part), self.alpha[0 if fixed else part], fit_settings) for part in slices]
        table = PathTable(torch.cat([each.rows for each in tables]), tables[0].widths)
        check_finite(table, self.pairs)
        return as_measurement(table, self.pairs, Settings.of(self.settings, fit_settings, read.described))

    def values(self, output: Output = "softmax", part: slice = slice(None)) -> Float[Tensor, "paths nodes outputs"]:
        """Return the values that a fit uses, of shape ``(paths, nodes, outputs)``, for all paths or a slice of them.

        Raises:
            ValueError: If ``output`` is unknown, or the outputs do not fit it.

        Example:
            >>> import effdeg, torch
            >>> effdeg.trace(torch.tanh, torch.randn(9, 3), paths=5, nodes=7).values("identity").shape
            torch.Size([5, 7, 3])
        """
        return self._read(OutputReader(output), part)

    def _read(self, read: OutputReader, part: slice) -> Float[Tensor, "paths nodes outputs"]:
        paths, nodes = self.alpha[part].shape
        # A copy: the user's function of the outputs may work in place.
        kept = map_tensors(lambda leaf: leaf.unflatten(0, (-1, nodes))[part].flatten(0, 1).clone(), self.outputs)
        return read(kept, paths * nodes).view(paths, nodes, -1)

    def plot(self, *, theme: str = "light", **fit: Any) -> "Figure":
        """Draw the method figure: paths, fits (settings as in :meth:`fit`), spectrum. Needs the extra ``plots``."""
        from effdeg.plots import plot_method

        return plot_method(self, theme=theme, **fit)

    def __repr__(self) -> str:
        shown = {name: getattr(self.settings, name) for name in ("paths", "nodes", "sampling", "at", "seed")}
        return f"Trace({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def trace(
    model: Model,
    inputs: Any,
    *,
    paths: int = 400,
    nodes: int = 200,
    sampling: Sampling = "cosine",
    at: Layer | None = None,
    seed: int = 0,
    partners: Any = None,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    progress: bool = False,
    tokenizer: Any = None,
) -> Trace:
    """Run a model along paths and keep its outputs, so that many fits share the same forward passes.

    The arguments and the paths are those of :func:`effdeg.measure`, which explains them: ``trace(…).fit(degree=40)`` is
    ``measure(…, degree=40)``. The outputs are kept in memory: paths × nodes × outputs numbers.

    Returns:
        The outputs, to be fitted with :meth:`Trace.fit`.

    Raises:
        ValueError: If a setting is out of range, or the inputs are fewer than two examples or hold NaN.
        TypeError: If the model is not callable, or the inputs cannot be read or interpolated.

    Example:
        >>> import effdeg, torch
        >>> trace = effdeg.trace(torch.nn.Linear(4, 3), torch.randn(20, 4), paths=10, nodes=50)
        >>> by_basis = {basis: trace.fit(basis=basis) for basis in ("chebyshev", "legendre")}
        >>> trace.outputs.shape
        torch.Size([500, 3])
    """
    path_settings = PathSettings(paths=paths, nodes=nodes, sampling=sampling, at=at, seed=seed, partners=partners)
    inputs = read_prompts(inputs, tokenizer, model)
    with (
        open_path_runner(model, inputs, path_settings, batch_size=batch_size, device=device, dtype=dtype) as runner,
        progress_bar(f"outputs of {runner.model}", paths, enabled=progress and rank_and_size()[0] == 0) as update,
    ):
        groups = runner.run(_keep_rows, update=update)
        first = list(islice(groups, 1))
        # All processes use the plane of the very first block, which the first process has.
        plane = union_over_ranks({0: _Plane(*take(first[0].ends, slice(BLOCK)))} if rank_and_size()[0] == 0 else {})[0]
        gathered: dict[int, tuple[list[slice], Tree, Tensor]] = {}
        for group in chain(first, groups):
            gathered[group.blocks[0].start] = group.blocks, group.kept, plane.locate(*group.ends)
    pieces = {
        block.start: (take(kept, slice(rows.start * nodes, rows.stop * nodes)), ends[rows])
        for blocks, kept, ends in union_over_ranks(gathered).values()
        for block, rows in split_rows(blocks)
    }
    ordered = [pieces[start] for start in sorted(pieces)]
    return Trace(
        outputs=concatenate([kept for kept, _ in ordered]),
        alpha=runner.drawn.alpha(*runner.drawn.blocks()).expand(paths, -1).contiguous(),
        pairs=runner.drawn.pairs,
        ends=torch.cat([ends for _, ends in ordered]),
        settings=runner.record(),
    )


def _keep_rows(returned: Any, points: int) -> Tree:
    """Keep, on the CPU, the tensors with one row per point of what a model returned; the rest becomes None."""

    def keep(leaf: Any) -> Any:
        if not has_rows(leaf, points):
            return None
        check_plain("the model's outputs", leaf)
        return leaf.to("cpu", copy=True)

    kept = tree_map(keep, returned)
    if kept is None and isinstance(getattr(returned, "logits", None), Tensor):
        kept = {"logits": keep(returned.logits)}
    if not tensors(kept):
        as_values(returned, "identity", points=points)  # raises with the reason
    return kept


class _Plane:
    """The plane of the two principal directions of some examples; straight paths are straight in it."""

    def __init__(self, first: list[Tensor], second: list[Tensor]) -> None:
        points = torch.cat([_flatten(first), _flatten(second)])
        self._center = points.mean(0)
        _, _, directions = torch.linalg.svd(points - self._center, full_matrices=False)
        self._directions = directions[:2].T

    def locate(self, first: list[Tensor], second: list[Tensor]) -> Tensor:
        located = torch.stack([(_flatten(end) - self._center) @ self._directions for end in (first, second)], dim=1)
        return torch.nn.functional.pad(located, (0, 2 - located.shape[-1]))


def _flatten(ends: list[Tensor]) -> Tensor:
    return torch.cat([end.cpu().double().flatten(1) for end in ends], dim=1)
