"""Functions whose effective degree along every path is known exactly, by their closed-form coefficients."""

import math
from abc import ABC, abstractmethod
from itertools import product

import torch
from torch import Tensor

OUTPUTS = 3


class KnownFunction(ABC):
    """A function in float64, of points of shape ``(points, variables)``, whose expansion along paths is known."""

    VARIABLES: int
    device: torch.device

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """Evaluate the function."""

    def draw_inputs(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw examples, uniformly between -1 and 1."""
        drawn = torch.rand(count, self.VARIABLES, dtype=torch.float64, generator=generator)
        return (2 * drawn - 1).to(self.device)

    @abstractmethod
    def expand(self, first: Tensor, second: Tensor, degree: int) -> Tensor:
        """Return the exact Chebyshev coefficients along paths, of shape ``(paths, degree + 1, outputs)``.

        They are those of T_k(t) with t = 2 α - 1 and α = 1 at the first ends, both of shape ``(paths, variables)``.
        """


def exact_degrees(coefficients: Tensor) -> Tensor:
    """Return the exact effective degree at every degree K: the sum of k |c_k| over k up to K, averaged over outputs."""
    degrees = torch.arange(coefficients.shape[1], dtype=torch.float64, device=coefficients.device)
    return (degrees[:, None] * coefficients.abs()).mean(-1).cumsum(-1)


class Polynomial(KnownFunction):
    """A map of three variables between -1 and 1, of total degree 5, with random coefficients."""

    DEGREE = 5
    VARIABLES = 3

    def __init__(self, generator: torch.Generator, device: torch.device) -> None:
        self.device = device
        powers = product(range(self.DEGREE + 1), repeat=self.VARIABLES)
        self._exponents = sorted((each for each in powers if sum(each) <= self.DEGREE), key=sum)
        weights = torch.randn(len(self._exponents), OUTPUTS, dtype=torch.float64, generator=generator)
        self._weights = weights.to(device)

    def __call__(self, x: Tensor) -> Tensor:
        """Evaluate the map."""
        powers = x.T[:, None] ** torch.arange(self.DEGREE + 1, device=x.device)[:, None]
        factors = [powers[variable, list(each)] for variable, each in enumerate(zip(*self._exponents, strict=True))]
        return math.prod(factors[1:], start=factors[0]).T @ self._weights

    def expand(self, first: Tensor, second: Tensor, degree: int) -> Tensor:
        """Multiply the variables, each linear in t along a path, one after the other."""
        center, half = (first + second) / 2, (first - second) / 2
        one = torch.zeros(len(first), self.DEGREE + 1, dtype=torch.float64, device=first.device)
        one[:, 0] = 1.0
        monomials = {self._exponents[0]: one}
        for exponents in self._exponents[1:]:
            variable = next(index for index, power in enumerate(exponents) if power)
            before = tuple(power - (index == variable) for index, power in enumerate(exponents))
            monomials[exponents] = _multiply_by_linear(monomials[before], center[:, variable], half[:, variable])
        expanded = torch.stack([monomials[exponents] for exponents in self._exponents], dim=-1) @ self._weights
        kept = expanded[:, : degree + 1]
        return torch.nn.functional.pad(kept, (0, 0, 0, degree + 1 - kept.shape[1]))


def _multiply_by_linear(series: Tensor, constant: Tensor, slope: Tensor) -> Tensor:
    """Multiply Chebyshev series by constant + slope t, by t T_k = (T_{k+1} + T_{|k-1|}) / 2; the last term is zero."""
    by_t = torch.zeros_like(series)
    by_t[:, 1:] += series[:, :-1] / 2
    by_t[:, :-1] += series[:, 1:] / 2
    by_t[:, 1] += series[:, 0] / 2
    return constant[:, None] * series + slope[:, None] * by_t


class Sine(KnownFunction):
    """sin(ω x) of one variable between -1 and 1, expanded by the formula of Jacobi and Anger."""

    VARIABLES = 1

    def __init__(self, frequency: float, device: torch.device) -> None:
        self._frequency, self.device = frequency, device

    def __call__(self, x: Tensor) -> Tensor:
        """Evaluate the sine."""
        return torch.sin(self._frequency * x)

    def expand(self, first: Tensor, second: Tensor, degree: int) -> Tensor:
        """Expand sin(a + b t): c_0 = J_0(b) sin a, and c_k = 2 J_k(b) sin(a + k π / 2)."""
        center, half = ((self._frequency * each[:, 0]) / 2 for each in (first + second, first - second))
        # |b| is at most ω, and J_k(b) vanishes beyond about k = |b|: 60 orders more leave nothing of it.
        order = 2 * math.ceil((self._frequency + 60) / 2)
        orders = torch.arange(order + 1, dtype=torch.float64, device=first.device)
        found = 2 * bessel(half, order) * torch.sin(center[:, None] + orders * (math.pi / 2))
        found[:, 0] /= 2
        kept = found[:, : degree + 1]
        return torch.nn.functional.pad(kept, (0, degree + 1 - kept.shape[1]))[..., None]


def bessel(x: Tensor, order: int) -> Tensor:
    """Return J_0(x) … J_order(x), of shape ``(points, order + 1)``; torch has only the orders 0 and 1.

    The ratios J_k / J_{k-1} = 1 / (2k / x - J_{k+1} / J_k) are computed from above, where they are nearly zero: the
    recurrence is stable in that direction only, and ratios, unlike values, cannot overflow on the way. J_0 follows
    from J_0 + 2 J_2 + 2 J_4 + … = 1.

    Args:
        x: Where to evaluate, in float64; |x| must lie well below the order.
        order: The highest order, an even number.
    """
    ratios = [torch.zeros_like(x)]
    for k in range(order, 0, -1):
        ratios.append(x / (2 * k - x * ratios[-1]))
    relative = torch.stack([torch.ones_like(x), *ratios[:0:-1]], dim=-1).cumprod(-1)
    return relative / (2 * relative[:, ::2].sum(-1, keepdim=True) - 1)


class Kinks(KnownFunction):
    """A random ReLU network with one hidden layer of ten normal variables: along a path, each unit has one kink."""

    VARIABLES = 10

    def __init__(self, units: int, generator: torch.Generator, device: torch.device) -> None:
        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, dtype=torch.float64, generator=generator).to(device)

        self.device = device
        self._hidden, self._bias = draw(self.VARIABLES, units) / math.sqrt(self.VARIABLES), draw(units)
        self._output = draw(units, OUTPUTS) / math.sqrt(units)

    def draw_inputs(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw examples from the normal distribution."""
        return torch.randn(count, self.VARIABLES, dtype=torch.float64, generator=generator).to(self.device)

    def __call__(self, x: Tensor) -> Tensor:
        """Run the network."""
        return (x @ self._hidden + self._bias).relu() @ self._output

    def expand(self, first: Tensor, second: Tensor, degree: int) -> Tensor:
        """Expand unit by unit, so that memory does not grow with the units."""
        center, half = (first + second) / 2 @ self._hidden + self._bias, (first - second) / 2 @ self._hidden
        found = torch.zeros(len(first), degree + 1, OUTPUTS, dtype=torch.float64, device=first.device)
        for constant, slope, weights in zip(center.T, half.T, self._output, strict=True):
            found += expand_relu(constant, slope, degree)[..., None] * weights
        return found


def expand_relu(constant: Tensor, slope: Tensor, degree: int) -> Tensor:
    """Expand max(0, u + w t) in Chebyshev polynomials of t; returns shape ``(paths, degree + 1)``.

    For w > 0 it is positive for t above s = -u / w, that is, with t = cos φ, for φ below θ = arccos s (s clipped to
    [-1, 1]). With S_j = ∫ cos(jφ) dφ from 0 to θ, which is sin(jθ) / j and S_0 = θ, and
    cos φ cos kφ = (cos (k-1)φ + cos (k+1)φ) / 2,

        c_k = (2/π) ∫ (u + w cos φ) cos kφ dφ = (2/π) (u S_k + w (S_{k-1} + S_{k+1}) / 2),

    and half of it for k = 0, where S_{-1} = S_1. For w < 0, t changes its sign, and T_k(-t) = (-1)^k T_k(t). For a
    kink inside the path, c_k falls only as k⁻², so that the sum of k |c_k| grows as log K and has no limit.

    Args:
        constant: u, for each path.
        slope: w, not zero.
        degree: The highest k.
    """
    size = slope.abs()
    angle = torch.arccos((-constant / size).clamp(-1, 1))[:, None]
    orders = torch.arange(1, degree + 2, dtype=torch.float64, device=slope.device)
    integrals = torch.cat([angle, torch.sin(orders * angle) / orders], dim=1)
    below = torch.cat([integrals[:, 1:2], integrals[:, :-2]], dim=1)
    found = constant[:, None] * integrals[:, :-1] + size[:, None] * (below + integrals[:, 1:]) / 2
    found *= 2 / math.pi
    found[:, 0] /= 2
    found[:, 1::2] *= slope.sign()[:, None]
    return found
