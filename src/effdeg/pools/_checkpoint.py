"""What is measured of one checkpoint: effective degrees from a single trace, proxies and accuracies."""

import copy
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from effdeg._adapters.arguments import DataNote, Item
from effdeg._adapters.examples import Examples
from effdeg._adapters.inference import Device, inference, seed_everything
from effdeg._adapters.labels import check_range, read_class_ids
from effdeg._adapters.layers import advice_for_integers
from effdeg._adapters.outputs import shaped_values
from effdeg._adapters.paths import check_interpolable
from effdeg._adapters.settings import FitSettings, PathSettings
from effdeg._adapters.spaces import default_layer
from effdeg._utils.checks import check_count
from effdeg._utils.device import Batches
from effdeg._utils.progress import Update, ignore
from effdeg._utils.tree import take
from effdeg.functional._conditioning import IllConditionedFit
from effdeg.io._models import load_weights
from effdeg.measuring import Measurement, Trace, trace
from effdeg.pools._comparison import note_uniform
from effdeg.pools._identity import LabeledExamples, agree, hash_weights
from effdeg.proxies import check_names
from effdeg.proxies._along_paths import compare_neighbors
from effdeg.proxies._evaluator import Evaluator, HalfPrecision, NotApplicable, check_finite
from effdeg.proxies._predictions import predict_classes
from effdeg.proxies._registry import evaluate_open, find_needs

_TRIED = 16  # examples of a trial
_KNOWN_BY = 16  # examples at which the outputs of a checkpoint are kept
_KEPT_OUTPUTS = 2048  # numbers: all outputs of some examples, even of many classes, whose order may change
_COMPARED_AT_ONCE = 16  # paths, which bounds the memory
_GUESSED = 64  # examples per class from which on half of the accuracy of guessing is far below it: 4 standard errors
WEIGHTS, OUTPUTS, NOTES = "weights", "outputs", "notes"
"""Not in the table: a hash of the weights as they were loaded, outputs at a few examples, and notes."""
DISAGREEMENT = "disagreement"
"""A measure of a checkpoint among others: its row first has the predicted classes, from which the table computes it."""
PREDICTIONS = ("confidence", "entropy", "nuclear_norm", DISAGREEMENT)
"""Measures of predictions that need no labels: they are in every row, to compare the effective degree with."""
ALONG_PATHS = ("total_variation", "decision_regions")
"""Proxies that come with the effective degree, from the same trace: they are in every row too."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckpointMeasurer:
    """Loads checkpoints into a model, one at a time, and measures each."""

    model: nn.Module
    data: LabeledExamples
    train: LabeledExamples | None
    paths: PathSettings
    degree: int
    components: tuple[int, ...]
    proxies: tuple[str, ...]
    proxy_examples: int
    dtype: torch.dtype | None
    batch_size: int | None
    workers: int
    device: Device

    def __post_init__(self) -> None:
        for components in (None, *self.components):
            FitSettings(degree=self.degree, components=components).check_nodes(self.paths.nodes)
        check_names(self.proxies)
        check_count("proxy_examples", self.proxy_examples, least=1)
        for kind, values in {"components": self.components, "proxies": self.proxies}.items():
            if repeated := [value for value, count in Counter(values).items() if count > 1]:
                raise ValueError(f"{kind}={repeated[0]!r} is given twice.")
        if degrees := [name for name in self.proxies if name.startswith("effective_degree")]:
            raise ValueError(
                f"proxies={degrees}: every row has the effective degree anyway. Leave it out of the proxies."
            )

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that decide the numbers of a row, for JSON."""
        own = {name: getattr(self, name) for name in ("degree", "components", "proxies", "proxy_examples")}
        dtype = None if self.dtype is None else str(self.dtype).removeprefix("torch.")
        return {**own, "dtype": dtype, **vars(self.paths)}

    def check_labels(self) -> None:
        """Raise if a proxy needs labels and there are none, or if examples that should differ are the same."""
        needing = [name for name in self.proxies if "labels" in find_needs(name)]
        if needing and self.train is None and not self.data.has_labels:
            raise ValueError(
                f"proxies={needing[0]!r} needs labels: give training examples with labels, train=…, or labels with the "
                "examples of data=…."
            )
        if self.train and self.data.has_labels and self.train.shares_inputs_with(self.data, self.paths.seed):
            raise ValueError(
                "data= and train= are the same examples, or most of them, so that every gap would be 0 or too small. "
                "Give examples that the models were not trained on as data=."
            )

    def try_out(self) -> dict[str, Any]:
        """Measure the model itself on a few examples, to raise now what would fail for every checkpoint."""
        if self.paths.at is None and default_layer(self.model, self.data.two.inputs) is None:  # before the model fails
            check_interpolable(self.data.two.inputs, advice=partial(advice_for_integers, self.model))
        model = copy.deepcopy(self.model)
        with seed_everything(0), torch.no_grad():
            for weight in model.parameters():
                # Some measures have no value for a head of zeros, with which fine-tuning often begins.
                if weight.is_floating_point():
                    weight.add_(torch.randn_like(weight), alpha=0.01)
        few: dict[str, Any] = {"data": self.data.first(_TRIED), "train": self.train and self.train.first(_TRIED)}
        few |= {"paths": replace(self.paths, paths=1), "proxy_examples": min(_TRIED, self.proxy_examples)}
        return replace(self, model=model, workers=0, **few).measure_model()

    def check_model(self, name: str, kept: Tensor) -> None:
        """Raise if the model, with the weights of a checkpoint, does not return what it did when this was measured."""
        if not agree(kept, self._run_few()):
            raise ValueError(
                f"the model returns something else than when {name} was measured, with the same weights at the same "
                "examples: its code has changed, such as the order of its classes, or a number that is not among its "
                "weights. Undo the change, or choose another file with out=."
            )

    def _run_few(self) -> Tensor:
        with self._open(self.data, examples=_KNOWN_BY) as evaluator:
            outputs = evaluator.outputs().flatten(1)
        return outputs[: max(1, _KEPT_OUTPUTS // outputs.shape[1]), :_KEPT_OUTPUTS]

    def measure(self, file: Path, update: Update = ignore) -> dict[str, Any]:  # noqa: ARG002
        """Return the row of a checkpoint, by the names of its columns."""
        load_weights(self.model, file)
        return self.measure_model() | {WEIGHTS: hash_weights(self.model.state_dict()), OUTPUTS: self._run_few()}

    def measure_model(self) -> dict[str, Any]:
        """Return the row of the model with the weights that it has."""
        accuracies = self._measure_accuracies()  # first, since they are the fastest to find wrong labels
        along, fits = self._measure_along_paths()
        notes = [note for fit in fits for note in fit.notes(fixed_output=True)]
        notes += [*note_uniform(fits[0]), *self._judge(accuracies, classes=fits[0].settings.outputs[-1])]
        notes += [each.two.note for each in (self.data, self.train) if each and each.two.note]
        row = {**along, **self._measure_predictions(), **self._measure_proxies(along), **accuracies}
        return row | {NOTES: notes}

    def _measure_along_paths(self) -> tuple[dict[str, float], list[Measurement]]:
        row: dict[str, float] = {}
        fits = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IllConditionedFit)  # said once for the whole pool
            traced = trace(self.model, self.data, **vars(self.paths), **self._running)
            try:
                traced.values("softmax", slice(1))
            except (TypeError, ValueError) as error:
                error.add_note("A pool has no output=, since it fits softmax: use a model that returns logits.")
                raise
            for components in (None, *self.components):
                after = "" if components is None else f"@{components}"
                raw = traced.fit(degree=self.degree, components=components)
                fits.append(raw)
                logits = traced.fit(degree=self.degree, components=components, output="identity")
                values = raw.value, raw.stderr, logits.normalized, logits.normalized_stderr
                kinds = "", "_stderr", "_normalized", "_normalized_stderr"
                row |= {f"effective_degree{kind}{after}": value for kind, value in zip(kinds, values, strict=True)}
        return row | _compare_neighbors(traced, classes=raw.settings.outputs[-1]), fits

    def _measure_predictions(self) -> dict[str, Any]:
        try:
            return self._evaluate([name for name in PREDICTIONS if name not in self.proxies], self.data)
        except NotApplicable:  # to several predictions per example, which do have an effective degree
            return {}

    def _measure_proxies(self, known: Mapping[str, float]) -> dict[str, Any]:
        proxies = [name for name in self.proxies if name not in known]
        needing = [name for name in proxies if "labels" in find_needs(name)]
        row = self._evaluate([name for name in proxies if name not in needing], self.data)
        row |= self._evaluate(needing, (self.train or self.data).examples)
        return {name: row[name] for name in proxies}

    def _evaluate(self, names: Sequence[str], data: LabeledExamples | Examples) -> dict[str, Any]:
        """Return proxies, from one pass; of ``LabeledExamples`` the inputs alone are read."""
        if not names:
            return {}
        with self._open(data, examples=self.proxy_examples) as evaluator:
            measured = evaluate_open(evaluator, [name for name in names if name != DISAGREEMENT]).row()
            classes = {DISAGREEMENT: predict_classes(evaluator)} if DISAGREEMENT in names else {}
        return {name: (measured | classes)[name] for name in names}

    @contextmanager
    def _open(self, data: LabeledExamples | Examples, **options: Any) -> Iterator[Evaluator]:
        names = ("paths", "nodes", "at", "seed")
        given = {name: getattr(self.paths, name) for name in names} | self._running | options
        with warnings.catch_warnings():
            for said_once_for_the_pool in (HalfPrecision, DataNote):
                warnings.simplefilter("ignore", said_once_for_the_pool)
            warnings.filterwarnings("ignore", "the network returned several tensors")  # noted in the row
            with Evaluator.open(self.model, data, cross_entropy, degree=self.degree, **given) as evaluator:
                yield evaluator

    @property
    def _running(self) -> dict[str, Any]:
        return {"batch_size": self.batch_size, "device": self.device, "dtype": self.dtype}

    def _measure_accuracies(self) -> dict[str, float]:
        examples = {"train_accuracy": self.train, "test_accuracy": self.data if self.data.has_labels else None}
        row = {name: self._measure_accuracy(each) for name, each in examples.items() if each}
        return row | ({"gap": row["train_accuracy"] - row["test_accuracy"]} if len(row) == 2 else {})

    def _judge(self, accuracies: Mapping[str, float], classes: int) -> list[str]:
        advice = f"far below that of guessing, 1 in {classes}: are the labels in the order of the model's outputs?"
        counts = {"train_accuracy": len(self.train or ()), "test_accuracy": len(self.data)}
        return [
            f"{name.replace('_', ' ')} is {advice}"
            for name, count in counts.items()
            if count >= _GUESSED * classes and accuracies.get(name, 1.0) < 0.5 / classes
        ]

    def _measure_accuracy(self, data: LabeledExamples) -> float:
        correct = 0
        with inference(self.model, seed=self.paths.seed, device=self.device, dtype=self.dtype) as runner:
            batches = Batches(self.batch_size, runner.device)
            every = range(len(data))
            parts: Any = [every[start : start + batches.size] for start in every[:: batches.size]]
            for item in DataLoader(parts, batch_size=None, num_workers=self.workers, collate_fn=data.fetch_item):

                def count(part: slice, item: Item = item) -> int:
                    points = part.stop - part.start
                    outputs = shaped_values(runner(runner.place(take(item.inputs, part))), "identity", points=points)
                    return _count_correct(outputs, item.labels[part], data.name)

                correct += sum(batches.run(count, len(item.labels)))
        return correct / len(data)


def _compare_neighbors(traced: Trace, classes: int) -> dict[str, float]:
    starts = range(0, len(traced.pairs), _COMPARED_AT_ONCE)
    parts = (traced.values("softmax", slice(start, start + _COMPARED_AT_ONCE)) for start in starts)
    found = [compare_neighbors(part.view(*part.shape[:2], -1, classes)) for part in parts]
    return {name: torch.cat([part[name] for part in found]).mean().item() for name in ALONG_PATHS}


def _count_correct(outputs: Tensor, labels: Any, name: str) -> int:
    if outputs.dim() != 2:
        raise ValueError(
            f"accuracy needs one row of logits per example; the model returns {tuple(outputs.shape[1:])} for each."
        )
    ids = read_class_ids(labels, f"the labels of {name}")
    check_range(ids, f"the labels of {name}", outputs.shape[-1])
    check_finite("outputs", outputs)
    return int((outputs.argmax(-1).cpu() == ids).sum())
