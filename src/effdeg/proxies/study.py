"""A model on its data, lent to proxies: what several of them need is computed once, when it is first asked for."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor, nn

from effdeg._batches import Batches
from effdeg._checks import check_count
from effdeg.examples import as_examples, split_labels
from effdeg.inference import Model, Subject, inference
from effdeg.layers import Layer, as_module, eager
from effdeg.outputs import as_values, shaped_values
from effdeg.tree import Tree, take, tensors

T = TypeVar("T")
Loss = Callable[[Any, Any], Tensor]
"""The loss of a batch, the mean over its examples, from the model's outputs and the labels: ``cross_entropy``."""

Weights = Mapping[str, Tensor]


class Running(TypedDict, total=False):
    """How a model is run, the same for every proxy.

    Attributes:
        examples: Take so many examples, drawn with ``seed``; by default all. They are read once and held in memory.
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
        self._kept: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Give what was made under this key, making it the first time."""
        if key not in self._kept:
            self._kept[key] = make()
        kept: T = self._kept[key]
        return kept

    @property
    def module(self) -> nn.Module:
        """The model, where a proxy needs more of it than its outputs."""
        if not isinstance(self.subject.model, nn.Module):
            raise TypeError(
                f"this proxy needs the weights of the model, but a plain {type(self.subject.model).__name__} has none. "
                "Give the nn.Module itself."
            )
        return self.subject.model

    def check_weights(self) -> None:
        """Raise if there is nothing to perturb."""
        if not dict(self.module.named_parameters()):
            raise ValueError(f"the model ({type(self.module).__name__}) has no parameters to perturb or to measure.")

    def check_data(self, *, labels: bool = False) -> None:
        """Raise unless there are data, and labels where they are needed."""
        if self.inputs is None:
            raise ValueError("this proxy needs data: give (inputs, labels), a Dataset or a DataLoader.")
        if labels and self.labels is None:
            raise ValueError(
                "this proxy needs labels, but the data hold none: give (inputs, labels), a Dataset or DataLoader of "
                "such pairs, or a mapping with 'labels'."
            )

    def check_loss(self) -> None:
        """Raise unless there is a loss with weights, data and labels to compute it from."""
        if self.loss is None:
            raise ValueError("this proxy needs a loss, such as torch.nn.functional.cross_entropy.")
        self.check_weights()
        self.check_data(labels=True)

    def fetch(self, part: slice | Tensor) -> tuple[Tree, Any]:
        """Bring some examples and their labels to where the model runs."""
        place = self.subject.place
        return place(take(self.inputs, part)), None if self.labels is None else place(take(self.labels, part))

    def loss_of(self, part: slice | Tensor, weights: Weights | None = None, *, normalize: bool = False) -> Tensor:
        """Compute the mean loss of some examples, with other weights in place of the model's own if any are given."""
        return self._loss_and_outputs(part, weights, normalize)[0]

    def mean_loss(self, weights: Weights, part: slice, *, normalize: bool = False) -> float:
        """Compute the mean loss of examples, batch by batch."""
        total = part.stop - part.start
        losses = self.batches.run(
            lambda each: self.loss_of(_within(part, each), weights, normalize=normalize) * _share(each, total), total
        )
        return float(torch.stack(losses).double().sum())

    def own_loss(self, *, normalize: bool = False) -> float:
        """Give the mean loss of all examples with the model's own weights."""
        whole = self.everything()
        if (known := self._kept.get(("gradient", whole.start, whole.stop, normalize))) is not None:
            loss: float = known[0]
            return loss
        return self.once(("loss", normalize), lambda: self.mean_loss({}, whole, normalize=normalize))

    def gradient(
        self, part: slice, weights: Weights | None = None, *, normalize: bool = False
    ) -> tuple[float, dict[str, Tensor]]:
        """Compute the mean loss of examples and its gradient, batch by batch; once, for the model's own weights."""
        if weights is None:
            key = ("gradient", part.start, part.stop, normalize)
            return self.once(key, lambda: self._gradient(part, self.weights, normalize))
        return self._gradient(part, weights, normalize)

    def everything(self) -> slice:
        """Give all examples as one part."""
        return slice(0, self.count)

    def outputs(self) -> Tensor:
        """Give the model's outputs for all examples, one row each; those of an earlier gradient if there was one."""
        self.check_data()

        def run(part: slice) -> Tensor:
            return as_values(self.subject(self.fetch(part)[0]), "identity", points=part.stop - part.start).cpu()

        return self.once("outputs", lambda: torch.cat(self.batches.run(run, self.count)))

    def _gradient(self, part: slice, weights: Weights, normalize: bool) -> tuple[float, dict[str, Tensor]]:
        total = part.stop - part.start
        leaves = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
        gradient = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        kept: list[Tensor] = []

        def run(each: slice) -> Tensor:
            with torch.enable_grad():
                loss, outputs = self._loss_and_outputs(_within(part, each), leaves, normalize)
                share = loss * _share(each, total)
                found = torch.autograd.grad(share, list(leaves.values()), allow_unused=True)
            for name, one in zip(gradient, found, strict=True):
                if one is not None:
                    gradient[name] += one
            kept.append(outputs.detach().cpu())
            return share.detach()

        losses = self.batches.run(run, total)
        if weights is self.weights and part == self.everything():
            self.once("outputs", lambda: torch.cat(kept).flatten(1))
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


def normalized_logits(logits: Tensor) -> Tensor:
    """Divide each example's logits by their standard deviation (Andriushchenko et al. 2023): their scale is gone."""
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
    """Lend a model to a proxy and take it back as it was; a study that is open already is lent on."""
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
    chosen = None if data is None else _choose(data, examples, seed)
    route = {
        "paths": running.get("paths", 400),
        "nodes": running.get("nodes", 200),
        "degree": running.get("degree", 40),
    }
    # Without wrappers, which would stand in the way of other weights; a method of a module is run as it is.
    inner: Model = (as_module(model) or model) if isinstance(model, nn.Module) else model
    with (
        inference(inner, seed=seed, device=running.get("device"), dtype=running.get("dtype")) as subject,
        eager(),
    ):
        yield Study(
            subject,
            chosen,
            loss,
            reference=reference,
            batch_size=batch_size,
            seed=seed,
            at=running.get("at"),
            route=route,
        )


def _choose(data: Any, count: int | None, seed: int) -> Tree:
    """Read the examples that are wanted."""
    examples = as_examples(data, labelled=True)
    if len(examples) == 0:
        raise ValueError("the data are empty: there are no examples.")
    if count is None or count >= len(examples):
        return examples.fetch(range(len(examples)))
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed))
    return examples.fetch(order[:count].sort().values.tolist())


def _within(part: slice, each: slice) -> slice:
    return slice(part.start + each.start, part.start + each.stop)


def _share(each: slice, total: int) -> float:
    return int(each.stop - each.start) / total
