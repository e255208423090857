"""From the settings of a run to its method."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from effdeg.baselines import Method, method
from effdeg.lab.training.cuts import cut_mixed
from effdeg.lab.training.ends import ENDS, check_ends
from effdeg.lab.training.examples import DeviceExamples
from effdeg.lab.training.settings import Training
from effdeg.lab.training.simple_half import half_swapped, simple_half
from effdeg.train._penalty import Penalty

_PENALTY = ("nodes", "degree", "pairs", "sampling", "basis", "anchor_labels", "components", "at", "batchnorm")
_SETTINGS = {
    "mixup": ("alpha",),
    "sam": ("rho",),
    "asam": ("rho", "eta"),
    "jacobian": ("projections",),
    "ed": _PENALTY,
}
# What recombines the images of a batch, and possibly their labels, made to fit the examples.
_RECOMBINED: dict[str, Callable[[DeviceExamples], Callable[..., Any]]] = {
    "cutmix": lambda examples: partial(cut_mixed, classes=examples.classes),
    "swap-simple-half": lambda examples: partial(half_swapped, half=simple_half(examples)),
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
    check_ends(settings, made.penalty)
    if settings.augment in _RECOMBINED and made.mix is not None:
        raise ValueError(
            f"augment={settings.augment} and method={settings.method} both mix the batch: use one of them."
        )
    return made


def on_examples(made: Method, settings: Training, examples: DeviceExamples) -> Method:
    """Complete a method with what depends on the examples: the ends of its paths, and how images are recombined.

    Args:
        made: The method.
        settings: The settings of the run.
        examples: Its examples.

    Returns:
        The method as it is to be trained with.
    """
    if settings.ends in ENDS:
        assert isinstance(made.penalty, Penalty)
        if settings.ends != "random-pixels" and len(examples.shape) != 3:
            raise ValueError(f"ends={settings.ends} is for images; {settings.data} has features.")
        made = replace(made, penalty=ENDS[settings.ends](made.penalty, examples))
    if settings.augment in _RECOMBINED:
        made = replace(made, mix=_RECOMBINED[settings.augment](examples))
    return made
