"""Values along a path become polynomial coefficients, by damped least squares in float64."""

import torch
from torch import Tensor

from effdeg._utils.checks import check_damping, check_fit
from effdeg._utils.shapes import Float
from effdeg.functional._bases import basis_matrix, basis_rows
from effdeg.functional._unrolled import least_squares_operator

DAMPING = 1e-9
"""Far below the smallest eigenvalue of a well-posed fit (1.4 at degree 40 on 200 nodes), so that it changes nothing
there, and far above float64's rounding of TᵀT, so that two random nodes that all but coincide cannot break the fit."""

# A pivot of Cholesky, as a share of the diagonal of TᵀT, is how much of a column of T, squared, the columns before it
# do not span. Above the first bound the normal equations are accurate to 1e-12: with uniform nodes, up to a condition
# number of about 100. Above the second, two steps of refinement leave less than 1e-10, even at condition numbers that
# no pivot shows (4e9 at degree 40 on 41 uniform nodes, with the default damping). Below it takes QR.
_WELL_POSED = 0.1
_REFINABLE = 1e-5
# Numbers of the design matrices that are worked on at once: 16 MiB.
_WORKING_SET = 2**21
# Up to this many nodes a fit is a small operator, found without a library call: that is a training step's, which may be
# compiled or captured in a CUDA graph.
_FEW_NODES = 16


def condition_number(alpha: Float[Tensor, "*paths nodes"], degree: int, basis: str = "chebyshev") -> float:
    """Return the condition number of the design matrix T, of the worst path if each has nodes of its own.

    Errors in the values come back in the coefficients multiplied by up to this number. See :func:`fit_operator` for
    when it is small.

    Args:
        alpha: Positions in [0, 1], shared by all paths or one row per path.
        degree: The highest degree (the paper's K).
        basis: ``"chebyshev"`` or ``"legendre"``.

    Returns:
        The ratio of the largest singular value to the smallest.
    """
    check_fit(alpha.shape[-1], degree)
    return float(torch.linalg.cond(basis_matrix(alpha.double(), degree, basis)).max())


@torch.no_grad()
def fit_operator(
    alpha: Float[Tensor, "*paths nodes"], degree: int, basis: str = "chebyshev", damping: float = DAMPING
) -> Float[Tensor, "*paths degrees nodes"]:
    """Form the linear map from values at the nodes to coefficients, (TᵀT + eps I)⁻¹ Tᵀ.

    It is found by orthogonalizing T stacked on sqrt(eps) I (by Gram-Schmidt on few nodes, else by QR), so that the
    condition number of T enters, not its square. Nodes never depend on the model, so the operator carries no gradient;
    a fit is one product with it, and its derivative is the paper's T (TᵀT + eps I)⁻¹ exactly (Proposition 5.1).

    When is the fit well posed? With Chebyshev or cosine nodes always while nodes exceed the degree comfortably: the
    condition number of T at degree 40 on 200 nodes is 1.5 (Legendre: 12). With uniform nodes only while degree is below
    about 2 sqrt(nodes): 6.4 at degree 40 on 200 nodes, but 4e9 at degree 40 on 41. There the undamped coefficients
    carry values' rounding errors times that number (about ten digits are lost), the effective degree can be anything,
    and damping puts an error of its own in the place of that one: take other nodes or a lower degree.

    Args:
        alpha: Positions in [0, 1], shared by all paths or one row per path.
        degree: The highest degree (the paper's K).
        basis: ``"chebyshev"`` or ``"legendre"``.
        damping: The paper's eps; 0 is plain least squares, which needs ``degree + 1`` nodes that differ.

    Returns:
        The operator, in float64.
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
    """Fit a polynomial to every output of every path: ``fit_operator(alpha, …) @ values``, but faster.

    Args:
        values: The model's outputs at the nodes.
        alpha: The nodes: positions in [0, 1], shared by all paths or one row per path.
        degree: The highest degree (the paper's K).
        basis: ``"chebyshev"`` or ``"legendre"``.
        damping: The paper's eps; 0 is plain least squares.

    Returns:
        Coefficients, degree 0 first, in the dtype of the values but at least float32. They are computed in float64.
    """
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
    """Raise unless the nodes determine a polynomial of this degree."""
    check_fit(alpha.shape[-1], degree)
    check_damping(damping)
    if damping > 0 or torch.compiler.is_compiling() or (alpha.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    distinct = 1 + int((alpha.sort(-1).values.diff(dim=-1) > 0).sum(-1).amin())
    if distinct <= degree:
        raise ValueError(
            f"only {distinct} nodes of a path differ, which cannot determine a polynomial of degree={degree} without "
            f"damping. Use damping=DAMPING ({DAMPING:g}), degree={distinct - 1} or less, or nodes that differ."
        )


def _fit_each(values: Tensor, alpha: Tensor, degree: int, basis: str, damping: float) -> Tensor:
    """Fit paths that each have nodes of their own, some at a time, so that memory stays bounded and in cache."""
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
    """Solve the normal equations; where these lose digits, refine the solution or take QR instead."""
    rows = basis_rows(alpha, degree, basis)
    # Two more columns in the one large product of the fit are all that TᵀT needs, in the Chebyshev basis.
    columns = torch.stack([torch.ones_like(alpha), rows[..., -1, :]], dim=-1)
    products = rows @ torch.cat([columns, values], dim=-1)
    sums, right = products[..., :2].detach(), products[..., 2:]
    gram = _chebyshev_gram(sums) if basis == "chebyshev" else rows @ rows.mT
    damped = gram + damping * _identity(rows)
    factor, info = torch.linalg.cholesky_ex(damped)
    if damping > 0 and alpha.device.type != "cpu":
        # To ask a GPU how well posed the problem is would be to wait for it. Two steps of refinement make the answer
        # accurate in any case, since damping bounds the condition number.
        return _refined(rows, values, right, factor, damping)
    new = factor.diagonal(dim1=-2, dim2=-1).square() / damped.diagonal(dim1=-2, dim2=-1)
    least = float(torch.where(info == 0, new.amin(-1), 0.0).amin())
    if least > _WELL_POSED:
        return _solve_by_cholesky(right, factor)
    if least > _REFINABLE:
        return _refined(rows, values, right, factor, damping)
    return _solve_by_qr(rows.mT, values, damping)


def _refined(rows: Tensor, values: Tensor, right: Tensor, factor: Tensor, damping: float) -> Tensor:
    """Solve the normal equations, then twice for the residual of the least-squares problem itself (Björck 1987)."""
    coefficients = _solve_by_cholesky(right, factor)
    for _ in range(2):
        residual = rows @ (values - rows.mT @ coefficients) - damping * coefficients
        coefficients = coefficients + _solve_by_cholesky(residual, factor)
    return coefficients


def _chebyshev_gram(sums: Tensor) -> Tensor:
    """Form TᵀT from the sums over the nodes of T_k and of T_k T_K, K the highest degree, instead of (K + 1)² products.

    T_j T_k = (T_{j+k} + T_{|j-k|}) / 2, so TᵀT is the mean of a Hankel and a Toeplitz matrix of s_m = sum of T_m, and
    the same identity gives s_{K+m} = 2 (sum of T_m T_K) - s_{K-m}: no polynomial beyond degree K is needed.
    """
    low, size = sums[..., 0], sums.shape[-2]
    high = 2 * sums[..., 1] - low.flip(-1)
    hankel = torch.cat([low, high[..., 1:]], dim=-1).unfold(-1, size, 1)
    toeplitz = torch.cat([low.flip(-1), low[..., 1:]], dim=-1).unfold(-1, size, 1).flip(-2)
    return (hankel + toeplitz) / 2


def _solve_by_cholesky(right: Tensor, factor: Tensor) -> Tensor:
    # Not torch.cholesky_solve: on a GPU that waits for all work under way.
    half = torch.linalg.solve_triangular(factor, right, upper=False)
    solution: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return solution


def _solve_by_qr(design: Tensor, values: Tensor, damping: float) -> Tensor:
    """Solve the damped least-squares problem through QR of the design matrix stacked on sqrt(damping) I."""
    nodes = design.shape[-2]
    if damping > 0:
        identity = _identity(design.mT).expand(*design.shape[:-2], -1, -1)
        design = torch.cat([design, damping**0.5 * identity], dim=-2)
    q, r = torch.linalg.qr(design)
    solution: Tensor = torch.linalg.solve_triangular(r, q[..., :nodes, :].mT @ values, upper=True)
    return solution


def _identity(rows: Tensor) -> Tensor:
    return torch.eye(rows.shape[-2], dtype=rows.dtype, device=rows.device)
