"""Linear probes: logistic regression on the features of a frozen encoder."""

import warnings

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

# Of the mean loss, for the largest of its derivatives in the coordinates of the search.
_TOLERANCE, _STEPS = 1e-7, 2000
_LARGE = 1e-5  # above this the minimum was missed


def fit_logistic(features: Tensor, labels: Tensor, classes: int, *, decay: float) -> tuple[Tensor, Tensor]:
    r"""Return the weights, classes × D, and the biases of the logistic regression that fits features best.

    They minimize

    .. math:: \frac{1}{N} \sum_n -\log \operatorname{softmax}(W x_n + b)_{y_n}
        + \frac{\lambda}{2} (\lVert W \rVert^2 + \lVert b \rVert^2),

    which is strongly convex, so that there is one minimum and no random number decides; found by L-BFGS in float64.

    Args:
        features: N × D.
        labels: From 0, N.
        classes: How many there are.
        decay: The weight :math:`\lambda` of the penalty.

    Raises:
        ValueError: If the weight is not above 0, or features are not finite.

    Warns:
        RuntimeWarning: If 2,000 steps do not reach the minimum.
    """
    if not decay > 0:
        raise ValueError(f"decay={decay}: expected a number above 0, or else there may be no minimum.")
    if not bool(features.isfinite().all()):
        raise ValueError("the features are not all finite.")
    x = torch.cat([features.double(), torch.ones_like(features[:, :1], dtype=torch.float64)], dim=1)
    # In coordinates in which the loss has about the same curvature in all directions: far fewer steps lead there.
    unit = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    inverse: Tensor = torch.linalg.inv(torch.linalg.cholesky(x.mT @ x / (4 * len(x)) + decay * unit))
    points = x @ inverse.mT
    head = torch.zeros(classes, x.shape[1], dtype=x.dtype, device=x.device, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [head],
        max_iter=_STEPS,
        tolerance_grad=_TOLERANCE,
        tolerance_change=0.0,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(points @ head.T, labels) + decay / 2 * (head @ inverse).square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    closure()
    assert head.grad is not None
    if (slope := float(head.grad.abs().max())) > _LARGE:
        said = f"the logistic regression has not converged: a derivative of its loss is still {slope:.1g}."
        warnings.warn(f"{said} Use a larger decay.", RuntimeWarning, stacklevel=2)
    found = (head.detach() @ inverse).to(features.dtype)
    return found[:, :-1], found[:, -1]
