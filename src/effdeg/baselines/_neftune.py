"""NEFTune: noise at the embeddings of a language model that is fine-tuned."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from effdeg._adapters.arguments import name_arguments
from effdeg._adapters.examples import as_arguments, count_examples
from effdeg._adapters.layers import (
    FoundLayer,
    Layer,
    advice_for_integers,
    check_layer,
    find_embeddings,
    find_layer,
    replace_output,
)
from effdeg._utils.checks import check_generator, check_number
from effdeg._utils.tree import Tree


class NEFTune(nn.Module):
    """Run a model with uniform noise at its embeddings (Jain et al., 2023).

    The embeddings of an example of L tokens, each of d numbers, become h + z, where every entry of z is drawn from
    [−1, 1] and multiplied by α/√(L d). As in the authors' code, L counts the tokens that are no padding by the
    ``attention_mask``, and padding gets no noise; without a mask all tokens count. The authors use α = 5, 10 and 15.

    Use it in training alone: it adds noise whatever the mode of the model.

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

    at: Layer | None

    def __init__(
        self, alpha: float = 5.0, *, at: Layer | None = None, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        check_number("alpha", alpha, "it is how large the noise is. The paper uses 5, 10 and 15")
        check_generator(generator)
        if at is not None:
            check_layer(at)
        self.alpha, self.generator = alpha, generator
        # Past nn.Module, so that a layer given as a module does not become a submodule of this one.
        self.__dict__["at"] = at

    def forward(
        self, model: Callable[..., Any], x: Tree, y: Tensor | None = None, **model_kwargs: Any
    ) -> tuple[Any, Tensor | None]:
        """Run a model on a batch with noise.

        Args:
            model: Any callable with the layer in it. It is called as usual, ``model(x)``.
            x: The batch: a tensor, a tuple (passed as arguments) or a mapping (passed as keywords), labels included.
            y: The labels.
            **model_kwargs: More arguments for the model.

        Returns:
            What the model returned, and the labels as they were given.

        Raises:
            TypeError: If the embeddings are not found, or the layer returns no floating-point tensor.
            ValueError: If the layer ``at`` does not exist, does not run exactly once outside of
                ``torch.utils.checkpoint``, or does not fit the ``attention_mask``.
        """
        arguments, keywords = as_arguments(x, **model_kwargs)
        at = find_embeddings(model) if self.at is None else self.at
        if at is None:
            raise TypeError(f"NEFTune does not find the embeddings of this model. {advice_for_integers(model)}")
        mask = {**name_arguments(arguments, model), **keywords}.get("attention_mask")
        layer = find_layer(model, at)
        with replace_output(
            layer,
            lambda hidden: self._move(hidden, mask, layer),
            rows=count_examples((arguments, keywords)),
            allow_checkpoint=False,
        ):
            return model(*arguments, **keywords), y

    def _move(self, hidden: Tensor, mask: Tensor | None, layer: FoundLayer) -> Tensor:
        """Return embeddings with noise, which is added in float32 or better."""
        if mask is not None and (hidden.dim() != 3 or mask.shape != hidden.shape[:2]):
            raise ValueError(
                f"the layer {layer.name!r} returned shape {tuple(hidden.shape)}, but attention_mask has shape "
                f"{tuple(mask.shape)}: NEFTune needs examples × tokens × numbers, and a mask of examples × tokens. "
                "Choose the embeddings with at=…"
            )
        home = hidden.device if self.generator is None else self.generator.device
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        given: dict[str, Any] = {} if self.generator is None else {"generator": self.generator}
        noise = 2 * torch.rand(hidden.shape, dtype=dtype, device=home, **given).to(hidden.device) - 1
        if mask is None:
            return (hidden.to(dtype) + self.alpha / math.sqrt(hidden[0].numel()) * noise).to(hidden.dtype)
        seen = mask.to(noise)
        size = self.alpha / (seen.sum(1).clamp(min=1) * hidden.shape[2]).sqrt()
        return (hidden.to(dtype) + noise * (seen * size[:, None])[..., None]).to(hidden.dtype)

    def extra_repr(self) -> str:
        """Show the settings."""
        shown = "" if self.at is None else f", at={self.at if isinstance(self.at, str) else type(self.at).__name__!r}"
        return f"alpha={self.alpha}{shown}"
