"""Language models as they are run in practice: in DDP, with quantized weights, spread over devices."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import effdeg
from effdeg import Penalty
from tests.properties import run_in_processes

pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")
from tests.train.test_language import language_model, sequences  # noqa: E402

SIZE, LOCAL = 2, 6
ANCHORS = ("labels", "self", None)


def find_gradients(rank, anchor, wrap):
    model = language_model()
    rows = slice(rank * LOCAL, (rank + 1) * LOCAL)
    batch = {name: values[rows] for name, values in sequences("left", SIZE * LOCAL).items()}
    wrapped = wrap(model)  # DDP that is gone before the gradients come does not reduce them
    torch.manual_seed(10 + rank)
    outputs, degree = Penalty(anchor=anchor)(wrapped, batch)
    (outputs.loss + 2.0 * degree).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def work(rank, results):
    found = {anchor: find_gradients(rank, anchor, DistributedDataParallel) for anchor in ANCHORS}
    torch.save(found, f"{results}.{rank}")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    run_in_processes(work, (folder / "results",), SIZE)
    return [torch.load(f"{folder / 'results'}.{rank}", weights_only=True) for rank in range(SIZE)]


@pytest.mark.parametrize("anchor", ANCHORS)
def test_gradients_in_ddp_are_the_mean_of_both_halves(anchor, found):
    first, second = (find_gradients(rank, anchor, lambda model: model) for rank in range(SIZE))
    for gradients in found:
        for name, gradient in gradients[anchor].items():
            torch.testing.assert_close(gradient, (first[name] + second[name]) / SIZE)
            assert gradient.abs().max() > 0


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
