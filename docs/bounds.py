"""The bounds of the paper's section 4.3 in numbers: the tables of docs/bounds.md.

Run by ``make figures``; everything here is a closed form or read from ``results/pools/digits.csv``.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

from effdeg.demo import load_digits

DIMENSION = 3 * 32 * 32  # d of CIFAR-10
EXAMPLES = 50_000  # n of CIFAR-10
DEGREES = (1, 2, 3, 7, 14, 20, 40)
# The networks of results/pools/digits.csv: examples/rank_a_pool.py.
LAYERS = 3
LABELED_PER_CLASS = 10


def monomials(dimension: int, degree: int) -> int:
    """Return M = C(d + K, K), the number of monomials in d variables of total degree K at most."""
    return math.comb(dimension + degree, degree)


def l2_bound(features: int, examples: int) -> float:
    """Bound the Rademacher complexity of linear predictors with ‖w‖₂ ≤ 1 on M features in [-1, 1]: √(M/n)."""
    return math.sqrt(features / examples)


def l1_bound(features: int, examples: int) -> float:
    """Bound the Rademacher complexity of linear predictors with ‖w‖₁ ≤ 1 on M features in [-1, 1]: √(2 ln(2M)/n).

    This is Massart's lemma for the 2M corners of the ball: the logarithm of M takes the place of M.
    """
    return math.sqrt(2 * math.log(2 * features) / examples)


def network_bound(frobenius_product: float, layers: int, rms_norm: float, examples: int) -> float:
    """Bound the Rademacher complexity of ReLU networks without biases by the product of their layers' Frobenius norms.

    Theorem 1 of Golowich, Rakhlin and Shamir (2018): (1 + √(2 L ln 2)) Π‖Wᵢ‖ r/√n, where r² is the mean squared norm of
    the examples.

    Args:
        frobenius_product: Π‖Wᵢ‖.
        layers: L, how many weight matrices there are.
        rms_norm: r.
        examples: n.

    Returns:
        The bound, in the unit of the outputs.
    """
    return (1 + math.sqrt(2 * layers * math.log(2))) * frobenius_product * rms_norm / math.sqrt(examples)


def polynomial_table() -> str:
    """Tabulate how both bounds grow with the degree of polynomials on CIFAR-10."""
    lines = ["| K | M = C(3072 + K, K) | ln M | √(M/n) | √(2 ln(2M)/n) |", "|---:|---:|---:|---:|---:|"]
    for degree in DEGREES:
        count = monomials(DIMENSION, degree)
        l2, l1 = l2_bound(count, EXAMPLES), l1_bound(count, EXAMPLES)
        lines.append(f"| {degree} | {_scientific(count)} | {math.log(count):.1f} | {_scientific(l2)} | {l1:.3f} |")
    return "\n".join(lines) + "\n"


def network_bounds(rows: Sequence[Mapping[str, float]]) -> list[float]:
    """Return what the bound allows for the gap of each network on digits.

    For two classes, the error is at most the share of training examples with a margin below γ plus 2/γ times the
    Rademacher complexity plus a term for chance. γ is the network's median margin here; the factor for ten classes,
    biases and chance are left out, all of which would make the bound larger.

    Args:
        rows: One mapping per network with ``frobenius_product`` and ``margin@50``.

    Returns:
        2/γ times the bound on the complexity, by network.
    """
    inputs = load_digits(per_class=LABELED_PER_CLASS, seed=0).labeled
    rms_norm = float(inputs.double().square().sum(1).mean().sqrt())
    return [
        2 / row["margin@50"] * network_bound(row["frobenius_product"], LAYERS, rms_norm, len(inputs)) for row in rows
    ]


def network_table(rows: Sequence[Mapping[str, float]]) -> str:
    """Tabulate what the bound allows next to the gaps of the networks on digits.

    Args:
        rows: One mapping per network with ``gap`` and what ``network_bounds`` needs.

    Returns:
        The table.
    """
    found, gaps = network_bounds(rows), [row["gap"] for row in rows]
    correlation = statistics.correlation(found, gaps)
    return (
        "| networks on digits | gap that the bound allows | gap | correlation of both |\n|---:|---:|---:|---:|\n"
        f"| {len(rows)} | {min(found):.0f} to {_scientific(max(found))} | {min(gaps):.2f} to {max(gaps):.2f} | "
        f"{correlation:.2f} |\n"
    )


def _scientific(number: float) -> str:
    """Write a number that may be large: in full below 10,000, else as a power of ten."""
    if number < 10_000:
        return f"{number:,}" if isinstance(number, int) else f"{number:.3g}"
    exponent = math.floor(math.log10(number))
    # An integer beyond the range of floats is divided exactly.
    mantissa = number / 10**exponent
    return f"{mantissa:.2f} × 10^{exponent}"
