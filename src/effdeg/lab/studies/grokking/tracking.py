"""What is looked at while a network learns: losses, accuracies, effective degree, and the measures beside it."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import effdeg
from effdeg import proxies
from effdeg.lab.studies.grokking.equations import Equations
from effdeg.lab.studies.grokking.settings import Grokking

# Token ids cannot be interpolated: paths live where they have become vectors.
_PATHS_AT = "embed"
# So many at once fill a GPU, and leave room on a small one.
_AT_ONCE = 8192
_MEASURES = {
    "parameter_norm": "parameter_norm",
    "sharpness": "sharpness@0.05",
    "adaptive_sharpness": "adaptive_sharpness@0.05",
}


def looked_at(model: nn.Module, train: Equations, validation: Equations, settings: Grokking) -> dict[str, Any]:
    """Measure a network, always on the same equations and paths, so that what changes is the network.

    Nothing is drawn from torch's own random numbers, and the network is left as it was.

    Args:
        model: The network.
        train: The equations it is trained on.
        validation: The others.
        settings: The settings of the run.

    Returns:
        Values by name. Sharpness is that of the loss on the equations that are trained on.
    """
    found: dict[str, Any] = {}
    for name, equations in (("train", train), ("validation", validation)):
        found[f"{name}_accuracy"], found[f"{name}_loss"] = accuracy_and_loss(model, equations)
        if not math.isfinite(found[f"{name}_loss"]):
            raise ValueError(
                f"the {name} loss is no longer a number: training diverged. Try a smaller lr than {settings.lr:g}."
            )
        found[f"{name}_effective_degree"] = _effective_degree(model, equations, settings)
    measured = proxies.evaluate(
        model, (train.tokens, train.answers), precise_loss, names=_MEASURES.values(), batch_size=_AT_ONCE
    )
    return found | {name: measured.results[proxy].value for name, proxy in _MEASURES.items()}


@torch.no_grad()
def accuracy_and_loss(model: nn.Module, equations: Equations) -> tuple[float, float]:
    """Return the share of equations that a network answers correctly, and its mean loss."""
    right = torch.zeros((), device=equations.answers.device, dtype=torch.float64)
    loss = torch.zeros_like(right)
    for start in range(0, len(equations), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        outputs, answers = model(equations.tokens[part]), equations.answers[part]
        right += (outputs.argmax(1) == answers).sum()
        loss += precise_loss(outputs, answers) * len(answers)
    return float(right) / len(equations), float(loss) / len(equations)


def precise_loss(outputs: Tensor, answers: Tensor) -> Tensor:
    """Return the mean cross entropy in float64: in float32 what is memorized well has a loss of 0, and no gradient."""
    return cross_entropy(outputs.double(), answers)


def _effective_degree(model: nn.Module, equations: Equations, settings: Grokking) -> dict[str, float]:
    trace = effdeg.trace(
        model, equations.tokens, paths=settings.measure_paths, nodes=settings.measure_nodes, at=_PATHS_AT
    )
    # As in the paper: raw on probabilities, normalized on logits.
    probabilities = trace.fit(degree=settings.measure_degree)
    logits = trace.fit(degree=settings.measure_degree, output="identity")
    return {
        "value": probabilities.value,
        "stderr": probabilities.stderr,
        "normalized": logits.normalized,
        "normalized_stderr": logits.normalized_stderr,
    }
