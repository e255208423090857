"""A tiny game with procedurally generated levels, for smoke tests and tests: its returns say nothing about Procgen.

A square appears on the left or on the right of every frame. Action 0 catches it on the left, action 1 on the right; a
catch is worth 1. All other actions do nothing. An episode has 4 to 10 steps. The level decides its length, its colors
and where the squares appear.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from effdeg_lab.experiments.procgen.games import Levels, Observation, check_actions

SIZE = 8  # of a frame; the square's is a quarter


@cache
def draw_level(level: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the frames (steps, SIZE, SIZE, 3) of a level, and the side (steps,) of the square in each."""
    random, square = np.random.default_rng(level), SIZE // 4
    steps = int(random.integers(4, 11))
    dark, bright = random.integers(0, 100, 3, dtype=np.uint8), random.integers(155, 256, 3, dtype=np.uint8)
    sides = random.integers(0, 2, steps)
    frames = np.broadcast_to(dark, (steps, SIZE, SIZE, 3)).copy()
    for frame, side in zip(frames, sides, strict=True):
        top, left = random.integers(0, SIZE - square + 1), random.integers(0, SIZE // 2 - square + 1) + side * SIZE // 2
        frame[top : top + square, left : left + square] = bright
    return frames, sides


class ToyGames:
    """Copies of the game, as :class:`~effdeg_lab.experiments.procgen.games.Games` describes them."""

    def __init__(self, count: int, levels: Levels, seed: int) -> None:
        self._from = levels
        self._random = [np.random.default_rng([seed, each]) for each in range(count)]
        self._levels = np.array([self._draw(each) for each in range(count)])
        self._time = np.zeros(count, dtype=np.int64)
        self._rewards, self._ended = np.zeros(count, dtype=np.float32), np.zeros(count, dtype=np.bool_)

    def observe(self) -> Observation:
        """Return the frames, the rewards of the last actions, and which episodes have ended."""
        frames = [draw_level(level)[0][time] for level, time in zip(self._levels.tolist(), self._time, strict=True)]
        return np.stack(frames), self._rewards.copy(), self._ended.copy()

    def act(self, actions: NDArray[np.integer]) -> None:
        """Take a step."""
        actions = check_actions(actions, len(self._levels))
        for game, (level, time) in enumerate(zip(self._levels.tolist(), self._time, strict=True)):
            sides = draw_level(level)[1]
            self._rewards[game] = actions[game] == sides[time]
            self._ended[game] = time + 1 == len(sides)
            self._levels[game] = self._draw(game) if self._ended[game] else level
        self._time = np.where(self._ended, 0, self._time + 1)

    def levels(self) -> NDArray[np.int64]:
        """Return the number of the level that each game is on."""
        return self._levels.copy()

    def _draw(self, game: int) -> int:
        return self._from.first + int(self._random[game].integers(self._from.count))
