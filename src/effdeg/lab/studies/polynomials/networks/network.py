"""A network that is a polynomial: it squares where others cut off."""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from effdeg._utils.shapes import Float
from effdeg.lab.studies.polynomials.networks.targets import HALF_SIDE

_HIDDEN = 3
DEGREE = 2**_HIDDEN
"""The total degree of a network."""


class PolynomialNetwork(nn.Module):
    """Three hidden layers with square activations and a linear output layer, in float64."""

    scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [3, *[width] * _HIDDEN, 3]
        made = [nn.Linear(*pair) for pair in pairwise(sizes)]
        self.layers = nn.ModuleList(made)
        # What the outputs are multiplied by, so that weights of ordinary size reach outputs of any.
        self.register_buffer("scale", torch.ones(3))
        for number, layer in enumerate(made):
            # Squares of small numbers vanish and those of large ones explode: every unit begins at a size around one.
            size = 1 / math.sqrt(sizes[number])
            nn.init.normal_(layer.weight, std=size / HALF_SIDE if number == 0 else size)
            nn.init.normal_(layer.bias, std=0.5)
        self.double()

    def forward(self, inputs: Float[Tensor, "*points 3"]) -> Float[Tensor, "*points 3"]:
        """Compute the polynomial."""
        *hidden, last = self.layers
        for layer in hidden:
            inputs = layer(inputs).square()
        outputs: Tensor = self.scale * last(inputs)
        return outputs

    def jacobian(self, inputs: Float[Tensor, "points 3"]) -> Float[Tensor, "points 3 weights"]:
        """Differentiate the outputs by all weights, in the order of ``parameters()``."""

        def outputs(weights: dict[str, Tensor], point: Tensor) -> Tensor:
            found: Tensor = functional_call(self, weights, (point,))
            return found

        weights = {name: weight.detach() for name, weight in self.named_parameters()}
        parts = vmap(jacrev(outputs), in_dims=(None, 0))(weights, inputs)
        return torch.cat([parts[name].flatten(2) for name in weights], dim=-1)
