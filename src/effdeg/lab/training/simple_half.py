"""Which half of the images is too simple: the one that a function of degree one can tell the classes from."""

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, one_hot

from effdeg._utils.shapes import Bool
from effdeg.lab.training.examples import DeviceExamples

# A half is held back only if it tells so much more, in shares of the examples, than the half that is left.
_LEAST_ADVANTAGE = 0.1
# Of so many training examples one half is fitted and the other half predicted, in images of so few pixels a side.
_EXAMPLES, _PIXELS, _DAMPING = 2000, 16, 1.0
_OPPOSITE = {"upper": "lower", "lower": "upper", "left": "right", "right": "left"}


def simple_half(examples: DeviceExamples) -> Bool[Tensor, "1 height width"]:
    """Find the half of the images from which a linear function tells the classes far better than from the other half.

    Ridge regression on coarse pixels is tried on the upper, the lower, the left and the right half of some training
    examples. It looks at nothing else, so that every run on the same data finds the same half.

    Args:
        examples: The examples of a run, which are images.

    Returns:
        The pixels of that half, on the device of the examples.
    """
    halves = _halves(*examples.shape[1:])
    found = {name: _linear_accuracy(examples, half) for name, half in halves.items()}
    best = max(found, key=lambda name: found[name] - found[_OPPOSITE[name]])
    if found[best] - found[_OPPOSITE[best]] < _LEAST_ADVANTAGE:
        told = ", ".join(f"{name} {accuracy:.1%}" for name, accuracy in found.items())
        raise ValueError(
            f"no half of these images tells a linear function the classes of {_LEAST_ADVANTAGE:.0%} more examples than "
            f"the half that is left ({told}): there is no simple half to hold back."
        )
    return halves[best].to(examples.train.labels.device)


def half_swapped(images: Tensor, labels: Tensor, *, half: Tensor) -> tuple[Tensor, Tensor]:
    """Replace one half of about every second image by that of the image before it in the shuffled batch."""
    swapped = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
    return torch.where(half & swapped, images.roll(1, 0), images), labels


def _halves(height: int, width: int) -> dict[str, Tensor]:
    upper = (torch.arange(height) < height // 2).view(1, height, 1).expand(1, height, width)
    left = (torch.arange(width) < width // 2).view(1, 1, width).expand(1, height, width)
    return {"upper": upper, "lower": ~upper, "left": left, "right": ~left}


def _linear_accuracy(examples: DeviceExamples, half: Tensor) -> float:
    """Fit ridge regression to some examples, and give its accuracy on as many others; the same on every device."""
    split = examples.train.first(_EXAMPLES)
    images = examples.normalized(split.inputs).cpu().double() * half
    coarse = adaptive_avg_pool2d(images, _PIXELS).flatten(1)
    features = torch.cat([coarse, torch.ones_like(coarse[:, :1])], dim=1)
    labels, fitted = split.labels.cpu(), len(split) // 2
    known, targets = features[:fitted], one_hot(labels[:fitted], examples.classes).double()
    gram = known.mT @ known + _DAMPING * torch.eye(known.shape[1], dtype=known.dtype)
    predicted = features[fitted:] @ torch.linalg.solve(gram, known.mT @ targets)
    return float((predicted.argmax(1) == labels[fitted:]).double().mean())
