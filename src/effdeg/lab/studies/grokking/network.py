"""The transformer of Power et al. (2022), which reads an equation up to its equals sign and gives the answer.

Theirs are a causal decoder with layer norms behind every addition, ReLU, no biases in linear maps, no dropout, fixed
sinusoidal positions and torch's own initialization. They also have the network predict the end of the line behind the
answer, and let it choose among all tokens; here it is asked for the answer alone, among the numbers.
"""

import math

import torch
from torch import Tensor, nn

from effdeg._utils.shapes import Float, Int
from effdeg.lab.studies.grokking.equations import LENGTH


class EquationEmbedding(nn.Module):
    """Tokens as vectors, each with its position."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.positions: Tensor
        self.register_buffer("positions", _sinusoids(LENGTH, width), persistent=False)

    def forward(self, tokens: Int[Tensor, "batch 4"]) -> Float[Tensor, "batch 4 width"]:
        """Embed a batch of equations."""
        embedded: Tensor = self.tokens(tokens) + self.positions
        return embedded


class DecoderBlock(nn.Module):
    """Attention, then an MLP, each added to what came in and normalized."""

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

    def forward(self, x: Float[Tensor, "batch 4 width"], *, last: bool) -> Tensor:
        """Run the block, for every position or for the last one alone, which sees all others."""
        asking = x[:, -1:] if last else x
        queries, (keys, values) = self._by_head(self.queries(asking)), self.keys_and_values(x).chunk(2, dim=-1)
        attended = _attended(queries, self._by_head(keys), self._by_head(values))
        x = self.norms[0](asking + self.out(attended.transpose(1, 2).flatten(2)))
        normalized: Tensor = self.norms[1](x + self.mlp(x))
        return normalized

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # type: ignore[no-untyped-call, no-any-return]


def _attended(
    queries: Float[Tensor, "batch heads asking width"],
    keys: Float[Tensor, "batch heads 4 width"],
    values: Float[Tensor, "batch heads 4 width"],
) -> Float[Tensor, "batch heads asking width"]:
    """Attend causally, the last query to all keys.

    Written out, since torch's attention works on tiles of 64 positions, of which 60 would be empty: it took two
    thirds of a step on a GPU.
    """
    scores = (queries[..., :, None, :] * keys[..., None, :, :]).sum(-1) / math.sqrt(queries.shape[-1])
    asking, asked = scores.shape[-2:]
    later = torch.ones(asking, asked, dtype=torch.bool, device=scores.device).triu(1 + asked - asking)
    shares = scores.masked_fill(later, -torch.inf).softmax(-1)
    return (shares[..., None] * values[..., None, :, :]).sum(-2)


class Decoder(nn.Module):
    """A causal transformer that answers equations modulo a prime."""

    def __init__(self, *, prime: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.embed = EquationEmbedding(prime + 2, width)
        self.blocks = nn.ModuleList([DecoderBlock(width, heads) for _ in range(depth)])
        self.answer = nn.Linear(width, prime, bias=False)

    def forward(self, tokens: Int[Tensor, "batch 4"]) -> Float[Tensor, "batch prime"]:
        """Return the logits of every answer to a batch of equations."""
        x = self.embed(tokens)
        for block in self.blocks:
            # Of the last block nothing is used but what it says at the equals sign.
            x = block(x, last=block is self.blocks[-1])
        logits: Tensor = self.answer(x[:, -1])
        return logits


def _sinusoids(length: int, width: int) -> Float[Tensor, "length width"]:
    """Return the positions of Vaswani et al. (2017): sines and cosines of falling frequencies."""
    frequencies = 10_000.0 ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(length)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
