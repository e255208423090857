"""Polynomials on [0, 1] in an orthogonal basis: their basis, their values and their effective degree."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor

from effdeg._utils.checks import check_choice, check_count, check_degree_weights
from effdeg._utils.shapes import Float

Recurrence = Callable[[int], tuple[float, float]]
BASES: Mapping[str, Recurrence] = {
    "chebyshev": lambda k: (2.0 if k > 1 else 1.0, 1.0),
    "legendre": lambda k: ((2 * k - 1) / k, (k - 1) / k),
}
"""The polynomial bases, each by its recurrence φ_k = a t φ_{k-1} − b φ_{k-2}: a and b for every k from 1 on.

φ_0 is 1 and φ_{-1} is 0."""

Weights = Literal["degree", "square"] | Sequence[float] | NDArray[Any]
"""The weight of the coefficient of each degree k: k, k², or given numbers, degree 0 first."""


def basis_matrix(
    alpha: Float[Tensor, "*paths nodes"], degree: int, basis: str = "chebyshev"
) -> Float[Tensor, "*paths nodes degrees"]:
    """Return the design matrix (the paper's T): the entry of node i and degree k is φ_k(2 α_i − 1).

    Chebyshev: T_k = 2 t T_{k-1} − T_{k-2}. Legendre: k P_k = (2k − 1) t P_{k-1} − (k − 1) P_{k-2}. Both recurrences are
    numerically stable on [−1, 1], at any degree. Another basis is another entry of :data:`effdeg.functional.BASES`.

    Raises:
        ValueError: If ``basis`` is not known or ``degree`` is negative.
        TypeError: If ``degree`` is not a whole number.

    Example:
        >>> import torch
        >>> from effdeg.functional import basis_matrix
        >>> basis_matrix(torch.tensor([0.0, 0.5, 1.0]), degree=2)  # 1, t and 2t² − 1 at t = −1, 0, 1
        tensor([[ 1., -1.,  1.],
                [ 1.,  0., -1.],
                [ 1.,  1.,  1.]])
    """
    return torch.stack(_polynomials(alpha, degree, basis), dim=-1)


def check_matrices(name: str, values: object, rows: str) -> None:
    """Raise unless these are tensors of rows of one number for each output."""
    if not isinstance(values, Tensor):
        raise TypeError(f"{name} are a {type(values).__name__}; a tensor was expected: torch.as_tensor({name}).")
    if values.dim() < 2:
        raise ValueError(
            f"{name} of shape {tuple(values.shape)} have no dimension of outputs; {rows} × outputs were expected: for "
            f"one output {name}[:, None]."
        )
    check_real(name, values)


def check_real(name: str, values: Tensor) -> None:
    """Raise if values are complex: a conversion would drop their imaginary parts."""
    if values.is_complex():
        raise TypeError(
            f"{name} are complex numbers ({values.dtype}); real ones were expected. Give real and imaginary parts as "
            f"outputs of their own: torch.view_as_real({name}).flatten(-2)."
        )


def basis_rows(alpha: Float[Tensor, "*paths nodes"], degree: int, basis: str) -> Float[Tensor, "*paths degrees nodes"]:
    """Return the transpose of :func:`basis_matrix`: the layout in which the products of a fit run fastest."""
    return torch.stack(_polynomials(alpha, degree, basis), dim=-2)


def evaluate(
    coefficients: Float[Tensor, "*paths degrees outputs"],
    alpha: Float[Tensor, "*#paths nodes"],
    basis: str = "chebyshev",
) -> Float[Tensor, "*paths nodes outputs"]:
    """Evaluate polynomials: p(α) = Σ_k c_k φ_k(2 α − 1) at every node, for every output. All paths may share nodes.

    Raises:
        ValueError: If ``basis`` is not known.
        TypeError: If the coefficients are complex.

    Example:
        >>> import torch
        >>> from effdeg.functional import evaluate
        >>> evaluate(torch.tensor([[1.0], [2.0]]), torch.tensor([0.0, 0.5, 1.0])).flatten()  # 1 + 2t
        tensor([-1.,  1.,  3.])
    """
    check_real("coefficients", coefficients)
    if not coefficients.is_floating_point():
        coefficients = coefficients.to(alpha.dtype)
    design = basis_matrix(alpha.to(coefficients.dtype), coefficients.shape[-2] - 1, basis)
    return design @ coefficients


def effective_degree(
    coefficients: Float[Tensor, "*paths degrees outputs"], *, normalized: bool = False, weights: Weights = "degree"
) -> Float[Tensor, "*paths"]:
    """Weigh each coefficient by its degree: Σ_k w_k |c_k| with w_k = k, averaged over outputs (Definition 3.2).

    Normalized, it is Σ_k w_k |c_k| / Σ_k |c_k| for each output: a mean weight, with w_k = k a mean degree in [0, K],
    that does not change when the output is scaled. The divisor counts every degree, even one of weight 0. An output
    that is zero everywhere has degree 0 and a zero gradient. It is computed and returned in float32 or better.

    Args:
        coefficients: Coefficients in an orthogonal polynomial basis, degree 0 first, as of :func:`fit`.
        normalized: Divide by the sum of the magnitudes of the coefficients.
        weights: The weight w_k of each degree: ``"degree"`` is k, ``"square"`` is k², and a list or array holds
            one number for each degree, degree 0 first. If it begins with 0, 0, only curvature counts.

    Raises:
        TypeError: If the weights are neither a known name nor numbers, or the coefficients are complex.
        ValueError: If they are not one per degree, or one is negative or not finite, or all are zero.

    Example:
        >>> import torch
        >>> from effdeg.functional import effective_degree
        >>> coefficients = torch.tensor([[3.0], [-2.0], [1.0]])  # 3 − 2 T_1 + T_2
        >>> effective_degree(coefficients)  # 1 · 2 + 2 · 1
        tensor(4.)
        >>> effective_degree(coefficients, normalized=True)  # 4 / (3 + 2 + 1)
        tensor(0.6667)
        >>> effective_degree(coefficients, weights="square")  # 1 · 2 + 4 · 1
        tensor(6.)
        >>> effective_degree(coefficients, weights=[0, 0, 1])
        tensor(1.)
    """
    check_matrices("coefficients", coefficients, "degrees")
    weights = check_degree_weights(weights, degree=coefficients.shape[-2] - 1)
    # In half precision a sum of many degrees overflows or loses its digits.
    magnitudes = coefficients.abs()
    magnitudes = magnitudes.to(torch.promote_types(magnitudes.dtype, torch.float32))
    if normalized:
        # So that no sum overflows. A common factor changes nothing and has no gradient.
        largest = magnitudes.detach().amax(-2, keepdim=True)
        magnitudes = magnitudes / torch.where(largest == 0, torch.ones_like(largest), largest)
    weighted = (_weigh_degrees(weights, magnitudes)[:, None] * magnitudes).sum(-2)
    if normalized:
        total = magnitudes.sum(-2)
        weighted = weighted / torch.where(total == 0, torch.ones_like(total), total)
    return weighted.mean(-1)


def _weigh_degrees(weights: Weights, coefficients: Tensor) -> Float[Tensor, " degrees"]:
    device, dtype = coefficients.device, coefficients.dtype
    if isinstance(weights, str):
        degrees = torch.arange(coefficients.shape[-2], device=device, dtype=dtype)
        return degrees if weights == "degree" else degrees.square()
    # Filled in on the device: a copy from the CPU would have to be waited for, and cannot be captured in a CUDA graph.
    return torch.cat([torch.full((1,), weight, device=device, dtype=dtype) for weight in weights])


def _polynomials(alpha: Tensor, degree: int, basis: str) -> list[Tensor]:
    check_choice("basis", basis, BASES)
    check_count("degree", degree, least=0)
    t = 2 * alpha - 1
    first, _ = BASES[basis](1)
    polynomials = [torch.ones_like(t), t if first == 1 else first * t]
    for k in range(2, degree + 1):
        forward, back = BASES[basis](k)
        polynomials.append(torch.addcmul(-back * polynomials[-2], t, polynomials[-1], value=forward))
    return polynomials[: degree + 1]
