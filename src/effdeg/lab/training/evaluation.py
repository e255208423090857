"""What a run looks at: accuracy and loss, the effective degree, and proxies of generalization."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import effdeg
from effdeg import proxies
from effdeg.lab.training.examples import DeviceExamples, Split
from effdeg.lab.training.precision import autocast
from effdeg.lab.training.randomness import seeds_kept
from effdeg.lab.training.settings import Training, nodes_and_degree
from effdeg.measure._measurement import Measurement
from effdeg.measure._tracing import Trace

# Enough to follow training by; the last evaluation counts every training example.
WATCHED = 10_000
_CHUNK = 1000
# While it trains, the effective degree is followed with fewer paths and nodes than in the end.
FOLLOWED = {"paths": 100, "nodes": 64, "degree": 40}
_DEGREES = ("effective_degree", "effective_degree_normalized")


@torch.no_grad()
def accuracy_and_loss(model: nn.Module, examples: DeviceExamples, split: Split, precision: str) -> tuple[float, float]:
    """Count what a model gets right, and average its loss, as it would be used: without dropout or augmentation."""
    training = model.training
    model.eval()
    device = split.labels.device
    right, loss = torch.zeros((), device=device), torch.zeros((), device=device)
    with autocast(device, precision):
        for start in range(0, len(split), _CHUNK):
            part = slice(start, start + _CHUNK)
            outputs, labels = model(examples.normalized(split.inputs[part])).float(), split.labels[part]
            right += (outputs.argmax(1) == labels).sum()
            loss += cross_entropy(outputs, labels, reduction="sum")
    model.train(training)
    return float(right) / len(split), float(loss) / len(split)


def evaluate(model: nn.Module, examples: DeviceExamples, settings: Training, *, last: bool) -> dict[str, Any]:
    """Return accuracy and loss on the examples that are trained and tested on, and the accuracies of further tests."""
    train = examples.train if last else examples.train.first(WATCHED)
    found: dict[str, Any] = {}
    for name, split in (("train", train), ("test", examples.test)):
        found[f"{name}_accuracy"], found[f"{name}_loss"] = accuracy_and_loss(model, examples, split, settings.precision)
    if examples.further_tests:
        found["further_tests"] = {
            name: accuracy_and_loss(model, examples, split, settings.precision)[0]
            for name, split in examples.further_tests.items()
        }
    return found


def follow_degree(model: nn.Module, examples: DeviceExamples) -> dict[str, float]:
    """Measure the effective degree roughly, during training, without disturbing what it will draw.

    Returns:
        The value and its standard error, and how it was measured: at the end of training it is in another way.
    """
    inputs = examples.normalized(examples.test.first(2000).inputs)
    paths, nodes, degree = FOLLOWED.values()
    measured = effdeg.measure(model, inputs, paths=paths, nodes=nodes, degree=degree)
    return {"value": measured.value, "stderr": measured.stderr, **FOLLOWED}


def describe_followed() -> str:
    """Name the effective degree that is measured during training, so that it is not taken for that at its end."""
    return f"ED ({FOLLOWED['paths']} paths × {FOLLOWED['nodes']} nodes)"


def measure_degree(model: nn.Module, examples: DeviceExamples, settings: Training) -> dict[str, Any]:
    """Measure the effective degree of a trained model, on examples it was not trained on, in all ways that are wanted.

    Args:
        model: The trained model.
        examples: The examples of the run.
        settings: The settings of the run.

    Returns:
        ``effective_degree``; and ``measured_also``, if other nodes and degrees are asked for, along the same pairs: by
        ``nodes/degree`` the same values, how those of single paths correlate with the measurement proper, and what the
        nodes of that give at this degree.
    """
    inputs = examples.normalized(examples.test.first(2000).inputs)
    proper = _trace(model, inputs, settings, settings.measure_nodes)
    raw, logits = _fits(proper, settings.measure_degree)
    also = {}
    for setting in settings.measure_also:
        nodes, degree = nodes_and_degree(setting)
        fits = _fits(_trace(model, inputs, settings, nodes), degree)
        at_degree = _values(*_fits(proper, degree))
        also[setting] = _values(*fits) | {
            "per_path_correlation": _correlation(fits[0].per_path, raw.per_path),
            "normalized_per_path_correlation": _correlation(fits[1].per_path_normalized, logits.per_path_normalized),
            "value_at_degree": at_degree["value"],
            "normalized_at_degree": at_degree["normalized"],
        }
    return {"effective_degree": _values(raw, logits)} | ({"measured_also": also} if also else {})


def measure_on_noise(model: nn.Module, examples: DeviceExamples, settings: Training) -> dict[str, float]:
    """Measure the effective degree of a trained model along paths between images of noise."""
    inputs = examples.normalized(examples.test.first(2000).inputs)
    with seeds_kept(inputs.device):
        torch.manual_seed(0)
        noise = examples.noise_like(inputs)
    return _values(*_fits(_trace(model, noise, settings, settings.measure_nodes), settings.measure_degree))


def _trace(model: nn.Module, inputs: Tensor, settings: Training, nodes: int) -> Trace:
    return effdeg.trace(model, inputs, paths=settings.measure_paths, nodes=nodes)


def _fits(trace: Trace, degree: int) -> tuple[Measurement, Measurement]:
    """Fit as the paper does: probabilities, whose raw value counts, and logits, whose normalized one does."""
    return trace.fit(degree=degree), trace.fit(degree=degree, output="identity")


def _values(probabilities: Measurement, logits: Measurement) -> dict[str, float]:
    return {
        "value": probabilities.value,
        "stderr": probabilities.stderr,
        "normalized": logits.normalized,
        "normalized_stderr": logits.normalized_stderr,
    }


def _correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one, other]))[0, 1])


def measure_proxies(
    model: nn.Module, untrained: nn.Module, examples: DeviceExamples, settings: Training, *, progress: bool
) -> dict[str, Any]:
    """Evaluate the chosen proxies on training examples, and the effective degree on the same.

    Args:
        model: The trained model.
        untrained: The model that training began with.
        examples: The examples of the run.
        settings: The settings of the run.
        progress: Show progress.

    Returns:
        Values by name, and why others were skipped.
    """
    split = examples.train.first(settings.proxy_examples)
    table = proxies.evaluate(
        model,
        (examples.normalized(split.inputs), split.labels),
        cross_entropy,
        names=None if "all" in settings.proxies else list(dict.fromkeys([*_DEGREES, *settings.proxies])),
        reference=untrained.state_dict(),
        progress=progress,
        paths=settings.measure_paths,
        nodes=settings.measure_nodes,
        degree=settings.measure_degree,
    )
    values = {name: {"value": found.value, "stderr": found.stderr} for name, found in table.results.items()}
    return {"proxies": values, "skipped": dict(table.skipped)}
