import pytest
import torch
from torch import nn

import effdeg
from effdeg.lab.models.vit import PatchEmbedding, ViT

SMALL = {"size": 8, "patch": 4, "width": 12, "depth": 2, "heads": 3, "classes": 5}


def test_vit_tiny_has_as_many_parameters_as_counted_by_hand():
    width, tokens = 192, 65
    embedding = 48 * width + width + width + tokens * width
    attention = width * 3 * width + 3 * width + width * width + width
    mlp = width * 4 * width + 4 * width + 4 * width * width + width
    block = attention + mlp + 2 * 2 * width
    expected = embedding + 12 * block + 2 * width + width * 10 + 10
    assert sum(each.numel() for each in ViT().parameters()) == expected == 5_362_762


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [12, (12, 12), (16, 8), (4, 12)])
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


def test_the_embedding_begins_as_a_convolution_would_and_takes_its_weights():
    torch.manual_seed(0)
    embed = PatchEmbedding(size=8, patch=4, channels=3, width=16)
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 16, 4, stride=4)
    torch.testing.assert_close(embed.patches.weight, convolution.weight.flatten(1), rtol=0, atol=0)
    torch.testing.assert_close(embed.patches.bias, convolution.bias, rtol=0, atol=0)
    images = torch.rand(2, 3, 8, 8)
    expected = convolution(images).flatten(2).transpose(1, 2) + embed.position[:, 1:]
    torch.testing.assert_close(embed(images)[:, 1:], expected)


def test_a_square_given_by_height_and_width_begins_with_the_same_weights():
    made = []
    for size in (8, (8, 8)):
        torch.manual_seed(0)
        made.append(ViT(**{**SMALL, "size": size}).state_dict())
    assert made[0].keys() == made[1].keys()
    assert all(torch.equal(made[0][name], made[1][name]) for name in made[0])


def test_images_may_lie_in_memory_with_the_channels_last():
    model = ViT(**SMALL)
    images = torch.rand(2, 3, 8, 8)
    torch.testing.assert_close(model(images.to(memory_format=torch.channels_last)), model(images), rtol=0, atol=0)


def test_under_autocast_what_blocks_add_up_stays_in_bf16():
    model, kinds = ViT(**SMALL), []
    for module in (model.embed, *model.blocks):
        module.register_forward_hook(lambda *given: kinds.append(given[2].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.rand(2, 3, 8, 8))
    assert kinds == [torch.bfloat16] * 3
    kinds.clear()
    model(torch.rand(2, 3, 8, 8))
    assert kinds == [torch.float32] * 3


@pytest.mark.parametrize("at", ["embed", "blocks.0"])
def test_penalties_act_at_the_embedding_and_behind_the_first_block(at):
    torch.manual_seed(0)
    model = ViT(**SMALL)
    x, y = torch.rand(6, 3, 8, 8), torch.arange(6) % 5
    logits, degree = effdeg.Penalty(anchor_labels=True, at=at)(model, x, y)
    torch.testing.assert_close(logits, model(x))
    degree.backward()
    assert degree > 0
    # The paths begin behind what is hooked, whose ends are themselves images of the weights before.
    assert model.head.weight.grad.abs().sum() > 0
    assert model.embed.patches.weight.grad.abs().sum() > 0


def test_compiled_in_one_graph_it_gives_the_same():
    torch.manual_seed(0)
    model = ViT(**SMALL)
    images = torch.rand(3, 3, 8, 8)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), model(images))


def test_images_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="images of 30 × 30 pixels cannot be cut into patches of 4 × 4"):
        ViT(size=30)
    with pytest.raises(ValueError, match="images of 32 × 30 pixels cannot be cut into patches of 4 × 4"):
        ViT(size=(32, 30))
    with pytest.raises(ValueError, match="made for images of 3 × 8 × 8, not of 1 × 8 × 8"):
        ViT(**SMALL)(torch.rand(2, 1, 8, 8))
