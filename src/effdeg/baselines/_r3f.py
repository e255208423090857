"""R3F: a model should return the same for an example and for the example with a little noise."""

import warnings
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from effdeg._adapters.arguments import name_arguments
from effdeg._adapters.checked import CheckedModels
from effdeg._adapters.examples import as_arguments, count_examples, examples_only
from effdeg._adapters.layers import FoundLayer, Layer, check_layer, find_layer, replace_output
from effdeg._adapters.paths import check_real
from effdeg._utils.checks import check_choice, check_generator, check_number
from effdeg._utils.tree import Tree, has_rows, named_map
from effdeg.baselines._mixup import check_no_labels
from effdeg.baselines._rdrop import symmetric_divergence
from effdeg.baselines._regmixup import Call, check_logits, run_joined

Distribution = Literal["uniform", "normal"]
"""How noise is distributed."""


class R3F(nn.Module):
    """The divergence of a model's outputs with and without noise, to be added to the loss (Aghajanyan et al., 2020).

    With noise z at the inputs, or at the output of a layer such as the embeddings, the penalty is the mean of

        KL(p(h)‖p(h + z)) + KL(p(h + z)‖p(h))

    over examples, where p are the probabilities (softmax over the last dimension). Both come from one forward pass of
    twice the batch, in which BatchNorm sees one batch. Gradients flow through both; the authors' code does so for
    sequences, and detaches the noisy embeddings for classification. It adds noise to the embeddings of tokens alone,
    before positions are added: ``at=model.get_input_embeddings()`` for a model of Hugging Face. The weight of the
    penalty is 1 by default there, and 0.7 in the authors' example for RTE.

    Dropout draws a mask for each of the two, so in training, with small noise, the divergence is mostly that of dropout
    (:class:`RDrop`). Noise of 1e-5 is lost where the activations behind it are rounded to
    bfloat16 or float16.

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
        noise: How large the noise is: uniform from -noise to noise, or normal with this standard deviation.
        at: Add it to the output of this layer (a name or a module) instead of the inputs: for token ids. The layers up
            to this one run for both halves of the pass, and both continue from the output of the first. Under
            ``torch.compile`` the graph breaks here and a compiled model runs uncompiled.
        distribution: ``"uniform"`` or ``"normal"``.
        generator: The source of randomness; by default torch's global one on the device of what gets the noise. Not
            with ``torch.compile(fullgraph=True)``.

    Raises:
        TypeError: If a setting has the wrong type.
        ValueError: If a setting is out of range or not known.
    """

    at: Layer | None

    def __init__(
        self,
        noise: float = 1e-5,
        *,
        at: Layer | None = None,
        distribution: Distribution = "uniform",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_number("noise", noise, "it is how far examples are moved. The paper uses 1e-5")
        check_choice("distribution", distribution, get_args(Distribution))
        check_generator(generator)
        if at is not None:
            check_layer(at)
        self.noise, self.distribution, self.generator = noise, distribution, generator
        self._checked = CheckedModels()
        # Past nn.Module, so that a layer given as a module does not become a submodule of this one.
        self.__dict__["at"] = at

    def forward(
        self,
        model: Callable[..., Any],
        x: Tree,
        y: Tensor | None = None,  # noqa: ARG002
        **model_kwargs: Any,
    ) -> tuple[Any, Tensor]:
        """Run a model on a batch with and without noise, in one forward pass, and compare.

        Args:
            model: Any callable. It is called as usual, ``model(x)``, with twice the batch.
            x: The batch: a tensor, a tuple (passed as arguments) or a mapping (passed as keywords). Without ``at``, all
                floating-point tensors with one row per example get noise, except for masks by name.
            y: Ignored: all penalties have the same signature.
            **model_kwargs: More arguments for the model, treated like ``x``.

        Returns:
            The model's output for the batch without noise, and the penalty: a scalar. If the output is several tensors,
            ``logits``, or else the first, is compared; all positions of sequences count alike.

        Raises:
            TypeError: If no floating-point tensor can get noise, or an argument is given twice.
            ValueError: If labels are among the inputs, the layer ``at`` does not exist, or does not run exactly once
                outside of ``torch.utils.checkpoint``, or the model does not return logits with one row per example,
                or, in the first call with it, probabilities.
        """
        call = as_arguments(x, **model_kwargs)
        check_no_labels(call[1])
        rows = count_examples(call)
        check_real(examples_only(call, rows), "x")
        if self.at is None:
            returned = run_joined(model, call, self._move_inputs(model, call, rows))
        else:
            returned = _run_at(find_layer(model, self.at), model, call, rows, self._move)
        divergence = symmetric_divergence(*returned, rows)
        if check_logits(returned[0], rows, model, self._checked) and not bool(divergence.detach()):
            warnings.warn(
                f"noise={self.noise:g} changes no output: it is lost in rounding, as in bfloat16 and float16, or the "
                "outputs do not depend on the inputs.",
                RuntimeWarning,
                stacklevel=2,
            )
        return returned[0], divergence

    def _move_inputs(self, model: Callable[..., Any], call: Call, rows: int) -> Call:
        """Return a batch with noise."""
        found = False

        def move(name: str, leaf: Any) -> Any:
            nonlocal found
            if not has_rows(leaf, rows) or not leaf.is_floating_point() or "mask" in name.lower():
                return leaf
            found = True
            return self._move(leaf)

        arguments, keywords = named_map(move, (name_arguments(call[0], model), call[1]))
        if not found:
            raise TypeError(
                "x holds no floating-point tensor to add noise to. Convert images to floating point (images.float() / "
                "255); for token ids add noise at the embeddings, at=…, such as at=model.get_input_embeddings()."
            )
        return tuple(arguments.values()), keywords

    def _move(self, values: Tensor) -> Tensor:
        """Return a tensor with noise, which is added in float32 or better."""
        home = values.device if self.generator is None else self.generator.device
        dtype = torch.promote_types(values.dtype, torch.float32)
        # With a generator argument, even None, torch.compile cannot draw a varying number of rows.
        given: dict[str, Any] = {} if self.generator is None else {"generator": self.generator}
        draw = torch.rand if self.distribution == "uniform" else torch.randn
        drawn = draw(values.shape, dtype=dtype, device=home, **given).to(values.device)
        unit = 2 * drawn - 1 if self.distribution == "uniform" else drawn
        return (values.to(dtype) + self.noise * unit).to(values.dtype)

    def extra_repr(self) -> str:
        """Show the settings."""
        shown = "" if self.at is None else f", at={self.at if isinstance(self.at, str) else type(self.at).__name__!r}"
        return f"noise={self.noise}, distribution={self.distribution!r}{shown}"


# torch.compile cannot follow hooks that come and go: it breaks the graph here, and refuses with fullgraph=True.
@torch._disable_dynamo  # type: ignore[attr-defined]
def _run_at(
    layer: FoundLayer, model: Callable[..., Any], call: Call, rows: int, move: Callable[[Tensor], Tensor]
) -> tuple[Any, Any]:
    """Run a model on a batch twice, the second time with noise at the output of a layer."""

    def continue_from_first(hidden: Tensor) -> Tensor:
        return torch.cat([hidden[:rows], move(hidden[:rows])])

    with replace_output(layer, continue_from_first, rows=2 * rows, allow_checkpoint=False):
        return run_joined(model, call, call)
