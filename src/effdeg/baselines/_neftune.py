"""NEFTune: noise at the embeddings of a language model that is fine-tuned."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor

from effdeg._adapters.arguments import name_arguments
from effdeg._adapters.layers import FoundLayer, Layer, find_layer_or_embeddings, replace_output
from effdeg._utils.checks import check_number
from effdeg.baselines._shared import Call, Regularizer, draw


@dataclass(eq=False, repr=False)
class NEFTune(Regularizer):
    """Run a model with uniform noise at its embeddings (Jain et al., 2023).

    The embeddings of an example of L tokens, each of d numbers, become h + z, where every entry of z is drawn from
    [−1, 1] and multiplied by α/√(L d). As in the authors' code, L counts the tokens that are no padding by the
    ``attention_mask``, and padding gets no noise; without a mask all tokens count. The authors use α = 5, 10 and 15.

    A call returns what the model returned, and the labels as they were given; labels in a mapping go to the model. Use
    it in training alone: it adds noise whatever the mode of the model.

    Example:
        >>> import torch
        >>> from torch.nn.functional import cross_entropy
        >>> from effdeg.baselines import NEFTune
        >>> model = torch.nn.Sequential(torch.nn.Embedding(100, 8), torch.nn.Flatten(), torch.nn.Linear(56, 2))
        >>> tokens, y = torch.randint(100, (16, 7)), torch.randint(2, (16,))
        >>> outputs, y = NEFTune(5.0, at="0")(model, tokens, y)
        >>> loss = cross_entropy(outputs, y)
        >>> outputs.shape
        torch.Size([16, 2])

    Args:
        alpha: How large the noise is.
        at: The layer of the embeddings (a name or a module); by default that of a model of Hugging Face is found.
        generator: The source of randomness; by default torch's global one on the device of the embeddings.

    Raises:
        TypeError: If a setting has the wrong type.
        ValueError: If ``alpha`` is not positive.
    """

    alpha: float = 5.0
    _: KW_ONLY
    at: Layer | None = None
    generator: torch.Generator | None = None

    allows_labels = True

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, "it is how large the noise is. The paper uses 5, 10 and 15")
        super().__post_init__()

    def _regularize(self, model: Callable[..., Any], call: Call, rows: int, y: Any) -> tuple[Any, Tensor | None]:
        arguments, keywords = call
        mask = {**name_arguments(arguments, model), **keywords}.get("attention_mask")
        layer = find_layer_or_embeddings(model, self.at)

        def move(hidden: Tensor) -> Tensor:
            return self._move(hidden, mask, layer)

        with replace_output(layer, move, rows=rows, allow_checkpoint=False):
            return model(*arguments, **keywords), y

    def _move(self, hidden: Tensor, mask: Tensor | None, layer: FoundLayer) -> Tensor:
        """Return embeddings with noise, which is added in float32 or better."""
        if mask is not None and (hidden.dim() != 3 or mask.shape != hidden.shape[:2]):
            raise ValueError(
                f"the layer {layer.name!r} returned shape {tuple(hidden.shape)}, but attention_mask has shape "
                f"{tuple(mask.shape)}: NEFTune needs examples × tokens × numbers, and a mask of examples × tokens. "
                "Choose the embeddings with at=…"
            )
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        noise = 2 * draw(torch.rand, *hidden.shape, device=hidden.device, generator=self.generator, dtype=dtype) - 1
        if mask is None:
            return (hidden.to(dtype) + self.alpha / math.sqrt(hidden[0].numel()) * noise).to(hidden.dtype)
        seen = mask > 0
        if mask.is_floating_point():
            # One that is added to scores has zeros where tokens count.
            seen = torch.where(seen.any(), seen, mask >= 0)
        size = self.alpha / (seen.sum(1).clamp(min=1) * hidden.shape[2]).sqrt()
        return (hidden.to(dtype) + noise * (seen * size[:, None])[..., None]).to(hidden.dtype)
