import math
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import layer_norm, scaled_dot_product_attention

from effdeg_lab.models import Decoder, ViT, make_model
from effdeg_lab.models.vit import PatchEmbedding, encode_positions

SMALL = {"size": 8, "patch": 4, "width": 12, "depth": 2, "heads": 3, "classes": 5}
CODE = """
from torch import nn

READY = nn.Linear(4, 2)
NUMBER = 3

def both(*, channels, classes=10):
    return nn.Sequential(nn.Conv2d(channels, classes, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())

def neither(width=6):
    return nn.Linear(width, 2)

def function():
    return lambda x: x
"""


@pytest.fixture
def _code(tmp_path, monkeypatch):
    (tmp_path / "own_nets.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("own_nets", None)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [
        ("resnet18", (3, 32, 32), 10, 11_173_962),
        ("vit-s16", (3, 224, 224), 1000, 22_050_664),
        # Without the class token, then without the positions as well.
        ("vit-s16-mean", (3, 224, 224), 1000, 22_050_664 - 2 * 384),
        ("vit-s16-mean-sincos", (3, 224, 224), 1000, 22_050_664 - 198 * 384),
        ("vit-ti16", (3, 224, 224), 1000, 5_717_416),
    ],
)
def test_named_sizes_have_the_published_numbers_of_parameters(name, shape, classes, count):
    model = make_model(name, shape=shape, classes=classes)
    assert sum(each.numel() for each in model.parameters()) == count


@pytest.mark.parametrize(("rows", "columns", "width"), [(14, 14, 384), (3, 5, 12)])
def test_fixed_positions_are_those_of_big_vision(rows, columns, width):
    """Its formula, number by number; with a class token, that has none."""
    expected, count = np.zeros((rows * columns, width)), width // 4
    for token in range(rows * columns):
        y, x = divmod(token, columns)
        for index in range(count):
            omega = 1 / 10_000 ** (index / (count - 1))
            values = math.sin(x * omega), math.cos(x * omega), math.sin(y * omega), math.cos(y * omega)
            expected[token, index::count] = values
    np.testing.assert_allclose(encode_positions(rows, columns, width)[0].numpy(), expected, atol=1e-6)
    for class_token in (False, True):
        embed = PatchEmbedding(
            size=(4 * rows, 4 * columns), patch=4, channels=1, width=width, class_token=class_token, positions="sincos"
        )
        assert "position" not in embed.state_dict()
        nn.init.zeros_(embed.patches.weight)
        nn.init.zeros_(embed.patches.bias)
        tokens = embed(torch.rand(1, 1, 4 * rows, 4 * columns))[0].detach().numpy()
        np.testing.assert_allclose(tokens, np.concatenate([np.zeros((int(class_token), width)), expected]), atol=1e-6)


def test_dropout_is_after_every_layer_but_queries_keys_and_values():
    torch.manual_seed(0)
    images = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    plain, model = ViT(**SMALL).double(), ViT(**SMALL, dropout=0.3).double()
    model.load_state_dict(plain.state_dict())
    torch.testing.assert_close(model.eval()(images), plain(images), rtol=0, atol=0)
    torch.manual_seed(1)
    found = model.train()(images)
    torch.manual_seed(1)
    drop = nn.Dropout(0.3)
    x = drop(plain.embed(images))
    for block in plain.blocks:
        normed = block.norms[0](x)
        qkv = block.qkv(normed).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        attended = ((qkv[0] @ qkv[1].mT / 2).softmax(-1) @ qkv[2]).transpose(1, 2).flatten(2)
        x = x + drop(block.out(attended))
        x = x + drop(block.mlp[2](drop(nn.functional.gelu(block.mlp[0](block.norms[1](x))))))
    torch.testing.assert_close(found, plain.head(plain.norm(x)[:, 0]))
    model.fuse()
    assert not model.blocks.fused  # by kernels that have no dropout


def test_first_weights_of_named_sizes_are_big_visions():
    torch.manual_seed(0)
    model = make_model("vit-ti4", shape=(3, 32, 32), classes=10)
    width, state = 192, model.state_dict()
    bounds = {
        "blocks.0.qkv.weight": math.sqrt(6 / (2 * width)),  # each of the three is a matrix of its own
        "blocks.11.out.weight": math.sqrt(6 / (2 * width)),
        "blocks.5.mlp.2.weight": math.sqrt(6 / (5 * width)),
    }
    for name, bound in bounds.items():
        assert bound * 0.99 < float(state[name].abs().max()) <= bound
        assert float(state[name].std()) == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert float(state["embed.patches.weight"].std()) == pytest.approx(1 / math.sqrt(48), rel=0.03)
    assert float(state["embed.position"].std()) == pytest.approx(1 / math.sqrt(width), rel=0.03)
    zeros = ["head.weight", "head.bias", "blocks.0.qkv.bias", "embed.patches.bias", "embed.token"]
    assert all(not state[name].any() for name in zeros)


def test_pooling_may_be_the_mean_over_patches():
    model, images = ViT(**SMALL, pool="mean"), torch.randn(3, 3, 8, 8)
    encoded = model.norm(model.blocks(model.embed(images)))
    assert encoded.shape == (3, 4, 12)  # without the class token
    torch.testing.assert_close(model(images), model.head(sum(encoded[:, each] for each in range(4)) / 4))


def test_a_vision_transformer_may_be_named_by_its_width_depth_and_patch():
    model = make_model("vit-64x3-8", shape=(3, 32, 32), classes=5)
    assert (len(model.blocks), model.head.in_features, model.tokens, model.blocks[0].heads) == (3, 64, 17, 2)


@pytest.mark.usefixtures("_code")
def test_own_models_are_given_what_they_ask_for_and_ready_ones_are_copied():
    assert make_model("own_nets:both", shape=(3, 8, 8), classes=7)(torch.rand(2, 3, 8, 8)).shape == (2, 7)
    assert make_model("own_nets:neither", shape=(6,), classes=7)(torch.rand(2, 6)).shape == (2, 2)
    first = make_model("own_nets:READY", shape=(4,), classes=2)
    before = first.weight.detach().clone()
    nn.init.zeros_(first.weight)
    assert torch.equal(make_model("own_nets:READY", shape=(4,), classes=2).weight, before)


@pytest.mark.usefixtures("_code")
@pytest.mark.parametrize(
    ("name", "shape", "error", "words"),
    [
        ("resnet81", (3, 8, 8), ValueError, "model='resnet81' is not known. Did you mean 'resnet18'.*package.module:c"),
        ("vit-50x3-8", (3, 32, 32), ValueError, "not a multiple of 32"),
        ("vit-x16", (3, 8, 8), ValueError, "model='vit-x16' is not known. Did you mean 'vit-s16'"),
        ("vit-tiny", (64,), ValueError, "takes images, and the examples have the shape 64: use model='mlp'"),
        ("vit-tiny", (3, 8, 30), ValueError, "images of 8 × 30 pixels cannot be cut into patches of 4 × 4"),
        ("own_nets:neithr", (4,), ValueError, "own_nets has no 'neithr'. Did you mean 'neither'"),
        ("own_nets:NUMBER", (4,), TypeError, "is 3; expected something that returns an nn.Module"),
        ("own_nets:function", (4,), TypeError, "returned function; expected an nn.Module"),
        ("own_nets:both", (4,), TypeError, "missing 1 required keyword-only argument: 'channels'"),
    ],
)
def test_what_is_no_model_is_refused(name, shape, error, words):
    with pytest.raises(error, match=words):
        make_model(name, shape=shape, classes=2)


@pytest.mark.parametrize(("channels", "size"), [(1, 12), (3, (16, 8))])
def test_the_embedding_cuts_patches_as_a_slow_loop_does(channels, size):
    torch.manual_seed(0)
    embed = PatchEmbedding(size=size, patch=4, channels=channels, width=7).double()
    nn.init.normal_(embed.token)
    height, width = (size, size) if isinstance(size, int) else size
    images = torch.rand(2, channels, height, width, dtype=torch.float64)
    weight, bias = embed.patches.weight.view(7, channels, 4, 4), embed.patches.bias
    for image, tokens in zip(images, embed(images), strict=True):
        expected = [embed.token[0, 0] + embed.position[0, 0]]
        for row in range(height // 4):
            for column in range(width // 4):
                patch = image[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
                mapped = torch.stack([(one * patch).sum() for one in weight]) + bias
                expected.append(mapped + embed.position[0, len(expected)])
        torch.testing.assert_close(tokens, torch.stack(expected), rtol=1e-12, atol=1e-12)


def test_the_decoder_answers_as_a_causal_one_does_at_the_equals_sign():
    torch.manual_seed(0)
    model = Decoder(prime=7, width=16, heads=2, depth=2).double()
    numbers = torch.randint(7, (20, 2), generator=torch.Generator().manual_seed(1))
    tokens = torch.stack([numbers[:, 0], torch.full((20,), 7), numbers[:, 1], torch.full((20,), 8)], dim=1)
    # The same network at all positions, by torch's attention, from its weights alone.
    state = model.state_dict()
    functions = (torch.sin, torch.cos)
    positions = torch.tensor([
        [functions[index % 2](place / 10_000 ** (2 * (index // 2) / 16)) for index in range(16)]
        for place in torch.arange(4).double()
    ])
    x = state["embed.tokens.weight"][tokens] + positions
    for block in ("blocks.0", "blocks.1"):
        keys, values = (x @ state[f"{block}.keys_and_values.weight"].T).chunk(2, dim=-1)
        queries = x @ state[f"{block}.queries.weight"].T
        heads = [each.unflatten(-1, (2, 8)).transpose(1, 2) for each in (queries, keys, values)]
        attended = scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        x = x + attended @ state[f"{block}.out.weight"].T
        x = layer_norm(x, (16,), state[f"{block}.norms.0.weight"], state[f"{block}.norms.0.bias"])
        hidden = (x @ state[f"{block}.mlp.0.weight"].T).clamp(min=0)
        x = x + hidden @ state[f"{block}.mlp.2.weight"].T
        x = layer_norm(x, (16,), state[f"{block}.norms.1.weight"], state[f"{block}.norms.1.bias"])
    expected = (x @ state["answer.weight"].T)[:, -1]
    torch.testing.assert_close(model(tokens), expected, rtol=1e-6, atol=1e-6)
