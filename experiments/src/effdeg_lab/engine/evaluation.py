"""What a run evaluates: accuracy, loss, probabilities, the effective degree, and proxies of generalization."""

import statistics
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import effdeg
from effdeg import Measurement, Trace, proxies
from effdeg_lab.data.shifts import TestSet
from effdeg_lab.engine.examples import DeviceExamples, Split
from effdeg_lab.engine.loop import gather
from effdeg_lab.engine.probabilities import score_probabilities
from effdeg_lab.engine.settings import Training, parse_nodes_and_degree
from effdeg_lab.engine.step import autocast
from effdeg_lab.engine.streaming import StreamedSplit

T = TypeVar("T")

# Enough to follow training by; the last evaluation counts every training example.
_WATCHED = 10_000
_CHUNK = 1000
FOLLOWED: dict[str, Any] = {"paths": 100, "nodes": 64, "degree": 40}
"""How the effective degree is measured during training: with fewer paths and nodes than at the end."""
_PROXY_EXAMPLES = 2048  # that proxies are evaluated on
_DEGREES = ("effective_degree", "effective_degree_normalized")


def evaluate(model: nn.Module, examples: DeviceExamples, settings: Training, *, last: bool) -> dict[str, Any]:
    """Return accuracy and loss on training and test examples, and the accuracies of further tests."""
    train = examples.train if last else examples.train.first(_WATCHED)
    found: dict[str, Any] = {}
    for name, split in (("train", train), ("test", examples.test)):
        found[f"{name}_accuracy"], found[f"{name}_loss"] = score(model, examples, split, settings.precision)
    if examples.further_tests:
        further = examples.further_tests.items()
        found["further_tests"] = {name: score(model, examples, each, settings.precision)[0] for name, each in further}
    return found


def score_test(model: nn.Module, examples: DeviceExamples, settings: Training) -> dict[str, float]:
    logits, labels = map(torch.cat, zip(*_predict(model, examples, examples.test, settings.precision), strict=True))
    shares = zip(*collect(examples.test, (logits.cpu(), labels.cpu())), strict=True)
    return score_probabilities(*(torch.cat(each).to(logits.device) for each in shares))


def evaluate_corrupted(model: nn.Module, examples: DeviceExamples, settings: Training) -> dict[str, Any]:
    """Return the accuracy on test images with each corruption, their mean, and what they are; empty without them."""
    if examples.corrupted is None:
        return {}
    found = {
        kind: score_set(model, examples, each, settings.precision) for kind, each in examples.corrupted.images.items()
    }
    return {
        "corrupted": found,
        "corrupted_accuracy": statistics.fmean(found.values()),
        "corrupted_severity": examples.corrupted.severity,
        "corrupted_images": sum(len(labels) for _, labels in examples.corrupted.images.values()),
    }


def evaluate_shifted(
    model: nn.Module, examples: DeviceExamples, corrupted: float | None, settings: Training
) -> dict[str, Any]:
    """Return the accuracy on each further test set, and their mean; empty if there are none.

    For a fine-tuned network, the mean over corruptions is one of them.
    """
    found = {name: score_set(model, examples, each, settings.precision) for name, each in examples.shifted.items()}
    if corrupted is not None and settings.start_from != "scratch":
        found["corruptions"] = corrupted
    return {"shifted": found, "shifted_accuracy": statistics.fmean(found.values())} if found else {}


def score_set(
    model: nn.Module, examples: DeviceExamples, given: tuple[Tensor, Tensor] | TestSet, precision: str
) -> float:
    """Return the accuracy on images that are not on the device yet: one set at a time, as all may be too large."""
    if isinstance(given, TestSet):
        found = _predict(model, examples, given, precision)
        return sum(int((given.project(outputs).argmax(1) == labels).sum()) for outputs, labels in found) / len(given)
    (images, labels), device = given, examples.test.labels.device
    return score(model, examples, Split(images.to(device).contiguous(), labels.to(device)), precision)[0]


def follow_degree(model: nn.Module, examples: DeviceExamples) -> dict[str, float]:
    """Measure the effective degree roughly, during training; return it with how it was measured."""
    measured = effdeg.measure(model, _get_inputs(examples), **FOLLOWED)
    return {"value": measured.value, "stderr": measured.stderr, **FOLLOWED}


def measure_degree(model: nn.Module, examples: DeviceExamples, settings: Training) -> dict[str, Any]:
    """Measure the effective degree of a trained model, on examples it was not trained on.

    ``effective_degree_components`` has, by number of components, the values after the outputs of each path were reduced
    to principal components. ``measured_also`` has, by ``nodes/degree``, the same values along the same pairs, their
    correlation with the main measurement over paths, and what the main measurement's nodes give at this degree.
    """
    inputs = _get_inputs(examples)
    main = effdeg.trace(model, inputs, paths=settings.measure_paths, nodes=settings.measure_nodes)
    raw, logits = _fit(main, settings.measure_degree)
    found: dict[str, Any] = {"effective_degree": _get_values(raw, logits)}
    for components in settings.measure_components:
        fits = _fit(main, settings.measure_degree, components)
        found.setdefault("effective_degree_components", {})[str(components)] = _get_values(*fits)
    for name in settings.measure_also:
        nodes, degree = parse_nodes_and_degree(name)
        fits = _fit(effdeg.trace(model, inputs, paths=settings.measure_paths, nodes=nodes), degree)
        at_degree = fit_trace(main, degree)
        found.setdefault("measured_also", {})[name] = _get_values(*fits) | {
            "per_path_correlation": _correlate(fits[0].per_path, raw.per_path),
            "normalized_per_path_correlation": _correlate(fits[1].per_path_normalized, logits.per_path_normalized),
            "value_at_degree": at_degree["value"],
            "normalized_at_degree": at_degree["normalized"],
        }
    return found


def fit_trace(trace: Trace, degree: int) -> dict[str, float]:
    """Return the effective degree as the paper measures it, raw of probabilities and normalized of logits."""
    return _get_values(*_fit(trace, degree))


def measure_on_noise(model: nn.Module, examples: DeviceExamples, settings: Training) -> dict[str, float]:
    inputs = _get_inputs(examples)
    with torch.random.fork_rng(devices=[inputs.device] if inputs.is_cuda else []):
        torch.manual_seed(0)
        noise = examples.draw_noise(inputs)
    trace = effdeg.trace(model, noise, paths=settings.measure_paths, nodes=settings.measure_nodes)
    return fit_trace(trace, settings.measure_degree)


def measure_proxies(
    model: nn.Module, first: dict[str, Tensor], examples: DeviceExamples, settings: Training, *, progress: bool
) -> dict[str, Any]:
    """Evaluate the chosen proxies and the effective degree on training examples; ``first`` are the initial weights."""
    split = examples.train.first(_PROXY_EXAMPLES).load()
    names = None if "all" in settings.proxies else list(dict.fromkeys([*_DEGREES, *settings.proxies]))
    given, options = (examples.normalize(split.inputs), split.labels), _get_path_options(settings)
    table = proxies.evaluate(model, given, cross_entropy, names=names, reference=first, progress=progress, **options)
    return {"proxies": _list_values(table), "skipped": dict(table.skipped)}


def measure_test_proxies(
    model: nn.Module, examples: DeviceExamples, settings: Training, *, progress: bool
) -> dict[str, Any]:
    inputs = examples.normalize(examples.test.first(_PROXY_EXAMPLES).inputs)
    names, options = list(settings.test_proxies), _get_path_options(settings)
    return {"test_proxies": _list_values(proxies.evaluate(model, inputs, names=names, progress=progress, **options))}


def _get_path_options(settings: Training) -> proxies.RunOptions:
    return {"paths": settings.measure_paths, "nodes": settings.measure_nodes, "degree": settings.measure_degree}


def _list_values(table: proxies.Table) -> dict[str, dict[str, float | None]]:
    return {name: {"value": found.value, "stderr": found.stderr} for name, found in table.results.items()}


@torch.no_grad()
def _predict(
    model: nn.Module, examples: DeviceExamples, split: Split | TestSet, precision: str
) -> Iterator[tuple[Tensor, Tensor]]:
    training, device = model.training, examples.test.labels.device
    model.eval()
    for inputs, labels in split.chunks(_CHUNK):
        with autocast(device, precision):
            outputs = model(examples.normalize(inputs.to(device))).float()
        yield outputs, labels.to(device)
    model.train(training)


def score(model: nn.Module, examples: DeviceExamples, split: Split, precision: str) -> tuple[float, float]:
    right, loss = torch.zeros(2, device=split.labels.device).unbind()
    for outputs, labels in _predict(model, examples, split, precision):
        right = right + (outputs.argmax(1) == labels).sum()
        loss = loss + cross_entropy(outputs, labels, reduction="sum")
    rights, losses = zip(*collect(split, (float(right), float(loss))), strict=True)
    return sum(rights) / len(split), sum(losses) / len(split)


def collect(split: Split, found: T) -> list[T]:
    """Return what each process found in its share of a split; each process reads a split on the device as a whole."""
    return gather(found) if isinstance(split, StreamedSplit) else [found]


def _get_inputs(examples: DeviceExamples) -> Tensor:
    return examples.normalize(examples.test.first(2000).inputs)


def _fit(trace: Trace, degree: int, components: int | None = None) -> tuple[Measurement, Measurement]:
    raw = trace.fit(degree=degree, components=components)
    return raw, trace.fit(degree=degree, components=components, output="identity")


def _get_values(raw: Measurement, logits: Measurement) -> dict[str, float]:
    normalized, stderr = logits.normalized, logits.normalized_stderr
    return {"value": raw.value, "stderr": raw.stderr, "normalized": normalized, "normalized_stderr": stderr}


def _correlate(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one, other]))[0, 1])
