"""Functions whose Chebyshev coefficients along any path are known in closed form."""

import math
from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

_OUTPUTS = 3


class KnownFunction(NamedTuple):
    """A function, examples to connect by paths, and the function's coefficients along such paths."""

    inputs: Tensor  # of shape (examples, variables)
    evaluate: Callable[[Tensor], Tensor]
    # Maps the first ends of paths (t = 1), the second ends (t = -1) and a degree to the coefficients of T_k(t), of
    # shape (paths, degree + 1, outputs).
    expand: Callable[[Tensor, Tensor, int], Tensor]


def make_polynomial(examples: int, generator: Generator, device: torch.device) -> KnownFunction:
    """Make a random polynomial map of total degree 5, of three variables between -1 and 1."""
    highest = 5
    monomials = sorted((each for each in product(range(highest + 1), repeat=3) if sum(each) <= highest), key=sum)
    weights = torch.randn(len(monomials), _OUTPUTS, dtype=torch.float64, generator=generator).to(device)
    inputs = 2 * torch.rand(examples, 3, dtype=torch.float64, generator=generator).to(device) - 1

    def evaluate(x: Tensor) -> Tensor:
        powers = x.T[:, None] ** torch.arange(highest + 1, device=device)[:, None]
        one, two, three = (powers[variable, list(each)] for variable, each in enumerate(zip(*monomials, strict=True)))
        return (one * two * three).T @ weights

    def expand(first: Tensor, second: Tensor, degree: int) -> Tensor:
        # Along a path, variables are linear in t: build monomials by multiplying by one variable at a time.
        center, half = (first + second) / 2, (first - second) / 2
        one = torch.eye(1, highest + 1, dtype=torch.float64, device=device).expand(len(first), -1)
        series: dict[tuple[int, ...], Tensor] = {(0, 0, 0): one}
        for monomial in monomials[1:]:
            variable = next(index for index, power in enumerate(monomial) if power)
            before = tuple(power - (index == variable) for index, power in enumerate(monomial))
            series[monomial] = _multiply_by_linear(series[before], center[:, variable], half[:, variable])
        return pad(torch.stack(list(series.values()), dim=-1) @ weights, (0, 0, 0, degree - highest))

    return KnownFunction(inputs, evaluate, expand)


def _multiply_by_linear(series: Tensor, constant: Tensor, slope: Tensor) -> Tensor:
    """Multiply Chebyshev series by constant + slope t, by t T_k = (T_{k+1} + T_{|k-1|}) / 2; the last term is zero."""
    by_t = torch.zeros_like(series)
    by_t[:, 1:] += series[:, :-1] / 2
    by_t[:, :-1] += series[:, 1:] / 2
    by_t[:, 1] += series[:, 0] / 2
    return constant[:, None] * series + slope[:, None] * by_t


def make_sine(examples: int, generator: Generator, device: torch.device, *, frequency: float) -> KnownFunction:
    """Make sin(ω x) of one variable between -1 and 1; sin(a + b t) has the Jacobi–Anger expansion.

    Its coefficients are c_0 = J_0(b) sin a, and c_k = 2 J_k(b) sin(a + k π / 2).
    """
    # |b| is at most ω, and J_k(b) vanishes beyond about k = |b|; with 60 more orders the rest is negligible.
    order = 2 * math.ceil((frequency + 60) / 2)

    def expand(first: Tensor, second: Tensor, degree: int) -> Tensor:
        center, half = ((frequency * each[:, 0]) / 2 for each in (first + second, first - second))
        orders = torch.arange(order + 1, dtype=torch.float64, device=device)
        found = 2 * _bessel(half, order) * torch.sin(center[:, None] + orders * (math.pi / 2))
        found[:, 0] /= 2
        return pad(found, (0, degree - order))[..., None]

    inputs = 2 * torch.rand(examples, 1, dtype=torch.float64, generator=generator).to(device) - 1
    return KnownFunction(inputs, lambda x: torch.sin(frequency * x), expand)


def _bessel(x: Tensor, order: int) -> Tensor:
    """Return J_0(x) … J_order(x), of shape ``(points, order + 1)``, for an even order well above |x|.

    The ratios J_k / J_{k-1} = 1 / (2k / x - J_{k+1} / J_k) are computed from above: the recurrence is stable in that
    direction only, and ratios, unlike values, cannot overflow. J_0 follows from J_0 + 2 J_2 + 2 J_4 + … = 1. SciPy's
    ``jv`` is off by 1e-5 where k and x are hundreds and close to each other.
    """
    ratios = [torch.zeros_like(x)]
    for k in range(order, 0, -1):
        ratios.append(x / (2 * k - x * ratios[-1]))
    relative = torch.stack([torch.ones_like(x), *ratios[:0:-1]], dim=-1).cumprod(-1)
    return relative / (2 * relative[:, ::2].sum(-1, keepdim=True) - 1)


def make_kinks(examples: int, generator: Generator, device: torch.device, *, units: int) -> KnownFunction:
    """Make a random ReLU network with one hidden layer on ten normal variables: along a line, each unit has a kink."""
    shapes = ((10, units), (units,), (units, _OUTPUTS), (examples, 10))
    drawn = [torch.randn(shape, dtype=torch.float64, generator=generator).to(device) for shape in shapes]
    hidden, bias, output, inputs = drawn[0] / math.sqrt(10), drawn[1], drawn[2] / math.sqrt(units), drawn[3]

    def expand(first: Tensor, second: Tensor, degree: int) -> Tensor:
        center, half = (first + second) / 2 @ hidden + bias, (first - second) / 2 @ hidden
        found = torch.zeros(len(first), degree + 1, _OUTPUTS, dtype=torch.float64, device=device)
        # One unit at a time, so that memory does not grow with the number of units.
        for constant, slope, weights in zip(center.T, half.T, output, strict=True):
            found += expand_relu(constant, slope, degree)[..., None] * weights
        return found

    return KnownFunction(inputs, lambda x: (x @ hidden + bias).relu() @ output, expand)


def expand_relu(constant: Tensor, slope: Tensor, degree: int) -> Tensor:
    """Expand max(0, u + w t) with a nonzero slope w, for each path; returns ``(paths, degree + 1)``.

    For w > 0 it is positive for t above s = -u / w, that is, with t = cos φ, for φ below θ = arccos s (s clipped to
    [-1, 1]). With S_j = ∫ cos(jφ) dφ from 0 to θ, which is sin(jθ) / j for j > 0 and θ for j = 0,

        c_k = (2/π) ∫ (u + w cos φ) cos kφ dφ = (2/π) (u S_k + w (S_{k-1} + S_{k+1}) / 2),

    and half of that for k = 0, where S_{-1} = S_1. For w < 0, replace t by -t, where T_k(-t) = (-1)^k T_k(t). For a
    kink inside the path, c_k decays only as k⁻², so the sum of k |c_k| grows as log K without limit.
    """
    size = slope.abs()
    angle = torch.arccos((-constant / size).clamp(-1, 1))[:, None]
    orders = torch.arange(1, degree + 2, dtype=torch.float64, device=slope.device)
    integrals = torch.cat([angle, torch.sin(orders * angle) / orders], dim=1)
    below = torch.cat([integrals[:, 1:2], integrals[:, :-2]], dim=1)
    found = (2 / math.pi) * (constant[:, None] * integrals[:, :-1] + size[:, None] * (below + integrals[:, 1:]) / 2)
    found[:, 0] /= 2
    found[:, 1::2] *= slope.sign()[:, None]
    return found
