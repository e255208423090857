"""Torch functions that are linear in what flows through a network, by name, and how weights are told from the rest."""

import torch
from torch import Tensor

WEIGHTED = {"linear", *(f"conv{kind}{dimension}d" for kind in ("", "_transpose") for dimension in (1, 2, 3))}
"""Functions that are also given a weight."""

MOVED = {
    *("cat", "stack", "flatten", "unflatten", "view", "view_as", "reshape", "permute", "transpose", "t", "movedim"),
    *("contiguous", "squeeze", "unsqueeze", "expand", "expand_as", "chunk", "split", "unbind", "narrow", "getitem"),
    *("clone", "detach", "roll", "flip", "repeat"),
}
"""Numbers in another order."""

ASKED = {"dim", "size", "get", "numel", "len", "is_floating_point", "zeros", "new_zeros", "zeros_like"}
"""No numbers at all, or zeros."""

CAST = {"to", "double", "float", "half", "bfloat16", "type", "type_as"}
"""The same numbers in another precision."""

DROPPED = {"dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "alpha_dropout"}
"""Nothing, when a model is used."""

AVERAGED = {
    *("sum", "mean", "pad", "batch_norm"),
    *(f"{kind}avg_pool{dimension}d" for kind in ("", "adaptive_") for dimension in (1, 2, 3)),
}
"""Sums and averages."""

PRODUCTS = {"mul", "div", "truediv", "matmul", "rmatmul", "mm", "bmm", "addmm", "einsum"}
"""Linear only if one factor is constant; a divisor must be."""


def memory(tensor: Tensor) -> int | None:
    """Return where the numbers of a tensor are stored, which views of it share; None for sparse tensors."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else None
