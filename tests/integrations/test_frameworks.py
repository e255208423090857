import pytest
import torch
from torch import nn

from effdeg import Penalty
from effdeg._adapters.frameworks import framework_of
from effdeg._adapters.layers import as_module, find_layer
from tests.batches import X, Y, seeded
from tests.models import mlp


def named(name, package, **attributes):
    """Return a module whose class has this name and comes from this package."""
    return type(name, (nn.Module,), {"__module__": f"{package}.models", "config": None, **attributes})()


@pytest.mark.parametrize(
    ("name", "package", "leaves_out", "shifts"),
    [
        ("LlamaForCausalLM", "transformers", True, True),
        ("GPT2LMHeadModel", "transformers", True, True),
        ("XLMRobertaForCausalLM", "transformers", True, True),
        ("XLMWithLMHeadModel", "transformers", True, False),
        ("XLNetLMHeadModel", "transformers", True, False),
        ("BertForMaskedLM", "transformers", True, False),
        ("LlamaForCausalLM", "elsewhere", False, False),
        ("Sequential", "torch", False, False),
    ],
)
def test_own_losses_go_by_the_name_and_the_package_of_a_class(name, package, leaves_out, shifts):
    module = named(name, package)
    framework, adapted = framework_of(module), named("PeftModel", "peft", get_base_model=lambda _: module)
    assert framework.leaves_out_ignored(module, Y) is leaves_out
    assert not framework.leaves_out_ignored(module, X)
    assert (framework.language_model(module) is not None) is shifts
    assert framework_of(adapted).base_model(adapted) is framework.base_model(module) is module


def test_the_layers_of_xlnet_have_positions_first():
    for name, first in (("XLNetModel", True), ("BertModel", False)):
        module = named(name, "transformers")
        module.layer = nn.Linear(6, 6)
        assert find_layer(module, "layer").has_positions_first() is first


def test_a_plain_function_has_no_framework():
    assert as_module(lambda x: x) is None
    assert framework_of(None).language_model(None) is None


def test_a_module_of_fabric_goes_by_its_own_layers():
    fabric = pytest.importorskip("lightning.fabric")
    model = mlp().double()
    wrapped = fabric.Fabric(accelerator="cpu", devices=1).setup(model)
    assert as_module(wrapped) is model
    assert find_layer(wrapped, "1") == ("1", model[1], wrapped)
    _, degree = seeded(Penalty(at="1", batchnorm="frozen"), wrapped, X)
    torch.testing.assert_close(degree, seeded(Penalty(at="1"), model, X)[1])
