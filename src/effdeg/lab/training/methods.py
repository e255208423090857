"""From the settings of a run to its method."""

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from effdeg.lab.training.examples import Examples
from effdeg.lab.training.settings import Training
from effdeg.penalty import Penalty
from effdeg.rivals import Method, method

_PENALTY = ("nodes", "degree", "pairs", "sampling", "basis", "anchor_labels", "components", "at", "batchnorm")
_SETTINGS = {
    "mixup": ("alpha",),
    "sam": ("rho",),
    "asam": ("rho", "eta"),
    "jacobian": ("projections",),
    "ed": _PENALTY,
}


def made_method(settings: Training, *, classes: int = 10) -> Method:
    """Make the method of a run, checking its settings.

    Args:
        settings: The settings of the run.
        classes: How many classes there are, which mixup needs to know.

    Returns:
        The method.
    """
    parts = settings.method.split("+")
    if "embedding-mixup" in parts:
        raise ValueError("method=embedding-mixup mixes what a layer makes of token ids: the lab has no such data yet.")
    given: dict[str, Any] = {name: getattr(settings, name) for part in parts for name in _SETTINGS.get(part, ())}
    if "mixup" in parts:
        given["classes"] = classes
    if "jacobian" in parts:
        given["share"] = settings.jacobian_share
    made = method(settings.method, **given)
    if settings.weight is not None and made.penalty is not None:
        made = method(settings.method, weight=settings.weight, **given)
    _check_ends(settings, made)
    return made


def on_random_pixels(made: Method, examples: Examples) -> Method:
    """Let the penalty's paths join images of noise instead of the batch's."""
    assert isinstance(made.penalty, Penalty)
    return replace(made, penalty=RandomPixels(made.penalty, examples))


class RandomPixels(nn.Module):
    """A penalty whose paths join images of noise; the batch rides along in the same forward pass."""

    def __init__(self, penalty: Penalty, examples: Examples) -> None:
        super().__init__()
        self.penalty, self._examples = penalty, examples

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Give the batch's outputs and the effective degree along the paths."""
        points = self.penalty.points(self._examples.noise_like(x))
        outputs = model(points.append_to(x))
        return points.first_rows(outputs), self.penalty.degree(outputs, points)


def _check_ends(settings: Training, made: Method) -> None:
    if settings.ends == "data":
        return
    if not isinstance(made.penalty, Penalty):
        raise ValueError(f"ends={settings.ends} is about the paths of method=ed, not of {settings.method}.")
    if settings.anchor_labels:
        raise ValueError("ends=random-pixels joins noise, which has no labels: set anchor_labels=false.")
    if settings.sampling == "uniform" or settings.at is not None or settings.batchnorm == "frozen":
        raise ValueError("ends=random-pixels goes with sampling=cosine or chebyshev, at=none and batchnorm=joint only.")
