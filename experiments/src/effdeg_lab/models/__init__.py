"""Models by name, sized to fit the data: small built-in ones, or a user's own."""

import copy
import inspect
import math
import re
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from effdeg.io import find_code
from effdeg_lab.core.settings import suggest
from effdeg_lab.models.decoder import Decoder
from effdeg_lab.models.pretrained import PRETRAINED, get_margin, load_pretrained
from effdeg_lab.models.resnet import ResNet9, ResNet18
from effdeg_lab.models.vit import SIZES, ViT

__all__ = ["MLP", "PRETRAINED", "Decoder", "ResNet9", "ResNet18", "ViT", "get_margin", "make_model"]

_NAMES = ("vit-tiny", "vit-tiny-mean", "vit-s16", "resnet18", "resnet9", "mlp")
_RESNET = re.compile(r"resnet(9|18)(?:-([1-9]\d*))?")
# The size of a ViT by its letters, the pixels a side of a patch, then departures from the ViT paper.
_VIT = re.compile(rf"vit-({'|'.join(SIZES)}|[1-9]\d*x[1-9]\d*-)([1-9]\d*)(-mean)?(-sincos)?")
_HEAD = 32  # the width of a head of vit-128x4-8


class MLP(nn.Module):
    """A ReLU network with two hidden layers that flattens its inputs; by default as wide as the demo's."""

    def __init__(self, inputs: int, classes: int, *, width: int = 256) -> None:
        super().__init__()
        first, second = ((nn.Linear(before, width), nn.ReLU()) for before in (inputs, width))
        self.layers = nn.Sequential(*first, *second, nn.Linear(width, classes))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs.flatten(1))


def make_model(
    name: str, *, shape: tuple[int, ...], classes: int, dropout: float = 0.0, data: Path | None = None
) -> nn.Module:
    """Make a model for examples of a given shape, initialized from torch's global generator.

    Its name is ``vit-tiny``, ``vit-tiny-mean``, ``resnet18``, ``resnet9``, ``mlp``, or ``package.module:callable``. A
    callable that takes ``classes``, ``num_classes`` or, for images, ``channels`` is given them by keyword. The first
    convolution of ``resnet9-8`` has 8 channels instead of 64, and the others are narrower by the same factor.

    ``vit-s16`` and the like are published sizes of ViT: ``mu``, ``ti``, ``s``, ``b`` or ``l``, and the pixels a side of
    a patch. ``vit-s16-mean`` has the mean of the patches instead of a class token, ``vit-s16-mean-sincos`` also fixed
    positions. They are initialized as in big_vision. ``vit-128x4-8`` has the width 128, the depth 4 and patches of 8
    pixels a side.

    ``deit-tiny``, ``clip-b32`` and ``clip-b16`` are pretrained, and read from the data folder.
    """
    check_model(name, dropout=dropout)
    if name in PRETRAINED:
        return load_pretrained(name, data, shape=shape, classes=classes)
    if name == "mlp":
        return MLP(math.prod(shape), classes)
    if ":" in name:
        image = {"channels": shape[0]} if len(shape) == 3 else {}
        return _make_from_code(name, {"classes": classes, "num_classes": classes, **image})
    if len(shape) != 3:
        given = " × ".join(map(str, shape))
        raise ValueError(f"model={name!r} takes images, and the examples have the shape {given}: use model='mlp'.")
    channels, height, width = shape
    if residual := _RESNET.fullmatch(name):
        kind = ResNet18 if residual[1] == "18" else ResNet9
        return kind(width=int(residual[2] or 64), channels=channels, classes=classes)
    fitted: dict[str, Any] = {
        "size": (height, width), "channels": channels, "classes": classes, "dropout": dropout,
        "pool": "mean" if "-mean" in name else "token",
    }  # fmt: skip
    if not (vit := _VIT.fullmatch(name)):
        return ViT(**fitted)
    size, patch, _, sincos = vit.groups()
    model = ViT(**fitted, **_read_size(size), patch=int(patch), positions="sincos" if sincos else "learned")
    model.initialize()
    return model


def _read_size(text: str) -> dict[str, Any]:
    """Read the size of a ViT: its letters, or its width and depth."""
    if text in SIZES:
        return SIZES[text]
    width, depth = map(int, text.removesuffix("-").split("x"))
    if width % _HEAD:
        raise ValueError(f"vit-{text} has a width that is not a multiple of {_HEAD}.")
    return {"width": width, "depth": depth, "heads": width // _HEAD}


def check_model(name: str, *, dropout: float) -> None:
    if dropout and not (name.startswith("vit-tiny") or _VIT.fullmatch(name)):
        raise ValueError(f"dropout={dropout:g} is for vision transformers, not for model={name!r}: set dropout=0.")
    if not (":" in name or name in {*_NAMES, *PRETRAINED} or _RESNET.fullmatch(name) or _VIT.fullmatch(name)):
        hint = suggest(name, [*_NAMES, *PRETRAINED])
        raise ValueError(f"model={name!r} is not known. {hint} Your own is package.module:callable.")


def _make_from_code(source: str, offered: dict[str, int]) -> nn.Module:
    found = find_code(source)
    if isinstance(found, nn.Module):
        return copy.deepcopy(found)  # the next run in this process starts with the same weights
    if not callable(found):
        raise TypeError(f"model={source!r} is {found!r}; expected something that returns an nn.Module.")
    taken = inspect.signature(found).parameters
    model = found(**{name: value for name, value in offered.items() if name in taken})
    if not isinstance(model, nn.Module):
        raise TypeError(f"model={source!r} returned {type(model).__name__}; expected an nn.Module.")
    return model
