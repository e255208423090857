"""Pretrained image encoders with a linear head: DeiT-Tiny, and CLIP from a Hugging Face folder with its zero-shot head.

Nothing is downloaded.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, normalize

from effdeg.io import describe_install, write_atomically
from effdeg_lab.data.images import CLIP_SCALE, IMAGENET_SCALE
from effdeg_lab.data.shifts import read_classes
from effdeg_lab.data.sources import HUB, explain_errors, explain_missing, require_folder
from effdeg_lab.models.text import check_folder, load_tokenizer, quiet_transformers
from effdeg_lab.models.vit import ViT


class Pretrained(NamedTuple):
    place: str  # in the data folder
    scale: tuple[tuple[float, ...], tuple[float, ...]]  # the mean and the standard deviation for scaling pixels
    source: str  # where it is published
    margin: float = 256 / 224  # the short side of a test image divided by the side of its center crop


PRETRAINED = {
    "deit-tiny": Pretrained(
        "deit-tiny/deit_tiny_patch16_224.safetensors",
        IMAGENET_SCALE,
        f"timm/deit_tiny_patch16_224.fb_in1k {HUB} (model.safetensors, to be renamed)",
    ),
    "clip-b32": Pretrained("clip-vit-base-patch32", CLIP_SCALE, f"openai/clip-vit-base-patch32 {HUB}", margin=1.0),
    "clip-b16": Pretrained("clip-vit-base-patch16", CLIP_SCALE, f"openai/clip-vit-base-patch16 {HUB}", margin=1.0),
}
"""The pretrained networks, by name."""


def get_margin(name: str) -> float:
    """Return the short side of a test image divided by the side of the center crop that a network is given."""
    return PRETRAINED[name].margin if name in PRETRAINED else 256 / 224


class ImageClassifier(nn.Module):
    """An encoder of normalized images and a linear head, which are trained, interpolated and averaged together.

    With ``unit_features``, features are divided by their norm before the head, as CLIP does.
    """

    def __init__(self, encoder: nn.Module, head: nn.Linear, *, unit_features: bool = False) -> None:
        super().__init__()
        self.encoder, self.head, self.unit_features = encoder, head, unit_features

    def encode(self, images: Tensor) -> Tensor:
        """Return what the head is given: features of normalized images, N × D."""
        features: Tensor = self.encoder(images)
        return normalize(features, dim=-1) if self.unit_features else features

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encode(images))


def find_pretrained(name: str, folder: Path | None) -> Path:
    """Return where the weights of a pretrained network are in the data folder; raise if they are not there."""
    with explain_missing(name, folder, PRETRAINED[name].source):
        place = require_folder(name, folder, what="model") / PRETRAINED[name].place
        if not place.exists():
            raise FileNotFoundError(f"the weights of model={name!r} were not found: expected {place}.")
        if place.is_dir():
            check_folder(place)
        return place


def load_pretrained(name: str, folder: Path | None, *, shape: tuple[int, ...], classes: int) -> ImageClassifier:
    """Load a pretrained network from the data folder, with a new head that is drawn from torch's random stream.

    The head of CLIP for 1,000 classes is instead its zero-shot head for ImageNet.
    """
    place = find_pretrained(name, folder)
    if len(shape) != 3 or shape[0] != 3 or shape[1] != shape[2]:
        given = " × ".join(map(str, shape))
        raise ValueError(f"model={name!r} takes square images of 3 channels; the examples have the shape {given}.")
    if name == "deit-tiny":
        return load_deit_tiny(place, size=shape[1], classes=classes)
    size, features = _read_sizes(place)
    if shape[1] != size:
        raise ValueError(f"model={name!r} takes images of {size} pixels a side, not of {shape[1]}: set pixels={size}.")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    zero_shot = classes == len(read_classes())
    weights = load_zero_shot_head(place, device=device) if zero_shot else nn.Linear(features, classes).weight.detach()
    return load_clip(place, weights)


def load_deit_tiny(file: Path, *, size: int = 224, classes: int | None = None) -> ImageClassifier:
    """Load DeiT-Tiny (Touvron et al., 2021) from a file with timm's names, ``deit_tiny_patch16_224.safetensors``.

    It was trained on images of 224 pixels, normalized by ImageNet's mean and standard deviation. For other sizes, which
    are multiples of 16, the position embeddings are resized bicubically. A new head for some ``classes`` is drawn from
    torch's random stream; None keeps ImageNet's.
    """
    if not file.is_file():
        raise FileNotFoundError(f"{file} is not a file: expected the weights of DeiT-Tiny, deit_tiny_patch16_224.")
    from safetensors.torch import load_file

    with explain_errors(file, "the weights of DeiT-Tiny"):
        stored = _rename_timm(load_file(file), side=size // 16)
    depth = 1 + max((int(name.split(".")[1]) for name in stored if name.startswith("blocks.")), default=0)
    model = ViT(size=size, patch=16, classes=1000, depth=depth)
    with explain_errors(file, "the weights of DeiT-Tiny"):
        model.load_state_dict(stored)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-6  # timm's, where torch has 1e-5
    head = model.head if classes is None else nn.Linear(model.head.in_features, classes)
    model.head = nn.Identity()  # type: ignore[assignment]
    return ImageClassifier(model, head)


_NAMES = {
    "norm1": "norms.0",
    "norm2": "norms.1",
    "attn.qkv": "qkv",
    "attn.proj": "out",
    "mlp.fc1": "mlp.0",
    "mlp.fc2": "mlp.2",
    "patch_embed.proj": "embed.patches",
}


def _rename_timm(stored: Mapping[str, Tensor], side: int) -> dict[str, Tensor]:
    """Convert timm's state dict of a vision transformer to the shapes and names of the lab's."""
    if missing := {"pos_embed", "cls_token"} - stored.keys():
        raise ValueError(f"{', '.join(sorted(missing))} is missing among {', '.join([*stored][:3])}, ….")
    position = stored["pos_embed"]
    token, grid = position[:, :1], position[:, 1:]
    before = round(grid.shape[1] ** 0.5)
    if side != before:
        square = grid.transpose(1, 2).reshape(1, -1, before, before)
        resized = interpolate(square, (side, side), mode="bicubic", antialias=True)
        position = torch.cat([token, resized.flatten(2).transpose(1, 2)], dim=1)
    found = {"embed.token": stored["cls_token"], "embed.position": position}
    for name, tensor in stored.items():
        if name not in {"cls_token", "pos_embed"}:
            for theirs, ours in _NAMES.items():
                name = name.replace(theirs, ours)
            found[name] = tensor.flatten(1) if name == "embed.patches.weight" else tensor
    return found


def load_clip(folder: Path, weights: Tensor) -> ImageClassifier:
    """Load CLIP's image encoder (Radford et al., 2021) from a Hugging Face folder, with a head, classes × D."""
    encoder = _ClipEncoder(_load_model(folder, "CLIPVisionModelWithProjection"))
    features = encoder.model.config.projection_dim
    if weights.dim() != 2 or weights.shape[1] != features:
        raise ValueError(f"the head has the shape {tuple(weights.shape)}; {folder} has {features} features.")
    head = nn.Linear(features, len(weights))
    with torch.no_grad():
        head.weight.copy_(weights)
        head.bias.zero_()
    return ImageClassifier(encoder, head, unit_features=True).eval()


class _ClipEncoder(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(pixel_values=images).image_embeds


_CLIP_NAMES = {
    "transformer.resblocks.": "vision_model.encoder.layers.",
    "class_embedding": "vision_model.embeddings.class_embedding",
    "positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "conv1.": "vision_model.embeddings.patch_embedding.",
    "ln_pre.": "vision_model.pre_layrnorm.",  # Hugging Face's spelling
    "ln_post.": "vision_model.post_layernorm.",
    ".ln_1.": ".layer_norm1.",
    ".ln_2.": ".layer_norm2.",
    ".attn.out_proj.": ".self_attn.out_proj.",
    ".mlp.c_fc.": ".mlp.fc1.",
    ".mlp.c_proj.": ".mlp.fc2.",
}


def rename_openai(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a checkpoint of model soups under the names of :func:`load_clip`'s classifier.

    Such a checkpoint has ``model.*``, as in openai/CLIP, and ``classification_head.*``. Remains of the text encoder are
    dropped.
    """
    if missing := {"model.visual.proj", "classification_head.weight", "classification_head.bias"} - stored.keys():
        raise ValueError(f"{', '.join(sorted(missing))} is missing: this is not a checkpoint of model soups.")
    found = {f"head.{part}": stored[f"classification_head.{part}"].float() for part in ("weight", "bias")}
    for name, tensor in stored.items():
        if name.startswith("model.visual."):
            new, value = name.removeprefix("model.visual."), tensor.float()
            for theirs, ours in _CLIP_NAMES.items():
                new = new.replace(theirs, ours)
            if ".in_proj_" in new:
                layer, _, part = new.partition(".attn.in_proj_")
                for kind, each in zip("qkv", value.chunk(3), strict=True):
                    found[f"encoder.model.{layer}.self_attn.{kind}_proj.{part}"] = each
            elif new == "proj":
                found["encoder.model.visual_projection.weight"] = value.T
            else:
                found[f"encoder.model.{new}"] = value
    return found


_HEAD = "zero_shot_head.safetensors"


def read_templates() -> tuple[str, ...]:
    """Read the 80 templates of CLIP for ImageNet; the file says where they are from."""
    text = resources.files("effdeg_lab.models").joinpath("clip_templates.txt").read_text(encoding="utf-8")
    return tuple(line for line in text.splitlines() if not line.startswith("#"))


def load_zero_shot_head(folder: Path, *, device: str | torch.device = "cpu") -> Tensor:
    r"""Return the weights of CLIP's zero-shot head for ImageNet, 1,000 × D: computed once, then read from a file.

    Row :math:`c` is :math:`s \, \bar t_c / \lVert \bar t_c \rVert`, where :math:`\bar t_c` is the mean over the
    templates of the text features of class :math:`c`, each of norm 1, and :math:`s` is CLIP's logit scale. Encoding the
    80,000 texts takes minutes on a GPU, so the head is kept in CLIP's folder.
    """
    check_folder(folder)
    from safetensors import safe_open

    file = folder / _HEAD
    if file.is_file():
        with explain_errors(file, "a zero-shot head"), safe_open(file, "pt") as stored:
            if stored.metadata() != _identify_head(folder):
                raise ValueError(f"it is not of {folder} with these classes and templates; delete it.")
            return stored.get_tensor("weight")
    weights = _compute_head(folder, [each.name for each in read_classes()], read_templates(), device)
    keep_zero_shot_head(folder, weights)
    return weights


def keep_zero_shot_head(folder: Path, weights: Tensor) -> None:
    """Keep a zero-shot head next to CLIP's weights, for :func:`load_zero_shot_head`."""
    from safetensors.torch import save

    write_atomically(folder / _HEAD, save({"weight": weights}, _identify_head(folder)))


def _identify_head(folder: Path) -> dict[str, str]:
    """Return a hash of all that the zero-shot head depends on: classes, templates and CLIP's weights."""
    names = [each.name for each in read_classes()]
    found = hashlib.sha256(json.dumps([names, read_templates()]).encode())
    for file in sorted([*folder.glob("*model*.safetensors"), *folder.glob("*model*.bin")]):
        with file.open("rb") as stream:
            found.update(hashlib.file_digest(stream, "sha256").digest())
    return {"made_of": found.hexdigest()}


@torch.no_grad()
def _compute_head(folder: Path, names: Sequence[str], templates: Sequence[str], device: str | torch.device) -> Tensor:
    tokenizer, model = load_tokenizer(folder), _load_model(folder, "CLIPModel").to(device)
    rows = []
    for name in names:
        tokens = tokenizer([each.replace("{}", name) for each in templates], padding=True, return_tensors="pt")
        outputs = model.text_model(tokens["input_ids"].to(device), tokens["attention_mask"].to(device))
        texts = normalize(model.text_projection(outputs.pooler_output), dim=-1)
        rows.append(normalize(texts.mean(0), dim=0))
    weights: Tensor = torch.stack(rows) * model.logit_scale.exp()
    return weights.cpu()


def _read_sizes(folder: Path) -> tuple[int, int]:
    config = json.loads((folder / "config.json").read_text())
    with explain_errors(folder / "config.json", "the settings of CLIP"):
        return config["vision_config"].get("image_size", 224), config["projection_dim"]


def _load_model(folder: Path, kind: str) -> Any:
    check_folder(folder)
    try:
        import transformers
    except ImportError as error:
        raise ImportError(f"CLIP needs transformers: {describe_install('text', 'effdeg-lab')}") from error
    if (given := json.loads((folder / "config.json").read_text()).get("model_type")) != "clip":
        raise ValueError(f"{folder} holds a model of the type {given!r}; expected CLIP, with both of its sides.")
    with quiet_transformers():  # or it would report that one of CLIP's encoders is not used
        model = getattr(transformers, kind).from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    return model.eval()
