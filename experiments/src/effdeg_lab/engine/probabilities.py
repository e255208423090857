"""How good predicted probabilities are: functions of logits, N × classes, and labels, N, computed in float64."""

import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

_BINS = 15
_LOWEST, _HIGHEST = 0.05, 20.0  # temperatures
_HALVINGS = 45  # of the logarithm of that range: to 14 digits


def score_probabilities(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Score predicted probabilities p = softmax(z) of test examples, before and after temperature scaling.

    - ``test_brier``: the mean over examples of Σₖ (pₖ − yₖ)², with y the one-hot label.
    - ``test_calibration_error``: Σ_b (n_b / N) · |accuracy − mean confidence| in 15 bins of confidence maxₖ pₖ.
    - ``test_aurc``: the area under the risk–coverage curve, see :func:`measure_aurc`.
    - ``temperature``, ``test_loss_scaled``, ``test_brier_scaled`` and ``test_calibration_error_scaled``: the mean
      temperature T, and the same scores, with the negative log-likelihood, of softmax(z / T).

    The temperature is cross-fitted. Final runs train on all training examples, so only test examples are left to fit
    it on, and a temperature fitted to the examples it is scored on would look better than it is. So examples at even
    places are scaled with the temperature that fits those at odd places best, and the other way round.
    """
    logits = logits.double()
    even, odd = (fit_temperature(logits[start::2], labels[start::2]) for start in (0, 1))
    scaled = logits.clone()
    scaled[0::2] /= odd
    scaled[1::2] /= even
    probabilities, scaled_probabilities = logits.softmax(1), scaled.softmax(1)
    found = {
        "test_brier": measure_brier(probabilities, labels),
        "test_calibration_error": measure_calibration_error(probabilities, labels),
        "test_aurc": measure_aurc(probabilities, labels),
        "temperature": (even + odd) / 2,
        "test_loss_scaled": cross_entropy(scaled, labels),
        "test_brier_scaled": measure_brier(scaled_probabilities, labels),
        "test_calibration_error_scaled": measure_calibration_error(scaled_probabilities, labels),
    }
    return dict(zip(found, torch.stack([*found.values()]).tolist(), strict=True))  # waits for the GPU once


def fit_temperature(logits: Tensor, labels: Tensor) -> Tensor:
    """Find the temperature T in [0.05, 20] with the least negative log-likelihood of softmax(z / T).

    The likelihood is convex in b = 1/T, with the slope Σₖ softmax(b z)ₖ (zₖ − z_label), summed over examples. Bisection
    finds where it changes its sign. Where it never does, as when every example is right, T is at an end of the range;
    where T makes no difference, it is 1.
    """
    margins = logits - logits.gather(1, labels[:, None])

    def slope(inverse: Tensor) -> Tensor:
        return ((inverse * margins).softmax(1) * margins).sum()

    low, high = (logits.new_tensor(-math.log(temperature)) for temperature in (_HIGHEST, _LOWEST))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        falls = slope(middle.exp()) < 0
        low, high = torch.where(falls, middle, low), torch.where(falls, high, middle)
    one = torch.ones_like(low)
    return torch.where(slope(one) == 0, one, (-(low + high) / 2).exp())


def measure_brier(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return the Brier score: the mean over examples of the squared distance to the one-hot label."""
    right = probabilities.gather(1, labels[:, None])[:, 0]
    return (probabilities.square().sum(1) - 2 * right + 1).mean()


def measure_calibration_error(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return the expected calibration error: |accuracy − confidence| in 15 bins of equal width, by their examples."""
    confidence, predicted = probabilities.max(1)
    inner = torch.linspace(0, 1, _BINS + 1, dtype=confidence.dtype, device=confidence.device)[1:-1]
    places = torch.bucketize(confidence, inner, right=True)
    members = places == torch.arange(_BINS, device=places.device)[:, None]
    # (n_b / N) · |accuracy − mean confidence| is the size of the sum of differences over N; empty bins need no care.
    return (members.double() @ ((predicted == labels).double() - confidence)).abs().sum() / len(labels)


def measure_aurc(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return the area under the risk–coverage curve: the error rate among the k most confident, on average over k.

    Examples of equal confidence may come in any order: each counts as the error rate among them, the average over all
    orders.
    """
    confidence, predicted = probabilities.max(1)
    confidence, order = confidence.sort(descending=True)
    errors = (predicted != labels)[order].double()
    ties = pad(confidence.diff() != 0, (1, 0)).cumsum(0)
    means = ties.bincount(errors) / ties.bincount()
    return (means[ties].cumsum(0) / torch.arange(1, len(errors) + 1, device=errors.device)).mean()
