"""Linear probes: logistic regression on the features of a frozen encoder."""

import math
import warnings

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

# The tolerance for the largest derivative of the mean loss, in the coordinates of the search.
_TOLERANCE = 1e-7
# Steps in the same coordinates, and how often the coordinates are chosen anew.
_STEPS, _ROUNDS = 40, 50
_LARGE = 1e-5  # above this the minimum was missed


def fit_logistic(features: Tensor, labels: Tensor, classes: int, *, decay: float) -> tuple[Tensor, Tensor]:
    r"""Return the weights, classes × D, and the biases of the logistic regression that fits features best.

    They minimize

    .. math:: \frac{1}{N} \sum_n -\log \operatorname{softmax}(W x_n + b)_{y_n}
        + \frac{\lambda}{2} (\lVert W \rVert^2 + \lVert b \rVert^2),

    which is strongly convex, so there is one minimum, independent of any random numbers; L-BFGS finds it in float64.

    Args:
        features: N × D.
        labels: Class ids from 0, N.
        classes: The number of classes.
        decay: The weight :math:`\lambda` of the penalty, above 0.

    Warns:
        RuntimeWarning: If 2,000 steps do not reach the minimum.
    """
    if not bool(features.isfinite().all()):
        raise ValueError("the features are not all finite.")
    x = torch.cat([features.double(), torch.ones_like(features[:, :1], dtype=torch.float64)], dim=1)
    head, slope = torch.zeros(classes, x.shape[1], dtype=x.dtype, device=x.device), math.inf
    for _ in range(_ROUNDS):
        head, slope = _descend(head, x, labels.long(), decay)
        if slope <= _TOLERANCE:
            break
    if slope > _LARGE:
        said = f"the logistic regression has not converged: a derivative of its loss is still {slope:.1g}."
        warnings.warn(f"{said} Use a larger decay.", RuntimeWarning, stacklevel=2)
    found = head.to(features.dtype)
    return found[:, :-1], found[:, -1]


def _descend(head: Tensor, x: Tensor, labels: Tensor, decay: float) -> tuple[Tensor, float]:
    """Take some steps of L-BFGS; return the new head and the largest derivative there.

    The steps are in coordinates in which the loss curves about equally in all directions, averaged over the classes:
    tens of steps reach the minimum, whether the classes can be separated or not.
    """
    shares = (x @ head.mT).softmax(1)
    curvature = (shares * (1 - shares)).mean(1, keepdim=True)
    unit = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    root: Tensor = torch.linalg.cholesky((curvature * x).mT @ x / len(x) + decay * unit)
    inverse: Tensor = torch.linalg.inv(root)
    points, scaled = x @ inverse.mT, (head @ root).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [scaled],
        max_iter=_STEPS,
        tolerance_grad=_TOLERANCE,
        tolerance_change=0.0,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(points @ scaled.mT, labels) + decay / 2 * (scaled @ inverse).square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    closure()
    assert scaled.grad is not None
    return scaled.detach() @ inverse, float(scaled.grad.abs().max())
