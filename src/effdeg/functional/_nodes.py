"""Where a path is sampled: ascending positions alpha in [0, 1], in float64."""

import math
from typing import Any

import torch
from torch import Tensor

from effdeg._utils.checks import check_count
from effdeg._utils.shapes import Float


def chebyshev_nodes(nodes: int, *, device: torch.device | str | None = None) -> Float[Tensor, " nodes"]:
    """Shifted Chebyshev nodes, alpha_i = (1 - cos((2i - 1) pi / 2r)) / 2 for i = 1 … r.

    The roots of the Chebyshev polynomial of degree ``nodes``, moved to [0, 1]. They crowd towards both ends, which is
    what keeps a polynomial fit of high degree stable.

    Args:
        nodes: How many (the paper's r).
        device: Where to make them.

    Returns:
        Ascending positions in (0, 1).
    """
    check_count("nodes", nodes, least=1)
    angles = (torch.arange(nodes, dtype=torch.float64, device=device) + 0.5) * (math.pi / nodes)
    return _alpha(angles)


def cosine_nodes(
    nodes: int,
    paths: int,
    *,
    anchored: bool = False,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "paths nodes"]:
    """Draw nodes by randomized cosine sampling (Definition 3.3).

    theta_i ~ U[(i - 1) pi / r, i pi / r] and alpha_i = (1 - cos theta_i) / 2 for i = 1 … r: one angle in each of
    ``nodes`` equal strata, drawn anew for every path, so that averages over paths see the whole path even when a single
    path has few nodes.

    Args:
        nodes: How many on each path (the paper's r).
        paths: How many paths.
        anchored: Put the first node at alpha = 0 and the last at alpha = 1; the interior ones stay in their own strata.
        generator: The source of randomness; torch's global one when absent.
        device: Where to make them; the generator's device when absent.

    Returns:
        Ascending positions in [0, 1], one row per path.
    """
    check_count("nodes", nodes, least=2 if anchored else 1)
    check_count("paths", paths, least=1)
    if device is None and generator is not None:
        device = generator.device
    strata = torch.arange(nodes, dtype=torch.float64, device=device)
    # torch.compile cannot draw for a number of paths that varies if a generator, even none, is named.
    given: dict[str, Any] = {} if generator is None else {"generator": generator}
    within = torch.rand(paths, nodes, dtype=torch.float64, device=device, **given)
    angles = (strata + within) * (math.pi / nodes)
    if anchored:
        angles[:, 0] = 0.0
        angles[:, -1] = math.pi
    return _alpha(angles)


def uniform_nodes(nodes: int, *, device: torch.device | str | None = None) -> Float[Tensor, " nodes"]:
    """Equispaced positions on [0, 1], both ends included.

    For comparison only. A fit on them is well posed while ``degree`` stays below about ``2 * sqrt(nodes)`` and becomes
    exponentially ill-conditioned beyond (Runge's phenomenon): see :func:`effdeg.functional.fit_operator`.

    Args:
        nodes: How many; a single one stands in the middle.
        device: Where to make them.

    Returns:
        Ascending positions in [0, 1].
    """
    check_count("nodes", nodes, least=1)
    if nodes == 1:
        return torch.full((1,), 0.5, dtype=torch.float64, device=device)
    return torch.linspace(0.0, 1.0, nodes, dtype=torch.float64, device=device)


def _alpha(angles: Tensor) -> Tensor:
    # sin²(θ/2) is (1 - cos θ)/2 without its cancellation near θ = 0.
    return torch.sin(angles / 2).square()
