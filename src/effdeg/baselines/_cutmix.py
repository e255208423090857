"""CutMix: train on images with a box of another image in them, and on labels mixed by area."""

import torch
from torch import Tensor

from effdeg._adapters.examples import check_channels_first, count_examples
from effdeg._utils.shapes import Bool
from effdeg.baselines._mixup import Mixing, check_batch, draw_shares, soft_labels
from effdeg.baselines._shared import draw


def cutmix(
    x: Tensor, y: Tensor, *, alpha: float = 1.0, classes: int | None = None, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Replace a box of each image by that of another one, and mix their labels by area (Yun et al., 2019).

    With λ ~ Beta(α, α) and a random permutation π, a box of √(1 - λ) times the height and the width of image i is
    filled from image π(i). Its center is uniform over the image, and the border cuts it off. The label becomes
    (1 - a) y_i + a y_π(i), where a is the exact share of the pixels that were replaced.

    Each image has a λ and a box of its own, so that a step averages over boxes; a pixel is in the box if its center is.
    Nothing is changed in place, and a GPU is not synchronized. Older versions of torch, such as 2.6, compile it for one
    batch size at a time: ``torch.compile(dynamic=False)``.

    Example:
        >>> import torch
        >>> from effdeg.baselines import cutmix
        >>> x, y = torch.rand(4, 3, 32, 32), torch.tensor([0, 1, 1, 9])
        >>> mixed, soft = cutmix(x, y, classes=10)
        >>> mixed.shape, soft.shape
        (torch.Size([4, 3, 32, 32]), torch.Size([4, 10]))

    Args:
        x: The images, examples × … × height × width, in floating point or integers.
        y: The labels, as in :func:`mixup`.
        alpha: α. With 1, the paper's, areas are uniform before the border cuts boxes off.
        classes: The number of classes, if the labels are ids.
        generator: The source of randomness, as in :func:`mixup`.

    Returns:
        The mixed images and their labels, soft as those of :func:`mixup`.

    Raises:
        TypeError: If ``x`` is not a tensor, complex, or has its channels last, or a setting has the wrong type.
        ValueError: If ``x`` has no height and width, ``y`` does not have one row per image or has ids that are not
            classes, ``classes`` is missing for ids, or a setting is out of range.
    """
    _check_images(x)
    check_batch(x, y, alpha=alpha, classes=classes, generator=generator)
    home = x.device if generator is None else generator.device
    box = _draw_boxes(x, alpha, home, generator).to(x.device)
    partners = torch.randperm(len(x), device=home, generator=generator).to(x.device)
    kept = (~box).double().mean((1, 2))
    mixing = Mixing(kept[:, None], partners)
    within = box.view(len(x), *[1] * (x.dim() - 3), *x.shape[-2:])
    return torch.where(within, x[partners], x), mixing.mix(soft_labels(y, classes, x.dtype))


def _draw_boxes(
    x: Tensor, alpha: float, device: torch.device, generator: torch.Generator | None
) -> Bool[Tensor, "images height width"]:
    """Draw a box for each image; it marks the pixels inside."""
    # Both sides are the same share of the image's, so that the product of the two is the area.
    half = (1 - draw_shares(len(x), alpha, device=device, generator=generator)).sqrt() / 2
    centers = draw(torch.rand, 2, len(x), 1, dtype=torch.float64, device=device, generator=generator)

    def near(center: Tensor, size: int) -> Tensor:
        pixels = (torch.arange(size, dtype=torch.float32, device=device) + 0.5) / size
        return (pixels - center).abs() < half[:, None]

    rows, columns = (near(center, size) for center, size in zip(centers, x.shape[-2:], strict=True))
    return rows[:, :, None] & columns[:, None, :]


def _check_images(x: object) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"x is {type(x).__name__}; cutmix needs a tensor of images, examples × … × height × width.")
    count_examples(x)
    if x.dim() < 3:
        raise ValueError(
            f"x of shape {tuple(x.shape)} has no height and width to cut a box from: images are examples × … × height "
            "× width. For examples without pixels use mixup."
        )
    check_channels_first(x)
