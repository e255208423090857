"""Manifold mixup: mix examples at a layer that is drawn at every step."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor

from effdeg._adapters.arguments import name_arguments
from effdeg._adapters.examples import as_arguments, count_examples, examples_only, is_plain_tuple
from effdeg._adapters.layers import FoundLayer, Layer, check_layer, find_layer, replace_output
from effdeg._adapters.paths import check_real, innermost_key, is_mask
from effdeg._utils.checks import check_generator
from effdeg._utils.tree import Tree, named_tensors, tensors
from effdeg.baselines._mixup import Mixing, check_alpha, check_labels, check_mixable, check_no_labels, soft_labels


def manifold_mixup(
    model: Callable[..., Any],
    x: Tree,
    y: Tensor,
    *,
    at: Sequence[Layer | None],
    alpha: float = 2.0,
    classes: int | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Any, Tensor]:
    """Mix examples at the output of a layer that is drawn at every step, and their labels (Verma et al., 2019).

    One of the layers is drawn, uniformly, and its output h becomes λ h + (1 - λ) h[π], with one λ ~ Beta(α, α) and one
    permutation π for the batch, in a single forward pass. The labels become λ y + (1 - λ) y[π].

    The outputs of the other layers are mixed with λ = 1, which leaves them as they are: only the GPU knows which layer
    was drawn, so a CUDA graph draws anew at every replay. What bypasses the layer, such as a skip
    connection from before it, is not mixed. Masks cannot be joined after the layers that use them: for text use
    :func:`embedding_mixup`. Under ``torch.compile`` the graph breaks here and a compiled model runs uncompiled.

    Args:
        model: Any callable with the layers in it. It is called as usual.
        x: The batch: a tensor, a tuple (passed as arguments) or a mapping (passed as keywords).
        y: Class ids of any shape, or soft labels or targets in floating point.
        at: The layers, names or modules, and None for the inputs. The paper has the inputs and the outputs of the first
            blocks. Each layer runs once and returns a floating-point tensor with the examples first, or a tuple that
            begins with one.
        alpha: How strongly examples are mixed, as in :func:`mixup`. The paper uses 2.
        classes: The number of classes, if the labels are ids.
        generator: The source of randomness; by default torch's global one on the batch's device.

    Returns:
        What the model returned, and the mixed labels.

    Raises:
        TypeError: If an argument is of the wrong type, a layer returns no floating-point tensor, or None is among the
            layers and the inputs cannot be mixed.
        ValueError: If a setting is out of range, ``x`` holds masks or labels, ``y`` does not match the batch or the
            classes, or examples cannot be mixed at a layer: it does not run exactly once, with one row per example,
            outside of ``torch.utils.checkpoint``.

    Example:
        >>> import torch
        >>> from torch.nn.functional import cross_entropy
        >>> from effdeg.baselines import manifold_mixup
        >>> model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        >>> x, y = torch.rand(16, 6), torch.randint(3, (16,))
        >>> logits, soft = manifold_mixup(model, x, y, at=[None, "1"], classes=3)
        >>> loss = cross_entropy(logits, soft)
        >>> soft.shape, torch.allclose(soft.sum(1), torch.ones(16))
        (torch.Size([16, 3]), True)
    """
    check_alpha(alpha)
    check_generator(generator)
    check_layers(at)
    check_no_labels(x)
    batch = count_examples(x)
    check_labels(y, batch, classes)
    check_real(examples_only(x, batch), "x")
    _check_no_masks(examples_only(name_arguments(x, model) if is_plain_tuple(x) else x, batch))
    if any(each is None for each in at):
        check_mixable(x, batch)
    layers = [None if each is None else find_layer(model, each) for each in at]
    device = tensors(x)[0].device
    mixing = Mixing.draw(batch, alpha, device=device, generator=generator)
    home = device if generator is None else generator.device
    drawn = torch.randint(len(at), (1,), device=home, generator=generator).to(device)
    mixings = [Mixing(torch.where(drawn == place, mixing.share, 1.0), mixing.partners) for place in range(len(at))]
    outputs, dtype = _run(model, x, list(zip(layers, mixings, strict=True)))
    return outputs, mixing.mix(soft_labels(y, classes, dtype))


def check_layers(at: object) -> None:
    """Raise unless these can be the layers of manifold mixup."""
    if not isinstance(at, Sequence) or isinstance(at, str) or not at:
        raise TypeError(
            f"at={at!r} must be a list of the layers to draw from, names or modules, with None for the inputs: "
            "at=[None, 'layer1', 'layer2']."
        )
    for each in at:
        if each is not None:
            check_layer(each)


def _check_no_masks(examples: Tree) -> None:
    leaves = named_tensors(examples)
    masks = [name or "x" for name, leaf in leaves if is_mask(name, leaf) or "mask" in innermost_key(name)]
    if masks:
        raise ValueError(
            f"x holds a mask ({', '.join(masks)}), which layers before and behind the mixing would need in two forms. "
            "Use embedding_mixup, which joins the masks of both examples."
        )


# torch.compile cannot follow hooks that come and go: it breaks the graph here, and refuses with fullgraph=True.
@torch._disable_dynamo  # type: ignore[attr-defined]
def _run(
    model: Callable[..., Any], x: Tree, mixings: list[tuple[FoundLayer | None, Mixing]]
) -> tuple[Any, torch.dtype]:
    """Run a model with the outputs of layers mixed; return what it returned, and the precision of what was mixed."""
    dtypes = [tensor.dtype for tensor in tensors(x) if tensor.is_floating_point()]

    def mix(hidden: Tensor, mixing: Mixing) -> Tensor:
        dtypes.append(hidden.dtype)
        mixed: Tensor = mixing.mix(hidden)
        return mixed

    with ExitStack() as stack:
        for layer, mixing in mixings:
            if layer is None:
                x = mixing.mix(x)
            else:
                change, rows = partial(mix, mixing=mixing), len(mixing.partners)
                stack.enter_context(replace_output(layer, change, rows=rows, allow_checkpoint=False))
        arguments, keywords = as_arguments(x)
        outputs = model(*arguments, **keywords)
    return outputs, dtypes[-1]
