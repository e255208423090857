"""Whether the nodes support the degree of a fit, which is known before a model is run."""

import warnings
from bisect import bisect_right
from functools import lru_cache

from effdeg.functional import condition_number, uniform_nodes

CONDITION_LIMIT = 10.0
"""Above this condition number a fit counts as ill-conditioned. In docs/results/estimator.md, fits with a
condition number up to 6 measure ReLU networks within 10%; at 35 the value is 27% too high, at 226 fourfold."""


class IllConditionedFit(UserWarning):
    """Warns that the nodes do not support the degree: the value will be too high, possibly by orders of magnitude.

    Only uniform nodes can cause it. To measure anyway, for example in an ablation, filter the warning:

        >>> import warnings, effdeg, torch
        >>> from effdeg.measuring import IllConditionedFit
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", IllConditionedFit)
        ...     measured = effdeg.measure(torch.tanh, torch.randn(10, 3), paths=20, nodes=41, sampling="uniform")
    """


@lru_cache(maxsize=256)
def _condition(nodes: int, degree: int) -> float:
    """Return the condition number of the basis matrix T on uniform nodes, in the Chebyshev basis.

    It is that without damping, which would lower it without making the value more accurate.
    """
    return condition_number(uniform_nodes(nodes, device="cpu"), degree)


def describe_ill_conditioning(sampling: str, nodes: int, degree: int) -> str | None:
    """Describe what is wrong with the fit and what to use instead; return None if it is well posed."""
    # On Chebyshev nodes the columns of T are orthogonal. Cosine nodes are scattered around these; where two of a path
    # nearly coincide, the default damping is enough.
    if sampling != "uniform" or _condition(nodes, degree) <= CONDITION_LIMIT:
        return None
    highest = max(1, bisect_right(range(1, degree), CONDITION_LIMIT, key=lambda lower: _condition(nodes, lower)))
    return (
        f"sampling='uniform' with nodes={nodes} does not support degree={degree}: the fit is ill-conditioned "
        f"(condition number {_condition(nodes, degree):.2g}), and the value is too high, possibly by orders of "
        f"magnitude. Use sampling='cosine', or degree={highest} or less."
    )


def warn_if_ill_conditioned(sampling: str, nodes: int, degree: int, *, stacklevel: int) -> None:
    """Warn about a fit whose result will be wrong; not an error, since the paper has uniform nodes as an ablation."""
    if (problem := describe_ill_conditioning(sampling, nodes, degree)) is not None:
        warnings.warn(problem, IllConditionedFit, stacklevel=stacklevel + 1)
