"""What the library must know about models of Hugging Face and Lightning Fabric, without importing either."""

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from effdeg._adapters.frameworks import Framework, LanguageModel, class_of, register

if TYPE_CHECKING:
    from torch import Tensor

_SHIFTING = ("ForCausalLM", "LMHeadModel")


def leaves_out_ignored(module: Any, labels: "Tensor") -> bool:
    """Return whether the loss of a model of transformers leaves out the label -100, by the end of its class name."""
    name = class_of(module).__name__
    if labels.is_floating_point():
        return False
    if name.endswith((*_SHIFTING, "ForMaskedLM", "ForTokenClassification")):
        return True
    classes = module.config.problem_type in (None, "single_label_classification") and module.config.num_labels > 1
    return classes and name.endswith(("ForSequenceClassification", "ForImageClassification"))


def find_router_loss(module: Any, keywords: Mapping[str, Any]) -> str | None:
    """Return what switches off the loss of the routers of a mixture of experts, which counts every token of a batch."""
    asked = keywords.get("output_router_logits")
    configured = getattr(_text_config(module), "output_router_logits", False)
    return "output_router_logits=False" if (configured if asked is None else asked) else None


def _text_config(module: Any) -> Any:
    return module.config.get_text_config() if hasattr(module.config, "get_text_config") else module.config


def _find_first_position(module: Any) -> int:
    """Return the number of a text's first position: RoBERTa's come after that of the padding."""
    layers = (layer for name, layer in module.named_modules() if name.endswith("position_embeddings"))
    padding = (getattr(layer, "padding_idx", None) for layer in layers)
    return next((place + 1 for place in padding if place is not None), 0)


def describe_language_model(module: Any) -> LanguageModel | None:
    """Return how a model of transformers is called that compares each output with the label of the next position."""
    kind: Any = class_of(module)
    name = kind.__name__
    if not name.endswith(_SHIFTING) or name.startswith(("XLNet", "XLMWith", "Flaubert")):
        return None
    known = inspect.signature(kind.forward).parameters
    config = _text_config(module)
    padding = (getattr(config, token, None) for token in ("pad_token_id", "eos_token_id"))
    ends = getattr(config, "eos_token_id", None)
    return LanguageModel(
        options={"use_cache": False} if "use_cache" in known else {},
        last_only={"logits_to_keep": 1} if "logits_to_keep" in known else {},
        first_position=_find_first_position(module) if "position_ids" in known else None,
        # A model may have several tokens that end a text.
        padding=next((token for token in padding if isinstance(token, int) and token >= 0), 0),
        vocabulary=getattr(config, "vocab_size", None) or 1,
        ends=frozenset([ends] if isinstance(ends, int) else ends or ()),
    )


_TRANSFORMERS = Framework(
    leaves_out_ignored=leaves_out_ignored,
    loss_of_all_rows=find_router_loss,
    positions_first=lambda module: class_of(module).__name__.startswith("XLNet"),
    finds_last_token=lambda module: (
        class_of(module).__name__.endswith("SequenceClassification") and hasattr(module, "score")
    ),
    language_model=describe_language_model,
)
register("transformers", _TRANSFORMERS)
register("peft", Framework(base_model=lambda module: getattr(module, "get_base_model", lambda: module)()))
for _package in ("lightning", "lightning_fabric"):
    register(_package, Framework(unwrap=lambda module: getattr(module, "_forward_module", None)))
