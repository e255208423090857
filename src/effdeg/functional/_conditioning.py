"""Whether the nodes can carry the degree of a fit, which is known before a model is run."""

import warnings
from bisect import bisect_right
from functools import lru_cache

from effdeg.functional import condition_number, uniform_nodes

CONDITION_LIMIT = 10.0
"""Above this condition number a fit is called ill-conditioned. In the study of the estimator (docs/estimator.md), fits
with a condition number up to 6 measure ReLU networks within 10%; at 35 the value is 27% too high, at 226 four times the
truth."""


class IllConditionedFit(UserWarning):
    """The nodes cannot carry the degree: the effective degree will be too high, possibly by orders of magnitude."""


@lru_cache(maxsize=256)
def _condition(nodes: int, degree: int) -> float:
    """Return the condition number of the basis matrix T on uniform nodes, without damping and in the Chebyshev basis.

    Damping would lower it without making the value any truer, since it is felt first where T is nearly singular: on 41
    uniform nodes a straight line, fitted with degree 40 in float64, is right without damping and measures 30 times too
    high with any from 1e-12 to 1e-3. The basis is always Chebyshev's because the number is about the nodes: Legendre
    polynomials differ in norm, which raises their condition number (12 at degree 40 on the best of nodes) harmlessly.
    """
    return condition_number(uniform_nodes(nodes), degree)


def ill_conditioned(sampling: str, nodes: int, degree: int) -> str | None:
    """Describe what is wrong with the fit and what to use instead; return None if it is well posed.

    Only uniform nodes are ever ill-conditioned. On Chebyshev nodes the columns of T are orthogonal at any degree below
    the number of nodes (condition number √2), and cosine nodes are random ones around these: where two of a path all
    but coincide the default damping is enough.
    """
    if sampling != "uniform" or _condition(nodes, degree) <= CONDITION_LIMIT:
        return None
    highest = max(1, bisect_right(range(1, degree), CONDITION_LIMIT, key=lambda lower: _condition(nodes, lower)))
    return (
        f"sampling='uniform' with nodes={nodes} cannot carry degree={degree}: the fit is ill-conditioned (condition "
        f"number {_condition(nodes, degree):.2g}), and the value is too high, possibly by orders of magnitude. "
        f"Use sampling='cosine', or degree={highest} or less."
    )


def warn_if_ill_conditioned(sampling: str, nodes: int, degree: int, *, stacklevel: int) -> None:
    """Warn of a fit whose result will be wrong.

    A warning and no error, because those who ask for uniform nodes at a high degree may want to see just that: it is an
    ablation of the paper. The measurement repeats it whenever it is printed.
    """
    if (problem := ill_conditioned(sampling, nodes, degree)) is not None:
        warnings.warn(problem, IllConditionedFit, stacklevel=stacklevel + 1)
