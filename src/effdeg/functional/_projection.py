"""PCA of the values along each path, through the smaller of its two Gram matrices."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from effdeg._utils.checks import check_components
from effdeg._utils.shapes import Float
from effdeg._utils.statistics import power_of_two
from effdeg.functional._bases import check_matrices
from effdeg.functional._unrolled import eigenvectors

# Two eigenvalues closer than this share of the larger count as equal: 1/gap is damped to gap/(gap² + floor²), so that
# the gradient stays bounded where two components swap and the derivative does not exist.
_GAP_FLOOR = 1e-5
# Squared in a Gram matrix, singular values below this share of the largest are rounding noise: they are set to zero.
_NOISE_FLOOR = 1e-7


def project(values: Float[Tensor, "*paths nodes outputs"], components: int) -> Float[Tensor, "*paths nodes components"]:
    """Reduce each path's values to their first principal components: the scores Y V_m of the centered values Y.

    V_m are the first m right singular vectors of Y, largest first, of any sign. They come from the eigenvectors of
    the smaller of Y Yᵀ (nodes × nodes) and Yᵀ Y (outputs × outputs), in float64; scores are in float32 or better.
    Gradients are exact where the kept eigenvalues are distinct; where eigenvalues coincide or vanish, and PCA has no
    derivative, they are finite. A path that varies in fewer directions than ``components`` has zeros in the rest, but
    for the rounding of the values themselves. Where values are NaN or infinite, all scores of the path are NaN.

    Raises:
        ValueError: If ``components`` (the paper's m) is less than 1 or more than ``nodes - 1``.
        TypeError: If ``components`` is not a whole number, or the values are complex.

    Example:
        >>> import torch
        >>> from effdeg.functional import project
        >>> line = torch.linspace(0, 1, 5)[:, None] * torch.tensor([3.0, 0.0, 4.0])
        >>> project(line, components=2).abs()  # distances from the center, and no second direction
        tensor([[2.5000, 0.0000],
                [1.2500, 0.0000],
                [0.0000, 0.0000],
                [1.2500, 0.0000],
                [2.5000, 0.0000]])
    """
    check_matrices("values", values, "nodes")
    nodes, outputs = values.shape[-2:]
    check_components(components, nodes)
    scores: Tensor = _Scores.apply(values, min(components, outputs))  # type: ignore[no-untyped-call]
    return torch.nn.functional.pad(scores, (0, components - scores.shape[-1]))


def drop_noise(
    scores: Float[Tensor, "*paths nodes components"], values: Float[Tensor, "*paths nodes outputs"]
) -> Float[Tensor, "*paths nodes components"]:
    """Set scores of :func:`project` to zero where the rounding of the values, in their dtype, may have made them.

    A softmax changes a value y by up to 2 eps |y|, and so the score of a node along a direction v by up to
    2 eps Σ_j |v_j| |y_j|. A component is kept if its singular value is more than the norm of these bounds.
    """
    with torch.no_grad():
        exact, left = values.double(), scores.double()
        singular = torch.linalg.vector_norm(left, dim=-2)[..., None]
        centered = exact - exact.mean(-2, keepdim=True)
        directions = _divide(_divide(left.mT, singular) @ centered, singular)
        sums = directions.abs() @ exact.abs().mT
        noise = 2 * torch.finfo(values.dtype).eps * torch.linalg.vector_norm(sums, dim=-1, keepdim=True)
    return torch.where((singular <= noise).mT, 0, scores)  # not where they are NaN


def share_of_components(scores: Float[Tensor, "*paths nodes components"]) -> Float[Tensor, "*paths"]:
    """Return the share of the components that a path varies in; if it is constant, the share of a single one.

    The mean of normalized degrees over all components, divided by it, is the mean over those that exist.
    """
    exists = (scores != 0).any(-2)
    return exists.sum(-1).clamp(min=1).to(scores.dtype) / scores.shape[-1]


class _Scores(torch.autograd.Function):
    """Maps values to the first principal scores Y V = U S of the centered values Y = U S Vᵀ."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, components: int) -> Tensor:
        ctx.given = values.dtype
        dtype = torch.promote_types(values.dtype, torch.float32)
        # In float64: the rounding of the mean may be as large as the differences from it, and the Gram matrix squares.
        values = values.double()
        centered = values - values.mean(-2, keepdim=True)
        # Squares of numbers in float64 could leave its range. The gradient does not depend on the unit.
        unit = power_of_two(centered.abs().amax((-2, -1), keepdim=True)) if dtype == torch.float64 else 1.0
        centered = centered / unit
        directions, singular = _decompose(centered)
        ctx.save_for_backward(centered.to(dtype), directions, singular)
        return (directions[..., :components] * singular[..., None, :components] * unit).to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Differentiate s_i u_i = Y v_i, with the singular values s and vectors u, v of Y.

        d(Y v_i) = dY v_i + Σ_{j≠i} u_j s_j (s_j u_jᵀ dY v_i + s_i u_iᵀ dY v_j) / (s_i² − s_j²). With v_i = Yᵀ u_i / s_i
        the gradient is a nodes × nodes matrix times Y: a single product with all outputs.
        """
        centered, directions, singular = ctx.saved_tensors
        grad = grad.double()
        kept = directions[..., : grad.shape[-1]]
        kept_singular = singular[..., : grad.shape[-1]]

        one, other = kept_singular[..., None, :].square(), singular[..., :, None].square()
        gap, floor = one - other, _GAP_FLOOR * torch.maximum(one, other)
        rotation = (directions.mT @ grad) * _divide(gap, gap.square() + floor.square())

        weighted = directions * singular[..., None, :].square()
        left = _divide(grad + weighted @ rotation, kept_singular[..., None, :])
        right = kept * kept_singular[..., None, :]
        mixing = left @ kept.mT + right @ rotation.mT @ directions.mT
        mixing = mixing - mixing.mean(-2, keepdim=True)  # the derivative of centering
        # Compiled code that is called under autocast has its backward pass under autocast too: this product in bf16.
        with torch.autocast(grad.device.type, enabled=False):
            return (mixing.to(centered.dtype) @ centered).to(ctx.given), None


def _decompose(centered: Tensor) -> tuple[Tensor, Tensor]:
    """Return left singular vectors and singular values, largest first, from the smaller Gram matrix."""
    wide = centered.shape[-2] <= centered.shape[-1]
    gram = centered @ centered.mT if wide else centered.mT @ centered
    # The library refuses NaN and infinity, which a training step in float16 may overflow to: it gets zeros for these.
    finite = gram.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    gram = torch.where(finite, gram, 0)
    eigenvalues, vectors = eigenvectors(gram) if _may_not_wait(gram) else torch.linalg.eigh(gram)
    singular, vectors = eigenvalues.flip(-1).clamp(min=0).sqrt(), vectors.flip(-1)
    singular = torch.where(singular > _NOISE_FLOOR * singular[..., :1], singular, 0)
    singular = torch.where(finite[..., 0], singular, torch.nan)
    directions = vectors if wide else _divide(centered @ vectors, singular[..., None, :])
    return directions, singular


def _may_not_wait(tensor: Tensor) -> bool:
    """Return whether this is a captured or compiled training step, in which no library call may wait for the GPU."""
    return tensor.is_cuda and (torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing())


def _divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Divide, with 0 where the denominator is 0."""
    zero = denominator == 0
    return torch.where(zero, 0, numerator / torch.where(zero, 1, denominator))
