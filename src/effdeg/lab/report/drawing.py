"""A figure before it is drawn."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Drawing:
    """A figure that can be drawn in any theme, and what it shows."""

    name: str
    caption: str
    draw: "Callable[[str], Figure]"
