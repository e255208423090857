"""Values along a path become polynomial coefficients, by damped least squares in float64."""

import torch
from torch import Tensor

from effdeg._utils.checks import check_damping, check_fit
from effdeg._utils.device import is_traced
from effdeg._utils.shapes import Float
from effdeg.functional._bases import basis_matrix, basis_rows, check_matrices
from effdeg.functional._unrolled import least_squares_operator

DAMPING = 1e-9
"""The default damping of a fit, ε.

Far below the smallest eigenvalue of a well-posed fit (1.4 at degree 40 on 200 nodes), so that it changes nothing there,
and far above float64's rounding of TᵀT, so that two random nodes that nearly coincide cannot break the fit.
"""

# A pivot of Cholesky, as a share of the diagonal of TᵀT, is how much of a column of T, squared, the columns before it
# do not span. Above the first bound the normal equations are accurate to 1e-12; above the second, two steps of
# refinement leave less than 1e-10, even at a condition number of 4e9; below it, only QR is accurate.
_WELL_POSED = 0.1
_REFINABLE = 1e-5
# Elements of the design matrices that are processed at once: 16 MiB.
_WORKING_SET = 2**21
# Up to this many nodes a fit is a small operator, computed without a library call: a training step has few nodes, and
# may be compiled or captured in a CUDA graph.
_FEW_NODES = 16
# How far rounded nodes may lie beyond the ends.
_ROUNDING = 1e-6


def condition_number(alpha: Float[Tensor, "*paths nodes"], degree: int, basis: str = "chebyshev") -> float:
    """Return the condition number of the design matrix T, σ_max(T) / σ_min(T).

    Errors in the values are amplified in the coefficients by up to this factor; see :func:`fit_operator`. If every path
    has its own nodes, it is that of the worst.

    Raises:
        ValueError: If there are fewer than ``degree + 1`` nodes, or ``basis`` is not known.
        TypeError: If ``degree`` is not a whole number.

    Example:
        >>> from effdeg.functional import chebyshev_nodes, condition_number, uniform_nodes
        >>> round(condition_number(chebyshev_nodes(41), degree=40), 3)
        1.414
        >>> condition_number(uniform_nodes(41), degree=40) > 1e9
        True
    """
    check_fit(alpha.shape[-1], degree)
    return float(torch.linalg.cond(basis_matrix(alpha.double(), degree, basis)).max())


@torch.no_grad()
def fit_operator(
    alpha: Float[Tensor, "*paths nodes"], degree: int, basis: str = "chebyshev", damping: float = DAMPING
) -> Float[Tensor, "*paths degrees nodes"]:
    """Compute the linear map from values at the nodes to coefficients, (TᵀT + ε I)⁻¹ Tᵀ.

    T stacked on √ε I is orthogonalized (by Gram-Schmidt on few nodes, else by QR), so that the error grows with the
    condition number of T, not with its square. Nodes never depend on the model, so the operator carries no gradient; a
    fit is one product with it, and its derivative is exactly the paper's T (TᵀT + ε I)⁻¹ (Proposition 5.1).

    The fit is well posed with Chebyshev or cosine nodes that clearly outnumber the degree: the condition number of T at
    degree 40 on 200 nodes is 1.5 (Legendre: 12). With uniform nodes it is so only while the degree is below about
    2 √nodes: 6.4 at degree 40 on 200 nodes, but 4e9 on 41 (Runge's phenomenon), where the effective degree can be
    anything, with any damping.

    Args:
        alpha: Positions in [0, 1].
        degree: The highest degree (the paper's K).
        basis: A name in :data:`effdeg.functional.BASES`.
        damping: The paper's ε; 0 is plain least squares, which needs ``degree + 1`` distinct nodes.

    Raises:
        ValueError: If there are fewer than ``degree + 1`` nodes (without damping: distinct ones), they lie outside of
            [0, 1] (not checked on a GPU), ``basis`` is not known, or ``damping`` is negative or not finite.
        TypeError: If ``degree`` is not a whole number, or ``damping`` is not a number.

    Example:
        >>> from effdeg.functional import chebyshev_nodes, fit_operator
        >>> alpha = chebyshev_nodes(10)
        >>> operator = fit_operator(alpha, degree=3)
        >>> operator.shape
        torch.Size([4, 10])
        >>> (operator @ (2 * alpha - 1)).round(decimals=6).abs()  # t is T_1
        tensor([0., 1., 0., 0.], dtype=torch.float64)
    """
    _check(alpha, degree, damping)
    design = basis_matrix(alpha.double(), degree, basis)
    if alpha.shape[-1] <= _FEW_NODES:
        return least_squares_operator(design, damping)
    return _solve_by_qr(design, torch.eye(alpha.shape[-1], dtype=design.dtype, device=design.device), damping)


def fit(
    values: Float[Tensor, "*#paths nodes outputs"],
    alpha: Float[Tensor, "*#paths nodes"],
    degree: int,
    basis: str = "chebyshev",
    damping: float = DAMPING,
) -> Float[Tensor, "*#paths degrees outputs"]:
    """Fit a polynomial to every output of every path: c = argmin ‖T c − y‖² + ε ‖c‖².

    The same as ``fit_operator(alpha, …) @ values``, but faster: y are the values, the model's outputs at the nodes. The
    coefficients, degree 0 first, are computed in float64 and returned in the dtype of the values, at least float32.

    Raises:
        ValueError: If values and nodes differ in number, or as :func:`fit_operator` does.
        TypeError: If values are complex, ``degree`` is not a whole number, or ``damping`` is not a number.

    Example:
        >>> from effdeg.functional import chebyshev_nodes, fit
        >>> alpha = chebyshev_nodes(10)
        >>> fit(alpha.square()[:, None], alpha, degree=2).flatten()  # α² = 3/8 + T_1 / 2 + T_2 / 8
        tensor([0.3750, 0.5000, 0.1250], dtype=torch.float64)
    """
    check_matrices("values", values, "nodes")
    if not isinstance(alpha, Tensor):
        raise TypeError(f"alpha is a {type(alpha).__name__}; a tensor was expected: torch.as_tensor(alpha).")
    if alpha.shape[-1] != values.shape[-2]:
        raise ValueError(
            f"values of shape {tuple(values.shape)} have {values.shape[-2]} nodes (their last dimension but one), "
            f"alpha of shape {tuple(alpha.shape)} has {alpha.shape[-1]}: the two must agree."
        )
    dtype = torch.promote_types(values.dtype, torch.float32)
    values = values.double()
    if alpha.dim() == 1 or alpha.shape[-1] <= _FEW_NODES:
        coefficients = fit_operator(alpha, degree, basis, damping) @ values
    else:
        coefficients = _fit_each(values, alpha.detach().double(), degree, basis, damping)
    return coefficients.to(dtype)


def _check(alpha: Tensor, degree: int, damping: float) -> None:
    """Raise unless the nodes, with this damping, determine a polynomial of this degree."""
    check_fit(alpha.shape[-1], degree)
    check_damping(damping)
    # Not on a GPU: that would wait for it.
    if alpha.is_cpu and not is_traced() and bool(((alpha < -_ROUNDING) | (alpha > 1 + _ROUNDING)).any()):
        raise ValueError(
            f"nodes go from {alpha.min():.3g} to {alpha.max():.3g}, but alpha are positions in [0, 1]. For t in "
            "[-1, 1] give (t + 1) / 2."
        )
    if damping > 0 or is_traced() or (alpha.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    distinct = 1 + int((alpha.sort(-1).values.diff(dim=-1) > 0).sum(-1).amin())
    if distinct <= degree:
        raise ValueError(
            f"only {distinct} nodes of a path are distinct, which cannot determine a polynomial of degree={degree} "
            f"without damping. Use damping=DAMPING ({DAMPING:g}), degree={distinct - 1} or less, or distinct nodes."
        )


def _fit_each(values: Tensor, alpha: Tensor, degree: int, basis: str, damping: float) -> Tensor:
    """Fit paths that each have their own nodes, a few at a time, so that the working set is bounded and in cache."""
    _check(alpha, degree, damping)
    batch = torch.broadcast_shapes(values.shape[:-2], alpha.shape[:-1])  # type: ignore[no-untyped-call]
    nodes, outputs = values.shape[-2:]
    values = values.expand(*batch, nodes, outputs).reshape(-1, nodes, outputs)
    alpha = alpha.expand(*batch, nodes).reshape(-1, nodes)
    at_once = max(1, _WORKING_SET // ((degree + 1) * nodes))
    parts = zip(values.split(at_once), alpha.split(at_once), strict=True)  # type: ignore[no-untyped-call]
    coefficients = [_fit_some(some, their, degree, basis, damping) for some, their in parts]
    return torch.cat(coefficients).view(*batch, degree + 1, outputs)


def _fit_some(values: Tensor, alpha: Tensor, degree: int, basis: str, damping: float) -> Tensor:
    """Solve the normal equations; where these lose digits, refine the solution or use QR instead."""
    rows = basis_rows(alpha, degree, basis)
    # Two more columns in the one large product of the fit are all that TᵀT needs, in the Chebyshev basis.
    columns = torch.stack([torch.ones_like(alpha), rows[..., -1, :]], dim=-1)
    products = rows @ torch.cat([columns, values], dim=-1)
    sums, right = products[..., :2].detach(), products[..., 2:]
    gram = _chebyshev_gram(sums) if basis == "chebyshev" else rows @ rows.mT
    damped = gram + damping * _identity(rows)
    factor, info = torch.linalg.cholesky_ex(damped)
    if damping > 0 and (alpha.device.type != "cpu" or is_traced()):
        # Asking a GPU how well posed the problem is would wait for it, and compiled code cannot ask. Two steps of
        # refinement are accurate in any case, since damping bounds the condition number.
        return _solve_and_refine(rows, values, right, factor, damping)
    new = factor.diagonal(dim1=-2, dim2=-1).square() / damped.diagonal(dim1=-2, dim2=-1)
    least = 0.0 if is_traced() else float(torch.where(info == 0, new.amin(-1), 0.0).amin())
    if least > _WELL_POSED:
        return _solve_by_cholesky(right, factor)
    if least > _REFINABLE:
        return _solve_and_refine(rows, values, right, factor, damping)
    return _solve_by_qr(rows.mT, values, damping)


def _solve_and_refine(rows: Tensor, values: Tensor, right: Tensor, factor: Tensor, damping: float) -> Tensor:
    """Solve the normal equations, then twice for the residual of the least-squares problem itself (Björck 1987)."""
    coefficients = _solve_by_cholesky(right, factor)
    for _ in range(2):
        residual = rows @ (values - rows.mT @ coefficients) - damping * coefficients
        coefficients = coefficients + _solve_by_cholesky(residual, factor)
    return coefficients


def _chebyshev_gram(sums: Tensor) -> Tensor:
    """Compute TᵀT from the sums over nodes of T_k and of T_k T_K (K: the highest degree) instead of (K + 1)² products.

    T_j T_k = (T_{j+k} + T_{|j-k|}) / 2, so TᵀT is the mean of a Hankel and a Toeplitz matrix of s_m = sum of T_m, and
    s_{K+m} = 2 (sum of T_m T_K) - s_{K-m}.
    """
    low, size = sums[..., 0], sums.shape[-2]
    high = 2 * sums[..., 1] - low.flip(-1)
    hankel = torch.cat([low, high[..., 1:]], dim=-1).unfold(-1, size, 1)
    toeplitz = torch.cat([low.flip(-1), low[..., 1:]], dim=-1).unfold(-1, size, 1).flip(-2)
    return (hankel + toeplitz) / 2


def _solve_by_cholesky(right: Tensor, factor: Tensor) -> Tensor:
    # Not torch.cholesky_solve, which waits for all pending work on a GPU.
    half = torch.linalg.solve_triangular(factor, right, upper=False)
    solution: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return solution


def _solve_by_qr(design: Tensor, values: Tensor, damping: float) -> Tensor:
    """Solve the damped least-squares problem by QR of the design matrix stacked on √damping I."""
    nodes = design.shape[-2]
    if damping > 0:
        identity = _identity(design.mT).expand(*design.shape[:-2], -1, -1)
        design = torch.cat([design, damping**0.5 * identity], dim=-2)
    q, r = torch.linalg.qr(design)
    solution: Tensor = torch.linalg.solve_triangular(r, q[..., :nodes, :].mT @ values, upper=True)
    return solution


def _identity(rows: Tensor) -> Tensor:
    return torch.eye(rows.shape[-2], dtype=rows.dtype, device=rows.device)
