"""Vision transformers. The defaults are ViT-Tiny for 32 × 32 images: patches of 4, width 192, depth 12, 3 heads."""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class PatchEmbedding(nn.Module):
    """Images as sequences of tokens: a class token if there is one, then the patches, each with its position."""

    def __init__(
        self, *, size: int | tuple[int, int], patch: int, channels: int, width: int, class_token: bool = True
    ) -> None:
        super().__init__()
        height, across = (size, size) if isinstance(size, int) else size
        if height % patch or across % patch:
            raise ValueError(f"images of {height} × {across} pixels cannot be cut into patches of {patch} × {patch}.")
        self.shape, self.patch = (channels, height, across), patch
        # A strided convolution would be the same map; on a GPU its backward is much slower than that of a product.
        self.patches = nn.Linear(channels * patch**2, width)
        self.token = nn.Parameter(torch.zeros(1, 1, width)) if class_token else None
        tokens = class_token + (height // patch) * (across // patch)
        self.position = nn.Parameter(0.02 * torch.randn(1, tokens, width))

    def forward(self, images: Tensor) -> Tensor:
        """Embed a batch of images."""
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
        # Under autocast, positions in float32 would promote all that the blocks add up, and double its memory.
        return (tokens + self.position).to(kind)


class EncoderBlock(nn.Module):
    """Attention, then an MLP, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Run the block on a batch of token sequences."""
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norms[0](x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(*qkv).transpose(1, 2).reshape(batch, tokens, width)
        x = x + self.out(attended)
        added: Tensor = x + self.mlp(self.norms[1](x))
        return added


class Encoder(nn.Sequential):
    """Blocks, one after another; of ViT-Tiny's sizes all in a few kernels of our own, if they are to be fused."""

    fused = False

    def forward(self, x: Tensor) -> Tensor:
        """Run the blocks on a batch of token sequences."""
        blocks: list[Any] = list(self)
        if self.fused and x.is_cuda:
            # Not at the top: Triton comes with torch for GPUs alone.
            from effdeg_lab.models import kernels

            if kernels.can_encode(x, heads=blocks[0].heads):
                return kernels.encode(x, [_get_parameters(block, x.dtype) for block in blocks])
        for block in blocks:
            x = block(x)
        return x


def _get_parameters(block: EncoderBlock, kind: torch.dtype) -> list[Tensor]:
    layers: list[Any] = [block.norms[0], block.qkv, block.out, block.norms[1], block.mlp[0], block.mlp[2]]
    parameters = [each for layer in layers for each in (layer.weight, layer.bias)]
    return [each.to(kind) if each.dim() > 1 else each.float() for each in parameters]


class ViT(nn.Module):
    """A vision transformer for images of one size: that of their sides, or height and width.

    ``pool="token"`` classifies by a class token, ``pool="mean"`` by the mean of the patches: of 32 × 32 images these
    are 64 tokens instead of 65, which a GPU computes faster.
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
    ) -> None:
        super().__init__()
        if pool not in ("token", "mean"):
            raise ValueError(f"pool={pool!r} is not known: use 'token' or 'mean'.")
        self.pool = pool
        self.embed = PatchEmbedding(size=size, patch=patch, channels=channels, width=width, class_token=pool == "token")
        self.blocks = Encoder(*[EncoderBlock(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Classify a batch of images."""
        tokens = self.norm(self.blocks(self.embed(images)))
        logits: Tensor = self.head(tokens[:, 0] if self.pool == "token" else tokens.mean(1))
        return logits

    def fuse(self, fused: bool = True) -> None:
        """Compute the blocks in a few kernels where these exist: for ViT-Tiny's 64 tokens, in bf16, on an H100 or H200.

        A step is then much faster. But the outputs are differentiable only once, and blocks and the layers within them
        are not called one by one, so that hooks on them do not run.
        """
        self.blocks.fused = fused
