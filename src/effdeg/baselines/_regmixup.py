"""RegMixup: train on the batch and on mixup of it, in one forward pass."""

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from effdeg._adapters.arguments import name_arguments
from effdeg._adapters.checked import CheckedModels
from effdeg._adapters.examples import as_arguments, count_examples
from effdeg._adapters.outputs import are_distributions, shaped_values
from effdeg._utils.checks import check_choice, check_generator
from effdeg._utils.device import is_readable
from effdeg._utils.tree import Tree, has_rows, tensors, tree_map
from effdeg.baselines._mixup import check_alpha, check_classes, check_no_labels, mixup

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments and the keywords of a model."""

MixedLoss = Literal["cross-entropy", "brier", "l1"]
"""How a model is compared with the mixed labels."""


class RegMixup(nn.Module):
    """The loss of a model on mixup of a batch, to be added to that on the batch itself (Pinto et al., 2022).

    With x̃ and ỹ from :func:`mixup`, the loss is CE(f(x), y) + η CE(f(x̃), ỹ), where η = 1 in the paper. This returns
    f(x) and CE(f(x̃), ỹ), both from one forward pass of twice the batch, in which BatchNorm sees one batch. As the
    examples themselves are trained on too, λ can be close to ½ (a large α) without a loss of accuracy. The authors'
    code averages the two terms: its loss is half of this one.

    Other losses on the mixed batch make this Brier mixup, Σ (p − ỹ)², and L1 mixup, Σ |p − ỹ|, where p = softmax f(x̃)
    and the sum is over classes. L1 mixup is what :class:`effdeg.Penalty` is with labels at the ends of paths and 3
    nodes, up to the weights along the path.

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

    def __init__(
        self,
        alpha: float = 10.0,
        *,
        classes: int | None = None,
        loss: MixedLoss = "cross-entropy",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_alpha(alpha)
        check_classes(classes)
        check_choice("loss", loss, get_args(MixedLoss))
        check_generator(generator)
        self.alpha, self.classes, self.loss, self.generator = alpha, classes, loss, generator
        self._checked = CheckedModels()

    def forward(self, model: Callable[..., Any], x: Tree, y: Tensor, **model_kwargs: Any) -> tuple[Any, Tensor]:
        """Run a model on a batch and on mixup of it.

        Args:
            model: Any callable. It is called as usual, ``model(x)``, with twice the batch.
            x: The batch: a tensor, a tuple (passed as arguments) or a mapping (passed as keywords).
            y: Class ids, or soft labels of the shape of the model's logits, whose last dimension is the classes.
            **model_kwargs: More arguments for the model, treated like ``x``.

        Returns:
            The model's output for the batch, and the loss on the mixed batch: a scalar.

        Raises:
            TypeError: If the batch holds no floating-point tensor to mix, or an argument is given twice.
            ValueError: If labels are among the inputs or do not match the batch, the classes or the logits, or the
                model does not return one row per example, or, in the first call with it, probabilities.
        """
        call = as_arguments(x, **model_kwargs)
        check_no_labels(call[1])
        # By name, which tells how a mask is joined.
        named = name_arguments(call[0], model), call[1]
        mixed, soft = mixup(named, y, alpha=self.alpha, classes=self.classes, generator=self.generator)
        outputs, others = run_joined(model, call, (tuple(mixed[0].values()), mixed[1]))
        check_logits(others, len(soft), model, self._checked)
        logits = shaped_values(others, "identity", points=len(soft))
        if logits.shape != soft.shape or soft.dim() < 2:
            raise ValueError(
                f"the model returned logits of shape {tuple(logits.shape)} for soft labels of shape "
                f"{tuple(soft.shape)}: both must be examples × … × classes. Check classes=… and the labels (y)."
            )
        return outputs, self._compare(logits, soft).sum(-1).mean()

    def _compare(self, logits: Tensor, soft: Tensor) -> Tensor:
        """Return the loss of each example and class."""
        if self.loss == "cross-entropy":
            return -(soft * logits.log_softmax(-1))
        # Labels sum to 1, or to less if an id was -100: what is missing is filled with the model's own probabilities,
        # as it is by the cross-entropy, whose gradient with respect to the logits is this difference.
        difference = soft.sum(-1, keepdim=True) * logits.softmax(-1) - soft
        return difference.square() if self.loss == "brier" else difference.abs()

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"alpha={self.alpha}, classes={self.classes}, loss={self.loss!r}"


def check_logits(returned: Any, rows: int, model: Callable[..., Any], checked: CheckedModels) -> bool:
    """Raise if a model returned probabilities; return whether this was looked at: in the first call with the model."""
    first = tensors(returned)[0]
    if first.is_meta or not is_readable(first) or model in checked:
        return False
    values = shaped_values(returned, "identity", points=rows, look=True, whose="network")
    if values.dim() > 1 and values.shape[-1] > 1 and are_distributions(values):
        raise ValueError(
            "the model's outputs are probabilities already: none is negative, and they sum to 1 or 100. Let it return "
            "logits."
        )
    checked.add(model)
    return True


def run_joined(model: Callable[..., Any], first: Call, second: Call) -> tuple[Any, Any]:
    """Run a model on two batches as one, and return what it returned for each.

    Raises:
        ValueError: If the model does not return one row per example.
    """
    arguments, keywords = join_batches(first, second)
    return split_outputs(model(*arguments, **keywords), count_examples(first), count_examples(second))


def join_batches(first: Call, second: Call) -> Call:
    """Join two batches: tensors with one row per example. Everything else is that of the first batch."""
    rows, others = count_examples(first), count_examples(second)

    def join(one: Any, other: Any) -> Any:
        return torch.cat([one, other]) if has_rows(one, rows) and has_rows(other, others) else one

    joined: Call = tree_map(join, first, second)
    return joined


def split_outputs(returned: Any, rows: int, others: int) -> tuple[Any, Any]:
    """Split what a model returned for joined batches of ``rows`` and ``others`` examples.

    Raises:
        ValueError: If the model did not return one row per example.
    """
    if not any(has_rows(leaf, rows + others) for leaf in tensors(returned)):
        shapes = " and ".join(str(tuple(leaf.shape)) for leaf in tensors(returned)) or "no tensor"
        raise ValueError(
            f"the model returned {shapes} for a joined batch of {rows} + {others} examples, but no tensor with "
            f"{rows + others} rows, one per example. Compute the loss outside of the model, from its outputs."
        )

    def cut(part: slice) -> Any:
        return tree_map(lambda leaf: leaf[part] if has_rows(leaf, rows + others) else leaf, returned)

    return cut(slice(rows)), cut(slice(rows, None))
