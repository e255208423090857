"""Models by name, made to fit the data."""

import copy
import inspect
import math
from collections.abc import Callable

from torch import nn

from effdeg._utils.checks import suggest
from effdeg.io import find_code
from effdeg.lab.models.mlp import MLP
from effdeg.lab.models.resnet import ResNet18
from effdeg.lab.models.vit import ViT

Shape = tuple[int, ...]


def make(name: str, *, shape: Shape, classes: int) -> nn.Module:
    """Make a model that fits the data.

    Args:
        name: ``vit-tiny``, ``resnet18``, ``mlp``, or ``package.module:callable``. A callable that takes ``classes``,
            ``num_classes`` or, for images, ``channels`` is given them by keyword.
        shape: The shape of one example.
        classes: How many classes there are.

    Returns:
        The model, with first weights drawn from torch's random stream.
    """
    if name in _MODELS:
        return _MODELS[name](name, shape, classes)
    if ":" not in name:
        raise ValueError(f"model={name!r} is not known. {suggest(name, _MODELS)} Your own is package.module:callable.")
    channels = {"channels": shape[0]} if len(shape) == 3 else {}
    return _from_code(name, {"classes": classes, "num_classes": classes, **channels})


def _vit_tiny(name: str, shape: Shape, classes: int) -> nn.Module:
    channels, height, width = _image(name, shape)
    return ViT(size=(height, width), channels=channels, classes=classes)


def _resnet18(name: str, shape: Shape, classes: int) -> nn.Module:
    return ResNet18(channels=_image(name, shape)[0], classes=classes)


def _mlp(_: str, shape: Shape, classes: int) -> nn.Module:
    return MLP(math.prod(shape), classes)


_MODELS: dict[str, Callable[[str, Shape, int], nn.Module]] = {
    "vit-tiny": _vit_tiny,
    "resnet18": _resnet18,
    "mlp": _mlp,
}


def _image(name: str, shape: Shape) -> tuple[int, int, int]:
    if len(shape) != 3:
        given = " × ".join(map(str, shape))
        raise ValueError(f"model={name!r} takes images, and the examples have the shape {given}: use model='mlp'.")
    channels, height, width = shape
    return channels, height, width


def _from_code(source: str, offered: dict[str, int]) -> nn.Module:
    found = find_code(source)
    if isinstance(found, nn.Module):
        return copy.deepcopy(found)  # so that the next run in this process begins with the same weights
    if not callable(found):
        raise TypeError(f"model={source!r} is {found!r}; expected something that returns an nn.Module.")
    taken = inspect.signature(found).parameters
    model = found(**{name: value for name, value in offered.items() if name in taken})
    if not isinstance(model, nn.Module):
        raise TypeError(f"model={source!r} returned {type(model).__name__}; expected an nn.Module.")
    return model
