"""The transformer of Power et al. (2022), which reads an equation up to its equals sign and predicts the answer.

It is a causal decoder with a layer norm after every residual addition, ReLU, no biases in linear layers, no dropout,
fixed sinusoidal positions and torch's default initialization.
"""

import math

import torch
from torch import Tensor, nn


class _Embedding(nn.Module):
    positions: Tensor

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        # Sinusoidal positions (Vaswani et al., 2017).
        angles = torch.arange(4)[:, None] * 10_000.0 ** (-torch.arange(0, width, 2) / width)
        positions = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
        self.register_buffer("positions", positions, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tokens(tokens) + self.positions


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries, self.keys_and_values, self.out = (
            nn.Linear(width, times * width, bias=False) for times in (1, 2, 1)
        )
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False), nn.ReLU(), nn.Linear(4 * width, width, bias=False)
        )
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, x: Tensor, *, last: bool) -> Tensor:
        kept = x[:, -1:] if last else x
        queries, (keys, values) = self._by_head(self.queries(kept)), self.keys_and_values(x).chunk(2, dim=-1)
        attended = _attend(queries, self._by_head(keys), self._by_head(values))
        x = self.norms[0](kept + self.out(attended.transpose(1, 2).flatten(2)))
        return self.norms[1](x + self.mlp(x))

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # type: ignore[no-untyped-call]


def _attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention, where the last query sees all keys; tensors are batch × heads × positions × width."""
    # Written out: torch's attention works on tiles of 64 positions, and took two thirds of a step on a GPU.
    scores = (queries[..., :, None, :] * keys[..., None, :, :]).sum(-1) / math.sqrt(queries.shape[-1])
    rows, columns = scores.shape[-2:]
    later = torch.ones(rows, columns, dtype=torch.bool, device=scores.device).triu(1 + columns - rows)
    weights = scores.masked_fill(later, -torch.inf).softmax(-1)
    return (weights[..., None] * values[..., None, :, :]).sum(-2)


class Decoder(nn.Module):
    """A causal transformer that answers equations modulo a prime."""

    def __init__(self, *, prime: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.embed = _Embedding(prime + 2, width)
        self.blocks = nn.ModuleList([_Block(width, heads) for _ in range(depth)])
        self.answer = nn.Linear(width, prime, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the answers to a batch of equations, batch × prime."""
        x = self.embed(tokens)
        for block in self.blocks:
            # Only the last block's output at the equals sign is used.
            x = block(x, last=block is self.blocks[-1])
        return self.answer(x[:, -1])
