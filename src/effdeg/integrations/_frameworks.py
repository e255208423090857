"""What the library must know about models of Hugging Face and Lightning Fabric, without importing either."""

from typing import TYPE_CHECKING, Any

from effdeg._adapters.frameworks import Framework, class_of, register

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


def shifts_labels(module: Any) -> bool:
    """Return whether a model of transformers compares its output at each position with the label of the next."""
    name = class_of(module).__name__
    return name.endswith(_SHIFTING) and not name.startswith(("XLNet", "XLM", "Flaubert"))


register("transformers", Framework(leaves_out_ignored=leaves_out_ignored, shifts_labels=shifts_labels))
register("peft", Framework(base_model=lambda module: getattr(module, "get_base_model", lambda: module)()))
for _package in ("lightning", "lightning_fabric"):
    register(_package, Framework(unwrap=lambda module: getattr(module, "_forward_module", None)))
