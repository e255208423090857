"""Vision transformers. The defaults are ViT-Tiny for 32 × 32 images: patches of 4, width 192, depth 12, 3 heads."""

from typing import Literal

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

    fused = False
    """Compute each half in one kernel, where there is one: on a GPU, in bf16, for ViT-Tiny's sizes (see ViT.fuse)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Run the block on a batch of token sequences."""
        if self.fused and x.is_cuda and x.dtype == torch.bfloat16:
            return self._run_kernels(x.contiguous())
        x = self._attend(x)
        added: Tensor = x + self.mlp(self.norms[1](x))
        return added

    def _attend(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norms[0](x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(*qkv).transpose(1, 2).reshape(batch, tokens, width)
        added: Tensor = x + self.out(attended)
        return added

    def _run_kernels(self, x: Tensor) -> Tensor:
        # Not at the top: Triton comes with torch for GPUs alone.
        from effdeg_lab.models import kernels

        def take(norm: nn.Module, *layers: nn.Module) -> list[Tensor]:
            pairs = ((layer.weight.to(x.dtype), layer.bias.float()) for layer in layers)
            return [norm.weight.float(), norm.bias.float(), *(each for pair in pairs for each in pair)]

        if x.shape[1] == kernels.TOKENS:
            x = kernels.attention_block(x, *take(self.norms[0], self.qkv, self.out))
        else:
            x = self._attend(x)
        return kernels.mlp_block(x, *take(self.norms[1], self.mlp[0], self.mlp[2]))


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
        self.pool = pool
        self.embed = PatchEmbedding(size=size, patch=patch, channels=channels, width=width, class_token=pool == "token")
        self.blocks = nn.Sequential(*[EncoderBlock(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Classify a batch of images."""
        tokens = self.norm(self.blocks(self.embed(images)))
        logits: Tensor = self.head(tokens[:, 0] if self.pool == "token" else tokens.mean(1))
        return logits

    def fuse(self, fused: bool = True) -> None:
        """Compute blocks of ViT-Tiny's width by kernels of our own, on a GPU and in bf16: twice as fast, but once
        differentiable only. Layers within a block are then not called, so hooks on them do not see their outputs."""
        for block in self.blocks:
            block.fused = fused and (block.qkv.in_features, block.heads) == (192, 3)
