"""What a model does on examples, and on the way from each to a changed copy: all that a choice among models reads."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from effdeg import changes
from effdeg._adapters.arguments import DataNote, ItemReader
from effdeg._adapters.examples import Examples, describe_shapes
from effdeg._adapters.inference import Device, Model, inference, seed_everything
from effdeg._adapters.labels import check_range, read_class_ids
from effdeg._adapters.layers import base_model, find_embeddings
from effdeg._adapters.outputs import as_class_logits, shaped_values
from effdeg._adapters.partners import Partners, draw
from effdeg._adapters.paths import is_mask
from effdeg._adapters.settings import FitSettings, PathSettings
from effdeg._utils.files import dump, write_atomically
from effdeg._utils.progress import Update, ignore
from effdeg._utils.tree import Tree, map_tensors, named_tensors, take
from effdeg.measuring._estimator import summarize
from effdeg.measuring._path_runner import DrawnPaths, PathBlocks, PathRunner, hash_examples, model_name, split_rows
from effdeg.pools._checkpoint import LabeledExamples, hash_parts, hash_text, hash_weights, list_numbers
from effdeg.proxies._along_paths import compare_neighbors
from effdeg.proxies._evaluator import Evaluator
from effdeg.proxies._predictions import predict_classes

_HASHED = 64  # examples at a time, and changed copies that identify a change
_SAME = 0.01  # a model whose logits differ by more than this share of the largest is not the one that was kept
_DROPPED = 0.1  # the share of tokens that the usual change of a text replaces
_NOISE = 0.1  # the usual noise of a number, as a share of its standard deviation
_SHIFT = 8  # the usual shift of an image is its smaller side divided by this

Load = Callable[[], Model]


class NotFinite(ValueError):  # noqa: N818  (a model is left out)
    """The outputs of a model are NaN or infinite."""


@dataclass(frozen=True)
class Observation:
    """What was observed of one model.

    Attributes:
        kind: The class of the model.
        logits: At the examples, examples × classes.
        copies: The predicted classes of their changed copies.
        of_examples: One number per example by name: ``inconsistency_soft`` compares an example with its changed copy;
            the others are of the path between the two.
        train_accuracy: The accuracy on training examples, if there are any.
        notes: On the data and the model.
    """

    kind: str
    logits: Tensor
    copies: Tensor
    of_examples: Mapping[str, Tensor]
    train_accuracy: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Observer:
    """Observes one model after another on the same examples and the same changed copies."""

    examples: Examples
    indices: list[int]
    change: Any
    at: str | None
    nodes: int
    seed: int
    train: Any
    batch_size: int | None
    device: Device
    dtype: torch.dtype | None
    keep: Path | None
    workers: int = 0  # of a task of Ray

    def measure(self, load: Load, update: Update = ignore) -> Observation:
        """Observe a model, or read what was kept of it."""
        model = load()
        file = self._find_file(model)
        if file is None:
            return self._observe(model, update)
        if (kept := self._read(file, model)) is not None:
            return kept
        observation = self._observe(model, update)
        write_atomically(file, dump(partial(torch.save, vars(observation))))
        return observation

    def _read(self, file: Path, model: Model) -> Observation | None:
        """Return what was kept, unless it cannot be read, or the model now returns something else.

        Not all that decides it is among its weights and numbers.
        """
        try:
            kept = Observation(**torch.load(file, weights_only=True))
        except (OSError, EOFError, RuntimeError, TypeError, UnpicklingError):
            return None
        rows = spread(list(range(len(self.indices))), _HASHED)
        now = self.try_out(model, rows).logits
        difference = (now - kept.logits[rows]).abs().max()
        return kept if float(difference) <= _SAME * float(kept.logits.abs().max()) else None

    def try_out(self, model: Model, rows: Sequence[int] = (0, 1)) -> Observation:
        """Observe a model on some of the examples, to raise now what would fail on all."""
        few = replace(self, indices=[self.indices[row] for row in rows], keep=None, train=None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return few._observe(model, ignore)

    def _observe(self, model: Model, update: Update) -> Observation:
        at = self.at
        if at is None and _are_tokens(ItemReader(model)(self.examples.fetch(self.indices[:1])).inputs):
            at = find_embeddings(model)
        settings = PathSettings(
            nodes=self.nodes, sampling="uniform", at=at, seed=self.seed, paths=len(self.indices), partners=self.change
        )
        drawn = DrawnPaths(settings, torch.tensor([self.indices, self.indices], device="cpu").T, option="change")

        looks = count()

        def read(returned: Any, points: int) -> Tensor:
            outputs = shaped_values(returned, "identity", points=points, look=next(looks) == 0, whose="network")
            if outputs.dim() > 2:
                as_class_logits(outputs)  # raises
            return outputs.reshape(points, -1)

        rows: dict[int, dict[str, Tensor]] = {}
        with inference(model, seed=self.seed, device=self.device, dtype=self.dtype) as runner:
            path_runner = PathRunner(runner, self.examples, drawn, self.batch_size)
            for group in path_runner.run(read, update=lambda done: update(done / len(self.indices))):
                columns = _summarize(group, self.nodes)
                for block, part in split_rows(group.blocks):
                    rows[block.start] = {name: column[part].cpu() for name, column in columns.items()}
        joined = {name: torch.cat([rows[start][name] for start in sorted(rows)]) for name in rows[0]}
        outputs, copies = joined.pop("outputs"), joined.pop("copies")
        if not bool(joined.pop("finite").all()):
            raise NotFinite("its outputs are NaN or infinite.")
        logits = as_class_logits(outputs)
        return Observation(
            kind=model_name(model),
            logits=logits,
            copies=copies,
            of_examples=joined,
            train_accuracy=None if self.train is None else self._measure_accuracy(model, logits.shape[1]),
            notes=tuple(path_runner.notes),
        )

    def try_training(self, model: Model, classes: int) -> None:
        """Check the labels of training examples, and run a model on a few of them."""
        try:
            with self._open_training(model, classes) as (evaluator, _):
                few = take(evaluator.inputs, slice(2))
                with evaluator.open_beside(evaluator.runner.model, (few, None)) as beside:
                    predict_classes(beside)
        except Exception as error:
            error.add_note("This is about the examples of train=.")
            raise

    def _measure_accuracy(self, model: Model, classes: int) -> float:
        """Return the accuracy on training examples."""
        with self._open_training(model, classes) as (evaluator, labels):
            predicted = predict_classes(evaluator)
        return float((predicted == labels.to(predicted.device)).double().mean())

    @contextmanager
    def _open_training(self, model: Model, classes: int) -> Iterator[tuple[Evaluator, Tensor]]:
        """Open a model with the training examples; their labels are among the classes."""
        options = {name: getattr(self, name) for name in ("seed", "batch_size", "device", "dtype")}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataNote)
            with Evaluator.open(model, self.train, examples=len(self.indices), **options) as evaluator:
                labels = read_class_ids(evaluator.labels, "the labels of train=")
                check_range(labels, "the labels of train=", classes)
                yield evaluator, labels

    def _find_file(self, model: Model) -> Path | None:
        """Return the file that keeps what is observed of a model; its name is a hash of all that decides it."""
        if self.keep is None or not isinstance(model, nn.Module):
            return None
        some = spread(self.indices, _HASHED)
        with seed_everything(self.seed):  # a data set may draw
            inputs = ItemReader(model)(self.examples.fetch(some)).inputs
        partners = Partners(self.change, len(self.examples), ItemReader(model), option="change")
        identity = (
            hash_weights({**model.state_dict(), **dict(model.named_buffers())}),
            repr(model),
            list_numbers(model),
            self._data_hashes,
            hash_examples(partners.fetch(inputs, some, seed=self.seed, block=0)),
            self.train and LabeledExamples(self.train, "train", ItemReader(model)).fingerprint(self.seed),
            *(str(setting) for setting in (self.at, self.nodes, self.seed, self.dtype, self.indices)),
        )
        return self.keep / f"{hash_text(repr(identity))}.pt"

    @cached_property
    def _data_hashes(self) -> list[str]:
        return hash_parts(self.examples, self.indices, self.seed)


def spread(indices: list[int], count: int) -> list[int]:
    """Return at most ``count`` indices, evenly: the first examples may all be of one class."""
    return indices[:: -(-len(indices) // count)]


def _summarize(group: PathBlocks, nodes: int) -> dict[str, Tensor]:
    """Return the outputs at the examples, the classes of their copies, and one number per example for all else."""
    logits = outputs = group.kept.unflatten(0, (-1, nodes))
    if outputs.shape[-1] == 1:  # the logit of class 1 of two
        logits = torch.cat([torch.zeros_like(outputs), outputs], dim=-1)
    probabilities = logits.softmax(-1)
    copy, example = probabilities[:, 0], probabilities[:, -1]
    fitted = summarize(logits, group.alpha, FitSettings(degree=nodes - 1, output="identity"))
    return {
        "outputs": outputs[:, -1],
        "copies": logits[:, 0].argmax(1),  # as of the examples: probabilities may be equal where logits are not
        "finite": outputs.isfinite().flatten(1).all(1),
        "inconsistency_soft": (copy - example).abs().sum(1).double() / 2,
        "effective_degree": summarize(probabilities, group.alpha, FitSettings(degree=nodes - 1))["effective_degree"],
        "effective_degree_normalized": fitted["effective_degree_normalized"],
        **compare_neighbors(probabilities),
    }


def choose_change(inputs: Tree, model: Model, at: str | None) -> tuple[Any, str]:
    """Return the usual change of examples like these, and why it is chosen.

    Raises:
        TypeError: If there is none.
    """
    floating = [leaf for _, leaf in named_tensors(inputs) if leaf.is_floating_point()]
    if len(floating) == 1 and floating[0].dim() == 4 and floating[0].shape[1] in (1, 3, 4):
        pixels = changes.shift(max(1, min(floating[0].shape[-2:]) // _SHIFT))
        if floating[0].shape[1] == 1:
            return pixels, "images of one channel are shifted, not mirrored, since they may be digits or letters"
        return changes.compose(changes.mirror, pixels), "images are mirrored and shifted"
    if len(floating) == 1 and floating[0].dim() == 2:
        return _add_noise(floating[0]), f"noise of {_NOISE:g} standard deviations is added to each number"
    if _are_tokens(inputs) and (at or find_embeddings(model)) is not None:
        token = getattr(getattr(base_model(model), "config", None), "pad_token_id", None) or 0
        return changes.drop_tokens(_DROPPED, token), f"of token ids {_DROPPED:.0%} are replaced by {token}"
    raise TypeError(
        f"there is no usual change for examples of {describe_shapes(inputs)}: give change=, a function of a batch that "
        "should not alter a class (effdeg.changes has some), and for token ids at=, the layer that embeds them."
    )


def _are_tokens(inputs: Tree) -> bool:
    """Return whether examples hold rows of integers, and no floating-point numbers."""
    leaves = [leaf for name, leaf in named_tensors(inputs) if not is_mask(name, leaf)]
    return bool(leaves) and all(not leaf.is_floating_point() and leaf.dim() == 2 for leaf in leaves)


def _add_noise(vectors: Tensor) -> changes.Change:
    deviation = _NOISE * vectors.double().std(0)

    def add(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x
        return x + draw(x.device, *x.shape, by=torch.randn, dtype=x.dtype) * deviation.to(x)

    return changes.Change(f"noise of {_NOISE:g} standard deviations of each number", partial(map_tensors, add))
