"""Sharpness-aware minimization: descend along the gradient that is found a step uphill."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from effdeg._models.derivatives import ETA, steepest_ascent, weight_scales
from effdeg._models.layers import as_module
from effdeg._utils.checks import check_number
from effdeg.baselines._batchnorm import modules_called, statistics_kept

Base = Callable[..., Optimizer]
"""A torch optimizer class, or a function that is called like one."""


class _SharpnessAware(Optimizer):
    """Climbs within a ball of radius rho around the weights, and lets the base step with the gradient found there."""

    def __init__(
        self, params: ParamsT, base: Base, own: dict[str, float], model: nn.Module | None, base_options: dict[str, Any]
    ) -> None:
        _check_base(type(self).__name__, base)
        self.model = None if model is None else _check_model(model)
        self._own = tuple(own)
        self._found: Sequence[nn.Module] | None = None
        super().__init__(params, own)
        self.base = base(self.param_groups, **base_options)
        if not isinstance(self.base, Optimizer):
            raise TypeError(f"base must make a torch optimizer, but it made a {type(self.base).__name__}.")
        if needed := _needed_by_step(self.base):
            raise TypeError(
                f"{type(self.base).__name__}.step needs a {' and a '.join(needed)}, and {type(self).__name__} lets its "
                "base step by the gradient found uphill alone: it cannot be built on this one. Choose another base, "
                "such as torch.optim.SGD or torch.optim.AdamW."
            )
        if twice := sorted(own.keys() & self.base.defaults):
            raise TypeError(
                f"{type(self.base).__name__} has an option called {' and '.join(twice)} too, and each parameter group "
                f"can hold only one: {type(self).__name__} cannot be built on it. Choose another base."
            )
        self.defaults = {**self.base.defaults, **own}
        self._share()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make a step: run the closure at the weights, climb, run it there, come back and let the base step.

        Args:
            closure: Clears the gradients, runs the model forward and backward and returns the loss. Gradients may be
                accumulated over several backward passes, and clipped, in it.

        Returns:
            What the closure returned the first time: the loss at the weights themselves.
        """
        if closure is None:
            raise TypeError(
                f"{type(self).__name__} needs two gradients for one step, and so a closure to run twice:\n\n"
                "    def closure():\n        optimizer.zero_grad()\n        loss = cross_entropy(model(x), y)\n"
                "        loss.backward()\n        return loss\n\n    optimizer.step(closure)"
            )
        if self.model is not None:
            self._found = list(self.model.modules())
        if self._found is None:
            with modules_called() as called:
                loss = closure()
            self._found = list(called)
        else:
            loss = closure()
        # What the layers learn about their inputs they learn at the weights, not uphill.
        with statistics_kept(self._found):
            moved, before = self._climb()
            try:
                self.zero_grad()
                closure()
            finally:
                # From a copy: the sum of two numbers, less one of them, need not be the other.
                if moved:
                    with torch.no_grad():
                        torch._foreach_copy_(moved, before)
        self.base.step()
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, which may have settings of its own."""
        check_rho(param_group.get("rho", self.defaults["rho"]))
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        more = {"base": self.base, "model": self.model, "_own": self._own, "_found": None}
        return {**super().__getstate__(), **more}

    def __setstate__(self, state: dict[str, Any]) -> None:
        loaded = "base" not in state
        if loaded:
            # The base adds what checkpoints of older versions of it lack.
            self.base.__setstate__(state)
        super().__setstate__({} if loaded else state)
        self._share()

    def _share(self) -> None:
        """Share the groups and the state of the base, so that a learning rate changed here changes there."""
        self.param_groups, self.state = self.base.param_groups, self.base.state
        for group in self.param_groups:
            # A checkpoint of the base alone knows nothing of them.
            for name in self._own:
                group.setdefault(name, self.defaults[name])

    @torch.no_grad()
    def _climb(self) -> tuple[list[Tensor], list[Tensor]]:
        """Move the parameters that have gradients uphill; return them and their former values."""
        moved = [
            (parameter, group, index)
            for group in self.param_groups
            for index, parameter in enumerate(group["params"])
            if parameter.grad is not None
        ]
        parameters = [parameter for parameter, _, _ in moved]
        before = [torch.empty_like(parameter) for parameter in parameters]
        if moved:
            torch._foreach_copy_(before, parameters)
            scales = [self._scale(*each) for each in moved]
            uphill = steepest_ascent([_precise(parameter.grad) for parameter in parameters], scales)
            torch._foreach_mul_(uphill, [group["rho"] for _, group, _ in moved])
            torch._foreach_add_(parameters, uphill)
        return parameters, before

    def _scale(self, parameter: Tensor, group: dict[str, Any], index: int) -> Tensor | None:
        """Return the scale of a parameter, None for 1."""
        raise NotImplementedError


class SAM(_SharpnessAware):
    """Sharpness-aware minimization (Foret et al., 2021) around any torch optimizer whose step needs no closure.

    Each step takes two gradients: at the weights w, and at w + rho g / |g|, where the loss is highest nearby to first
    order. The base steps from w along the second, so that it looks for weights around which the loss is low too:

    >>> optimizer = effdeg.baselines.SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9, model=model)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = cross_entropy(model(x), y)
    ...     loss.backward()
    ...     return loss
    >>> loss = optimizer.step(closure)

    Parameter groups may have a ``rho`` each; the norm of the gradient is over all of them. Groups and state are those
    of the base, so learning-rate schedulers and checkpoints work as they do with it. After a step the weights come from
    a copy made before the climb, also if the closure raised; parameters without a gradient do not move. Dropout and
    other randomness draw anew in the second pass.

    LBFGS, whose own step needs a closure, cannot be a base, nor can Adadelta, which has a ``rho`` too.

    The running statistics of BatchNorm are those of the first pass. Its layers are found in ``model`` or else by
    watching which modules the closure calls in the first step, which then runs uncompiled; give ``model`` where others
    are called later on.

    In a CUDA graph a step can be captured if the base can, after a first step outside of it. ``GradScaler`` does not
    support closures: train in float32 or under bf16 autocast. Weights that are themselves in bf16 have too few digits
    for a climb as short as the papers'.

    Args:
        params: Parameters, named parameters or parameter groups, as for any torch optimizer.
        base: The class of the optimizer that makes the steps, or a function that is called like one.
        rho: How far to climb.
        model: The model whose BatchNorm layers are to learn from the first pass only.
        **base_options: Further options of the base, such as ``lr``.
    """

    def __init__(
        self, params: ParamsT, base: Base, *, rho: float = 0.05, model: nn.Module | None = None, **base_options: Any
    ) -> None:
        super().__init__(params, base, {"rho": rho}, model, base_options)

    def _scale(self, parameter: Tensor, group: dict[str, Any], index: int) -> None:  # noqa: ARG002
        return None


class ASAM(_SharpnessAware):
    """Adaptive sharpness-aware minimization (Kwon et al., 2021): :class:`SAM` in a ball that grows with the weights.

    The climb is rho T² g / |T g|. With T = |w| it moves with the weights when one ReLU layer is scaled up and the next
    one down, so that the loss climbs as high as before. As in the authors' code, T is |w| + eta for parameters with
    "weight" in their names and 1 for all others, such as biases: so this holds for networks without biases, and as far
    as weights are large against eta. Another well-known one (davda54/sam with ``adaptive=True``) has |w| without eta
    for every parameter, biases too.

    ::

        optimizer = effdeg.baselines.ASAM(model.named_parameters(), torch.optim.SGD, lr=0.1, momentum=0.9, model=model)

    All else is as in :class:`SAM`.

    Args:
        named_parameters: Named parameters, or parameter groups of them.
        base: The class of the optimizer that makes the steps, or a function that is called like one.
        rho: How far to climb, in units of the weights; a parameter group may have its own.
        eta: What is added to the size of a weight, so that weights near zero can move too; likewise.
        model: The model whose BatchNorm layers are to learn from the first pass only.
        **base_options: Further options of the base, such as ``lr``.
    """

    def __init__(
        self,
        named_parameters: ParamsT,
        base: Base,
        *,
        rho: float = 0.5,
        eta: float = ETA,
        model: nn.Module | None = None,
        **base_options: Any,
    ) -> None:
        super().__init__(named_parameters, base, {"rho": rho, "eta": eta}, model, base_options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of named parameters, which may have settings of its own."""
        check_eta(param_group.get("eta", self.defaults["eta"]))
        super().add_param_group(param_group)
        if "param_names" not in param_group:
            raise TypeError(
                "ASAM scales weights and not biases, which it tells by their names, and none were given: use "
                "ASAM(model.named_parameters(), …), in groups {'params': [(name, parameter), …]}."
            )

    def _scale(self, parameter: Tensor, group: dict[str, Any], index: int) -> Tensor | None:
        return weight_scales([(group["param_names"][index], parameter)], group["eta"])[0]


def check_rho(rho: float) -> None:
    """Raise unless this can be the distance to climb."""
    check_number("rho", rho, "it is how far to climb")


def check_eta(eta: float) -> None:
    """Raise unless this can be added to the size of weights."""
    check_number("eta", eta, "it is added to the size of weights", zero=True)


def _precise(gradient: Tensor) -> Tensor:
    # A norm in half precision may overflow, and that of a sparse tensor is unknown to torch.
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    return dense.to(torch.promote_types(dense.dtype, torch.float32))


def _check_base(name: str, base: object) -> None:
    if isinstance(base, Optimizer) or not callable(base):
        kind = type(base).__name__
        raise TypeError(
            f"base is {'an instance of ' if isinstance(base, Optimizer) else ''}{kind}; give the class and its "
            f"options, {name}(parameters, torch.optim.{kind if isinstance(base, Optimizer) else 'SGD'}, lr=…)."
        )


def _needed_by_step(base: Optimizer) -> list[str]:
    """Name what a step of an optimizer cannot do without."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(base.step).parameters.values()
    return [each.name for each in parameters if each.default is each.empty and each.kind not in variable]


def _check_model(model: object) -> nn.Module:
    module = as_module(model)
    if module is None:
        raise TypeError(f"model must be a module, to find its BatchNorm layers in, but it is {type(model).__name__}.")
    return module
