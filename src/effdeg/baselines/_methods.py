"""What regularizes training, by name and in one shape: a training loop that knows one knows them all."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from effdeg._models.examples import as_arguments
from effdeg._models.layers import check_layer
from effdeg._utils.checks import check_choice, check_generator, check_weight, suggest
from effdeg._utils.tree import Tree
from effdeg.baselines._embedding_mixup import embedding_mixup
from effdeg.baselines._jacobian import JacobianPenalty
from effdeg.baselines._mixup import check_alpha, check_classes, mixup
from effdeg.baselines._sam import ASAM, SAM, Base, check_eta, check_rho
from effdeg.train._penalty import Penalty


@dataclass(frozen=True, eq=False)
class Method:
    """A way to regularize training, in the places of a training step where it acts: the batch, the loss, the optimizer.

    Attributes:
        name: Its name, as :func:`names` lists them, or several joined by ``+``.
        settings: The settings that were given.
        weight: The weight of the penalty, unless the loss is told another.
        mix: Mixes a batch and its labels.
        run: Runs a model on a batch that it mixes on the way, and mixes the labels.
        penalty: Runs a model and gives a penalty on top.
        wrap: Makes an optimizer around another.
    """

    name: str
    settings: dict[str, Any]
    weight: float = 0.0
    mix: Callable[..., tuple[Tree, Tensor]] | None = field(default=None, repr=False)
    run: Callable[..., tuple[Any, Tensor]] | None = field(default=None, repr=False)
    penalty: nn.Module | None = field(default=None, repr=False)
    wrap: Callable[..., Optimizer] | None = field(default=None, repr=False)

    def optimizer(self, model: nn.Module, base: Base, *, params: ParamsT | None = None, **options: Any) -> Optimizer:
        """Make the optimizer: the base itself, or one around it. Either steps by ``optimizer.step(closure)``.

        Args:
            model: The model to train.
            base: A torch optimizer class, or a function that is called like one.
            params: Its parameters in groups, named ones for ``"asam"``; by default all parameters of the model.
            **options: Further options of the base, such as ``lr``. Settings of the method itself, such
                as ``rho``, go to :func:`method`.

        Returns:
            The optimizer.
        """
        if self.wrap is not None and (misplaced := [name for name in _settings(self.wrap) if name in options]):
            given = ", ".join(f"{name}={options[name]!r}" for name in misplaced)
            raise TypeError(f"the optimizer was given {given}, which belongs into method({self.name!r}, {given}).")
        if params is None:
            params = model.named_parameters() if self.wrap is not None else model.parameters()
        return base(params, **options) if self.wrap is None else self.wrap(params, base, model=model, **options)

    def batch(self, x: Tree, y: Tensor) -> tuple[Tree, Tensor]:
        """Mix a batch and its labels, or give them back as they are."""
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
            x: The batch: a tensor, a tuple (which goes in as arguments) or a mapping (as keywords).
            y: The labels.
            criterion: The loss of what the model returned and the labels, which may be soft, such as torch's
                ``cross_entropy``.
            weight: The weight of the penalty at this step, by default the method's own. In a tensor it can move within
                compiled or captured steps. Without a penalty it has no effect.

        Returns:
            The loss.
        """
        if self.penalty is not None:
            outputs, value = self.penalty(model, x, y)
            total: Tensor = criterion(outputs, y) + (self.weight if weight is None else weight) * value
            return total
        if self.run is not None:
            return criterion(*self.run(model, x, y))
        arguments, keywords = as_arguments(x)
        return criterion(model(*arguments, **keywords), y)


def _settings(does: Callable[..., Any]) -> list[str]:
    """Name the settings of what makes a method: all that is not given during training."""
    later = {"x", "y", "model", "params", "named_parameters", "base", "base_options"}
    return [name for name in inspect.signature(does).parameters if name not in later]


@dataclass(frozen=True)
class _Part:
    """A method by itself: what does it, in which slot of a :class:`Method`, and where in a training step it acts."""

    does: Callable[..., Any] | None
    slot: str
    acts_on: tuple[str, ...]
    weight: float | None = None

    @property
    def settings(self) -> list[str]:
        """The names of its settings."""
        return [] if self.does is None else _settings(self.does)

    def make(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Fill its slot."""
        if self.does is None:
            return {}
        own = {name: value for name, value in settings.items() if name in self.settings}
        return {self.slot: self.does(**own) if self.slot == "penalty" else partial(self.does, **own)}


_PARTS = {
    "plain": _Part(None, "", ()),
    "mixup": _Part(mixup, "mix", ("the batch",)),
    "embedding-mixup": _Part(embedding_mixup, "run", ("the batch", "the loss")),
    "sam": _Part(SAM, "wrap", ("the optimizer",)),
    "asam": _Part(ASAM, "wrap", ("the optimizer",)),
    "jacobian": _Part(JacobianPenalty, "penalty", ("the loss",), weight=0.01),
    "ed": _Part(partial(Penalty, anchor_labels=True), "penalty", ("the loss",), weight=7.0),
}


# Penalties check their settings when they are made; what only begins with the training is checked before.
_CHECKS: dict[str, Callable[[Any], None]] = {
    "alpha": check_alpha,
    "classes": check_classes,
    "generator": check_generator,
    "rho": check_rho,
    "eta": check_eta,
}


def names() -> list[str]:
    """List the methods that :func:`method` knows."""
    return list(_PARTS)


def method(name: str, *, weight: float | None = None, **settings: Any) -> Method:
    """Return a way to regularize training by its name, to be swapped for another without touching the training loop.

    >>> method = effdeg.baselines.method("mixup+ed", alpha=1.0, classes=10, nodes=4)
    >>> optimizer = method.optimizer(model, torch.optim.AdamW, lr=1e-3)
    >>> for x, y in loader:
    ...     x, y = method.batch(x, y)
    ...
    ...     def closure():
    ...         optimizer.zero_grad()
    ...         loss = method.loss(model, x, y, cross_entropy)
    ...         loss.backward()
    ...         return loss
    ...
    ...     loss = optimizer.step(closure)

    ===================  ==================  ======  =================================================
    name                 acts on             weight  settings
    ===================  ==================  ======  =================================================
    ``plain``            nothing                     none
    ``mixup``            the batch                   those of :func:`mixup`
    ``embedding-mixup``  the batch and loss          those of :func:`embedding_mixup`; needs ``at``
    ``sam``              the optimizer               ``rho``
    ``asam``             the optimizer               ``rho``, ``eta``
    ``jacobian``         the loss            0.01    those of :class:`JacobianPenalty`
    ``ed``               the loss            7       those of :class:`effdeg.Penalty`, labels anchored
    ===================  ==================  ======  =================================================

    With ``sam`` and ``asam`` the closure runs twice in a step: on the same batch, mixed once if by ``mixup``, while the
    pairs and directions of penalties, dropout and the mixing of ``embedding-mixup`` are drawn anew in the second pass.

    Args:
        name: One of these, or several that act in different places, joined: ``"mixup+sam"``, ``"sam+ed"``.
        weight: The weight of the penalty, for those that have one.
        **settings: The settings of the parts. One that several have (``generator``) goes to each of them.

    Returns:
        The method.
    """
    name = _normalized(name)
    parts = _parts(name)
    known = [setting for part in parts.values() for setting in part.settings]
    for setting in settings:
        if setting not in known:
            hint = suggest(setting, dict.fromkeys(known)) if known else "It has none."
            raise TypeError(f"{setting!r} is not a setting of method {name!r}. {hint}")
    weights = [part.weight for part in parts.values() if part.weight is not None]
    if weight is not None and not weights:
        raise TypeError(f"weight={weight!r} is the weight of a penalty, but method {name!r} has none.")
    if weight is not None:
        check_weight(weight)
    if "embedding-mixup" in parts:
        if settings.get("at") is None:
            raise TypeError("method 'embedding-mixup' needs the layer to mix at, such as at='bert.embeddings'.")
        check_layer(settings["at"])
    for setting in settings.keys() & _CHECKS.keys():
        _CHECKS[setting](settings[setting])
    made = {slot: filled for part in parts.values() for slot, filled in part.make(settings).items()}
    return Method(name, settings, weight if weight is not None else sum(weights), **made)


def _normalized(name: object) -> str:
    """Write a name as :func:`names` does, whatever its capitals and spaces."""
    if not isinstance(name, str):
        raise TypeError(f"a method goes by its name, such as 'mixup+ed', but {name!r} was given.")
    return "+".join(each.strip().lower() for each in name.split("+"))


def _parts(name: str) -> dict[str, _Part]:
    """Find the parts of a method, of which no two act in one place."""
    acting: dict[str, str] = {}
    for each in name.split("+"):
        check_choice("method", each, _PARTS)
        for place in _PARTS[each].acts_on:
            if place in acting:
                raise ValueError(
                    f"method {name!r} joins {acting[place]!r} and {each!r}, which both act on {place}. Join only "
                    "methods that act in different places: the batch, the loss, the optimizer."
                )
            acting[place] = each
    return {each: _PARTS[each] for each in name.split("+")}
