"""What was made once, kept for the next model while there is room."""

from collections.abc import Callable, Hashable

from effdeg._utils.tree import Tree, tensors

MOST_KEPT = 3 * 2**29
"""Bytes of the tensors of one memo."""


class Memo:
    """Trees by their keys, each made when it is first asked for; those for which there is no room are made anew."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Tree] = {}
        self._room = MOST_KEPT

    def get(self, key: Hashable, make: Callable[[], Tree]) -> Tree:
        """Return what was kept, or make it."""
        if key in self._kept:
            return self._kept[key]
        made = make()
        size = sum(leaf.nbytes for leaf in tensors(made))
        if size <= self._room:
            self._kept[key] = made
            self._room -= size
        return made
