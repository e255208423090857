"""A model in evaluation mode with its data, labels and loss, from which proxies are computed."""

import difflib
import functools
import inspect
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypedDict, TypeVar

import torch
from torch import Tensor, nn

from effdeg._adapters.arguments import DataNote, ItemReader
from effdeg._adapters.examples import as_examples, count_examples
from effdeg._adapters.independence import warn_of_dependent_rows
from effdeg._adapters.inference import Model, ModelRunner, hold_models, inference
from effdeg._adapters.layers import Layer, advice_for_integers, as_module, eager, find_layer
from effdeg._adapters.outputs import shaped_values
from effdeg._adapters.paths import check_interpolable
from effdeg._adapters.settings import FitSettings, PathSettings
from effdeg._adapters.spaces import default_layer
from effdeg._utils.checks import check_count
from effdeg._utils.device import Batches
from effdeg._utils.statistics import format_estimate
from effdeg._utils.tree import Tree, has_rows, map_tensors, take, tensors

T = TypeVar("T")
P = ParamSpec("P")
Loss = Callable[[Any, Any], Tensor]
"""The mean loss of a batch, from the model's outputs and the labels, such as ``cross_entropy``.

The outputs are one tensor, in float32 or better: if the model returns several, ``logits``, or else the first."""

Weights = Mapping[str, Tensor]
_SHARED = "shared"
_OF_PATHS = ("paths", "nodes", "seed", "at", "partners")
_OF_EVERY_RUN = {"batch_size", "seed", "device", "dtype"}  # the options that do not depend on the model or the data


class NotApplicable(ValueError):  # noqa: N818  (no error in a table of many)
    """A proxy has no value for this model and these data; :func:`effdeg.proxies.evaluate` skips it.

    Example:
        >>> import torch, effdeg
        >>> effdeg.proxies.parameter_norm(torch.tanh)
        Traceback (most recent call last):
        ...
        effdeg.proxies._evaluator.NotApplicable: this proxy needs the weights of the model, ...
    """


class HalfPrecision(UserWarning):
    """A model is evaluated in half precision without having been asked to."""


class RunOptions(TypedDict, total=False):
    """How to run a model: options that every proxy takes.

    Attributes:
        examples: Number of examples, drawn with ``seed``; by default all. They are read once and held in memory.
        batch_size: Examples per pass; by default 1024, on the CPU 256. Halved when memory runs out.
        seed: Determines the examples and everything else that is drawn.
        device: The device to run the model on; by default its own.
        dtype: The precision to run it in, from the same weights; by default its own. For a model in bfloat16 or float16
            use float32: rounding hides small changes of the weights, so sharpness may be several times too small or too
            large, and rounding counts as regions and as complexity. A warning says so unless ``dtype`` is given.
            Sharpness is a small difference of losses: use float64. Inputs are converted, and losses are computed in
            float32 or better.
        at: A layer (a name or a module) whose output takes the role of the inputs for paths and derivatives; of
            token ids by default the embeddings, as in :func:`effdeg.measure`.
        paths: Number of paths, each between two examples.
        partners: What each example is joined with instead of another one, as in :func:`effdeg.measure`.
        nodes: Points on each path.
        degree: The highest degree fitted along a path.

    Example:
        >>> import torch, effdeg
        >>> options: effdeg.proxies.RunOptions = {"examples": 50, "dtype": torch.float64}
        >>> effdeg.proxies.jacobian_norm(torch.nn.Linear(3, 2), torch.randn(100, 3), **options).settings["examples"]
        50
    """

    examples: int | None
    batch_size: int | None
    seed: int
    device: torch.device | str | None
    dtype: torch.dtype | None
    at: Layer | None
    paths: int
    partners: Any
    nodes: int
    degree: int


@dataclass(frozen=True)
class Result:
    """The value of a proxy for one model.

    Attributes:
        name: Name of the proxy.
        value: Its value.
        stderr: The standard error where the value is an estimate from random draws or from examples, else None.
        settings: What it was computed with.

    Example:
        >>> import effdeg
        >>> print(effdeg.proxies.Result("margin@10", 0.25, 0.0312, {"examples": 500}))
        margin@10  0.25 ± 0.031  (examples=500)
    """

    name: str
    value: float
    stderr: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in self.settings.items())
        return f"{self.name}  {self.estimate}" + (f"  ({settings})" if settings else "")

    @property
    def estimate(self) -> str:
        """The value with its standard error, formatted."""
        return format_estimate(self.value, self.stderr)


@dataclass(eq=False)
class Evaluator:
    """A model with its data and loss; what several proxies share is computed once, when it is first needed."""

    runner: ModelRunner
    inputs: Tree
    labels: Any
    given: Mapping[str, Any]  # by name: "loss", and what few proxies need, as evaluate() takes it
    paths: PathSettings
    fit: FitSettings
    batches: Batches
    run_options: Mapping[str, Any]
    count_activations: bool = False
    _kept: dict[Hashable, tuple[Any, Exception | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.loss: Loss | None = self.given["loss"]
        self.seed, self.weights = self.paths.seed, self.runner.weights()
        self.at = default_layer(self.runner.model, self.inputs) if self.paths.at is None else self.paths.at
        self.count = 0 if self.inputs is None else count_examples(self.inputs, f"data ({type(self.inputs).__name__})")
        self.whole = slice(0, self.count)

    @classmethod
    @contextmanager
    def open(
        cls,
        model: Any,
        data: Any = None,
        loss: Loss | None = None,
        *,
        shared: "Evaluator | None" = None,
        **options: Any,
    ) -> Iterator["Evaluator"]:
        """Check :class:`RunOptions`, read the data and put the model into evaluation mode; restore it afterwards."""
        # Open already, with all of this: see compute().
        if shared is not None:
            yield shared
            return
        paths = PathSettings(**{name: options[name] for name in _OF_PATHS if name in options})
        fit = FitSettings(degree=options.get("degree", FitSettings.degree))
        fit.check_nodes(paths.nodes)
        counts = {name: options[name] for name in ("examples", "batch_size") if options.get(name) is not None}
        counts = {name: check_count(name, count, least=1) for name, count in counts.items()}
        if loss is not None and not callable(loss):
            raise TypeError(f"loss={loss!r} must be a function of outputs and labels, such as cross_entropy.")
        if paths.at is not None:
            find_layer(model, paths.at)
        # Without wrappers such as DDP, through which weights cannot be replaced; a method of a module is run as it is.
        inner: Model = (as_module(model) or model) if isinstance(model, nn.Module) else model
        given = {"loss": loss, **{name: options.get(name) for name in ("reference", "others", "labeled", "change")}}
        others = given["others"] if isinstance(given["others"], Sequence) else ()
        device, dtype = options.get("device"), options.get("dtype")
        with (
            # Within inference mode nothing could be differentiated. To leave it enables gradients, so it comes first.
            torch.inference_mode(False),
            hold_models(model, given["reference"], *others),
            inference(inner, seed=paths.seed, device=device, dtype=dtype) as runner,
            eager(),
        ):
            # Read within the context, which seeds the random state and restores it: a data set may draw.
            inputs, labels = _read_examples(data, inner, counts.get("examples"), paths.seed)
            if given["labeled"] is not None:
                given["labeled"] = _read_examples(given["labeled"], inner, None, paths.seed)
            if data is not None and dtype is None and (own := runner.precision(inputs)).itemsize < 4:
                warnings.warn(
                    f"the model runs in {str(own).removeprefix('torch.')}, whose rounding changes proxies, those of "
                    f"small changes most of all: give dtype=torch.float32, or dtype={own} if this is intended.",
                    HalfPrecision,
                    stacklevel=5,  # the call of a proxy
                )
            batches = Batches(counts.get("batch_size"), runner.device)
            run_options = {name: value for name, value in options.items() if name in _OF_EVERY_RUN}
            try:
                yield cls(runner, inputs, labels, given, paths, fit, batches, run_options)
            except TypeError as error:
                if isinstance(data, tuple) and "missing" in str(error):
                    error.add_note(
                        "A proxy takes data=(inputs, labels) and calls the model on the inputs alone. For a model of "
                        "several arguments write data=((first, second), labels), or ((first, second), None). "
                        "(effdeg.measure, which needs no labels, takes (first, second).)"
                    )
                raise

    def open_beside(self, model: Any, data: Any) -> AbstractContextManager["Evaluator"]:
        """Open another model, or this one with other data, to run in the same way."""
        return Evaluator.open(model, data, **self.run_options)

    def compute(self, proxy: Callable[..., Result], **settings: Any) -> Result:
        """Call a proxy with the model and what it takes of the rest; passes over the data are shared with others."""
        parameters = inspect.signature(proxy).parameters
        given = {**self.given, "data": (self.inputs, self.labels)}
        taken = {name: value for name, value in given.items() if name in parameters}
        if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
            taken[_SHARED] = self
        return proxy(self.runner.model, **taken, **settings)

    def split(self, size: int) -> list[slice]:
        """Split the examples into parts of this size; the last may be smaller."""
        return [slice(start, min(start + size, self.count)) for start in range(0, self.count, size)]

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what ``make`` returned when first called under this key, or raise what it raised then."""
        if key not in self._kept:
            try:
                self._kept[key] = make(), None
            except Exception as error:
                self._kept[key] = None, error
        made, failure = self._kept[key]
        if failure is not None:
            raise failure
        return made  # type: ignore[no-any-return]

    @property
    def module(self) -> nn.Module:
        """The model as a module, for proxies that need its weights."""
        if not isinstance(self.runner.model, nn.Module):
            raise NotApplicable(
                f"this proxy needs the weights of the model, but a plain {type(self.runner.model).__name__} has none. "
                "Give the nn.Module itself."
            )
        return self.runner.model

    def check_weights(self) -> None:
        """Raise unless the model has parameters."""
        if not dict(self.module.named_parameters()):
            raise NotApplicable(f"the model ({type(self.module).__name__}) has no parameters to perturb or to measure.")

    def check_not_scripted(self) -> None:
        """Raise if the model is TorchScript, whose layers cannot be inspected and whose weights cannot be replaced."""
        if any(isinstance(each, torch.jit.ScriptModule) for each in self.module.modules()):
            raise NotApplicable(
                "this proxy inspects the model's layers or changes its weights, which TorchScript does not allow. Give "
                "the nn.Module that it was made from."
            )

    def check_data(self, *, labels: bool = False) -> None:
        """Raise unless there are data, and labels where they are needed."""
        if self.inputs is None:
            raise NotApplicable("this proxy needs data: give (inputs, labels), a Dataset or a DataLoader.")
        if labels and self.labels is None:
            raise NotApplicable(
                "this proxy needs labels, but the data hold none: give (inputs, labels), a Dataset or DataLoader of "
                "such pairs, or a mapping with 'labels'."
            )

    def check_loss(self) -> None:
        """Raise unless there is a loss, and weights, data and labels to compute it from."""
        if self.loss is None:
            raise NotApplicable("this proxy needs a loss, such as torch.nn.functional.cross_entropy.")
        self.check_weights()
        if complex_ := [name for name, each in self.module.named_parameters() if each.is_complex()]:
            raise NotApplicable(f"this proxy moves weights, and {complex_[0]} is complex.")
        self.check_not_scripted()
        self.check_data(labels=True)
        self.check_labels()

    def check_labels(self) -> None:
        """Raise unless the loss, if there is one, takes these labels and is the mean of a batch."""
        if self.loss is not None and self.labels is not None:
            self.once("labels", self._check_labels)

    def check_interpolable(self) -> None:
        """Raise unless paths and derivatives can start at the inputs, or at the layer ``at``."""
        self.check_data()
        if self.at is None:
            try:
                check_interpolable(self.inputs, advice=lambda: advice_for_integers(self.runner.model))
            except TypeError as error:
                raise NotApplicable(str(error)) from error

    def _check_labels(self) -> None:
        inputs, labels = self.inputs, self.labels
        swapped = isinstance(inputs, Tensor) and isinstance(labels, Tensor) and inputs.dim() == 1 < labels.dim()
        if swapped and labels.is_floating_point() and not inputs.is_floating_point():
            raise ValueError(
                f"inputs are one whole number per example, and labels have shape {tuple(labels.shape)}: were labels "
                "given first? Give (inputs, labels)."
            )
        # Only the loss knows which labels it takes: try it on those with the smallest and the largest number.
        rows = torch.arange(min(2, self.count), device="cpu")
        if isinstance(self.labels, Tensor) and self.labels.numel() and not self.labels.is_complex():
            numbers = self.labels.detach().reshape(self.count, -1)
            least, most = (each.cpu().double() for each in (numbers.amin(1), numbers.amax(1)))
            rows = torch.stack([least.argmin(), most.argmax()])
        self._check_loss_on(rows)
        if self.count < 2:
            return
        if rows[0] == rows[1]:
            rows = torch.arange(2, device="cpu") + rows[0].clamp(max=self.count - 2)
        self.once("look", self._look)
        both, first, second = (float(self.loss_and_outputs(part)[0]) for part in (rows, rows[:1], rows[1:]))
        total = first + second
        if abs(both - total) < 1e-3 * abs(total) < abs(both - total / 2):
            raise ValueError(
                f"the loss of two examples, {both:.4g}, is the sum of their losses; the mean over the batch was "
                "expected. Use reduction='mean'."
            )
        epsilon = torch.finfo(self.runner.precision(self.inputs)).eps
        if abs(both - total / 2) > 20 * epsilon * abs(both):
            self._check_not_broadcast(rows, both, total / 2)
        if self.count > self.batches.size:
            self._warn_of_weights()

    def _warn_of_weights(self) -> None:
        """Warn if the loss of examples with different labels is not the mean of their losses, so that batches count."""
        rows = self._choose_different(32)
        outputs = torch.cat(self.batches.run(lambda part: self._run(rows[part])[0], len(rows)))
        labels = self.fetch(rows)[1]
        together = float(self._loss(outputs, labels))
        # The same outputs, so that rounding in the model does not count.
        one_by_one = [torch.tensor([row], device="cpu") for row in range(len(rows))]
        losses = torch.stack([self._loss(take(outputs, one), take(labels, one)).double() for one in one_by_one])
        if not abs(together - float(losses.mean())) <= 2e-3 * float(losses.abs().mean()):
            warnings.warn(
                f"the loss of {len(rows)} examples, {together:.4g}, is not the mean of their losses, "
                f"{float(losses.mean()):.4g}, as with class weights or ignored labels: the result depends on how the "
                f"{self.count} examples are divided into batches of {self.batches.size}. Use batch_size={self.count}, "
                "if memory allows it.",
                stacklevel=2,
            )

    def _choose_different(self, most: int) -> Tensor:
        """Return examples with different labels, as far as their sums tell, and some that are spread over the data."""
        sums = torch.zeros(self.count, dtype=torch.float64, device="cpu")
        for leaf in tensors(self.labels):
            if has_rows(leaf, self.count) and not leaf.is_complex():
                sums += leaf.detach().reshape(self.count, -1).sum(1, dtype=torch.float64).cpu()
        order = sums.argsort(stable=True)
        kinds = order[sums[order].diff(prepend=sums.new_tensor([torch.nan])) != 0]
        everywhere = torch.arange(self.count, device="cpu")
        return torch.cat([_spread(kinds, most // 2), _spread(everywhere, most // 2)])

    def _check_not_broadcast(self, rows: Tensor, both: float, mean: float) -> None:
        """Raise if the loss of two examples is the mean over all pairs of an output and a label."""
        assert self.loss is not None
        inputs, labels = self.fetch(rows)
        outputs = shaped_values(self.runner(inputs), "identity", points=2)
        others = (take(labels, torch.tensor([1 - one], device="cpu")) for one in range(2))
        crossed = [float(self.loss(outputs[[one]], other)) for one, other in enumerate(others)]
        of_pairs = (mean + sum(crossed) / 2) / 2
        if 10 * abs(both - of_pairs) < abs(both - mean):
            shapes = " and ".join(str(tuple(leaf.shape)) for leaf in tensors(labels))
            raise ValueError(
                f"the loss of two examples, {both:.4g}, is the mean over all four pairs of an output and a label, not "
                f"that of their losses, {mean:.4g}: outputs of shape {tuple(outputs.shape)} and labels of shape "
                f"{shapes} are broadcast. Give labels of the shape of the outputs, such as y[:, None]."
            )

    def _check_loss_on(self, rows: Tensor) -> None:
        """Raise unless the loss takes these labels, on the CPU: on a GPU, an id that is no class ends the process."""
        assert self.loss is not None
        inputs, labels = self.fetch(rows)
        outputs = shaped_values(self.runner(inputs), "identity", points=len(rows)).cpu()
        labels = map_tensors(Tensor.cpu, labels)
        try:
            self.loss(outputs, labels)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            if self.runner.device is not None and self.runner.device.type != "cpu" and type(error) is not IndexError:
                return  # the loss may hold tensors on the GPU
            given = f"labels that are a {type(labels).__name__}"
            if isinstance(labels, Tensor):
                span = f"from {labels.min()} to {labels.max()}"
                given = f"labels of {labels.dtype} and shape {tuple(labels.shape)}, {span}"
            raise ValueError(
                f"the loss cannot be computed from outputs of shape {tuple(outputs.shape)} and {given}: {error} (For "
                "cross_entropy, labels are class ids: whole numbers from 0 to the number of outputs minus 1.)"
            ) from error

    def _look(self) -> None:
        """Warn if the model returns several tensors, or if outputs depend on the rest of a batch or on chance."""
        looked = False

        def keep(returned: Any, points: int) -> Tensor:
            nonlocal looked
            values = shaped_values(returned, "identity", points=points, look=not looked, whose="network")
            looked = True
            return values

        def run(rows: Tensor, _: Tensor) -> tuple[Any, None]:
            return self.runner(self.fetch(rows)[0]), None

        warn_of_dependent_rows(self.runner, run, keep, count=self.count, most=self.batches.next_size(self.count))

    def fetch(self, part: slice | Tensor) -> tuple[Tree, Any]:
        """Copy some examples and their labels to where the model runs."""
        # Copies, since a model may change its inputs in place.
        rows = torch.arange(part.start, part.stop, device="cpu") if isinstance(part, slice) else part
        inputs = self.runner.place(take(self.inputs, rows))
        labels = self.runner.place(take(self.labels, rows), at_least=torch.float32)  # as the outputs are
        return inputs, map_tensors(lambda leaf: leaf.long() if _is_id(leaf) else leaf, labels)

    def loss_and_outputs(self, part: slice | Tensor, weights: Weights | None = None) -> tuple[Tensor, Tensor]:
        """Return the mean loss and the outputs of some examples, with ``weights`` instead of the model's own."""
        outputs, labels = self._run(part, weights)
        return self._loss(outputs, labels), outputs

    def _run(self, part: slice | Tensor, weights: Weights | None = None) -> tuple[Tensor, Any]:
        """Return the outputs and the labels of some examples."""
        inputs, labels = self.fetch(part)
        return shaped_values(self.runner(inputs, weights), "identity", points=len(tensors(inputs)[0])), labels

    def _loss(self, outputs: Tensor, labels: Any) -> Tensor:
        assert self.loss is not None
        rows, loss = len(outputs), self.loss(outputs, labels)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            given = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(
                f"the loss of a batch of {rows} is {given}; one number was expected, the mean over the batch. Use "
                "reduction='mean'."
            )
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise NotApplicable("the loss does not depend on the weights: it has no gradient (detached outputs?).")
        return loss.reshape(())

    def mean_loss(self, weights: Weights) -> float:
        """Return the mean loss of all examples, batch by batch."""
        losses = self.run_batches(self.whole, lambda batch, share: self.loss_and_outputs(batch, weights)[0] * share)
        return float(torch.stack(losses).double().sum())

    def run_batches(self, part: slice, run: Callable[[slice, float], T]) -> list[T]:
        """Run a function on some examples batch by batch; it takes the batch and its share of the examples."""
        total = part.stop - part.start

        def run_one(each: slice) -> T:
            batch = slice(part.start + each.start, part.start + each.stop)
            return run(batch, (batch.stop - batch.start) / total)

        return self.batches.run(run_one, total)

    def own_loss(self) -> float:
        """Return the mean loss of all examples with the model's own weights."""
        if "gradient" in self._kept:
            return self.gradient()[0]
        return self.once("loss", lambda: self.mean_loss({}))

    def gradient(self) -> tuple[float, dict[str, Tensor]]:
        """Return the mean loss of all examples with the model's own weights and its gradient, batch by batch."""
        return self.once("gradient", self._gradient)

    def outputs(self) -> Tensor:
        """Return the model's outputs for all examples; reuse those of an earlier gradient."""
        self.check_data()

        def run(part: slice) -> Tensor:
            returned = self.runner(self.fetch(part)[0])
            return shaped_values(returned, "identity", points=part.stop - part.start, whose="network").cpu()

        self.once("look", self._look)
        outputs = self.once("outputs", lambda: torch.cat(self.batches.run(run, self.count)))
        check_finite("outputs", outputs)
        return outputs

    def _gradient(self) -> tuple[float, dict[str, Tensor]]:
        leaves = as_leaves(self.weights)
        gradient = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        kept: list[Tensor] = []

        def run(each: slice, share: float) -> Tensor:
            with torch.enable_grad():
                loss, outputs = self.loss_and_outputs(each, leaves)
                slopes = torch.autograd.grad(loss * share, list(leaves.values()), materialize_grads=True)
            for total, slope in zip(gradient.values(), slopes, strict=True):
                total.add_(slope)
            kept.append(outputs.detach().cpu())
            return loss.detach() * share

        losses = self.run_batches(self.whole, run)
        self.once("outputs", lambda: torch.cat(kept))
        return float(torch.stack(losses).double().sum()), gradient


def as_leaves(weights: Weights) -> dict[str, Tensor]:
    """Return the weights as leaves of a graph, to differentiate with respect to them."""
    return {name: weight.detach().requires_grad_() for name, weight in weights.items()}


def check_options(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function to refuse options that are neither its own nor of :class:`RunOptions`, and to list these."""
    own = [name for name in inspect.signature(function).parameters if name != "options"]
    options = [*own, *RunOptions.__annotations__]
    listed = ", ".join(name for name in options if name not in {"model", "data", "loss"})

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        for name in kwargs:
            if name not in {*options, _SHARED}:
                near = difflib.get_close_matches(name, options, n=1, cutoff=0.7)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise TypeError(f"{name}= is not an option of {function.__name__}.{hint} Options: {listed}.")
        return function(*args, **kwargs)

    return checked


def check_finite(what: str, values: Tensor) -> None:
    """Raise if values are NaN or infinite, naming the first example."""
    broken = (~values.isfinite()).reshape(len(values), -1).any(1).nonzero().flatten()
    if len(broken):
        raise ValueError(
            f"the {what} are NaN or infinite at example {int(broken[0])} ({len(broken)} of {len(values)} in all). "
            "Check the model there; in half precision, dtype=torch.float32 may be enough."
        )


def _read_examples(data: Any, model: Model, count: int | None, seed: int) -> tuple[Tree, Any]:
    """Read the inputs and labels of all examples, or of ``count`` of them, drawn with the seed."""
    if data is None:
        return None, None
    examples = as_examples(data, labeled=True)
    if len(examples) == 0:
        raise ValueError("the data are empty: there are no examples.")
    indices: Sequence[int] = range(len(examples))
    if count is not None and count < len(examples):
        order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed), device="cpu")
        indices = order[:count].sort().values.tolist()
    item = ItemReader(model)(examples.fetch(indices))
    if item.note is not None:
        warnings.warn(item.note, DataNote, stacklevel=6)  # the call of a proxy
    return item.inputs, item.labels


def _spread(rows: Tensor, most: int) -> Tensor:
    """Return some of these rows, evenly spread from the first to the last."""
    chosen = torch.linspace(0, len(rows) - 1, min(most, len(rows)), dtype=torch.float64, device="cpu")
    return rows[chosen.long()]


def _is_id(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and not leaf.is_floating_point() and leaf.dtype != torch.bool
