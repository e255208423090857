"""Sharpness-aware minimization: descend along the gradient found a step uphill."""

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from effdeg._adapters.derivatives import ETA, steepest_ascent, weight_scales
from effdeg._adapters.layers import as_module, eager
from effdeg.baselines._shared import check_settings

Base = Callable[..., Optimizer]
"""A torch optimizer class, or a function that is called like one."""

# By name, as torch's BatchNorm, SyncBatchNorm and InstanceNorm and most custom layers have them.
_RUNNING_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class SAM(Optimizer):
    """Sharpness-aware minimization (Foret et al., 2021) around any torch optimizer whose step needs no closure.

    Each step takes two gradients: g(w) at the weights w, and g(w + ρ g(w) / |g(w)|), where the loss is highest within a
    distance ρ to first order. The base steps from w along the second one, towards weights around which the loss is low.

    Parameter groups may each have their own ``rho``; the norm of the gradient is over all of them. Groups and state are
    those of the base, so learning-rate schedulers and checkpoints work as usual. Weights are restored exactly after the
    ascent, even if the closure raises. Dropout and other randomness are drawn anew in the second pass.

    The running statistics of BatchNorm are those of the first pass. Its layers are found in ``model``, or else by
    recording which modules the closure calls in the first step, which then runs uncompiled.

    A step can be captured in a CUDA graph if that of the base can, after a first step outside of it. ``GradScaler``
    does not support closures: train in float32 or under bf16 autocast. bf16 weights have too few digits for the ascent.

    Example:
        >>> import torch
        >>> from effdeg.baselines import SAM
        >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> optimizer = SAM([weight], torch.optim.SGD, rho=0.5, lr=0.5)
        >>> def closure():
        ...     optimizer.zero_grad()
        ...     loss = weight.square().sum() / 2  # its gradient is w
        ...     loss.backward()
        ...     return loss
        >>> optimizer.step(closure).item()
        12.5
        >>> weight.data  # w - 0.5 (w + 0.5 w / |w|)
        tensor([1.3500, 1.8000])

    Args:
        params: Parameters, named parameters or parameter groups, as for any torch optimizer.
        base: The class of the optimizer that makes the steps, or a function that is called like one.
        rho: ρ, the length of the ascent.
        model: The model with the BatchNorm layers; needed if later steps call modules that the first does not.
        **base_options: Further options of the base, such as ``lr``.

    Raises:
        TypeError: If the base is not an optimizer class, needs a closure itself (LBFGS) or has a ``rho`` of its own
            (Adadelta), if ``rho`` is not a number, or if ``model`` is not a module.
        ValueError: If ``rho`` is not positive and finite.
    """

    def __init__(
        self, params: ParamsT, base: Base, *, rho: float = 0.05, model: nn.Module | None = None, **base_options: Any
    ) -> None:
        self._build(params, base, {"rho": rho}, model, base_options)

    def _build(
        self, params: ParamsT, base: Base, own: dict[str, float], model: nn.Module | None, base_options: dict[str, Any]
    ) -> None:
        _check_base(type(self).__name__, base)
        self.model = as_module(model)
        if model is not None and self.model is None:
            raise TypeError(f"model must be the nn.Module with the BatchNorm layers, not a {type(model).__name__}.")
        self._own = tuple(own)
        self._modules: list[nn.Module] | None = None
        Optimizer.__init__(self, params, own)
        self.base = base(self.param_groups, **base_options)
        if not isinstance(self.base, Optimizer):
            raise TypeError(f"base must return a torch optimizer, but it returned a {type(self.base).__name__}.")
        try:
            inspect.signature(self.base.step).bind()
        except TypeError as error:
            raise TypeError(
                f"{type(self).__name__} calls {type(self.base).__name__}.step without arguments: {error}. Choose "
                "another base, such as torch.optim.SGD or torch.optim.AdamW."
            ) from None
        if shared := sorted(own.keys() & self.base.defaults):
            raise TypeError(
                f"{type(self.base).__name__} has an option called {' and '.join(shared)} too, and each parameter group "
                f"can hold only one: it cannot be the base of {type(self).__name__}. Choose another base."
            )
        self.defaults = {**self.base.defaults, **own}
        self._share_state()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Run the closure, move the weights uphill, run it there, restore the weights and let the base step.

        Args:
            closure: Clears the gradients, runs the model forward and backward and returns the loss. It may accumulate
                gradients over several backward passes, and clip them.

        Returns:
            What the closure returned the first time: the loss at the weights themselves.

        Raises:
            TypeError: If there is no closure.
        """
        if closure is None:
            raise TypeError(
                f"{type(self).__name__} needs two gradients for one step, hence a closure to run twice:\n\n"
                "    def closure():\n        optimizer.zero_grad()\n        loss = cross_entropy(model(x), y)\n"
                "        loss.backward()\n        return loss\n\n    optimizer.step(closure)"
            )
        if self.model is not None:
            self._modules = list(self.model.modules())
        if self._modules is None:
            with _record_called_modules() as called:
                loss = closure()
            self._modules = list(called)
        else:
            loss = closure()
        # Running statistics are those at the weights, not uphill.
        with _preserve_running_statistics(self._modules):
            moved, before = self._ascend()
            try:
                self.zero_grad()
                closure()
            finally:
                # From a copy: in floating point, (w + e) - e need not be w.
                if moved:
                    with torch.no_grad():
                        torch._foreach_copy_(moved, before)
        self.base.step()
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, which may have its own settings."""
        check_settings(**{name: param_group.get(name, self.defaults[name]) for name in self._own})
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        more = {"base": self.base, "model": self.model, "_own": self._own, "_modules": None}
        return {**super().__getstate__(), **more}

    def __setstate__(self, state: dict[str, Any]) -> None:
        loaded = "base" not in state
        if loaded:
            # The base adds what checkpoints of its older versions lack.
            self.base.__setstate__(state)
        super().__setstate__({} if loaded else state)
        self._share_state()

    def _share_state(self) -> None:
        """Share the groups and the state of the base, so that a learning rate changed here changes there."""
        self.param_groups, self.state = self.base.param_groups, self.base.state
        for group in self.param_groups:
            # A checkpoint of the base alone lacks these settings.
            for name in self._own:
                group.setdefault(name, self.defaults[name])

    @torch.no_grad()
    def _ascend(self) -> tuple[list[Tensor], list[Tensor]]:
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
            # torch's private _foreach functions, as its own optimizers use them: one kernel for all parameters.
            torch._foreach_copy_(before, parameters)
            scales = [self._scale(*place) for place in moved]
            uphill = steepest_ascent([_as_dense_float(parameter.grad) for parameter in parameters], scales)
            torch._foreach_mul_(uphill, [group["rho"] for _, group, _ in moved])
            torch._foreach_add_(parameters, uphill)
        return parameters, before

    def _scale(self, parameter: Tensor, group: dict[str, Any], index: int) -> Tensor | None:  # noqa: ARG002
        """Return the scale T of a parameter, None for 1."""
        return None


class ASAM(SAM):
    """Adaptive sharpness-aware minimization (Kwon et al., 2021): :class:`SAM` in a ball that grows with the weights.

    The ascent is ρ T² g / |T g|. With T = |w|, the loss found uphill stays the same when one ReLU layer is scaled up
    and the next one down. As in the authors' code, T is |w| + η for parameters with "weight" in their names and 1 for
    all others, such as biases, so this holds for networks without biases whose weights are large compared to η. Another
    well-known implementation (davda54/sam with ``adaptive=True``) has T = |w| for every parameter, biases too.

    Example:
        >>> import torch
        >>> from effdeg.baselines import ASAM
        >>> weight = torch.nn.Parameter(torch.tensor(2.0))
        >>> optimizer = ASAM([("weight", weight)], torch.optim.SGD, rho=0.5, eta=0.0, lr=0.1)
        >>> optimizer.step(lambda: (weight.square() / 2).backward())  # the gradient is w
        >>> round(weight.item(), 4)  # w - 0.1 (w + 0.5 |w|)
        1.7

    Args:
        named_parameters: Named parameters, or parameter groups of them.
        base: The optimizer that makes the steps, as in :class:`SAM`.
        rho: ρ, the length of the ascent in units of the weights; a parameter group may have its own.
        eta: η, added to the size of weights so that weights near zero can move too; a parameter group may have its own.
        model: The model with BatchNorm layers, as in :class:`SAM`.
        **base_options: Further options of the base, such as ``lr``.

    Raises:
        TypeError: As :class:`SAM`; also if the parameters have no names.
        ValueError: If ``rho`` is not positive or ``eta`` is negative, or either is not finite.
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
        self._build(named_parameters, base, {"rho": rho, "eta": eta}, model, base_options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of named parameters, which may have its own settings."""
        super().add_param_group(param_group)
        if "param_names" not in param_group:
            raise TypeError(
                "ASAM scales weights but not biases, and distinguishes them by their names, which were not given: use "
                "ASAM(model.named_parameters(), …), or groups {'params': [(name, parameter), …]}."
            )

    def _scale(self, parameter: Tensor, group: dict[str, Any], index: int) -> Tensor | None:
        return weight_scales([(group["param_names"][index], parameter)], group["eta"])[0]


def _as_dense_float(gradient: Tensor) -> Tensor:
    # A norm in half precision may overflow, and torch has none for sparse tensors.
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    return dense.to(torch.promote_types(dense.dtype, torch.float32))


def _check_base(name: str, base: object) -> None:
    if isinstance(base, Optimizer) or not callable(base):
        kind = type(base).__name__
        raise TypeError(
            f"base is {'an instance of ' if isinstance(base, Optimizer) else ''}{kind}; give the class and its "
            f"options, {name}(parameters, torch.optim.{kind if isinstance(base, Optimizer) else 'SGD'}, lr=…)."
        )


@contextmanager
def _preserve_running_statistics(modules: Iterable[nn.Module]) -> Iterator[None]:
    kept = [
        (module, name, buffer.clone())
        for module in modules
        if module.training
        for name in _RUNNING_STATISTICS
        if isinstance(buffer := getattr(module, name, None), Tensor)
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, name, copy in kept:
                getattr(module, name).copy_(copy)


@contextmanager
def _record_called_modules() -> Iterator[dict[nn.Module, None]]:
    """Collect the modules that are called within the block, with their submodules, in the order of their calls."""
    called: dict[nn.Module, None] = {}

    def note(module: nn.Module, _: object) -> None:
        if module not in called:
            called.update(dict.fromkeys(module.modules()))

    handle = register_module_forward_pre_hook(note)
    try:
        # Compiled code does not call hooks, or is recompiled for them, and torch warns of that.
        with eager(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Using `torch.compile.module.` when there are global hooks")
            yield called
    finally:
        handle.remove()
