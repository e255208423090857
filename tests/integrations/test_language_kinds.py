"""Language models as they are run in practice: with quantized weights, spread over devices."""

import pytest
import torch
from torch import nn

import effdeg
from effdeg import Penalty

pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")
from tests.train.test_language import language_model, sequences  # noqa: E402


class Quantized(nn.Module):
    """A linear layer with weights of 8 bits, as libraries for quantized weights have them."""

    def __init__(self, layer):
        super().__init__()
        scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
        self.weight = nn.Parameter((layer.weight.detach() / scale).round().to(torch.int8), requires_grad=False)
        self.register_buffer("scale", scale)

    def dequantize(self):
        return self.weight.to(self.scale.dtype) * self.scale

    def forward(self, x):
        return x @ self.dequantize().T


def quantized_and_reference():
    model, reference = language_model(), language_model()
    for name, layer in [*model.named_modules()]:
        if isinstance(layer, nn.Linear):
            model.set_submodule(name, Quantized(layer))
            reference.get_submodule(name).weight.data = model.get_submodule(name).dequantize()
    return model, reference


def spread_and_reference():
    return accelerate.dispatch_model(language_model(), {"": "cpu"}, force_hooks=True), language_model()


@pytest.mark.parametrize("pair", [quantized_and_reference, spread_and_reference])
def test_quantized_and_dispatched_models_have_the_degree_and_gradients_of_ordinary_ones(pair):
    batch, values, gradients = sequences("left"), [], []
    prompts = {name: batch[name] for name in ("input_ids", "attention_mask")}
    for model in pair():
        torch.manual_seed(0)
        measured = effdeg.measure(model, prompts, paths=10, nodes=16, degree=6)
        _, degree = Penalty(anchor="labels")(model, batch)
        degree.backward()
        values.append(torch.stack([torch.tensor(measured.value), degree.detach()]))
        gradients.append(model.get_input_embeddings().weight.grad)
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*gradients)
    assert values[0].min() > 0
