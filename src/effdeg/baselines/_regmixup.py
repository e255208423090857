"""RegMixup: train on the batch and on mixup of it, in one forward pass."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from effdeg._adapters.arguments import name_arguments
from effdeg._adapters.outputs import TOLERANCE, shaped_values
from effdeg._utils.checks import check_choice
from effdeg.baselines._mixup import mixup
from effdeg.baselines._shared import Call, Regularizer, run_joined

MixedLoss = Literal["cross-entropy", "brier", "l1"]
"""How a model is compared with the mixed labels."""


@dataclass(eq=False, repr=False)
class RegMixup(Regularizer):
    """The loss of a model on mixup of a batch, to be added to that on the batch itself (Pinto et al., 2022).

    With x̃ and ỹ from :func:`mixup`, the loss is CE(f(x), y) + η CE(f(x̃), ỹ), where η = 1 in the paper. A call returns
    f(x) and CE(f(x̃), ỹ), both from one forward pass of twice the batch, in which BatchNorm sees one batch. As the
    examples themselves are trained on too, λ can be close to ½ (a large α) without a loss of accuracy.

    Other losses on the mixed batch make this Brier mixup, Σ (p − ỹ)², and L1 mixup, Σ |p − ỹ|, where p = softmax f(x̃)
    and the sum is over classes. L1 mixup is what :class:`effdeg.Penalty` is with labels at the ends of paths and 3
    nodes, up to the weights along the path.

    Labels are class ids, or soft labels of the shape of the model's logits, whose last dimension is the classes.

    Example:
        >>> import torch
        >>> from torch.nn.functional import cross_entropy
        >>> from effdeg.baselines import RegMixup
        >>> model, x, y = torch.nn.Linear(6, 3), torch.rand(8, 6), torch.randint(3, (8,))
        >>> outputs, mixed = RegMixup(alpha=10.0, classes=3)(model, x, y)
        >>> loss = cross_entropy(outputs, y) + 1.0 * mixed
        >>> outputs.shape, mixed.shape
        (torch.Size([8, 3]), torch.Size([]))

    Args:
        alpha: α of λ ~ Beta(α, α); the paper uses 10 and 20.
        classes: The number of classes, if the labels are ids.
        loss: ``"cross-entropy"``, ``"brier"`` or ``"l1"``, the mean over the mixed examples. An id of -100 asks for
            nothing: the model's own probabilities take its share of a mixed label.
        generator: The source of randomness, as in :func:`mixup`.

    Raises:
        TypeError: If a setting has the wrong type.
        ValueError: If a setting is out of range.
    """

    alpha: float = 10.0
    _: KW_ONLY
    classes: int | None = None
    loss: MixedLoss = "cross-entropy"
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("loss", self.loss, get_args(MixedLoss))

    def _regularize(self, model: Callable[..., Any], call: Call, rows: int, y: Any) -> tuple[Any, Tensor]:
        # By name, which tells how a mask is joined.
        named = name_arguments(call[0], model), call[1]
        mixed, soft = mixup(named, y, alpha=self.alpha, classes=self.classes, generator=self.generator)
        outputs, others = run_joined(model, call, (tuple(mixed[0].values()), mixed[1]))
        first = self._check_logits(others, rows, model)
        logits = shaped_values(others, "identity", points=rows)
        if logits.shape != soft.shape or soft.dim() < 2:
            raise ValueError(
                f"the model returned logits of shape {tuple(logits.shape)} for soft labels of shape "
                f"{tuple(soft.shape)}: both must be examples × … × classes. Check classes=… and the labels (y)."
            )
        if logits.shape[-1] == 1:
            raise ValueError("the model returned a single logit, whose softmax is always 1. Let it return two logits.")
        if first and float(soft.sum(-1).max()) > 1 + TOLERANCE:
            raise ValueError("the labels (y) sum to more than 1 over the classes, but the model's softmax to 1.")
        return outputs, self._compare(logits, soft).sum(-1).mean()

    def _compare(self, logits: Tensor, soft: Tensor) -> Tensor:
        if self.loss == "cross-entropy":
            return -soft * logits.log_softmax(-1).where(soft > 0, 0.0)  # 0 for a class that is masked with -inf
        # Labels sum to 1, or to less if an id was -100: what is missing is filled with the model's own probabilities,
        # as it is by the cross-entropy, whose gradient with respect to the logits is this difference.
        difference = soft.sum(-1, keepdim=True) * logits.softmax(-1) - soft
        return difference.square() if self.loss == "brier" else difference.abs()
