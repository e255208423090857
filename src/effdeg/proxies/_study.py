"""A model on its data, shared by proxies: what several of them need is computed once, when it is first asked for."""

import difflib
import functools
import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor, nn

from effdeg._models.examples import as_examples, split_labels
from effdeg._models.inference import Model, Subject, inference
from effdeg._models.layers import Layer, advice_for_integers, as_module, eager, find_layer
from effdeg._models.outputs import shaped_values
from effdeg._models.paths import check_interpolable
from effdeg._utils.checks import check_count, check_fit
from effdeg._utils.device import Batches
from effdeg._utils.tree import Tree, map_tensors, take, tensors

T = TypeVar("T")
P = ParamSpec("P")
Loss = Callable[[Any, Any], Tensor]
"""The loss of a batch, the mean over its examples, from the model's outputs and the labels: ``cross_entropy``.

Of what the model returned it gets the tensor that counts (``logits``, else the first), in float32 or better."""

Weights = Mapping[str, Tensor]


class NotApplicable(ValueError):  # noqa: N818  (no error in a table of many)
    """A proxy has no value for this model and these data; :func:`effdeg.proxies.evaluate` leaves it out."""


class Running(TypedDict, total=False):
    """How a model is run, the same for every proxy.

    Attributes:
        examples: Number of examples, drawn with ``seed``; by default all. They are read once and held in memory.
        batch_size: Examples per pass; by default 1024, on the CPU 256. Halved when memory runs out.
        seed: Determines the examples and everything else that is drawn.
        device: Run the model there; by default where it is.
        dtype: Run it in this precision; by default in its own. Sharpness is a small difference: float64 tells more.
        at: The layer that stands for the inputs (a name or a module) where paths or derivatives begin. For token ids.
        paths: Between how many pairs of examples paths lead.
        nodes: Points on each path.
        degree: The highest degree fitted along a path.
    """

    examples: int | None
    batch_size: int | None
    seed: int
    device: torch.device | str | None
    dtype: torch.dtype | None
    at: Layer | None
    paths: int
    nodes: int
    degree: int


class Study:
    """A model, its data and its loss; never changed, only looked at."""

    def __init__(
        self,
        subject: Subject,
        data: Tree,
        loss: Loss | None,
        *,
        reference: object,
        batch_size: int | None,
        seed: int,
        at: Layer | None,
        route: Mapping[str, int],
    ) -> None:
        self.subject, self.loss, self.reference = subject, loss, reference
        self.inputs: Tree = None
        self.labels: Any = None
        if data is not None:
            self.inputs, self.labels = split_labels(data)
        self.count = len(tensors(self.inputs)[0]) if data is not None else 0
        self.seed, self.at, self.route = seed, at, route
        self.count_activations = False
        self.batches = Batches(batch_size, subject.device)
        self.weights = subject.weights()
        self._kept: dict[Hashable, tuple[Any, Exception | None]] = {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what was made under this key, making it the first time; what failed then fails again, at no cost."""
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
        """The model, where a proxy needs more of it than its outputs."""
        if not isinstance(self.subject.model, nn.Module):
            raise NotApplicable(
                f"this proxy needs the weights of the model, but a plain {type(self.subject.model).__name__} has none. "
                "Give the nn.Module itself."
            )
        return self.subject.model

    def check_weights(self) -> None:
        """Raise if there is nothing to perturb."""
        if not dict(self.module.named_parameters()):
            raise NotApplicable(f"the model ({type(self.module).__name__}) has no parameters to perturb or to measure.")

    def check_open(self) -> None:
        """Raise if layers cannot be told apart, nor weights replaced, since they are compiled."""
        if any(isinstance(each, torch.jit.ScriptModule) for each in self.module.modules()):
            raise NotApplicable(
                "this proxy looks into the model or changes its weights, which TorchScript does not allow. Give the "
                "nn.Module that it was made from."
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
        """Raise unless there is a loss with weights, data and labels to compute it from."""
        if self.loss is None:
            raise NotApplicable("this proxy needs a loss, such as torch.nn.functional.cross_entropy.")
        self.check_weights()
        self.check_open()
        self.check_data(labels=True)
        self.check_labels()

    def check_labels(self) -> None:
        """Raise unless the loss, if there is one, can be computed from these labels and is the mean of a batch."""
        if self.loss is not None and self.labels is not None:
            self.once("labels", self._check_labels)

    def check_interpolable(self) -> None:
        """Raise unless paths and derivatives can begin at the inputs, or at the layer that stands for them."""
        self.check_data()
        if self.at is None:
            try:
                check_interpolable(self.inputs, advice=lambda: advice_for_integers(self.subject.model))
            except TypeError as error:
                raise NotApplicable(str(error)) from error

    def _check_labels(self) -> None:
        # The loss itself knows best which labels it takes: it is tried on those with the smallest and largest class id.
        # It is computed on the CPU, where an id that is no class is an error; on a GPU it would end the process.
        assert self.loss is not None
        rows = torch.arange(min(2, self.count))
        if _is_id(self.labels):
            ids = self.labels.reshape(len(self.labels), -1).cpu()
            rows = torch.stack([ids.amin(1).argmin(), ids.amax(1).argmax()])
        inputs, labels = self.fetch(rows)
        outputs = shaped_values(self.subject(inputs), "identity", points=len(rows)).cpu()
        labels = map_tensors(Tensor.cpu, labels)
        try:
            self.loss(outputs, labels)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            if self.subject.device is not None and self.subject.device.type != "cpu" and type(error) is not IndexError:
                return  # the loss may hold tensors on the GPU
            given = (
                f"labels of {labels.dtype} and shape {tuple(labels.shape)}, from {labels.min()} to {labels.max()}"
                if isinstance(labels, Tensor)
                else f"labels that are a {type(labels).__name__}"
            )
            raise ValueError(
                f"the loss cannot be computed from outputs of shape {tuple(outputs.shape)} and {given}: {error} (For "
                "cross_entropy, labels are class ids: whole numbers from 0 to the number of outputs less 1.)"
            ) from error

        if self.count > 1:
            self._check_mean()

    def _check_mean(self) -> None:
        """Raise if the loss of two examples is not one number, or is the sum of their losses."""
        both = float(self.loss_of(slice(0, 2)))
        total = float(self.loss_of(slice(0, 1))) + float(self.loss_of(slice(1, 2)))
        near = 1e-3 * abs(total)
        if abs(both - total) < near < abs(both - total / 2):
            raise ValueError(
                f"the loss of two examples, {both:.4g}, is the sum of their losses; the mean over the batch was "
                "expected. Use reduction='mean'."
            )

    def fetch(self, part: slice | Tensor) -> tuple[Tree, Any]:
        """Bring copies of some examples and of their labels to where the model runs."""
        # Copies: a model may work in place on what it is given.
        rows = torch.arange(part.start, part.stop) if isinstance(part, slice) else part
        inputs, labels = (self.subject.place(take(tree, rows)) for tree in (self.inputs, self.labels))
        return inputs, map_tensors(lambda leaf: leaf.long() if _is_id(leaf) else leaf, labels)

    def loss_of(self, part: slice | Tensor, weights: Weights | None = None, *, normalize: bool = False) -> Tensor:
        """Compute the mean loss of some examples, with other weights in place of the model's own if any are given."""
        return self._loss_and_outputs(part, weights, normalize)[0]

    def differentiable_loss(self, part: slice, leaves: Weights, *, normalize: bool = False) -> tuple[Tensor, Tensor]:
        """Compute the mean loss of some examples, to be differentiated by these weights, and the outputs."""
        loss, outputs = self._loss_and_outputs(part, leaves, normalize)
        if not loss.requires_grad:
            raise NotApplicable("the loss does not depend on the weights: it has no gradient (detached outputs?).")
        return loss, outputs

    def mean_loss(self, weights: Weights, part: slice, *, normalize: bool = False) -> float:
        """Compute the mean loss of examples, batch by batch."""
        losses = self.run_batches(part, lambda each, share: self.loss_of(each, weights, normalize=normalize) * share)
        return float(torch.stack(losses).double().sum())

    def run_batches(self, part: slice, run: Callable[[slice, float], T]) -> list[T]:
        """Run a function on one batch after another of some examples, with the share of the examples in each."""
        total = part.stop - part.start

        def run_one(each: slice) -> T:
            batch = slice(part.start + each.start, part.start + each.stop)
            return run(batch, (batch.stop - batch.start) / total)

        return self.batches.run(run_one, total)

    def own_loss(self, *, normalize: bool = False) -> float:
        """Return the mean loss of all examples with the model's own weights."""
        whole = self.everything()
        if ("gradient", normalize) in self._kept:
            return self.gradient(whole, normalize=normalize)[0]
        return self.once(("loss", normalize), lambda: self.mean_loss({}, whole, normalize=normalize))

    def gradient(
        self, part: slice, weights: Weights | None = None, *, normalize: bool = False
    ) -> tuple[float, dict[str, Tensor]]:
        """Compute the mean loss of examples and its gradient, batch by batch; once, for the model's own weights."""
        if weights is None and part == self.everything():
            return self.once(("gradient", normalize), lambda: self._gradient(part, self.weights, normalize))
        return self._gradient(part, weights or self.weights, normalize)

    def everything(self) -> slice:
        """Return all examples as one part."""
        return slice(0, self.count)

    def outputs(self) -> Tensor:
        """Return the model's outputs for all examples; those of an earlier gradient if there was one."""
        self.check_data()

        def run(part: slice) -> Tensor:
            returned = self.subject(self.fetch(part)[0])
            return shaped_values(returned, "identity", points=part.stop - part.start).cpu()

        outputs = self.once("outputs", lambda: torch.cat(self.batches.run(run, self.count)))
        check_finite("outputs", outputs)
        return outputs

    def _gradient(self, part: slice, weights: Weights, normalize: bool) -> tuple[float, dict[str, Tensor]]:
        leaves = as_leaves(weights)
        gradient = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        kept: list[Tensor] = []

        def run(each: slice, share: float) -> Tensor:
            with torch.enable_grad():
                loss, outputs = self.differentiable_loss(each, leaves, normalize=normalize)
                found = torch.autograd.grad(loss * share, list(leaves.values()), allow_unused=True)
            for name, one in zip(gradient, found, strict=True):
                if one is not None:
                    gradient[name] += one
            kept.append(outputs.detach().cpu())
            return loss.detach() * share

        losses = self.run_batches(part, run)
        if weights is self.weights and part == self.everything():
            self.once("outputs", lambda: torch.cat(kept))
        return float(torch.stack(losses).double().sum()), gradient

    def _loss_and_outputs(
        self, part: slice | Tensor, weights: Weights | None, normalize: bool
    ) -> tuple[Tensor, Tensor]:
        assert self.loss is not None
        inputs, labels = self.fetch(part)
        rows = len(tensors(inputs)[0])
        outputs = shaped_values(self.subject(inputs, weights), "identity", points=rows)
        loss = self.loss(normalized_logits(outputs) if normalize else outputs, labels)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            given = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(
                f"the loss of a batch of {rows} is {given}; one number was expected, the mean over the batch. Use "
                "reduction='mean'."
            )
        return loss.reshape(()), outputs


def as_leaves(weights: Weights) -> dict[str, Tensor]:
    """Return the same weights as tensors of their own to differentiate by."""
    return {name: weight.detach().requires_grad_() for name, weight in weights.items()}


def proxy(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function refuse options that neither it nor :class:`Running` has, naming all there are."""
    parameters = inspect.signature(function).parameters.values()
    own = [each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD]
    options = [*own, *Running.__annotations__]
    listed = ", ".join(each for each in options if each not in {"model", "data", "loss"})

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        for name in kwargs:
            if name not in options:
                near = difflib.get_close_matches(name, options, n=1, cutoff=0.7)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise TypeError(f"{name}= is not an option of {function.__name__}.{hint} Options: {listed}.")
        return function(*args, **kwargs)

    return checked


def check_finite(what: str, values: Tensor) -> None:
    """Raise if something is NaN or infinite, naming the first example."""
    broken = (~values.isfinite()).reshape(len(values), -1).any(1).nonzero().flatten()
    if len(broken):
        raise ValueError(
            f"the {what} are NaN or infinite at example {int(broken[0])} ({len(broken)} of {len(values)} in all). Look "
            "at the model there; in half precision, dtype=torch.float32 may be enough."
        )


def normalized_logits(logits: Tensor) -> Tensor:
    """Divide each example's logits by their standard deviation (Andriushchenko et al. 2023): their scale is gone."""
    if logits.dim() < 2 or logits.shape[-1] < 2:
        raise ValueError(f"normalize_logits= is for several logits, not for outputs of shape {tuple(logits.shape)}.")
    return logits / logits.std(-1, correction=0, keepdim=True)


@contextmanager
def opened(
    model: Model | Study,
    data: Any = None,
    loss: Loss | None = None,
    *,
    reference: object = None,
    **running: Unpack[Running],
) -> Iterator[Study]:
    """Open a study of a model, which is left as it was; reuse a study that is already open."""
    if isinstance(model, Study):
        yield model
        return
    examples, batch_size = running.get("examples"), running.get("batch_size")
    seed = check_count("seed", running.get("seed", 0), least=0)
    for name, given in (("examples", examples), ("batch_size", batch_size)):
        if given is not None:
            check_count(name, given, least=1)
    if loss is not None and not callable(loss):
        raise TypeError(f"loss={loss!r} must be a function of outputs and labels, such as cross_entropy.")
    route = {
        "paths": check_count("paths", running.get("paths", 400), least=1),
        "nodes": check_count("nodes", running.get("nodes", 200), least=1),
        "degree": running.get("degree", 40),
    }
    check_fit(route["nodes"], route["degree"], least_degree=1)
    if (at := running.get("at")) is not None:
        find_layer(model, at)
    # Without wrappers, which would stand in the way of other weights; a method of a module is run as it is.
    inner: Model = (as_module(model) or model) if isinstance(model, nn.Module) else model
    with (
        inference(inner, seed=seed, device=running.get("device"), dtype=running.get("dtype")) as subject,
        eager(),
    ):
        # With the random state seeded and put back: a data set may draw, too.
        yield Study(
            subject,
            None if data is None else _choose(data, examples, seed),
            loss,
            reference=reference,
            batch_size=batch_size,
            seed=seed,
            at=at,
            route=route,
        )


def _choose(data: Any, count: int | None, seed: int) -> Tree:
    """Read the examples that are wanted."""
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[1], list):
        data = (data[0], torch.as_tensor(data[1]))
    examples = as_examples(data, labelled=True)
    if len(examples) == 0:
        raise ValueError("the data are empty: there are no examples.")
    if count is None or count >= len(examples):
        return examples.fetch(range(len(examples)))
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed))
    return examples.fetch(order[:count].sort().values.tolist())


def _is_id(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and not leaf.is_floating_point() and leaf.dtype != torch.bool
