"""All equations of an operation modulo a prime, those to train on and those to validate."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from effdeg._utils.shapes import Int

Operation = Literal["add", "subtract", "multiply", "divide", "quadratic", "by-parity"]

LENGTH = 4
"""The tokens of an equation before its answer: x, the operation, y, the equals sign."""


@dataclass(frozen=True)
class Equations:
    """Equations as a network reads them.

    Attributes:
        tokens: A row for each: x, the operation, y, the equals sign. Numbers are their own tokens; the operation and
            the equals sign are the two that follow them.
        answers: What stands behind the equals sign.
    """

    tokens: Int[Tensor, "equations 4"]
    answers: Int[Tensor, " equations"]

    def __len__(self) -> int:
        return len(self.answers)

    def part(self, rows: Tensor, device: torch.device) -> "Equations":
        """Take some of them to a device."""
        return Equations(self.tokens[rows].to(device), self.answers[rows].to(device))


def all_equations(operation: Operation, prime: int) -> Equations:
    """List all equations: every x with every y, but for division by zero.

    Args:
        operation: The operation.
        prime: The modulus.

    Returns:
        The equations.
    """
    x, y = torch.cartesian_prod(torch.arange(prime), torch.arange(prime)).unbind(1)
    if operation == "divide":
        x, y = x[y > 0], y[y > 0]
    answers = _OPERATIONS[operation](x, y, prime) % prime
    signs = torch.tensor([prime, prime + 1]).expand(len(x), 2)
    return Equations(torch.stack([x, signs[:, 0], y, signs[:, 1]], dim=1), answers)


def count_equations(operation: Operation, prime: int) -> int:
    """Count the equations without listing them."""
    return prime * (prime - 1) if operation == "divide" else prime**2


def split(equations: Equations, train: int, *, seed: int, device: torch.device) -> tuple[Equations, Equations]:
    """Draw the equations to train on; the others validate.

    Args:
        equations: All of them.
        train: How many to train on.
        seed: Decides which; the same on every device.
        device: Where they are to lie.

    Returns:
        Those to train on, and those to validate.
    """
    order = torch.randperm(len(equations), generator=torch.Generator().manual_seed(seed))
    return equations.part(order[:train], device), equations.part(order[train:], device)


def _divided(x: Tensor, y: Tensor, prime: int) -> Tensor:
    # 0 has no inverse; where it is divided by, the answer is not used.
    inverses = torch.tensor([0, *(pow(number, -1, prime) for number in range(1, prime))])
    return x * inverses[y]


_OPERATIONS: dict[Operation, Callable[[Tensor, Tensor, int], Tensor]] = {
    "add": lambda x, y, _: x + y,
    "subtract": lambda x, y, _: x - y,
    "multiply": lambda x, y, _: x * y,
    "divide": _divided,
    "quadratic": lambda x, y, _: x**2 + x * y + y**2,
    "by-parity": lambda x, y, prime: torch.where(y % 2 == 1, _divided(x, y, prime), x - y),
}
