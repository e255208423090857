"""Where a path is sampled: ascending positions α in [0, 1], in float64."""

import math
from typing import Any

import torch
from torch import Tensor

from effdeg._utils.checks import check_count
from effdeg._utils.shapes import Float


def chebyshev_nodes(nodes: int, *, device: torch.device | str | None = None) -> Float[Tensor, " nodes"]:
    """Return the shifted Chebyshev nodes, α_i = (1 − cos((2i − 1) π / 2r)) / 2 for i = 1 … r.

    They are the roots of the Chebyshev polynomial of degree ``nodes``, moved to [0, 1], and denser towards both ends,
    which keeps polynomial fits of high degree stable.

    Raises:
        ValueError: If ``nodes`` (the paper's r) is less than 1.
        TypeError: If ``nodes`` is not a whole number.

    Example:
        >>> from effdeg.functional import chebyshev_nodes
        >>> chebyshev_nodes(3)
        tensor([0.0670, 0.5000, 0.9330], dtype=torch.float64)
    """
    check_count("nodes", nodes, least=1)
    angles = (torch.arange(nodes, dtype=torch.float64, device=device) + 0.5) * (math.pi / nodes)
    return _project_to_line(angles)


def cosine_nodes(
    nodes: int,
    paths: int,
    *,
    anchored: bool = False,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "paths nodes"]:
    """Draw nodes by randomized cosine sampling (Definition 3.3).

    θ_i ~ U[(i − 1) π / r, i π / r] and α_i = (1 − cos θ_i) / 2 for i = 1 … r: one angle in each of ``nodes`` equal
    strata, drawn independently for every path, so that averages over paths cover all of it even with few nodes on each.

    Args:
        nodes: The number of nodes on each path (the paper's r).
        paths: The number of paths.
        anchored: Put the first node at α = 0 and the last at α = 1; the others stay in their strata.
        generator: The source of randomness; by default torch's global generator.
        device: The device of the result; by default that of the generator.

    Raises:
        ValueError: If ``nodes`` is less than 1 (2 if ``anchored``), or ``paths`` is less than 1.
        TypeError: If one of them is not a whole number.

    Example:
        >>> import torch
        >>> from effdeg.functional import cosine_nodes
        >>> alpha = cosine_nodes(4, paths=100, anchored=True, generator=torch.Generator().manual_seed(0))
        >>> alpha.shape, bool((alpha.diff(dim=1) > 0).all())
        (torch.Size([100, 4]), True)
        >>> alpha[0, 0].item(), alpha[0, -1].item()
        (0.0, 1.0)
    """
    check_count("nodes", nodes, least=2 if anchored else 1)
    check_count("paths", paths, least=1)
    if device is None and generator is not None:
        device = generator.device
    strata = torch.arange(nodes, dtype=torch.float64, device=device)
    # With a generator argument, even None, torch.compile cannot draw for a varying number of paths.
    given: dict[str, Any] = {} if generator is None else {"generator": generator}
    within = torch.rand(paths, nodes, dtype=torch.float64, device=device, **given)
    angles = (strata + within) * (math.pi / nodes)
    if anchored:
        angles[:, 0] = 0.0
        angles[:, -1] = math.pi
    return _project_to_line(angles)


def uniform_nodes(nodes: int, *, device: torch.device | str | None = None) -> Float[Tensor, " nodes"]:
    """Return equispaced positions on [0, 1], α_i = (i − 1) / (r − 1) for i = 1 … r.

    For comparison only: at a high degree, fits on them are ill-conditioned; see :func:`effdeg.functional.fit_operator`.
    A single node lies in the middle.

    Raises:
        ValueError: If ``nodes`` is less than 1.
        TypeError: If ``nodes`` is not a whole number.

    Example:
        >>> from effdeg.functional import uniform_nodes
        >>> uniform_nodes(3)
        tensor([0.0000, 0.5000, 1.0000], dtype=torch.float64)
    """
    check_count("nodes", nodes, least=1)
    if nodes == 1:
        return torch.full((1,), 0.5, dtype=torch.float64, device=device)
    return torch.linspace(0.0, 1.0, nodes, dtype=torch.float64, device=device)


def _project_to_line(angles: Tensor) -> Tensor:
    # sin²(θ/2) is (1 − cos θ)/2 without its cancellation near θ = 0.
    return torch.sin(angles / 2).square()
