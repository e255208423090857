"""What the library must know about models of Hugging Face and Lightning Fabric, without importing either."""

from typing import Any

from torch import Tensor

from effdeg._models.frameworks import Framework

_SHIFTING = ("ForCausalLM", "LMHeadModel")


class Transformers(Framework):
    """Models of transformers, recognized by the suffixes of their class names."""

    def leaves_out_ignored(self, module: Any, labels: Tensor) -> bool:
        """Return whether a model's own loss is a cross entropy that ignores the label -100."""
        name = type(module).__name__
        if labels.is_floating_point():
            return False
        if name.endswith((*_SHIFTING, "ForMaskedLM", "ForTokenClassification")):
            return True
        classes = module.config.problem_type in (None, "single_label_classification") and module.config.num_labels > 1
        return classes and name.endswith(("ForSequenceClassification", "ForImageClassification"))

    def shifts_labels(self, module: Any) -> bool:
        """Return whether a model compares its output at each position with the label of the next."""
        name = type(module).__name__
        return name.endswith(_SHIFTING) and not name.startswith(("XLNet", "XLM", "Flaubert"))


class Peft(Framework):
    """Models of PEFT."""

    def base_model(self, module: Any) -> Any:
        """Return the model that was adapted."""
        return module.get_base_model()


class Fabric(Framework):
    """Modules that Lightning Fabric has set up."""

    def unwrap(self, module: Any) -> Any:
        """Return the module that was set up."""
        return getattr(module, "_forward_module", None)


FRAMEWORKS = {"transformers": Transformers(), "peft": Peft(), "lightning": Fabric(), "lightning_fabric": Fabric()}
"""By the package that a module's class is defined in."""
