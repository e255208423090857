"""What the library asks about the models of other frameworks. The answers come from :mod:`effdeg.integrations`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LanguageModel:
    """How a causal language model is called. Its output at each position is compared with the label of the next."""

    options: Mapping[str, Any] = field(default_factory=dict)  # of every call, such as to keep no cache
    last_only: Mapping[str, Any] = field(default_factory=dict)  # of a call for the last position's logits alone
    first_position: int | None = None  # the number of a text's first position; None: it takes no ``position_ids``
    padding: int = 0  # the token that fills up shorter sequences
    vocabulary: int = 1  # how many tokens there are
    ends: frozenset[int] = frozenset()  # the tokens that end a text


@dataclass(frozen=True)
class Framework:
    """What must be known about a framework's modules. The defaults are the answers for plain PyTorch."""

    # Returns the module that a wrapper calls, or None for what is no wrapper.
    unwrap: Callable[[Any], Any] = lambda _: None
    # Returns the module that computes the loss, within a model that was adapted for fine-tuning.
    base_model: Callable[[Any], Any] = lambda module: module
    # Returns whether a model's own loss, for such labels, is cross entropy that leaves out the label -100.
    leaves_out_ignored: "Callable[[Any, Tensor], bool]" = lambda _, __: False
    # Returns what switches off a loss of a model, called with these keywords, that counts all rows; None if it is off.
    loss_of_all_rows: Callable[[Any, Mapping[str, Any]], str | None] = lambda _, __: None
    # Returns whether the layers of a model return positions first and examples second, whatever the model does.
    positions_first: Callable[[Any], bool] = lambda _: False
    # Returns whether a model reads its output where the last token of a text is, which it finds by its id.
    finds_last_token: Callable[[Any], bool] = lambda _: False
    # Returns how a causal language model is called; None for any other model.
    language_model: Callable[[Any], LanguageModel | None] = lambda _: None


_PLAIN = Framework()
_KNOWN: dict[str, Framework] = {}


def register(package: str, framework: Framework) -> None:
    """Let modules whose classes are defined in a package be treated as those of a framework."""
    _KNOWN[package] = framework


def class_of(module: object) -> type:
    """Return the class of a module, without the one that FSDP2 puts in front of it."""
    kind, *bases = type(module).__mro__
    return bases[1] if bases and bases[0].__name__ == "FSDPModule" else kind


def framework_of(module: object) -> Framework:
    """Return what is known about the framework that a module's class is defined in."""
    return _KNOWN.get(class_of(module).__module__.partition(".")[0], _PLAIN)
