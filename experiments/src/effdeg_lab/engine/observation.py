"""What a picker sees of a trained network: its predictions for test examples and their changed copies, and measures.

Predictions are kept example by example, in a few kilobytes, so that any choice among any of the networks that were
observed on the same examples can be made again from the records.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import effdeg
from effdeg import changes, proxies
from effdeg_lab.engine.examples import DeviceExamples
from effdeg_lab.engine.settings import Training
from effdeg_lab.engine.step import evaluating

POINT_PROXIES: tuple[str, ...] = ("confidence", "entropy", "nuclear_norm", "thresholded_confidence")
"""The proxies that are recorded of the logits: names of :func:`effdeg.proxies.names`."""
DEGREES = (3, 5, 10, 20, 40)
"""The highest degrees that are fitted along paths."""
COPIES = "_copies"
"""What the names of measures on paths to changed copies end with."""
_LABELED, _LEAST_LABELED = 1000, 50  # other test examples, with labels, for thresholded confidence
_CHUNK = 2**23  # numbers in a batch, which bounds its memory
_DROPPED = 0.1
_SHIFT = 8  # as in effdeg.pick, images are shifted by up to their side divided by this

Array = np.ndarray[Any, Any]
Predicted = tuple[Tensor, Tensor]  # images as they are stored, and their labels


def observe_tests(model: nn.Module, examples: DeviceExamples, settings: Training) -> dict[str, Any]:
    """Observe a network on test examples, on images with all kinds of corruptions, and on every shifted test set."""
    device = examples.test.labels.device
    test = draw(len(examples.test), settings.observe)
    others = sorted({*range(len(examples.test))} - {*test.tolist()})[:_LABELED]
    found = {}
    for name, (images, labels) in _list_sets(examples, settings.observe):
        # Under shift, the labeled examples are of the test set, perhaps the very ones that it is observed on.
        kept = others if len(others) >= _LEAST_LABELED else [] if name == "test" else test.tolist()[:_LABELED]
        places = torch.tensor(kept, dtype=torch.long, device=device)
        labeled = (examples.normalize(examples.test.inputs[places]), examples.test.labels[places]) if kept else None
        inputs = examples.normalize(images.to(device))
        copies = make_copies(inputs, get_change(inputs))
        found[name] = observe(
            model, inputs, copies, labels, labeled=labeled, paths=settings.measure_paths, nodes=settings.measure_nodes
        )
    return {"observed": found}


def _list_sets(examples: DeviceExamples, count: int) -> Iterator[tuple[str, Predicted]]:
    """Yield the examples of each test set that networks are observed on, always the same ones."""
    test = draw(len(examples.test), count).to(examples.test.labels.device)
    yield "test", (examples.test.inputs[test], examples.test.labels[test])
    if examples.corrupted is not None:
        kinds = [*examples.corrupted.images.values()]
        places = draw(min(len(labels) for _, labels in kinds), count).tolist()
        chosen = [(kinds[number % len(kinds)], place) for number, place in enumerate(places)]
        yield "corrupted", tuple(torch.stack([kind[part][place] for kind, place in chosen]) for part in (0, 1))  # type: ignore[misc]
    for name, given in examples.shifted.items():
        if isinstance(given, tuple):
            drawn = draw(len(given[1]), count)
            yield name, (given[0][drawn], given[1][drawn])


def draw(total: int, count: int) -> Tensor:
    """Draw examples, the same ones in every run on the same data."""
    return torch.randperm(total, generator=torch.Generator().manual_seed(0))[:count].sort().values


def get_change(images: Tensor) -> changes.Change:
    """Return the usual change of :func:`effdeg.pick`: images are mirrored and shifted, those of one channel shifted."""
    shift = changes.shift(max(1, min(images.shape[-2:]) // _SHIFT))
    return shift if images.shape[1] == 1 else changes.compose(changes.mirror, shift)


def drop_tokens(tokens: Tensor, padding: int) -> Tensor:
    """Return tokens, examples × parts × length, of which a tenth is padding, as in :func:`effdeg.pick`."""
    ids, mask, *others = tokens.unbind(1)
    kept = changes.drop_tokens(_DROPPED, padding)({"input_ids": ids, "attention_mask": mask})["input_ids"]
    return torch.stack([kept, mask, *others], dim=1)


def make_copies(inputs: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Return changed copies, the same ones on every device."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # that of the CPU alone
        return change(inputs.cpu()).to(inputs.device)


def observe(
    model: Any,
    inputs: Tensor,
    copies: Tensor,
    labels: Tensor,
    *,
    paths: int,
    nodes: int,
    labeled: tuple[Tensor, Tensor] | None = None,
    embed: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None,
) -> dict[str, Any]:
    """Return what is kept of a network: predictions as text, the accuracy, and measures with their standard errors.

    Only ``accuracy`` and ``correct`` are computed from the labels; other examples are ``labeled``, for thresholded
    confidence. There are as many paths between different examples as from examples to their copies. For texts,
    ``embed`` returns embeddings, which paths lie between, and a mask; ``model.encode`` goes on from there.
    """
    outputs, changed = (_predict(model, each) for each in (inputs, copies))
    correct = (outputs.argmax(1) == labels.to(outputs.device)).cpu()
    soft = (outputs.softmax(1) - changed.softmax(1)).abs().sum(1).double() / 2
    measures = {"inconsistency_soft": _estimate(soft)}
    names = [name for name in POINT_PROXIES if labeled is not None or name != "thresholded_confidence"]
    known = None if labeled is None else (_predict(model, labeled[0]).cpu(), labeled[1].cpu())
    # From the logits, without further passes.
    measures |= _list_values(proxies.evaluate(nn.Identity(), outputs.cpu(), names=names, labeled=known))
    ends: tuple[Any, Any] = (inputs, copies)
    if embed is not None:
        ends = _embed(embed, inputs), _embed(embed, copies)
    options: dict[str, Any] = {"paths": min(paths, len(inputs)), "nodes": nodes, "device": inputs.device}
    options["batch_size"] = _count_per_batch(inputs)
    for suffix, partners in (("", None), (COPIES, ends[1])):
        own = _measure_paths(model if embed is None else model.encode, ends[0], **options, partners=partners)
        measures |= {_add_suffix(name, suffix): value for name, value in own.items()}
    return {
        "examples": len(inputs),
        "classes": outputs.shape[1],
        "accuracy": float(correct.double().mean()),
        "predicted": encode(outputs.argmax(1), outputs.shape[1]),
        "changed": encode(changed.argmax(1), outputs.shape[1]),
        "correct": base64.b64encode(np.packbits(correct.numpy()).tobytes()).decode(),
        "measures": measures,
    }


@torch.no_grad()
def _embed(embed: Callable[[Tensor], tuple[Tensor, Tensor]], tokens: Tensor) -> dict[str, Tensor]:
    return dict(zip(("hidden", "mask"), embed(tokens), strict=True))


def _measure_paths(model: Any, inputs: Any, *, nodes: int, **options: Any) -> dict[str, Any]:
    trace = effdeg.trace(model, inputs, nodes=nodes, **options)
    probabilities = trace.values("softmax")
    found = {
        "decision_regions": _estimate(1 + (probabilities.argmax(-1).diff(dim=1) != 0).sum(1).double()),
        "total_variation": _estimate(probabilities.diff(dim=1).abs().sum(1).mean(1).double()),
    }
    for degree in [each for each in DEGREES if each < nodes]:
        raw, logits = trace.fit(degree=degree), trace.fit(degree=degree, output="identity")
        found[f"effective_degree@{degree}"] = _round(raw.value, raw.stderr)
        found[f"effective_degree_normalized@{degree}"] = _round(logits.normalized, logits.normalized_stderr)
    return found


def _add_suffix(name: str, suffix: str) -> str:
    kind, at, number = name.partition("@")
    return f"{kind}{suffix}{at}{number}"


def _list_values(table: Mapping[str, proxies.Result]) -> dict[str, Any]:
    return {name: _round(result.value, result.stderr) for name, result in table.items()}


def _estimate(values: Tensor) -> dict[str, float | None]:
    return _round(float(values.mean()), float(values.std()) / len(values) ** 0.5)


def _round(value: float, stderr: float | None) -> dict[str, float | None]:
    """Return a value and its standard error with fewer digits, as there are many of them."""
    return {"value": float(f"{value:.7g}"), "stderr": None if stderr is None else float(f"{stderr:.3g}")}


def _predict(model: nn.Module, inputs: Tensor) -> Tensor:
    with evaluating(model):
        return torch.cat([model(part).float() for part in torch.split(inputs, _count_per_batch(inputs))])


def _count_per_batch(inputs: Tensor) -> int:
    return min(1024, max(1, _CHUNK * len(inputs) // inputs.numel()))


def encode(predicted: Tensor, classes: int) -> str:
    """Write predicted classes as text: one byte each, or two if there are more than 256 classes."""
    kind = np.uint8 if classes <= 256 else np.uint16
    return base64.b64encode(predicted.cpu().numpy().astype(kind).tobytes()).decode()


def decode(observed: Mapping[str, Any]) -> tuple[Array, Array, Array]:
    """Return the predicted classes of examples, those of their copies, and which predictions are correct."""
    kind = np.uint8 if observed["classes"] <= 256 else np.uint16
    predicted, changed = (
        np.frombuffer(base64.b64decode(observed[name]), kind).astype(np.int64) for name in ("predicted", "changed")
    )
    bits = np.unpackbits(np.frombuffer(base64.b64decode(observed["correct"]), np.uint8), count=observed["examples"])
    return predicted, changed, bits.astype(bool)
