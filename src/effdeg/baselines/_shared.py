"""What baselines share: settings, how a model is called with more than the batch, and what is checked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from effdeg._adapters.checked import CheckedModels
from effdeg._adapters.examples import as_arguments, count_examples
from effdeg._adapters.layers import check_layer
from effdeg._adapters.outputs import are_distributions, shaped_values
from effdeg._utils.checks import check_count, check_generator, check_number
from effdeg._utils.device import is_readable
from effdeg._utils.tree import Tree, has_rows, tensors, tree_map

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments and the keywords of a model."""

CHECKS: dict[str, Callable[[Any], object]] = {
    "alpha": lambda alpha: check_number(
        "alpha", alpha, "lambda is drawn from Beta(alpha, alpha). Papers use 0.1 to 20"
    ),
    "classes": lambda classes: None if classes is None else check_count("classes", classes, least=1),
    "generator": check_generator,
    "at": lambda at: None if at is None else check_layer(at),
    "rho": lambda rho: check_number("rho", rho, "it is the length of the ascent"),
    "eta": lambda eta: check_number("eta", eta, "it is added to the size of weights", zero=True),
}
"""How settings that several baselines have are checked."""


def check_settings(**settings: Any) -> None:
    """Raise unless all of these settings are right, as far as they are known by name."""
    for name, value in settings.items():
        if name in CHECKS:
            CHECKS[name](value)


@dataclass(eq=False, repr=False)
class Configured(nn.Module):
    """A module whose fields are its settings: they are checked, shown, and no part of its state."""

    def __post_init__(self) -> None:
        super().__init__()
        self._checked = CheckedModels()
        check_settings(**self._settings())

    def __setattr__(self, name: str, value: Any) -> None:
        # Past nn.Module, so that a layer or a teacher that is a module does not become a submodule of this one.
        object.__setattr__(self, name, value)

    def _settings(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def _is_first_call(self, model: object, given: Tree) -> bool:
        """Return whether a model was not checked yet, and can be: values that are read make a GPU wait."""
        # Readable first: while a step is traced, sets of weak references cannot be looked at in torch 2.6.
        return all(is_readable(each) and not each.is_meta for each in tensors(given)) and model not in self._checked

    def extra_repr(self) -> str:
        """Show the settings that are not None, except for those that are too long to read."""
        shown = {name: value for name, value in self._settings().items() if value is not None}
        named = {name: type(value).__name__ if isinstance(value, nn.Module) else value for name, value in shown.items()}
        return ", ".join(f"{name}={value!r}" for name, value in named.items() if name not in {"teacher", "generator"})


class Regularizer(Configured):
    """A method that acts on the loss: it runs the model on a batch, and returns the outputs with a penalty."""

    allows_labels = False

    def forward(
        self, model: Callable[..., Any], x: Tree, y: Tensor | None = None, **model_kwargs: Any
    ) -> tuple[Any, ...]:
        """Run a model on a batch, and compute what is added to the loss.

        Args:
            model: Any callable. It is called as usual, ``model(x)``, mostly on more than the batch.
            x: The batch: a tensor, a tuple (passed as arguments) or a mapping (passed as keywords).
            y: The labels. All methods take them, also those that need none.
            **model_kwargs: More arguments for the model, treated like ``x``.

        Returns:
            The model's output for the batch, and the penalty, a scalar, unless the class says otherwise. If the output
            is several tensors, ``logits``, or else the first, is used; all positions of sequences count alike.

        Raises:
            TypeError: If ``x`` lacks the floating-point tensors that the method needs, or an argument is given twice.
            ValueError: If labels are among the inputs or do not match the batch; if a layer ``at`` does not exist or
                does not run exactly once; if the model does not return one row per example; or if, in the first call
                with it, the outputs are probabilities where logits are needed.
        """
        call = as_arguments(x, **model_kwargs)
        if not self.allows_labels:
            check_no_labels(call[1])
        return self._regularize(model, call, count_examples(call), y)

    def _regularize(self, model: Callable[..., Any], call: Call, rows: int, y: Tensor | None) -> tuple[Any, ...]:
        """Return what ``forward`` returns, for a batch of so many rows."""
        raise NotImplementedError

    def _check_logits(self, returned: Any, rows: int, model: Callable[..., Any]) -> bool:
        """Raise if a model returned probabilities; return whether they were read: in the first call with the model."""
        if not self._is_first_call(model, returned):
            return False
        values = shaped_values(returned, "identity", points=rows, look=True, whose="network")
        if values.dim() > 1 and values.shape[-1] > 1 and are_distributions(values):
            raise ValueError(
                "the model's outputs are probabilities already: none is negative, and they sum to 1 or 100. Let it "
                "return logits."
            )
        self._checked.add(model)
        return True


def check_no_labels(x: Tree) -> None:
    """Raise if a batch holds labels: a model may compute its own loss from them, on examples that a method changed."""
    if isinstance(x, Mapping) and "labels" in x:
        raise ValueError(
            "x holds 'labels', from which a model may compute its own loss, on examples that are mixed, changed or "
            "repeated here. Give them as y instead, and compute the loss from the outputs."
        )


def draw(
    by: Callable[..., Tensor], *shape: int, device: torch.device, generator: torch.Generator | None, **options: Any
) -> Tensor:
    """Draw random numbers where the generator is, and move them to a device."""
    # With a generator argument, even None, torch.compile cannot draw a varying number of rows.
    given = {"device": device} if generator is None else {"device": generator.device, "generator": generator}
    return by(shape, **given, **options).to(device)


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
