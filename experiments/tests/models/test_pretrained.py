"""DeiT-Tiny and CLIP, against forward passes that are written out."""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import conv2d, gelu, layer_norm, linear

from effdeg_lab.models import make_model, pretrained
from effdeg_lab.models.made_up import write_clip, write_deit
from effdeg_lab.models.pretrained import load_clip, load_deit_tiny, load_zero_shot_head, read_templates

REAL = Path(os.environ.get("EFFDEG_DATA", "")) / "deit-tiny" / "deit_tiny_patch16_224.safetensors"


@pytest.fixture(scope="module")
def deit(tmp_path_factory):
    file = tmp_path_factory.mktemp("deit") / "deit_tiny_patch16_224.safetensors"
    write_deit(file)
    return file


def run_deit(stored, images):
    w = {name: tensor.double() for name, tensor in stored.items()}

    def normalize(x, name):
        return layer_norm(x, (192,), w[f"{name}.weight"], w[f"{name}.bias"], eps=1e-6)

    def apply(x, name):
        return linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    patches = conv2d(images, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=16)
    x = torch.cat([w["cls_token"].expand(len(images), -1, -1), patches.flatten(2).transpose(1, 2)], 1) + w["pos_embed"]
    for block in range(sum(name.endswith("attn.qkv.weight") for name in w)):
        at = f"blocks.{block}"
        q, k, v = apply(normalize(x, f"{at}.norm1"), f"{at}.attn.qkv").split(192, dim=2)
        heads = []
        for head in range(3):
            part = slice(64 * head, 64 * head + 64)
            attention = (q[..., part] @ k[..., part].transpose(1, 2) / 8).softmax(-1)
            heads.append(attention @ v[..., part])
        x = x + apply(torch.cat(heads, dim=2), f"{at}.attn.proj")
        x = x + apply(gelu(apply(normalize(x, f"{at}.norm2"), f"{at}.mlp.fc1")), f"{at}.mlp.fc2")
    return apply(normalize(x, "norm")[:, 0], "head")


def resize_positions(position, side):
    grids = position[0, 1:].T.reshape(-1, 14, 14).numpy()
    resized = [np.asarray(Image.fromarray(grid).resize((side, side), Image.Resampling.BICUBIC)) for grid in grids]
    patches = torch.from_numpy(np.stack(resized)).flatten(1).T
    return torch.cat([position[:, :1], patches[None]], 1)


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("size", [224, 96])
def test_deit_is_the_forward_pass_written_out(deit, real, size):
    if real and not REAL.is_file():
        pytest.skip("needs deit-tiny in EFFDEG_DATA")
    file = REAL if real else deit
    stored, images = load_file(file), torch.randn(2, 3, size, size, dtype=torch.float64)
    position = stored["pos_embed"] if size == 224 else resize_positions(stored["pos_embed"], size // 16)
    expected = run_deit(stored | {"pos_embed": position}, images)
    with torch.no_grad():
        found = load_deit_tiny(file, size=size).double()(images)
    # Pillow and torch resize in float32.
    torch.testing.assert_close(found, expected, rtol=1e-9 if size == 224 else 1e-4, atol=1e-9 if size == 224 else 1e-4)


def test_bad_weights_of_deit_are_named(deit, tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a file: expected the weights of DeiT-Tiny"):
        load_deit_tiny(tmp_path / "none.safetensors")
    with pytest.raises(ValueError, match=r"^images of 100 × 100 pixels cannot be cut into patches of 16"):
        load_deit_tiny(deit, size=100)
    stored = load_file(deit)
    del stored["norm.bias"]
    save_file(stored, tmp_path / "part.safetensors")
    with pytest.raises(ValueError, match=r"part\.safetensors cannot be read as the weights of DeiT(.|\n)*norm\.bias"):
        load_deit_tiny(tmp_path / "part.safetensors")
    save_file({"conv.weight": torch.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"other.* of DeiT-Tiny: cls_token, pos_embed is missing among conv\.weight"):
        load_deit_tiny(tmp_path / "other.safetensors")


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("clip")
    write_clip(folder)
    return folder


NAMES = ["tench", "great white shark", "kite (bird of prey)"]


@pytest.fixture
def tell(clip, monkeypatch):
    """Set what CLIP is told; the head, which is kept with the weights, is removed after the test."""

    def set_texts(names, templates):
        monkeypatch.setattr(pretrained, "read_classes", lambda: [SimpleNamespace(name=name) for name in names])
        monkeypatch.setattr(pretrained, "read_templates", lambda: templates)

    yield set_texts
    (clip / "zero_shot_head.safetensors").unlink(missing_ok=True)


def test_a_head_of_one_template_gives_clips_own_logits(clip, tell):
    transformers = pytest.importorskip("transformers")
    tell(NAMES, ["a photo of a {}."])
    head = load_zero_shot_head(clip)
    images = torch.randn(4, 3, 32, 32)
    model = transformers.CLIPModel.from_pretrained(clip).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(clip)(
        [f"a photo of a {name}." for name in NAMES], padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        expected = model(pixel_values=images, **tokens).logits_per_image
        classifier = load_clip(clip, head)
        found = classifier(images)
    assert expected.std() > 1  # or else nothing would be compared
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
    assert torch.equal(classifier.head.bias, torch.zeros(3))
    torch.testing.assert_close(classifier.encode(images).norm(dim=1), torch.ones(4))
    assert all(parameter.requires_grad for parameter in classifier.parameters())


def test_templates_are_averaged_before_normalizing(clip, tell):
    transformers = pytest.importorskip("transformers")
    templates = read_templates()[:5]
    tell(NAMES, templates)
    head = load_zero_shot_head(clip)
    tokenizer = transformers.AutoTokenizer.from_pretrained(clip)
    text_side = transformers.CLIPTextModelWithProjection.from_pretrained(clip).eval()
    for row, name in zip(head, NAMES, strict=True):
        total = torch.zeros(12)
        for template in templates:  # one text at a time, without padding
            ids = tokenizer(template.format(name), return_tensors="pt")["input_ids"]
            with torch.no_grad():
                feature = text_side(ids).text_embeds[0]
            total += feature / feature.norm()
        torch.testing.assert_close(row, 100 * total / total.norm(), rtol=1e-4, atol=1e-3)


def test_the_head_is_computed_once(clip, tell, monkeypatch):
    tell(NAMES, ["a {}.", "the {}."])
    head = load_zero_shot_head(clip)
    monkeypatch.setattr(pretrained, "_compute_head", lambda *_: pytest.fail("it is computed again"))
    assert torch.equal(load_zero_shot_head(clip), head)
    tell(NAMES[::-1], ["a {}.", "the {}."])
    with pytest.raises(ValueError, match=r"head\.safetensors cannot be read as a zero-shot head: it is not of"):
        load_zero_shot_head(clip)
    (clip / "zero_shot_head.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="cannot be read as a zero-shot head"):
        load_zero_shot_head(clip)


def test_a_folder_without_clip_is_refused(clip, tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        load_zero_shot_head(tmp_path / "none")
    for file in clip.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((clip / "config.json").read_text()) | {"model_type": "bert"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="holds a model of the type 'bert'; expected CLIP"):
        load_clip(tmp_path, torch.zeros(3, 12))
    with pytest.raises(ValueError, match=re.escape("the head has the shape (3, 5)")):
        load_clip(clip, torch.zeros(3, 5))


def test_pretrained_networks_are_made_by_name(deit, clip, tmp_path, monkeypatch):
    (tmp_path / "deit-tiny").symlink_to(deit.parent)
    (tmp_path / "clip-vit-base-patch32").symlink_to(clip)
    torch.manual_seed(0)
    made = make_model("deit-tiny", shape=(3, 32, 32), classes=7, data=tmp_path)
    torch.manual_seed(0)
    expected, images = load_deit_tiny(deit, size=32, classes=7), torch.randn(2, 3, 32, 32)
    assert torch.equal(made(images), expected(images))
    with pytest.raises(ValueError, match="takes square images of 3 channels; the examples have the shape 1 × 32 × 32"):
        make_model("deit-tiny", shape=(1, 32, 32), classes=7, data=tmp_path)

    head = torch.randn(1000, 12)
    monkeypatch.setattr(pretrained, "load_zero_shot_head", lambda folder, device: head)
    zero_shot = make_model("clip-b32", shape=(3, 32, 32), classes=1000, data=tmp_path)
    assert torch.equal(zero_shot.head.weight, head)
    torch.manual_seed(0)
    drawn = make_model("clip-b32", shape=(3, 32, 32), classes=7, data=tmp_path)
    assert drawn.head.weight.shape == (7, 12)
    assert drawn.head.weight.std() > 0.01
    with pytest.raises(ValueError, match="takes images of 32 pixels a side, not of 64: set pixels=32"):
        make_model("clip-b32", shape=(3, 64, 64), classes=7, data=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"b16' were not found: .*\n.* published: openai/clip-vit-base-patch16"):
        make_model("clip-b16", shape=(3, 32, 32), classes=7, data=tmp_path)


class OpenAIVision(nn.Module):
    """CLIP's image side under the names of openai/CLIP."""

    def __init__(self, width=24, heads=2, layers=2, output=12):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 16, 16, bias=False)
        self.class_embedding, self.proj = nn.Parameter(torch.randn(width)), nn.Parameter(torch.randn(width, output))
        self.positional_embedding = nn.Parameter(torch.randn(5, width))
        self.ln_pre, self.ln_post = nn.LayerNorm(width), nn.LayerNorm(width)
        self.transformer = nn.Module()
        self.transformer.resblocks = nn.ModuleList(nn.Module() for _ in range(layers))
        for block in self.transformer.resblocks:
            block.attn = nn.MultiheadAttention(width, heads, batch_first=True)
            block.ln_1, block.ln_2, block.mlp = nn.LayerNorm(width), nn.LayerNorm(width), nn.Module()
            block.mlp.c_fc, block.mlp.c_proj = nn.Linear(width, 32), nn.Linear(32, width)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.5)

    def forward(self, images):
        x = self.conv1(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_embedding.expand(len(x), 1, -1), x], 1) + self.positional_embedding
        x = self.ln_pre(x)
        for block in self.transformer.resblocks:
            y = block.ln_1(x)
            x = x + block.attn(y, y, y, need_weights=False)[0]
            y = block.mlp.c_fc(block.ln_2(x))
            x = x + block.mlp.c_proj(y * torch.sigmoid(1.702 * y))
        return self.ln_post(x[:, 0]) @ self.proj
