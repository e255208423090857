"""What a model does on examples, and on the way from each to a changed copy: all that a choice among models reads."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from effdeg._adapters.arguments import DataNote, ItemReader
from effdeg._adapters.examples import Examples
from effdeg._adapters.inference import Device, Model, inference, seed_everything
from effdeg._adapters.labels import check_range, read_class_ids
from effdeg._adapters.layers import find_embeddings
from effdeg._adapters.outputs import as_class_logits, shaped_values
from effdeg._adapters.partners import Partners
from effdeg._adapters.paths import BLOCK, is_mask
from effdeg._adapters.settings import FitSettings, PathSettings
from effdeg._utils.files import dump, write_atomically
from effdeg._utils.progress import Update, ignore
from effdeg._utils.statistics import mean_and_stderr
from effdeg._utils.tree import Tree, named_tensors, take
from effdeg.measuring._estimator import summarize
from effdeg.measuring._path_runner import DrawnPaths, PathBlocks, PathRunner, hash_examples, model_name, split_rows
from effdeg.pools._identity import LabeledExamples, agree, hash_parts, hash_text, hash_weights, list_numbers
from effdeg.proxies._along_paths import compare_neighbors
from effdeg.proxies._evaluator import Evaluator, NotApplicable
from effdeg.proxies._predictions import predict_classes, score_cot, score_energy, score_mano, score_nuclear_norm

NODES = 4
"""Points on the path from an example to its changed copy, both ends included: a fit of degree 3."""
_CHECKED = 4  # blocks of paths whose outputs must be the same for what was kept to be read

Load = Callable[[], Model]
Estimate = tuple[float, float | None]


class NotFinite(ValueError):  # noqa: N818  (a model is left out)
    """The outputs of a model are NaN or infinite."""


@dataclass(frozen=True)
class Observation:
    """What was observed of one model; its logits are not kept, except for those of a few examples.

    Attributes:
        kind: The class of the model.
        classes: The number of classes.
        predicted: The predicted classes of the examples.
        copies: The predicted classes of their changed copies.
        measures: What is measured of this model alone, with standard errors.
        largest: The 95th percentile of the confidence.
        checked: The outputs at a few copies and examples, from which the model is known again.
        notes: On the data and the model.
    """

    kind: str
    classes: int
    predicted: Tensor
    copies: Tensor
    measures: Mapping[str, Estimate]
    largest: float = 1.0
    checked: Tensor | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _SomePaths(DrawnPaths):
    every: int = 1

    def blocks(self) -> list[slice]:
        return super().blocks()[:: self.every]


@dataclass(frozen=True, kw_only=True)
class Observer:
    """Observes one model after another on the same examples and the same changed copies."""

    examples: Examples
    indices: list[int]
    change: Any
    at: str | None
    seed: int
    train: Any
    batch_size: int | None
    device: Device
    dtype: torch.dtype | None
    keep: Path | None = None
    data: str = ""  # a hash of the examples and their copies, if observations are kept
    workers: int = 0  # of a task of Ray

    def keep_in(self, folder: Path, model: Model) -> "Observer":
        """Return one that keeps what it observes in a folder."""
        read_item, hashes = ItemReader(model), hash_parts(self.examples, self.indices, self.seed)
        partners = Partners(self.change, len(self.examples), read_item, option="change")
        with seed_everything(self.seed):  # a data set may draw
            for block in self._draw_paths().blocks():
                rows = self.indices[block]
                inputs = read_item(self.examples.fetch(rows)).inputs
                hashes.append(hash_examples(partners.fetch(inputs, rows, seed=self.seed, block=block.start)))
        return replace(self, keep=folder, data=hash_text("".join(hashes)))

    def measure(self, load: Load, update: Update = ignore) -> Observation:
        """Observe a model, or read what was kept of it."""
        model = load()
        if self.keep is None or not isinstance(model, nn.Module):
            return self._observe(model, update)
        identity = (
            hash_weights({**model.state_dict(), **dict(model.named_buffers())}),
            repr(model),
            list_numbers(model),
            self.data,
            self.train and LabeledExamples(self.train, "train", ItemReader(model)).fingerprint(self.seed),
            *(str(setting) for setting in (self.at, self.seed, self.dtype, self.indices)),
        )
        file = self.keep / f"{hash_text(repr(identity))}.pt"
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            columns, _ = self._run(model, every=self._every)
        return kept if kept.checked is not None and agree(kept.checked, columns["outputs"]) else None

    def try_out(self, model: Model) -> int:
        """Observe a model on two examples, to raise now what would fail on all; return the number of classes."""
        few = replace(self, indices=self.indices[:2], train=None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return few._observe(model, ignore).classes

    def _draw_paths(self, at: str | None = None, every: int = 1) -> _SomePaths:
        settings = PathSettings(
            nodes=NODES, sampling="uniform", at=at, seed=self.seed, paths=len(self.indices), partners=self.change
        )
        return _SomePaths(settings, torch.tensor([self.indices, self.indices], device="cpu").T, "change", every)

    @property
    def _every(self) -> int:
        return -(-len(self._draw_paths().blocks()) // _CHECKED)

    def _run(self, model: Model, every: int = 1, update: Update = ignore) -> tuple[dict[str, Tensor], list[str]]:
        """Run a model along the paths, or those of every n-th block; return a row for each, and notes."""
        at = self.at
        if at is None and are_tokens(ItemReader(model)(self.examples.fetch(self.indices[:1])).inputs):
            at = find_embeddings(model)
        looks = count()

        def read(returned: Any, points: int) -> Tensor:
            outputs = shaped_values(returned, "identity", points=points, look=next(looks) == 0, whose="network")
            if outputs.dim() > 2:
                as_class_logits(outputs)  # raises
            return outputs.reshape(points, -1)

        rows: dict[int, dict[str, Tensor]] = {}
        with inference(model, seed=self.seed, device=self.device, dtype=self.dtype) as runner:
            drawn = self._draw_paths(at, every)
            path_runner = PathRunner(runner, self.examples, drawn, self.batch_size)
            for group in path_runner.run(read, update=lambda done: update(done / len(self.indices))):
                columns = _summarize(group)
                for block, part in split_rows(group.blocks):
                    rows[block.start] = {name: column[part].cpu() for name, column in columns.items()}
        return {name: torch.cat([rows[start][name] for start in sorted(rows)]) for name in rows[0]}, path_runner.notes

    def _observe(self, model: Model, update: Update) -> Observation:
        columns, notes = self._run(model, update=update)
        outputs, copies = columns.pop("outputs"), columns.pop("copies")
        if not bool(columns.pop("finite").all()):
            raise NotFinite("its outputs are NaN or infinite.")
        logits = as_class_logits(outputs[:, 1])
        classes = logits.shape[1]
        log_probabilities = logits.double().log_softmax(1)
        probabilities = log_probabilities.exp()
        confidence = probabilities.amax(1)
        of_examples = {
            "confidence": confidence,
            "entropy": -(probabilities * log_probabilities).sum(1),
            **columns,
        }
        of_all = {
            "nuclear_norm": score_nuclear_norm(probabilities),
            "mano": _score_if_applicable(score_mano, logits),
            "energy": _score_if_applicable(score_energy, logits),
            "cot": score_cot(probabilities),
            "train_accuracy": None if self.train is None else self._measure_accuracy(model, classes),
        }
        measures: dict[str, Estimate] = {name: mean_and_stderr(values) for name, values in of_examples.items()}
        small = torch.int16 if classes <= 2**15 else torch.int32
        starts = [block.start for block in self._draw_paths(every=self._every).blocks()]
        checked = torch.cat([outputs[start : start + BLOCK] for start in starts])
        return Observation(
            kind=model_name(model),
            classes=classes,
            predicted=logits.argmax(1).to(small),
            copies=copies.to(small),
            measures=measures | {name: (value, None) for name, value in of_all.items() if value is not None},
            largest=float(confidence.quantile(0.95)),
            checked=checked,
            notes=tuple(notes),
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


def _score_if_applicable(score: Callable[[Tensor], float], logits: Tensor) -> float | None:
    try:
        return score(logits)
    except NotApplicable:  # two classes, or log-probabilities
        return None


def are_tokens(inputs: Tree) -> bool:
    """Return whether examples hold rows of integers, and no floating-point numbers."""
    leaves = [leaf for name, leaf in named_tensors(inputs) if not is_mask(name, leaf)]
    return bool(leaves) and all(not leaf.is_floating_point() and leaf.dim() == 2 for leaf in leaves)


def _summarize(group: PathBlocks) -> dict[str, Tensor]:
    """Return the outputs at the copies and examples, classes of the copies, and one number per path for all else."""
    logits = outputs = group.kept.unflatten(0, (-1, NODES))
    if outputs.shape[-1] == 1:  # the logit of class 1 of two
        logits = torch.cat([torch.zeros_like(outputs), outputs], dim=-1)
    probabilities = logits.softmax(-1)
    copy, example = probabilities[:, 0], probabilities[:, -1]
    fitted = summarize(logits, group.alpha, FitSettings(degree=NODES - 1, output="identity"))
    return {
        "outputs": outputs[:, [0, -1]],
        "copies": logits[:, 0].argmax(1),  # as of the examples: probabilities may be equal where logits are not
        "finite": outputs.isfinite().flatten(1).all(1),
        "inconsistency_soft": (copy - example).abs().sum(1).double() / 2,
        "effective_degree": summarize(probabilities, group.alpha, FitSettings(degree=NODES - 1))["effective_degree"],
        "effective_degree_normalized": fitted["effective_degree_normalized"],
        **compare_neighbors(probabilities),
    }
