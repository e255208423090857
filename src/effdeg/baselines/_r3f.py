"""R3F: a model should return the same for an example and for the example with a little noise."""

import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor

from effdeg._adapters.arguments import name_arguments
from effdeg._adapters.examples import examples_only
from effdeg._adapters.layers import FoundLayer, Layer, find_layer, replace_output
from effdeg._adapters.paths import check_real, is_floating_mask
from effdeg._utils.checks import check_number
from effdeg._utils.tree import has_rows, named_map
from effdeg.baselines._rdrop import find_counted, symmetric_divergence
from effdeg.baselines._shared import Call, Regularizer, draw, run_joined


@dataclass(eq=False, repr=False)
class R3F(Regularizer):
    """The divergence of a model's outputs with and without noise, to be added to the loss (Aghajanyan et al., 2020).

    With noise z at the inputs, or at the output of a layer such as the embeddings, the penalty is the mean of

        KL(p(h)‖p(h + z)) + KL(p(h + z)‖p(h))

    over examples, where p are the probabilities (softmax over the last dimension). Both come from one forward pass of
    twice the batch, in which BatchNorm sees one batch, and gradients flow through both. The authors add noise to the
    embeddings of tokens alone: ``at=model.get_input_embeddings()`` for a model of Hugging Face.

    Dropout draws a mask for each of the two, so in training, with small noise, the divergence is mostly that of dropout
    (:class:`RDrop`). Noise of 1e-5 is lost where the activations behind it are rounded to bfloat16 or float16.

    Example:
        >>> import torch
        >>> from torch.nn.functional import cross_entropy
        >>> from effdeg.baselines import R3F
        >>> model = torch.nn.Sequential(torch.nn.EmbeddingBag(100, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        >>> tokens, y = torch.randint(100, (16, 7)), torch.randint(2, (16,))
        >>> outputs, divergence = R3F(at="0")(model, tokens, y)
        >>> loss = cross_entropy(outputs, y) + 1.0 * divergence
        >>> outputs.shape, divergence.shape
        (torch.Size([16, 2]), torch.Size([]))

    Args:
        noise: How large the noise is: uniform from -noise to noise. Without ``at`` all floating-point tensors with one
            row per example get it, except for masks by name.
        at: Add it to the output of this layer (a name or a module) instead of the inputs: for token ids. The layers up
            to this one run for both halves of the pass, and both continue from the output of the first. Under
            ``torch.compile`` the graph breaks here and a compiled model runs uncompiled.
        generator: The source of randomness; by default torch's global one on the device of what gets the noise. Not
            with ``torch.compile(fullgraph=True)``.

    Raises:
        TypeError: If a setting has the wrong type.
        ValueError: If a setting is out of range.
    """

    noise: float = 1e-5
    _: KW_ONLY
    at: Layer | None = None
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("noise", self.noise, "it is how far examples are moved. The paper uses 1e-5")

    def _regularize(self, model: Callable[..., Any], call: Call, rows: int, y: Any) -> tuple[Any, Tensor]:
        check_real(examples_only(call, rows), "x")
        if self.at is None:
            returned = run_joined(model, call, self._move_inputs(model, call, rows))
        else:
            returned = _run_at(find_layer(model, self.at), model, call, rows, self._move)
        divergence = symmetric_divergence(*returned, rows, find_counted(model, y))
        if self._check_logits(returned[0], rows, model) and not bool(divergence.detach()):
            warnings.warn(
                f"noise={self.noise:g} changes no output: it is lost in rounding, as in bfloat16 and float16, or the "
                "outputs do not depend on the inputs.",
                RuntimeWarning,
                stacklevel=2,
            )
        return returned[0], divergence

    def _move_inputs(self, model: Callable[..., Any], call: Call, rows: int) -> Call:
        moved = []

        def move(name: str, leaf: Any) -> Any:
            if not has_rows(leaf, rows) or not leaf.is_floating_point() or is_floating_mask(name, leaf):
                return leaf
            moved.append(self._move(leaf))
            return moved[-1]

        arguments, keywords = named_map(move, (name_arguments(call[0], model), call[1]))
        if not moved:
            raise TypeError(
                "x holds no floating-point tensor to add noise to. Convert images to floating point (images.float() / "
                "255); for token ids add noise at the embeddings, at=…, such as at=model.get_input_embeddings()."
            )
        return tuple(arguments.values()), keywords

    def _move(self, values: Tensor) -> Tensor:
        """Return a tensor with noise, which is added in float32 or better."""
        dtype = torch.promote_types(values.dtype, torch.float32)
        drawn = draw(torch.rand, *values.shape, device=values.device, generator=self.generator, dtype=dtype)
        return (values.to(dtype) + self.noise * (2 * drawn - 1)).to(values.dtype)


# torch.compile cannot follow hooks that come and go: it breaks the graph here, and refuses with fullgraph=True.
@torch._disable_dynamo  # type: ignore[attr-defined]
def _run_at(
    layer: FoundLayer, model: Callable[..., Any], call: Call, rows: int, move: Callable[[Tensor], Tensor]
) -> tuple[Any, Any]:

    def continue_from_first(hidden: Tensor) -> Tensor:
        return torch.cat([hidden[:rows], move(hidden[:rows])])

    with replace_output(layer, continue_from_first, rows=2 * rows, allow_checkpoint=False):
        return run_joined(model, call, call)
