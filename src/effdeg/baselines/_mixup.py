"""Mixup: train on interpolations of pairs of examples and of their labels."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from effdeg._adapters.examples import count_examples, examples_only
from effdeg._adapters.labels import check_class_ids, check_rows_of_labels, one_hot
from effdeg._adapters.paths import check_interpolable, check_masks, check_real, interpolate, join_masks
from effdeg._utils.device import is_readable, is_traced
from effdeg._utils.shapes import Float, Int
from effdeg._utils.tree import Tree, take, tensors, tree_map
from effdeg.baselines._shared import check_no_labels, check_settings


def mixup(
    x: Tree, y: Tensor, *, alpha: float = 1.0, classes: int | None = None, generator: torch.Generator | None = None
) -> tuple[Tree, Tensor]:
    """Mix each example of a batch with another one, and their labels in the same way (Zhang et al., 2018).

    With one λ ~ Beta(α, α) for the batch and a random permutation π, example i becomes λ x_i + (1 - λ) x_π(i), and its
    label λ y_i + (1 - λ) y_π(i). Nothing is changed in place, and a GPU is not synchronized, except to check masks in
    floating point.

    Example:
        >>> import torch
        >>> from effdeg.baselines import mixup
        >>> x, y = torch.rand(4, 3, 32, 32), torch.tensor([0, 1, 1, 9])
        >>> mixed, soft = mixup(x, y, classes=10)
        >>> mixed.shape, soft.shape
        (torch.Size([4, 3, 32, 32]), torch.Size([4, 10]))
        >>> torch.allclose(soft.sum(1), torch.ones(4))
        True

    Args:
        x: The batch: a tensor or a tree of tensors. Floating-point tensors with one row per example are mixed, masks of
            both examples are joined as :class:`effdeg.Penalty` joins them, and tensors shared by all examples stay as
            they are.
        y: Class ids of any shape, or soft labels or targets in floating point, which are mixed as they are.
        alpha: α, how strongly examples are mixed: λ is mostly close to 0 or 1 for a small α, uniform for α = 1, and
            close to ½ for a large α.
        classes: The number of classes, if the labels are ids.
        generator: The source of randomness; by default torch's global one on the batch's device. Not with
            ``torch.compile(fullgraph=True)``.

    Returns:
        The mixed batch and its labels. Before they are mixed, ids become one-hot with the classes in a last dimension,
        zeros where an id is -100. For such soft labels ``cross_entropy`` divides by the number of examples; for ids it
        divides by the sum of the classes' weights, and leaves examples of -100 out of the count. With class weights or
        ids of -100 the loss is therefore not λ times that of one label plus 1 - λ times that of the other.

    Raises:
        TypeError: If ``x`` holds no floating-point tensor to mix or a complex one, or a setting has the wrong type.
        ValueError: If ``x`` holds labels or a mask that is added to scores, ``y`` does not have one row per example or
            has ids that are not classes, ``classes`` is missing for ids, or a setting is out of range.
    """
    batch = check_batch(x, y, alpha=alpha, classes=classes, generator=generator)
    check_mixable(x, batch)
    mixing = Mixing.draw(batch, alpha, device=tensors(x)[0].device, generator=generator)
    dtype = next(tensor.dtype for tensor in tensors(x) if tensor.is_floating_point())
    return mixing.mix(x), mixing.mix(soft_labels(y, classes, dtype))


@dataclass(frozen=True, eq=False)
class Mixing:
    """Which examples of a batch are mixed, and in what proportion."""

    share: Float[Tensor, "examples 1"]  # λ, which each example keeps of itself, the same for all
    partners: Int[Tensor, "examples"]  # π, the example that each is mixed with

    @classmethod
    def draw(cls, examples: int, alpha: float, *, device: torch.device, generator: torch.Generator | None) -> "Mixing":
        """Draw λ from Beta(alpha, alpha), and a permutation."""
        home = device if generator is None else generator.device
        share = draw_shares(1, alpha, device=home, generator=generator)
        partners = torch.randperm(examples, device=home, generator=generator)
        return cls(share.to(device).expand(examples, 1), partners.to(device))

    def mix(self, x: Tree) -> Tree:
        """Mix the examples of a batch, or anything with one row for each of them."""
        return self._combine(x, lambda rows, others: interpolate(rows, others, self.share))

    def join_masks(self, x: Tree) -> Tree:
        """Join the masks of a batch with those of the partners; leave everything else as it is."""
        return self._combine(x, join_masks)

    def _combine(self, x: Tree, combine: Callable[[Tree, Tree], Tree]) -> Tree:
        rows = examples_only(x, len(self.partners))
        combined = combine(rows, take(rows, self.partners))
        # Leaves without a row per example stay as they are.
        return tree_map(lambda own, new: own if new is None else new, x, combined)


def draw_shares(
    count: int, alpha: float, *, device: torch.device, generator: torch.Generator | None
) -> Float[Tensor, "count"]:
    """Draw from Beta(alpha, alpha), ``count`` times and independently."""
    # G / (G + H) is Beta where G and H are Gamma; torch's own Beta takes no generator, hence the private
    # _standard_gamma. For a small alpha both underflow, and a λ near 0 or 1 would come out as a half. So their
    # logarithms are drawn: that of Gamma(alpha) is that of Gamma(alpha + 1) less an exponential over alpha
    # (Marsaglia and Tsang, 2000).
    shapes = torch.full((2, count), alpha + 1, dtype=torch.float64, device=device)
    logs = torch._standard_gamma(shapes, generator).log()
    waits = torch.empty_like(logs).exponential_(generator=generator)
    # The exponentials are subtracted before the division, which may overflow: inf - inf would be NaN.
    return torch.sigmoid(logs[0] - logs[1] + (waits[1] - waits[0]) / alpha)


def soft_labels(y: Tensor, classes: int | None, dtype: torch.dtype) -> Tensor:
    """Return class ids as one-hot labels in this precision or float32, and soft labels as they are."""
    if y.is_floating_point() or classes is None:
        return y
    return one_hot(y, classes).to(torch.promote_types(dtype, torch.float32))


def check_mixable(x: Tree, batch: int, what: str = "x") -> None:
    """Raise unless the examples of a batch can be mixed: floating tensors, and masks next to them."""
    examples = examples_only(x, batch)
    advice = (
        "Convert images to floating point (images.float() / 255); for token ids use embedding_mixup, which mixes the "
        "output of a layer."
    )
    check_interpolable(examples, advice=lambda: advice)
    if all(map(is_readable, tensors(x))):
        check_masks(examples, what)


def check_batch(x: Tree, y: Tensor, *, classes: int | None, **settings: Any) -> int:
    """Return the number of examples; raise unless these settings are right for a batch and its labels."""
    check_settings(classes=classes, **settings)
    check_no_labels(x)
    batch = count_examples(x)
    check_labels(y, batch, classes)
    check_real(examples_only(x, batch), "x")
    return batch


def check_labels(y: Tensor, batch: int, classes: int | None) -> None:
    """Raise unless there is one label per example, soft or a class id."""
    check_rows_of_labels(y, batch)
    if y.is_floating_point():
        if classes is not None and (y.dim() < 2 or y.shape[-1] != classes):
            raise ValueError(
                f"the labels (y) are of shape {tuple(y.shape)} in floating point, and so mixed as they are, but "
                f"classes={classes}. Give class ids as integers, y.long(), or one number for each class in the last "
                "dimension; without classes=… for a regression."
            )
        return
    if y.is_complex():
        raise TypeError(f"the labels (y) are complex ({y.dtype}); give class ids, or labels in floating point.")
    if classes is None:
        raise ValueError(
            f"the labels (y) are class ids ({y.dtype}), which are mixed as one-hot labels: give the number of classes, "
            "classes=…, or labels in floating point."
        )
    # Not on a GPU, where the check would synchronize: there, an invalid id is ignored like -100.
    if not y.is_cuda and not is_traced():
        check_class_ids(y.long(), classes, f"classes={classes}")
