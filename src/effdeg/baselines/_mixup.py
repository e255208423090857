"""Mixup: train between pairs of examples, with their labels mixed alike."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from effdeg._models.labels import check_class_ids, check_rows_of_labels, one_hot
from effdeg._models.paths import check_interpolable, check_real, interpolate, join_masks
from effdeg._utils.checks import check_count, check_generator, check_number
from effdeg._utils.shapes import Float, Int
from effdeg._utils.tree import Tree, take, tensors, tree_map
from effdeg.train._points import count_examples, examples_only


def mixup(
    x: Tree,
    y: Tensor,
    *,
    alpha: float = 1.0,
    classes: int | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tree, Tensor]:
    """Mix each example of a batch with another one, and their labels alike (Zhang et al., 2018).

    One lambda for the batch is drawn from Beta(alpha, alpha), and every example becomes lambda times itself and
    1 - lambda times its partner in a random permutation:

    >>> mixed, soft = effdeg.baselines.mixup(x, y, alpha=1.0, classes=10)
    >>> loss = cross_entropy(model(mixed), soft)

    Nothing is changed in place. On a GPU nothing waits for it.

    Args:
        x: The batch: a tensor or a tree of them. Floating tensors with one row per example are mixed, masks of both
            examples are joined as :class:`effdeg.Penalty` joins them, and tensors shared by all stay as they are.
        y: Class ids of any shape, or soft labels or targets in floating point, which are mixed as they are.
        alpha: How much is mixed: near 0 hardly ever, 1 evenly, larger values ever closer to halves.
        classes: How many classes there are, if the labels are ids.
        generator: The source of randomness; by default torch's global one on the batch's device. Not with
            ``torch.compile(fullgraph=True)``.

    Returns:
        The mixed batch and its labels. Ids become one-hot with the classes in a last dimension, zeros where an id is
        -100, before they are mixed. For such soft labels ``cross_entropy`` divides by the number of examples; for ids
        it divides by the sum of the classes' weights, and leaves examples of -100 out of the count. With class weights
        or ids of -100 the loss is therefore not lambda times that of one label and 1 - lambda times that of the other.
    """
    check_alpha(alpha)
    check_generator(generator)
    check_no_labels(x)
    batch = count_examples(x)
    check_labels(y, batch, classes)
    check_real(examples_only(x, batch), "x")
    advice = (
        "Convert images to floating point (images.float() / 255); for token ids use embedding_mixup, which mixes what "
        "a layer makes of them."
    )
    check_interpolable(examples_only(x, batch), advice=lambda: advice)
    mixing = Mixing.draw(batch, alpha, device=tensors(x)[0].device, generator=generator)
    dtype = next(tensor.dtype for tensor in tensors(x) if tensor.is_floating_point())
    return mixing.mix(x), mixing.mix(soft_labels(y, classes, dtype))


@dataclass(frozen=True, eq=False)
class Mixing:
    """Which examples of a batch are mixed, and how much.

    Attributes:
        share: How much of each example is its own (the paper's lambda), the same for all.
        partners: The other example of each.
    """

    share: Float[Tensor, "examples 1"]
    partners: Int[Tensor, "examples"]

    @classmethod
    def draw(cls, examples: int, alpha: float, *, device: torch.device, generator: torch.Generator | None) -> "Mixing":
        """Draw lambda from Beta(alpha, alpha), and a permutation."""
        home = device if generator is None else generator.device
        # G / (G + H) is Beta where G and H are Gamma; torch's own Beta takes no generator. For a small alpha both
        # underflow, and what is to be nearly 0 or 1 would come out as a half. So their logarithms are drawn: that of
        # Gamma(alpha) is that of Gamma(alpha + 1) less an exponential over alpha (Marsaglia and Tsang, 2000).
        shapes = torch.full((2,), alpha + 1, dtype=torch.float64, device=home)
        logs = torch._standard_gamma(shapes, generator).log()
        waits = torch.empty_like(shapes).exponential_(generator=generator)
        # The exponentials are subtracted before they are divided, which may overflow: inf - inf would be NaN.
        share = torch.sigmoid(logs[:1] - logs[1:] + (waits[1:] - waits[:1]) / alpha)
        partners = torch.randperm(examples, device=home, generator=generator)
        return cls(share.to(device).expand(examples, 1), partners.to(device))

    def mix(self, x: Tree) -> Tree:
        """Mix the examples of a batch, or anything with one row for each of them."""
        rows = examples_only(x, len(self.partners))
        return _put_into(x, interpolate(rows, take(rows, self.partners), self.share))

    def join_masks(self, x: Tree) -> Tree:
        """Leave a batch as it is, but for masks, which are joined with the partners'."""
        rows = examples_only(x, len(self.partners))
        return _put_into(x, join_masks(rows, take(rows, self.partners)))


def soft_labels(y: Tensor, classes: int | None, dtype: torch.dtype) -> Tensor:
    """Make one-hot labels of class ids, in this precision or float32, and leave soft labels as they are."""
    if y.is_floating_point() or classes is None:
        return y
    return one_hot(y, classes).to(torch.promote_types(dtype, torch.float32))


def check_alpha(alpha: float) -> None:
    """Raise unless lambda can be drawn."""
    check_number("alpha", alpha, "lambda is drawn from Beta(alpha, alpha). Papers use 0.1 to 1")


def check_classes(classes: int | None) -> None:
    """Raise unless this can be a number of classes."""
    if classes is not None:
        check_count("classes", classes, least=1)


def check_labels(y: Tensor, batch: int, classes: int | None) -> None:
    """Raise unless there is one label per example, soft or a class."""
    check_classes(classes)
    check_rows_of_labels(y, batch)
    if y.is_floating_point():
        return
    if y.is_complex():
        raise TypeError(f"the labels (y) are complex ({y.dtype}); give class ids, or labels in floating point.")
    if classes is None:
        raise ValueError(
            f"the labels (y) are class ids ({y.dtype}), of which one-hot labels are mixed: say how many classes there "
            "are with classes=…, or give labels in floating point."
        )
    # A GPU is not asked, which would be to wait for it: there, what is no class is left out as -100 is.
    if not y.is_cuda and not torch.compiler.is_compiling():
        check_class_ids(y, classes, f"classes={classes}")


def check_no_labels(x: Tree) -> None:
    """Raise if a batch holds labels, which would not be mixed, and of which a model may make a loss."""
    if isinstance(x, Mapping) and "labels" in x:
        raise ValueError(
            "x holds 'labels'. They are not mixed there, and a model may make a loss of its own of them. Take them out "
            "of x, give them as y, and compute the loss from the outputs and the mixed labels."
        )


def _put_into(x: Tree, rows: Tree) -> Tree:
    """Put mixed rows into the place of a batch's own; what has no rows stays."""
    return tree_map(lambda own, mixed: own if mixed is None else mixed, x, rows)
