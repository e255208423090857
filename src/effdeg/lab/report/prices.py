"""The price list: what each setting costs, and how much of the full gain it brings."""

import math
from dataclasses import dataclass

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.lines import Line

# What is looked for: most of the full gain, for little more than a plain step.
LIMIT, AIM = 1.25, 0.95


@dataclass(frozen=True, eq=False)
class Priced:
    """A line of the price list.

    Attributes:
        line: The line.
        price: The time of its step relative to a plain one; None if it was not run, or not where the plain one was.
        share: Its share of the full gain; None where there is no such gain, or seeds do not tell how large it is.
    """

    line: Line
    price: float | None
    share: float | None


def price_list(block: Block) -> list[Priced]:
    """List the lines of a block by the price of their step, those without one last."""
    whole = full_gain(block)
    found = []
    for line in block.lines:
        gain = block.difference(line)
        share = gain.value / whole if gain and whole else None
        found.append(Priced(line, block.price(line), share))
    return sorted(found, key=lambda priced: math.inf if priced.price is None else priced.price)


def full_line(block: Block) -> Line:
    """Find the line whose gain is the full one: ``ed``, or else the second."""
    return next((line for line in block.lines if line.row.name == "ed"), block.lines[min(1, len(block.lines) - 1)])


def full_gain(block: Block) -> float | None:
    """Return the full gain; None if there is none, or a single seed, of which nobody knows how much is chance."""
    whole = block.difference(full_line(block))
    return whole.value if whole and whole.interval and whole.value > 0 else None


def best_buy(block: Block) -> Priced | None:
    """Find the most accurate setting at the limit or below, the plain one apart."""
    bought = [
        priced
        for priced in price_list(block)
        if priced.line is not block.lines[0] and priced.price is not None and priced.price <= LIMIT
    ]
    return max(bought, key=lambda priced: priced.line.accuracy.mean if priced.line.accuracy else 0.0, default=None)
