"""The estimator: runs and fits some blocks of paths at a time and keeps only a few numbers per path."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from inspect import signature
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from effdeg._adapters.examples import Examples
from effdeg._adapters.inference import Model, check_device, check_precision
from effdeg._adapters.layers import Layer
from effdeg._adapters.outputs import Output, OutputReader, output_name
from effdeg._adapters.paths import BLOCK, Sampling
from effdeg._adapters.prompts import read_prompts
from effdeg._adapters.settings import FitSettings, PathSettings
from effdeg._utils.checks import check_count, check_number, suggest
from effdeg._utils.device import receive, send
from effdeg._utils.distributed import broadcast_from_first, check_same_on_ranks, rank_and_size, sum_over_ranks
from effdeg._utils.progress import Update, ignore, progress_bar
from effdeg._utils.shapes import Float
from effdeg._utils.statistics import format_estimate, mean_and_stderr
from effdeg.functional import DAMPING, effective_degree, evaluate, fit, project
from effdeg.functional._conditioning import warn_if_ill_conditioned
from effdeg.functional._projection import drop_noise, share_of_components
from effdeg.measuring._measurement import Measurement
from effdeg.measuring._path_runner import DrawnPaths, open_path_runner, read_and_draw, split_rows
from effdeg.measuring._record import Settings

FITTED_AT_ONCE = 2**21
"""Numbers that are fitted at once, which bounds the memory of a fit."""

FEWEST_PATHS = 4 * BLOCK
"""A tolerance is not checked before this many paths: the standard error of fewer is itself too uncertain."""


@dataclass(frozen=True)
class PathTable:
    """A table with a row for each path and named columns, in one tensor, which processes exchange whole."""

    rows: Float[Tensor, "paths columns"]
    widths: Mapping[str, int | None]  # of each column, in order; None for one number per path

    @classmethod
    def of(cls, columns: Mapping[str, Tensor]) -> "PathTable":
        """Join columns, each with a row for each path."""
        widths = {name: column.shape[1] if column.dim() > 1 else None for name, column in columns.items()}
        return cls(torch.cat([column.reshape(len(column), -1) for column in columns.values()], dim=1), widths)

    def __getitem__(self, name: str) -> Tensor:
        columns = self.rows.split([width or 1 for width in self.widths.values()], dim=1)  # type: ignore[no-untyped-call]
        column: Tensor = dict(zip(self.widths, columns, strict=True))[name]
        return column[:, 0] if self.widths[name] is None else column


def summarize(values: Float[Tensor, "paths nodes outputs"], alpha: Tensor, settings: FitSettings) -> PathTable:
    """Fit polynomials to values and summarize each path.

    The columns are the effective degree, raw and normalized; ``missed``, the sum of squares that the fit misses, and
    ``variation``, the sum of squares around the mean, both in units of ``unit`` squared; ``confidence``, the largest
    value, averaged over nodes; ``spectrum``, |c_k| averaged over outputs, for each degree k.
    """
    # Fit on the device of the values, unless it has no float64.
    values = values.to("cpu" if values.device.type == "mps" else values.device)
    unit = _choose_unit(values)
    values = values / unit[:, None, None].to(values.dtype)
    outputs = values.shape[-1]
    width = outputs if settings.components is not None else FITTED_AT_ONCE * outputs // max(1, values.numel())
    parts = values.split(min(max(1, width), outputs), dim=-1)  # type: ignore[no-untyped-call]
    tables = [_summarize_outputs(part, alpha, settings) for part in parts]
    shares = torch.tensor([part.shape[-1] / outputs for part in parts], dtype=torch.float64, device=values.device)
    columns = {name: torch.stack([table[name] for table in tables], dim=-1) for name in tables[0]}
    missed = columns["missed"].sum(-1)
    return PathTable.of({
        "effective_degree": columns["effective_degree"] @ shares * unit,
        "effective_degree_normalized": columns["effective_degree_normalized"] @ shares,
        "missed": missed,
        "variation": columns["variation"].sum(-1),
        # NaN in any part makes the whole row NaN.
        "confidence": values.amax(-1).double().mean(-1) * unit + 0 * missed,
        "spectrum": columns["spectrum"] @ shares * unit[:, None],
        "unit": unit,
    })


def _choose_unit(values: Tensor) -> Tensor:
    """Return a power of two for each path, in units of which its values have squares in float64: usually 1."""
    largest = values.abs().amax((-2, -1)).double()
    extreme = largest.isfinite() & (largest > 0) & ((largest > 1e100) | (largest < 1e-100))
    return torch.where(extreme, torch.exp2(largest.log2().floor().clamp(min=-1022)), 1.0)


def _summarize_outputs(values: Tensor, alpha: Tensor, settings: FitSettings) -> dict[str, Tensor]:
    broken = ~values.isfinite().all(-1).all(-1)
    values = values.masked_fill(broken[:, None, None], 0.0)
    alpha = send(alpha, values.device)
    given, values = values, values.double()
    components = settings.count_components(values.shape[-1])
    if components is not None:
        values = drop_noise(project(values, components), given)
    # Around their mean, which damping would otherwise count: the constant polynomial is the first of every basis.
    center = values.mean(-2, keepdim=True)
    coefficients = fit(values - center, alpha, settings.degree, settings.basis, settings.damping)
    coefficients[..., :1, :] += center
    normalized = effective_degree(coefficients, normalized=True)
    columns = {
        "effective_degree": effective_degree(coefficients),
        "effective_degree_normalized": normalized if components is None else normalized / share_of_components(values),
        "missed": (values - evaluate(coefficients, alpha, settings.basis)).square().sum((-2, -1)),
        "variation": (values - values.mean(-2, keepdim=True)).square().sum((-2, -1)),
        "spectrum": coefficients.abs().mean(-1),
    }
    # NaN or infinite outputs become rows of NaN, which `check_finite` reports.
    return {
        name: column.masked_fill(broken.view(-1, *[1] * (column.dim() - 1)), torch.nan)
        for name, column in columns.items()
    }


def summary_widths(degree: int) -> dict[str, int | None]:
    """Return the columns of :func:`summarize` with their widths."""
    numbers = ("effective_degree", "effective_degree_normalized", "missed", "variation", "confidence")
    return {**dict.fromkeys(numbers), "spectrum": degree + 1, "unit": None}


def measure(
    model: Model,
    inputs: Any,
    *,
    paths: int = 400,
    nodes: int = 200,
    degree: int = 40,
    basis: str = "chebyshev",
    sampling: Sampling = "cosine",
    output: Output = "softmax",
    components: int | None = None,
    at: Layer | None = None,
    seed: int = 0,
    partners: Any = None,
    batch_size: int | None = None,
    tolerance: float | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    damping: float = DAMPING,
    progress: bool | str = False,
    tokenizer: Any = None,
) -> Measurement:
    """Measure the effective degree of a model: how much its outputs bend along straight paths between examples.

    The model f is run at nodes α on paths between random pairs of examples, and polynomials are fitted to its outputs:
    f(α x₁ + (1 − α) x₂) ≈ Σ_k c_k T_k(2 α − 1). The effective degree of a path is Σ_k k |c_k|, averaged over outputs
    (Definition 3.2), and that of the model is the mean over paths. A straight line counts half its rise.

    The defaults are the paper's protocol for comparing trained models. The paths depend only on ``seed`` and the number
    of examples, so models measured with the same seed share their paths. The model is left as it was: mode, device,
    gradients, random state. Under ``torch.distributed`` the processes divide the paths, and each returns the result;
    they are refused if their weights, examples or settings differ.

    Args:
        model: Any callable; an ``nn.Module`` is run in evaluation mode. It may return a tensor of any shape with the
            batch first, an object with ``.logits``, a dict or a tuple (``logits``, else the first tensor, is used).
        inputs: The examples: a tensor; a tuple, dict or dataclass of tensors (a tuple holds the arguments of the model,
            a dict its keywords); a ``Dataset``; a ``DataLoader``; an iterator of batches; or a list of ``(input,
            label)`` examples. Labels are left out of the items of the last four, such as ``TensorDataset(images,
            labels)``; a tensor between inputs and labels goes to the next parameter of ``forward``, such as a mask.
            For a causal language model of transformers: prompts, as texts (with ``tokenizer``), token ids or a
            tokenizer's output. Paths then lie between embeddings, and the output is that for the next token.
        paths: The number of paths, or, with ``tolerance``, the largest number.
        nodes: The number of points on each path (the paper's r).
        degree: The highest degree of the fitted polynomials (the paper's K).
        basis: ``"chebyshev"`` or ``"legendre"``.
        sampling: ``"cosine"`` (random, stratified), ``"chebyshev"`` or ``"uniform"`` nodes.
        output: ``"softmax"`` (over the last dimension), ``"sigmoid"``, ``"identity"``, or a function of what the
            model returned.
        components: Reduce each path's values to this many principal components first, or to all if there are fewer; for
            hundreds of outputs. The normalized value is the mean over those that are not rounding noise.
        at: Put the paths at the output of this layer (a name or a module) instead of at the inputs. Of token ids it is
            by default the layer that embeds them, in models with ``get_input_embeddings()``: in BERT and its relatives
            words, positions and types together, elsewhere words. A model with an encoder and a decoder needs it. What
            bypasses the layer, such as a skip connection, stays that of the first example all along a path.
        seed: Determines pairs, nodes, and what a loader or data set draws.
        partners: What each example is joined with, instead of another example: its changed copy, by a function of a
            batch (:mod:`effdeg.changes`) or several, one drawn for each path; or, in a second data set of the same
            length, the example of the same index.
        batch_size: Points per forward pass; by default 1024, on the CPU 256. Halved when memory runs out.
        tolerance: Stop as soon as the standard error is below this share of the value, for example 0.02.
        device: Run the model there; by default where it is.
        dtype: Run the model in this precision; by default in its own. Measure a half-precision model with
            ``torch.float32``: rounding looks complex.
        damping: The paper's ε in the fit.
        progress: Show a progress bar; a string is its title.
        tokenizer: Makes token ids of inputs that are a list of texts, as those of transformers do.

    Returns:
        The measurement, with its error bar.

    Raises:
        ValueError: If a setting is unknown or out of range, if inputs or outputs are NaN or infinite, if there are less
            than two examples, or if the outputs do not fit ``output``, as probabilities do not fit softmax.
        TypeError: If the model is not callable, the inputs cannot be read or interpolated (token ids need ``at``), or
            the outputs are not real numbers; or if a tensor of the data may be an input of the model or labels.

    Warns:
        IllConditionedFit: If the nodes do not support the degree, before the model is run.
        UserWarning: If an output depends on the other examples of its batch, or on chance, or if ``partners`` or the
            ``collate_fn`` of a loader mix examples.

    Example:
        >>> import effdeg, torch
        >>> inputs = torch.tensor([[-1.0], [1.0]])
        >>> measured = effdeg.measure(torch.square, inputs, output="identity")  # x² = (T_0 + T_2) / 2
        >>> round(measured.value, 4)
        1.0
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
        >>> measured = effdeg.measure(model, torch.randn(50, 8), paths=20, degree=10)
        >>> measured.spectrum.shape
        torch.Size([11])
    """
    path_settings = PathSettings(paths=paths, nodes=nodes, sampling=sampling, at=at, seed=seed, partners=partners)
    fit_settings = FitSettings(degree=degree, basis=basis, output=output, components=components, damping=damping)
    fit_settings.check_nodes(nodes)
    tolerance = _check_tolerance(tolerance)
    warn_if_ill_conditioned(sampling, nodes, degree, stacklevel=2)
    read, widths = OutputReader(output), summary_widths(degree)
    inputs = read_prompts(inputs, tokenizer, model)
    if rank_and_size()[1] > 1:
        fitted = repr(replace(fit_settings, output="identity"))
        check_same_on_ranks({"settings": f"{fitted} {output_name(output)} {tolerance} {dtype}"})
    with (
        open_path_runner(model, inputs, path_settings, batch_size=batch_size, device=device, dtype=dtype) as runner,
        progress_bar(
            progress if isinstance(progress, str) else f"effective degree of {runner.model}",
            paths,
            enabled=bool(progress) and rank_and_size()[0] == 0,
        ) as update,
    ):
        blocks = runner.run(
            read, update=update, reduce=lambda values, alpha: summarize(values, alpha, fit_settings).rows
        )
        groups = ((each.blocks, PathTable(each.kept, widths)) for each in blocks)
        table = collect(groups, runner.drawn, widths, tolerance=tolerance, update=update)
    # The first process has the first paths.
    described = broadcast_from_first(read.described)
    settings = Settings.of(runner.record(len(table.rows)), fit_settings, described, tolerance=tolerance)
    return as_measurement(table, runner.drawn.pairs, settings)


def check_measurable(inputs: Any, settings: Mapping[str, Any]) -> Examples:
    """Return the examples for a later :func:`measure` with these settings; raise now if it would refuse either."""
    known = [*signature(measure).parameters][2:]
    for name in settings:
        if name not in known:
            raise TypeError(f"{name!r} is not a setting of effdeg.measure. {suggest(name, known)}")

    def choose(kind: type) -> dict[str, Any]:
        return {field.name: settings[field.name] for field in fields(kind) if field.name in settings}

    paths = PathSettings(**choose(PathSettings))
    FitSettings(**choose(FitSettings)).check_nodes(paths.nodes)
    if (batch_size := settings.get("batch_size")) is not None:
        check_count("batch_size", batch_size, least=1)
    _check_tolerance(settings.get("tolerance"))
    check_device(settings.get("device"))
    check_precision(settings.get("dtype"))
    return read_and_draw(read_prompts(inputs, settings.get("tokenizer")), paths)[0]


def _check_tolerance(tolerance: float | None) -> float | None:
    return None if tolerance is None else check_number("tolerance", tolerance, "0.02 stops at a standard error of 2%")


def as_measurement(table: PathTable, pairs: Tensor, settings: Settings) -> Measurement:
    """Average the columns of :func:`summarize` over paths."""
    share = (table["unit"] / table["unit"].max()).square()
    missed, variation = ((table[name] * share).sum().item() for name in ("missed", "variation"))
    are_classes = settings.output == "softmax" and len(settings.outputs) == 1
    stderr = [mean_and_stderr(column)[1] for column in table["spectrum"].unbind(1)]
    return Measurement(
        per_path=table["effective_degree"].clone(),
        per_path_normalized=table["effective_degree_normalized"].clone(),
        pairs=pairs[: len(table.rows)].clone(),
        spectrum=table["spectrum"].mean(0),
        spectrum_stderr=table.rows.new_tensor(stderr),
        residual=missed / variation if variation > 0 else 0.0,
        settings=settings,
        confidence=table["confidence"].mean().item() if are_classes else None,
    )


def check_finite(table: PathTable, pairs: Tensor, rows: slice = slice(None)) -> None:
    """Raise if the table's row of one of these paths is not finite, naming the path."""
    broken = (~table.rows[rows].isfinite()).any(-1).nonzero().flatten() + (rows.start or 0)
    if len(broken):
        first, second = pairs[broken[0]].tolist()
        ends = f"the examples {first} and {second}" if first != second else f"the example {first} and its partner"
        more = f" (and on {len(broken) - 1} more paths)" if len(broken) > 1 else ""
        raise ValueError(
            f"the model's outputs are NaN or infinite on path {int(broken[0])}, between {ends}{more}. "
            "Check the model's outputs there; in half precision, dtype=torch.float32 may be enough."
        )


def collect(
    groups: Iterable[tuple[list[slice], PathTable]],
    drawn: DrawnPaths,
    widths: Mapping[str, int | None],
    *,
    tolerance: float | None = None,
    update: Update = ignore,
) -> PathTable:
    """Gather the rows of all processes, and stop, at the same path on any number of these, at the tolerance.

    ``groups`` are this process's share of the blocks, ``drawn`` is everyone's.
    """
    copied, size, blocks = _copy_to_cpu(groups), rank_and_size()[1], drawn.blocks()
    arriving = ((block, rows[part]) for some, rows in copied for block, part in split_rows(some))
    own = torch.zeros(len(drawn.pairs), sum(each or 1 for each in widths.values()), dtype=torch.float64, device="cpu")
    for start in range(0, len(blocks), size):
        for block, rows in islice(arriving, 1):
            own[block] = rows
        if size > 1 and tolerance is None and start + size < len(blocks):
            continue
        table = PathTable(sum_over_ranks(own), widths)
        first = start if size == 1 or tolerance is not None else 0
        for block in blocks[first : start + size]:
            check_finite(table, drawn.pairs, block)
            mean, stderr = mean_and_stderr(table["effective_degree"][: block.stop])
            update(None, format_estimate(mean, stderr))
            if tolerance is not None and block.stop >= FEWEST_PATHS and stderr <= tolerance * abs(mean):
                return PathTable(table.rows[: block.stop], widths)
    return table


def _copy_to_cpu(groups: Iterable[tuple[list[slice], PathTable]]) -> Iterator[tuple[list[slice], Tensor]]:
    """Copy each group's rows to the CPU while the next group is computed, so that a GPU is never idle."""
    previous: tuple[list[slice], Callable[[], Tensor]] | None = None
    for blocks, table in groups:
        copying = receive(table.rows)
        if previous is not None:
            yield previous[0], previous[1]()
        previous = blocks, copying
    if previous is not None:
        yield previous[0], previous[1]()
