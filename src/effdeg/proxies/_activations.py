"""Count how many units of a network cross a kink, or zero, from one point to the next."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name

from effdeg._utils.device import is_traced
from effdeg._utils.tree import tensors

# Names of torch functions that are linear in a network's activations. With a weight as their second argument:
WEIGHTED = {"linear", *(f"conv{kind}{dimension}d" for kind in ("", "_transpose") for dimension in (1, 2, 3))}
# Only reorder numbers:
REORDERING = {
    *("cat", "stack", "flatten", "unflatten", "view", "view_as", "reshape", "permute", "transpose", "t", "movedim"),
    *("contiguous", "squeeze", "unsqueeze", "expand", "expand_as", "chunk", "split", "unbind", "narrow", "getitem"),
    *("clone", "detach", "roll", "flip", "repeat"),
}
# Do not depend on the numbers:
QUERIES = {"dim", "size", "get", "numel", "len", "is_floating_point", "zeros", "new_zeros", "zeros_like"}
# Only change the precision:
CASTS = {"to", "double", "float", "half", "bfloat16", "type", "type_as"}
# Do nothing in evaluation mode:
DROPOUT = {"dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "alpha_dropout"}
# Sum or average, perhaps with weights:
AVERAGES = {
    *("sum", "mean", "pad", "batch_norm"),
    *(f"{kind}avg_pool{dimension}d" for kind in ("", "adaptive_") for dimension in (1, 2, 3)),
}
# Linear only if one factor is constant; a divisor must be:
PRODUCTS = {"mul", "div", "truediv", "matmul", "rmatmul", "mm", "bmm", "addmm", "einsum"}


def storage(tensor: Tensor) -> int | None:
    """Return the address of a tensor's storage, which its views share; None for sparse tensors."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # in torch.vmap, where it has none of its own
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else None


class ActivationFlips(TorchFunctionMode):
    """Counts the units that cross a kink, or zero, between each row of a batch and the row before it.

    Consecutive rows are adjacent nodes of a path, also across batches. The flips along a path are therefore the linear
    regions that it enters, or fewer if a unit flips back and forth between two nodes. ``problem`` is what makes this
    count of kinks wrong, ``unseen`` what makes that of signs wrong.
    """

    def __init__(self, state: Iterable[Tensor]) -> None:
        super().__init__()
        self.problem: str | None = None
        self.unseen: str | None = None
        # Tensors that do not depend on the inputs: weights, and results of weights alone. Storages are kept alive, or
        # the memory of a buffer whose data are replaced might come back as that of an activation.
        self._weights = {storage(each): storage(each) and each.untyped_storage() for each in state}
        self._constant: dict[int, Tensor] = {}
        # Which units are on at the last row of a batch, by the number of the activation and of its kink.
        self._last: dict[tuple[int, int], Tensor] = {}
        self._now: dict[tuple[int, int], Tensor] = {}
        self._flips: list[_Flips] = []
        self._ran = 0

    def __enter__(self) -> "ActivationFlips":
        # A batch that ran out of memory may have left counts.
        self._now, self._flips, self._constant, self._ran = {}, [], {}, 0
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, given = function.__name__.strip("_"), kwargs or {}
        changing = [each for each in tensors([args, given]) if not self._is_constant(each)]
        if changing and is_traced():
            self.problem = self.unseen = "torch.vmap ran, in which units cannot be counted"
            return function(*args, **given)
        if changing and not self._is_linear(name, args, len(changing)):
            self.problem = self.problem or f"{resolve_name(function) or name} ran"
        if changing and (name in _KINKS or name in ACTIVATIONS):
            values, *rest = args if args else (given["input"],)
            settings = {key: value for key, value in given.items() if key != "input"}
            kinks = _KINKS[name](*rest, **settings) if name in _KINKS and self.problem is None else []
            self._ran += 1
            # Before the call, which may be in place.
            if name in ACTIVATIONS:
                self._record(values, 0.0, 0, is_kink=0.0 in kinks, is_activation=True)
                kinks = [kink for kink in kinks if kink != 0.0]
            for number, kink in enumerate(kinks, start=1):
                self._record(values, kink, number, is_kink=True, is_activation=False)
        result = function(*args, **given)
        if not changing:
            self._constant |= {id(each): each for each in tensors(result)}
        return result

    def take(self, rows: int) -> Tensor:
        """Return the flips of the last batch, rows × 2: how many units crossed a kink; how many zero, on average."""
        kinks, activations = ([each for each in self._flips if each[which]] for which in (2, 3))
        self._last, self._now, self._flips = self._now, {}, []
        self.problem = self.problem or _find_problem(kinks, rows)
        self.unseen = self.unseen or _find_problem(activations, rows)
        crossed, signs = torch.zeros(2, rows, dtype=torch.float64, device="cpu")
        if self.problem is None:
            crossed = torch.stack([count for count, *_ in kinks]).sum(0).double()
        if self.unseen is None:
            units = sum(units for _, units, *_ in activations)
            signs = torch.stack([count for count, *_ in activations]).sum(0).double() / units
        return torch.stack([crossed.to(signs.device), signs], dim=1)

    def _is_linear(self, name: str, args: tuple[Any, ...], changing: int) -> bool:
        if name in _KINKS:
            return True
        divided = name in {"div", "truediv"} and isinstance(args[-1], Tensor) and not self._is_constant(args[-1])
        return name in _LINEAR and not divided and not (name in PRODUCTS | WEIGHTED and changing > 1)

    def _is_constant(self, each: Tensor) -> bool:
        return id(each) in self._constant or storage(each) in self._weights

    def _record(self, values: Tensor, kink: float | Tensor, number: int, *, is_kink: bool, is_activation: bool) -> None:
        if values.is_complex() or values.layout != torch.strided or not values.numel():
            self._flips.append((torch.zeros(0), 0, is_kink, is_activation))  # no rows, which is a problem
            return
        on = values > kink
        on = on.flatten(1) if on.dim() > 1 else on.reshape(-1, 1)
        before = self._last.get((self._ran, number), on[0])
        before = before if before.shape == on[0].shape else on[0]
        self._now[self._ran, number] = on[-1].clone()
        counts = torch.cat([(on[0] != before).sum()[None], (on[1:] != on[:-1]).sum(1)])
        self._flips.append((counts, on.shape[1], is_kink, is_activation))


_Flips = tuple[Tensor, int, bool, bool]
"""How many units flipped at each row, of how many, and whether at a kink or at the zero of an activation's input."""


def _find_problem(flips: list[_Flips], rows: int) -> str | None:
    if any(len(counts) != rows for counts, *_ in flips):
        return "an activation ran on tensors that do not have the examples first, or are sparse or complex"
    return None if flips else "no such activation ran"


def _clamp_bounds(min: Any = None, max: Any = None) -> list[float | Tensor]:  # noqa: A002  (torch's own names)
    return [bound for bound in (min, max) if bound is not None]


_KINKS: dict[str, Callable[..., list[float | Tensor]]] = {
    **dict.fromkeys(("relu", "leaky_relu", "prelu", "rrelu"), lambda *_, **__: [0.0]),
    "threshold": lambda threshold, *_, **__: [threshold],
    "relu6": lambda *_, **__: [0.0, 6.0],
    "hardtanh": lambda min_val=-1.0, max_val=1.0, *_, **__: [min_val, max_val],
    "clamp": _clamp_bounds,
    "clip": _clamp_bounds,
    "clamp_min": lambda min: _clamp_bounds(min),  # noqa: A006
    "clamp_max": lambda max: _clamp_bounds(None, max),  # noqa: A006
}
KINKED = sorted(_KINKS)

ACTIVATIONS = {
    *("relu", "leaky_relu", "prelu", "rrelu", "relu6", "hardtanh", "elu", "celu", "selu", "gelu", "silu", "mish"),
    *("softplus", "softsign", "tanh", "sigmoid", "log_sigmoid", "hardsigmoid", "hardswish", "erf"),
}
"""Elementwise activations, whose input has a sign; others are made of these, such as x * sigmoid(1.7 x)."""

_POOLING = {f"{kind}max_pool{dimension}d" for kind in ("", "adaptive_") for dimension in (1, 2, 3)}
_OTHERS = {"add", "sub", "rsub", "neg", "embedding", "interpolate", "upsample"}
_LINEAR = WEIGHTED.union(REORDERING, QUERIES, CASTS, DROPOUT, AVERAGES, PRODUCTS, _POOLING, _OTHERS)
