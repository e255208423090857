"""Regularization methods by name, behind one interface: a training loop that runs one runs them all."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from effdeg._adapters.examples import as_arguments
from effdeg._adapters.layers import check_layer
from effdeg._utils.checks import check_choice, check_weight, suggest
from effdeg._utils.tree import Tree
from effdeg.baselines._cutmix import cutmix
from effdeg.baselines._jacobian import JacobianPenalty
from effdeg.baselines._manifold_mixup import check_layers, embedding_mixup, manifold_mixup
from effdeg.baselines._mixup import mixup
from effdeg.baselines._neftune import NEFTune
from effdeg.baselines._r3f import R3F
from effdeg.baselines._rdrop import RDrop
from effdeg.baselines._regmixup import RegMixup
from effdeg.baselines._sam import ASAM, SAM, Base
from effdeg.baselines._shared import check_settings
from effdeg.train._penalty import Penalty


@dataclass(frozen=True, eq=False)
class Method:
    """A regularization method, split into the parts of a training step where it acts: batch, loss and optimizer.

    :func:`method` creates it and has an example of a training step.

    Example:
        >>> from effdeg.baselines import method
        >>> method("SAM + ED", rho=0.1)
        Method(name='sam+ed', settings={'rho': 0.1}, weight=7.0)

    Attributes:
        name: Its name, as in :func:`names`, or several joined by ``+``.
        settings: The settings that were given.
        weight: The weight of the penalty, unless :meth:`loss` is given another.
        mix: Mixes a batch and its labels.
        run: Runs a model on a batch that is changed inside the model, and mixes the labels if it is mixed.
        penalty: Runs a model and returns its output, a penalty, and the labels of this output if they differ from y.
        wrap: Creates an optimizer around another.
    """

    name: str
    settings: dict[str, Any]
    weight: float = 0.0
    mix: Callable[..., tuple[Tree, Tensor]] | None = field(default=None, repr=False)
    run: Callable[..., tuple[Any, Tensor]] | None = field(default=None, repr=False)
    penalty: nn.Module | None = field(default=None, repr=False)
    wrap: Callable[..., Optimizer] | None = field(default=None, repr=False)

    def optimizer(self, model: nn.Module, base: Base, *, params: ParamsT | None = None, **options: Any) -> Optimizer:
        """Return the optimizer: the base itself, or one around it. Both step with ``optimizer.step(closure)``.

        Args:
            model: The model to train.
            base: A torch optimizer class, or a function that is called like one.
            params: Its parameters in groups, named ones for ``"asam"``; by default all parameters of the model.
            **options: Further options of the base, such as ``lr``.

        Raises:
            TypeError: If a setting of the method is among the options.
        """
        if self.wrap is not None and (misplaced := [name for name in _setting_names(self.wrap) if name in options]):
            given = ", ".join(f"{name}={options[name]!r}" for name in misplaced)
            raise TypeError(f"the optimizer was given {given}, which belongs in method({self.name!r}, {given}).")
        if params is None:
            params = model.named_parameters() if self.wrap is not None else model.parameters()
        return base(params, **options) if self.wrap is None else self.wrap(params, base, model=model, **options)

    def batch(self, x: Tree, y: Tensor) -> tuple[Tree, Tensor]:
        """Return the batch and its labels, mixed if the method mixes them."""
        return (x, y) if self.mix is None else self.mix(x, y)

    def loss(
        self,
        model: Callable[..., Any],
        x: Tree,
        y: Tensor,
        criterion: Callable[[Any, Tensor], Tensor],
        *,
        weight: float | Tensor | None = None,
    ) -> Tensor:
        """Run a model on a batch and compute the loss, with the penalty if there is one.

        Args:
            model: The model.
            x: The batch: a tensor, a tuple (passed as arguments) or a mapping (passed as keywords).
            y: The labels.
            criterion: A function of the model's output and the labels, which may be soft, such as torch's
                ``cross_entropy``.
            weight: The weight of the penalty at this step, by default the method's own. As a tensor it can change in
                compiled or captured steps. Without a penalty it has no effect.
        """
        if self.penalty is not None:
            outputs, value, *labels = self.penalty(model, x, y)
            loss = criterion(outputs, labels[0] if labels else y)
            total: Tensor = loss + (self.weight if weight is None else weight) * value
            return total
        if self.run is not None:
            return criterion(*self.run(model, x, y))
        arguments, keywords = as_arguments(x)
        return criterion(model(*arguments, **keywords), y)


def _setting_names(function: Callable[..., Any]) -> list[str]:
    later = {"x", "y", "model", "params", "named_parameters", "base", "base_options"}
    return [name for name in inspect.signature(function).parameters if name not in later]


@dataclass(frozen=True)
class _Part:
    """A single method: its function or class, the slot of :class:`Method` it fills, and the weight of its penalty."""

    function: Callable[..., Any]
    slot: str
    weight: float | None = None

    def build(self, settings: dict[str, Any]) -> Callable[..., Any]:
        """Return what fills the slot, with the settings that belong to it."""
        own = {name: value for name, value in settings.items() if name in _setting_names(self.function)}
        made_now = self.slot == "penalty" or self.function is NEFTune
        return self.function(**own) if made_now else partial(self.function, **own)


_ACTS_ON = {
    "mix": ("the batch",),
    "run": ("the batch", "the loss"),
    "penalty": ("the loss",),
    "wrap": ("the optimizer",),
}
"""Where in a step the slots act."""

_PARTS = {
    "mixup": _Part(mixup, "mix"),
    "cutmix": _Part(cutmix, "mix"),
    "regmixup": _Part(RegMixup, "penalty", 1.0),
    "embedding-mixup": _Part(embedding_mixup, "run"),
    "manifold-mixup": _Part(manifold_mixup, "run"),
    "neftune": _Part(NEFTune, "run"),
    "sam": _Part(SAM, "wrap"),
    "asam": _Part(ASAM, "wrap"),
    "jacobian": _Part(JacobianPenalty, "penalty", 0.01),
    "rdrop": _Part(RDrop, "penalty", 0.5),
    "r3f": _Part(R3F, "penalty", 1.0),
    "ed": _Part(partial(Penalty, anchor="labels"), "penalty", 7.0),
}


def names() -> list[str]:
    """Return the names of the methods that :func:`method` knows.

    Example:
        >>> from effdeg.baselines import names
        >>> [name for name in names() if "mix" not in name]
        ['plain', 'neftune', 'sam', 'asam', 'jacobian', 'rdrop', 'r3f', 'ed']
    """
    return ["plain", *_PARTS]


def method(name: str, *, weight: float | None = None, **settings: Any) -> Method:
    """Return a regularization method by its name; another can replace it without changing the training loop.

    The methods are ``plain`` (does nothing), ``mixup`` and ``cutmix`` (act on the batch), ``embedding-mixup``,
    ``manifold-mixup`` and ``neftune`` (the batch and the loss), ``sam`` and ``asam`` (the optimizer), and, with these
    weights in the loss, ``regmixup`` and ``r3f`` (1), ``jacobian`` (0.01), ``rdrop`` (0.5) and ``ed`` (7):
    :class:`effdeg.Penalty` with labels anchored. Settings are those of the function or class of the method.

    With ``sam`` and ``asam`` the closure runs twice in a step. A batch mixed by ``mixup`` or ``cutmix`` stays the same;
    the pairs and directions of penalties, dropout and mixing within the loss are drawn anew in the second pass.

    Example:
        >>> import torch
        >>> from effdeg import baselines
        >>> model, x, y = torch.nn.Linear(6, 3), torch.rand(8, 6), torch.randint(3, (8,))
        >>> method = baselines.method("mixup+ed", alpha=1.0, classes=3, nodes=4)
        >>> optimizer = method.optimizer(model, torch.optim.AdamW, lr=1e-3)
        >>> mixed, soft = method.batch(x, y)
        >>> def closure():
        ...     optimizer.zero_grad()
        ...     loss = method.loss(model, mixed, soft, torch.nn.functional.cross_entropy)
        ...     loss.backward()
        ...     return loss
        >>> optimizer.step(closure).shape
        torch.Size([])

    Args:
        name: One of these, in upper or lower case, or several that act in different places, joined: ``"mixup+sam"``.
        weight: The weight of the penalty, for methods that have one.
        **settings: The settings of the parts. One that several have (``generator``) goes to each of them.

    Raises:
        TypeError: If a setting is unknown or of the wrong type, a weight is given without a penalty, or
            ``manifold-mixup`` lacks ``at``.
        ValueError: If the name is not known, two parts act in the same place, or a setting is out of range.
    """
    if not isinstance(name, str):
        raise TypeError(f"a method is chosen by its name, such as 'mixup+ed', but {name!r} was given.")
    name = "+".join(part.strip().lower() for part in name.split("+"))
    parts = _find_parts(name)
    known = [setting for part in parts.values() for setting in _setting_names(part.function)]
    for setting in settings:
        if setting not in known:
            hint = suggest(setting, dict.fromkeys(known)) if known else "It has none."
            raise TypeError(f"{setting!r} is not a setting of method {name!r}. {hint}")
    weights = [part.weight for part in parts.values() if part.weight is not None]
    if weight is not None:
        if not weights:
            raise TypeError(f"weight={weight!r} is the weight of a penalty, but method {name!r} has none.")
        varying = "is given to Method.loss at every step: weight=ramp(step), with ramp = effdeg.SineRamp(…)"
        check_weight(weight, varying=varying)
    if "embedding-mixup" in parts and settings.get("at") is not None:
        check_layer(settings["at"])
    if "manifold-mixup" in parts:
        check_layers(settings.get("at"))
    # Penalties check their settings when they are created; the others would only do so in training.
    check_settings(**{name: value for name, value in settings.items() if name != "at"})
    slots: dict[str, Any] = {part.slot: part.build(settings) for part in parts.values()}
    return Method(name, settings, weight if weight is not None else sum(weights), **slots)


def _find_parts(name: str) -> dict[str, _Part]:
    acting: dict[str, str] = {}
    names_of_parts = name.split("+")
    for part in names_of_parts:
        check_choice("method", part, names())
        for place in _ACTS_ON[_PARTS[part].slot] if part in _PARTS else ():
            if place in acting:
                raise ValueError(
                    f"method {name!r} joins {acting[place]!r} and {part!r}, which both act on {place}. Join only "
                    "methods that act in different places: the batch, the loss, the optimizer."
                )
            acting[place] = part
    return {part: _PARTS[part] for part in names_of_parts if part in _PARTS}
