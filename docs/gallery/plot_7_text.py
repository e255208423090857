"""
At a layer of a text model
==========================

Token ids cannot be mixed, embeddings can: ``at=`` names the layer whose output the paths lead through. The task is made
up: is the first of two brackets of a kind closed before the sentence ends?
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import effdeg
from effdeg.plots import open_figure

torch.manual_seed(0)
tokens = torch.randint(2, 20, (600, 12))
tokens[torch.arange(600), torch.randint(0, 6, (600,))] = 0  # opened early
closed = torch.rand(600) < 0.5
tokens[closed, torch.randint(6, 12, (600,))[closed]] = 1  # closed late, or not at all
labels = closed.long()


class Encoder(nn.Module):
    """A transformer of two layers."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 32)
        self.position = nn.Parameter(0.1 * torch.randn(12, 32))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True) for _ in range(2))
        self.head = nn.Linear(32, 2)

    def forward(self, ids):
        """Return the logits of a batch of token ids."""
        hidden = self.embedding(ids) + self.position
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden.mean(1))


model = Encoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
places = {"embedding": "embeddings", "layers.0": "after layer 1", "layers.1": "after layer 2"}
course = {name: [] for name in places}
for step in range(101):
    if step % 25 == 0:
        for name in places:
            measured = effdeg.measure(model, tokens[300:], at=name, paths=60, nodes=24, degree=15, seed=0)
            course[name].append(measured.value)
    loss = cross_entropy(model(tokens[:300]), labels[:300])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
# Values at different layers are not comparable with each other, only along training: each is the complexity of the
# rest of the network, on paths of its own.
with open_figure("light", (8, 3.6)) as (colors, figure):
    axes = figure.subplots()
    for (name, label), color in zip(places.items(), (colors.simple, "#7b61b8", colors.complex), strict=True):
        axes.plot(range(0, 101, 25), course[name], "o-", lw=2, color=color, label=label)
    axes.set(title="effective degree of the network from a layer on", xlabel="step", ylim=(0, None))
    axes.legend()

# sphinx_gallery_start_ignore
ALT = "Effective degree along training, on paths at the embeddings and after each layer of a small transformer."
# sphinx_gallery_end_ignore
