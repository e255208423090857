import numpy as np
import pytest
import torch
from torch import nn

import effdeg
from effdeg._adapters.settings import PathSettings
from effdeg.measuring._path_runner import DrawnPaths
from tests.batches import tokens
from tests.models import Pair, Tokens, TwoInputs, mlp
from tests.oracles import reference

FAST = {"paths": 30, "nodes": 12, "degree": 6}


def test_a_path_at_a_layer_is_measured_as_by_hand():
    """Embeddings interpolated, masks joined by OR, one point at a time."""
    model, inputs = Tokens().double(), tokens(25)
    measured = effdeg.measure(model, inputs, at="embed", **FAST)
    assert measured.settings.at == "embed"
    drawn = DrawnPaths.draw(25, PathSettings(paths=30, nodes=12))
    nodes = torch.cat([drawn.alpha(block) for block in drawn.blocks()])
    expected = []
    for (first, second), alpha in zip(drawn.pairs.tolist(), nodes, strict=True):
        ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
        weight = (mask[first] | mask[second])[:, None].double()
        values = []
        for a in alpha:
            embedded = a * model.embed(ids[first]) + (1 - a) * model.embed(ids[second])
            pooled = (torch.tanh(model.mix(embedded)) * weight).sum(0) / weight.sum()
            values.append(reference.softmax(model.head(pooled).detach().numpy()))
        coefficients = reference.damped_fit(np.stack(values), alpha.numpy(), 6, "chebyshev", measured.settings.damping)
        expected.append(reference.effective_degree(coefficients))
    np.testing.assert_allclose(measured.per_path.numpy(), expected, rtol=1e-7)


def test_an_error_of_the_model_has_the_shape_that_it_was_called_on():
    """Such as that of single examples, which an iterator gives as batches."""
    images = iter(torch.randn(20, 3, 5, 5))
    with pytest.raises(RuntimeError, match="to have 3 channels") as caught:
        effdeg.measure(nn.Conv2d(3, 4, 5), images, **FAST)
    assert caught.value.__notes__ == ["The model was called on a batch of shape (192, 5, 5)."]


def test_a_model_whose_argument_is_a_dict():
    def model(batch):
        return torch.cat([batch["x"], batch["y"].tanh()], dim=1)

    inputs = {"x": torch.randn(20, 2), "y": torch.randn(20, 3)}
    with pytest.raises(TypeError, match="unexpected keyword argument 'x'") as caught:
        effdeg.measure(model, inputs, **FAST)
    assert caught.value.__notes__[1].endswith("If the model's argument is the dict itself, write (inputs,).")
    assert effdeg.measure(model, (inputs,), **FAST).value > 0


def test_after_a_linear_layer_the_path_is_the_same_path():
    model, inputs = mlp().double(), torch.randn(20, 6, dtype=torch.float64)
    torch.testing.assert_close(
        effdeg.measure(model, inputs, at="0", **FAST).per_path, effdeg.measure(model, inputs, **FAST).per_path
    )
    # After the last layer there is nothing but a line, so the logits have degree 1 at most.
    spectrum = effdeg.measure(model, inputs, at="2", output="identity", **FAST).spectrum
    assert float(spectrum[2:].max()) < 1e-8 * float(spectrum[1])


@pytest.mark.parametrize("at", ["0", "2"])
def test_a_layer_that_is_followed_by_work_in_place(at):
    results = []
    for inplace in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace), nn.Linear(8, 8), nn.ReLU(inplace), nn.Linear(8, 3))
        results.append(effdeg.measure(model, torch.linspace(-2, 2, 60).view(10, 6), at=at, **FAST).per_path)
    assert torch.equal(*results)


@pytest.mark.parametrize("at", [None, "0"])
def test_a_model_that_changes_its_inputs_in_place(at):
    network = nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 3)])

    class Shifting(nn.Module):
        def __init__(self, inplace):
            super().__init__()
            self.inplace, self.layers = inplace, network

        def forward(self, x):
            x = x.add_(1) if self.inplace else x + 1
            return self.layers[0](x).tanh() + self.layers[1](x)  # which bypasses the first

    at, inputs = at and f"layers.{at}", torch.linspace(-2, 2, 60).view(10, 6)
    results = [effdeg.measure(Shifting(inplace), inputs, at=at, **FAST).per_path for inplace in (False, True)]
    assert torch.equal(*results)


def bypasses(model, inputs, at):
    return any("bypasses the layer" in note for note in effdeg.measure(model, inputs, at=at, **FAST).notes())


def test_what_bypasses_a_layer_is_noted():
    class Skip(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 3)])

        def forward(self, x):
            return self.layers[1](x + self.layers[0](x).tanh())

    inputs = torch.linspace(-2, 2, 60).view(10, 6)
    assert bypasses(Skip(), inputs, "layers.0")
    assert not bypasses(Skip(), inputs, "layers.1")
    # Masks are no part of the path, and outputs may vary by chance.
    assert not bypasses(Tokens(), tokens(25), "embed")
    noisy = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Tanh(), nn.Linear(6, 3))
    with pytest.warns(UserWarning, match="different outputs for the same point"):
        assert not bypasses(lambda x: noisy(x), inputs, noisy[0])


def test_memory_that_runs_out_while_the_ends_are_captured():
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = mlp()

        def forward(self, x):
            if len(x) > 5:
                raise torch.OutOfMemoryError("out of memory")
            return self.model(x)

    inputs = torch.randn(20, 6)
    measured = effdeg.measure(Small(), inputs, at="model.1", **FAST)
    torch.testing.assert_close(measured.per_path, effdeg.measure(mlp(), inputs, at="1", **FAST).per_path)


def test_a_layer_of_a_compiled_model():
    model, inputs = mlp(), torch.randn(20, 6)
    expected = effdeg.measure(model, inputs, at="1", **FAST).per_path
    compiled = torch.compile(mlp(), backend="eager")
    compiled(inputs)  # already compiled, so that a new hook would go unnoticed
    for _ in range(2):
        assert torch.equal(effdeg.measure(compiled, inputs, at="1", **FAST).per_path, expected)
    torch.testing.assert_close(*(effdeg.measure(each, inputs, **FAST).per_path for each in (compiled, model)))


def test_masks_are_joined_at_the_inputs_too():
    def model(x, mask):
        return (x * mask[..., None]).sum(1)

    x = torch.randn(10, 4, 3)
    for mask in (torch.rand(10, 4) > 0.5, (torch.rand(10, 4) > 0.5).long()):
        measured = effdeg.measure(model, {"x": x, "mask": mask}, output="identity", **FAST)
        first, second = measured.pairs[:, 0], measured.pairs[:, 1]
        joined = (mask[first] | mask[second])[..., None]
        # Linear in x: the degree is half the distance between the two ends' values.
        expected = ((x[first] - x[second]) * joined).sum(1).abs().mean(1) / 2
        torch.testing.assert_close(measured.per_path.float(), expected, rtol=1e-4, atol=1e-4)


def test_trees_of_tensors():
    left, right = torch.randn(2, 20, 3)
    model = TwoInputs()
    results = [
        effdeg.measure(model, inputs, **FAST).per_path
        for inputs in ((left, right), {"left": left, "right": right}, Pair(left, right))
    ]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_a_layer_under_another_precision_and_the_hooks_of_others():
    model, inputs = mlp(), torch.randn(20, 6)
    seen = []
    handle = model[0].register_forward_hook(lambda *_: seen.append(1))
    measured = effdeg.measure(model, inputs, at="0", dtype=torch.float64, **FAST)
    assert seen
    assert list(model[0]._forward_hooks) == [handle.id]
    expected = effdeg.measure(mlp().double(), inputs, at="0", **FAST)
    torch.testing.assert_close(measured.per_path, expected.per_path)


def test_a_model_that_needs_gradients_is_told_how():
    def forces(x):
        return torch.autograd.grad(x.requires_grad_().square().sum(), x)[0]

    with pytest.raises(RuntimeError, match="does not require grad") as raised:
        effdeg.measure(forces, torch.randn(20, 3), output="identity", **FAST)
    assert any("let it call torch.enable_grad()" in note for note in raised.value.__notes__)
    measured = effdeg.measure(torch.enable_grad()(forces), torch.randn(20, 3), output="identity", **FAST)
    assert measured.value > 0


def test_a_function_in_another_precision_than_its_weights_is_explained():
    layer = nn.Linear(4, 2)
    with pytest.raises(RuntimeError) as raised:
        effdeg.measure(lambda x: layer(x), torch.randn(20, 4), dtype=torch.float64)
    assert any("no weights that it uses" in note for note in raised.value.__notes__)
