"""Vision transformers. The defaults are ViT-Tiny for 32 × 32 images: patches of 4, width 192, depth 12, 3 heads."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

SIZES: dict[str, dict[str, Any]] = {
    "mu": {"width": 32, "depth": 1, "heads": 2},
    "ti": {"width": 192, "depth": 12, "heads": 3},
    "s": {"width": 384, "depth": 12, "heads": 6},
    "b": {"width": 768, "depth": 12, "heads": 12},
    "l": {"width": 1024, "depth": 24, "heads": 16},
}
"""The published sizes, by their letters; mu is for testing. MLPs are four times as wide."""
_TEMPERATURE = 10_000.0


def encode_positions(rows: int, columns: int, width: int) -> Tensor:
    """Return fixed positional encodings, 1 × patches × width: sines and cosines of the columns, then of the rows.

    The frequencies fall geometrically from 1 to 1/10,000, as in MoCo v3 and big_vision. Patches are in reading order.
    """
    if width % 4:
        raise ValueError(f"positions='sincos' needs a width that is a multiple of 4, not {width}.")
    frequencies = _TEMPERATURE ** -torch.linspace(0, 1, width // 4, dtype=torch.float64)
    down, across = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    angles = [places.reshape(-1, 1) * frequencies for places in (across, down)]
    return torch.cat([function(each) for each in angles for function in (torch.sin, torch.cos)], dim=1)[None].float()


class PatchEmbedding(nn.Module):
    """Turns images into sequences of tokens: a class token if there is one, then the patches, each with its position.

    Learned positions are added to all tokens, fixed ones (``"sincos"``) only to the patches.
    """

    position: Tensor

    def __init__(
        self,
        *,
        size: int | tuple[int, int],
        patch: int,
        channels: int,
        width: int,
        class_token: bool = True,
        positions: Literal["learned", "sincos"] = "learned",
    ) -> None:
        super().__init__()
        height, across = (size, size) if isinstance(size, int) else size
        if height % patch or across % patch:
            raise ValueError(f"images of {height} × {across} pixels cannot be cut into patches of {patch} × {patch}.")
        self.shape, self.patch = (channels, height, across), patch
        # Equivalent to a strided convolution, whose backward is much slower on a GPU.
        self.patches = nn.Linear(channels * patch**2, width)
        self.token = nn.Parameter(torch.zeros(1, 1, width)) if class_token else None
        rows, columns = height // patch, across // patch
        if positions == "sincos":
            fixed = nn.functional.pad(encode_positions(rows, columns, width), (0, 0, int(class_token), 0))
            self.register_buffer("position", fixed, persistent=False)
        else:
            self.position = nn.Parameter(0.02 * torch.randn(1, class_token + rows * columns, width))

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[1:] != self.shape:
            given, expected = (" × ".join(map(str, shape)) for shape in (images.shape[1:], self.shape))
            raise ValueError(f"this transformer was made for images of {expected}, not of {given}.")
        (channels, height, across), patch = self.shape, self.patch
        rows, columns = height // patch, across // patch
        cut = images.view(len(images), channels, rows, patch, columns, patch).permute(0, 2, 4, 1, 3, 5)
        tokens: Tensor = self.patches(cut.reshape(len(images), rows * columns, channels * patch**2))
        kind = tokens.dtype
        if self.token is not None:
            tokens = torch.cat([self.token.to(kind).expand(len(images), -1, -1), tokens], dim=1)
        # Under autocast, float32 positions would promote the residual stream to float32 and double its memory.
        return (tokens + self.position).to(kind)


class EncoderBlock(nn.Module):
    """Attention, then an MLP, with residual connections; dropout after every layer but qkv, as in the ViT paper."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        # Nested, so that the layers have the same names with and without dropout.
        activation = nn.Sequential(nn.GELU(), nn.Dropout(dropout)) if dropout else nn.GELU()
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), activation, nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norms[0](x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(*qkv).transpose(1, 2).reshape(batch, tokens, width)
        x = x + self.dropout(self.out(attended))
        return x + self.dropout(self.mlp(self.norms[1](x)))


class Encoder(nn.Sequential):
    """The blocks in sequence; with ``fused``, those of ViT-Tiny's sizes run in custom kernels."""

    fused = False

    def forward(self, x: Tensor) -> Tensor:
        blocks: list[Any] = list(self)
        if self.fused and x.is_cuda:
            # Imported late: only builds of torch for GPUs include Triton.
            import effdeg_lab.models.vit_kernels as vit_kernels

            if vit_kernels.can_encode(x, heads=blocks[0].heads):
                return vit_kernels.encode(x, [_get_parameters(block, x.dtype) for block in blocks])
        for block in blocks:
            x = block(x)
        return x


def _get_parameters(block: EncoderBlock, kind: torch.dtype) -> list[Tensor]:
    layers: list[Any] = [block.norms[0], block.qkv, block.out, block.norms[1], block.mlp[0], block.mlp[2]]
    parameters = [each for layer in layers for each in (layer.weight, layer.bias)]
    return [each.to(kind) if each.dim() > 1 else each.float() for each in parameters]


class ViT(nn.Module):
    """A vision transformer for images of one size, given as the side or as height and width.

    ``pool="token"`` classifies by a class token, ``pool="mean"`` by the mean of the patches: for 32 × 32 images, these
    are 64 tokens instead of 65, which is faster on a GPU. ``positions="sincos"`` are fixed, see
    :func:`encode_positions`; ``positions="learned"`` are parameters.
    """

    def __init__(
        self,
        *,
        size: int | tuple[int, int] = 32,
        patch: int = 4,
        channels: int = 3,
        width: int = 192,
        depth: int = 12,
        heads: int = 3,
        classes: int = 10,
        pool: Literal["token", "mean"] = "token",
        positions: Literal["learned", "sincos"] = "learned",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.pool = pool
        given: dict[str, Any] = {"size": size, "patch": patch, "channels": channels, "width": width}
        self.embed = PatchEmbedding(**given, class_token=pool == "token", positions=positions)
        self.dropout = nn.Dropout(dropout)
        self.blocks = Encoder(*[EncoderBlock(width, heads, dropout) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    @property
    def tokens(self) -> int:
        return self.embed.position.shape[1]

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.norm(self.blocks(self.dropout(self.embed(images))))
        return self.head(tokens[:, 0] if self.pool == "token" else tokens.mean(1))

    def fuse(self, fused: bool = True) -> None:
        """Use custom kernels for the blocks where possible: for ViT-Tiny's 64 tokens, in bf16, on an H100 or H200.

        A step is then much faster. But outputs are differentiable only once, and hooks on blocks and their layers do
        not run, because these are not called one by one. The kernels do not support dropout.
        """
        self.blocks.fused = fused and not self.dropout.p

    @torch.no_grad()
    def initialize(self) -> None:
        """Initialize as big_vision does; without this call, weights have the defaults of torch's layers.

        Matrices are Glorot uniform, those of queries, keys and values separately; patches are LeCun normal; the head
        and all biases except those of MLPs are zero; positions have a standard deviation of 1/√width.
        """
        width = self.head.in_features
        for name, layer in self.named_modules():
            if isinstance(layer, nn.Linear):
                for part in layer.weight.chunk(3) if name.endswith("qkv") else (layer.weight,):
                    nn.init.xavier_uniform_(part)
                nn.init.normal_(layer.bias, std=1e-6) if ".mlp." in name else nn.init.zeros_(layer.bias)
        patches = self.embed.patches.weight
        # Flax truncates at two standard deviations, and divides by the standard deviation that remains.
        std = 1 / math.sqrt(patches.shape[1]) / 0.87962566103423978
        nn.init.trunc_normal_(patches, std=std, a=-2 * std, b=2 * std)
        nn.init.zeros_(self.head.weight)
        if isinstance(self.embed.position, nn.Parameter):
            nn.init.normal_(self.embed.position, std=1 / math.sqrt(width))
