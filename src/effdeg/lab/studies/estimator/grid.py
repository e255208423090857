"""What is tried: where the nodes lie, how many there are, and the degree of the fit."""

from typing import get_args

from effdeg._models.paths import Sampling

NODES = (3, 4, 6, 8, 15, 16, 24, 32, 48, 64, 100, 200)
DEGREES = (2, 3, 5, 7, 10, 14, 20, 40)
SAMPLINGS: tuple[Sampling, ...] = get_args(Sampling)
# At these degrees the exact value is kept: at all that are fitted, and beyond, to see whether it goes on growing.
EXACT_AT = (*range(41), *(round(40 * 2 ** (step / 4)) for step in range(1, 17)))
SCHEMES = tuple((sampling, nodes) for sampling in SAMPLINGS for nodes in NODES)


def degrees_on(nodes: int) -> list[int]:
    """List the degrees that so many nodes determine."""
    return [degree for degree in DEGREES if nodes >= degree + 1]
