"""What the library must know about models of Hugging Face and Lightning Fabric. It imports none of them."""

from typing import Any

from torch import Tensor, nn

from effdeg._models.frameworks import Framework, framework_of
from effdeg._models.layers import as_module

_SHIFTING = ("ForCausalLM", "LMHeadModel")


class Transformers(Framework):
    """Models of transformers, known by the ends of their class names."""

    def leaves_out_ignored(self, module: Any, labels: Tensor) -> bool:
        """Return whether a model's own loss is cross entropy that leaves out the label -100: many are."""
        name = type(module).__name__
        if labels.is_floating_point():
            return False
        if name.endswith((*_SHIFTING, "ForMaskedLM", "ForTokenClassification")):
            return True
        classes = module.config.problem_type in (None, "single_label_classification") and module.config.num_labels > 1
        return classes and name.endswith(("ForSequenceClassification", "ForImageClassification"))

    def shifts_labels(self, module: object) -> bool:
        """Return whether a model compares its output at each position with the label of the next."""
        name = type(module).__name__
        return name.endswith(_SHIFTING) and not name.startswith(("XLNet", "XLM", "Flaubert"))


class Peft(Framework):
    """Models of PEFT, whose loss is that of the model within."""

    def leaves_out_ignored(self, module: Any, labels: Tensor) -> bool:
        """Ask about the model within."""
        base = module.get_base_model()
        return framework_of(base).leaves_out_ignored(base, labels)

    def shifts_labels(self, module: Any) -> bool:
        """Ask about the model within."""
        base = module.get_base_model()
        return framework_of(base).shifts_labels(base)


class Fabric(Framework):
    """Modules that Lightning Fabric has set up."""

    def unwrap(self, module: nn.Module) -> nn.Module | None:
        """Return the module that was set up."""
        inner = getattr(module, "_forward_module", None)
        return inner if isinstance(inner, nn.Module) else None


FRAMEWORKS = {"transformers": Transformers(), "peft": Peft(), "lightning": Fabric(), "lightning_fabric": Fabric()}
"""By the package that a model's class is defined in."""


def innermost(model: object) -> Any:
    """Return the module behind a model, within PEFT's wrapper too."""
    inner: Any = as_module(model)
    return inner.get_base_model() if isinstance(framework_of(inner), Peft) else inner
