"""R-Drop: a model should return the same with any two dropout masks."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from effdeg._adapters.labels import IGNORED, check_rows_of_labels
from effdeg._adapters.layers import find_language_model
from effdeg._adapters.outputs import shaped_values
from effdeg._utils.device import is_traced
from effdeg.baselines._shared import Call, Regularizer, join_batches, split_outputs

_SAME = 1e-3
"""Two passes are the same if their outputs differ by less than this share of the difference between examples: rounding
in bfloat16 is less, dropout is more."""


class RDrop(Regularizer):
    """The divergence of two passes with different dropout masks, to be added to the loss (Liang et al., 2021).

    Each example runs twice, in one forward pass of twice the batch, so that dropout draws two masks for it. With p and
    q, the probabilities (softmax over the last dimension) of the two passes, the paper's loss of an example is

        -log p(y) - log q(y) + α/2 (KL(p‖q) + KL(q‖p)).

    A call returns the outputs of both passes, the mean of ½ (KL(p‖q) + KL(q‖p)) over examples, and the labels of these
    outputs, y repeated twice. If y holds labels of tokens, positions whose label is -100 do not count:

        criterion(outputs, labels) + weight * divergence.

    With the mean cross-entropy as the criterion this is ½ (CE(p, y) + CE(q, y)) + weight · divergence, and with weight
    α/2 half of the paper's loss. Any other criterion that is a mean over examples is averaged over both passes in the
    same way, which it could not be for outputs with one row per example.

    A model in evaluation mode or without dropout returns the same outputs twice. In eager mode the first call checks
    for that, which waits for a GPU, and warns.

    Example:
        >>> import torch
        >>> from torch.nn.functional import cross_entropy
        >>> from effdeg.baselines import RDrop
        >>> model = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 3))
        >>> x, y = torch.rand(8, 6), torch.randint(3, (8,))
        >>> outputs, divergence, labels = RDrop()(model, x, y)
        >>> loss = cross_entropy(outputs, labels) + 0.5 * divergence
        >>> outputs.shape, divergence.shape, labels.shape
        (torch.Size([16, 3]), torch.Size([]), torch.Size([16]))
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._compared = False

    def _regularize(self, model: Callable[..., Any], call: Call, rows: int, y: Any) -> tuple[Any, Tensor, Tensor]:
        check_rows_of_labels(y, rows)
        arguments, keywords = join_batches(call, call)
        outputs = model(*arguments, **keywords)
        divergence = symmetric_divergence(*split_outputs(outputs, rows, rows), rows, find_counted(model, y)) / 2
        self._check_logits(outputs, 2 * rows, model)
        self._warn_of_no_dropout(outputs, rows)
        return outputs, divergence, torch.cat([y, y])

    def _warn_of_no_dropout(self, outputs: Any, rows: int) -> None:
        if self._compared or rows < 2 or is_traced():
            return
        first, second = shaped_values(outputs, "identity", points=2 * rows).detach().chunk(2)
        if first.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        between = (first - first[:1]).abs().max()
        # A last layer that starts at zero returns the same for all examples, whatever dropout does before it.
        self._compared = bool(between > 0)
        if self._compared and bool((first - second).abs().max() < _SAME * between):
            warnings.warn(
                "both passes of R-Drop returned the same, so it has no effect: the model has no dropout, or is in "
                "evaluation mode. Write model.train() before the training step.",
                RuntimeWarning,
                stacklevel=2,
            )


def find_counted(model: object, y: object) -> Tensor | None:
    """Return where outputs for tokens have a label; None if each example has one label, soft ones or none."""
    if not isinstance(y, Tensor) or y.dim() < 2 or y.is_floating_point():
        return None
    if find_language_model(model) is not None:  # whose outputs are compared with the labels of the next position
        y = torch.cat([y[:, 1:], torch.full_like(y[:, :1], IGNORED)], dim=1)
    return y != IGNORED


def symmetric_divergence(first: Any, second: Any, rows: int, counted: Tensor | None = None) -> Tensor:
    """Return the mean of KL(p‖q) + KL(q‖p) over examples, where p and q are the softmax of what a model returned.

    Of outputs with several positions those count that are ``counted``, if this has their shape.

    For logits a and b it is Σ (p - q)(log p - log q) = Σ (p - q)(a - b), as p - q sums to zero over classes. If the two
    are similar, both factors are small. The usual Σ p (log p - log q) adds up terms that cancel: in single precision
    only rounding is left where logits differ by 1e-5.

    Raises:
        ValueError: If ``counted`` shows that the classes are in the second dimension, not in the last.
    """
    p, q = (shaped_values(returned, "softmax", points=rows) for returned in (first, second))
    a, b = (shaped_values(returned, "identity", points=rows) for returned in (first, second))
    differences = (a - b).where((p > 0) | (q > 0), 0.0)  # of a class that is masked with -inf, it is NaN
    divergences = ((p - q) * differences).sum(-1)
    if counted is None or counted.shape != divergences.shape:
        if counted is not None and a.dim() > 2 and counted.shape == (len(a), *a.shape[2:]):
            raise ValueError(
                f"with labels of shape {tuple(counted.shape)}, outputs of shape {tuple(a.shape)} have their classes in "
                "the second dimension, but the softmax is over the last. Let the model return outputs.movedim(1, -1)."
            )
        return divergences.mean()
    # Not by picking positions: their number would differ from step to step, and a GPU would wait for it.
    return divergences.where(counted, 0.0).sum() / counted.sum().clamp(min=1)
