"""A tiny game with procedurally generated levels, for tests alone: its returns are never shown as Procgen's.

A square appears on the left or on the right of every frame. Action 0 catches it on the left, action 1 on the right; a
catch is worth 1. All other actions do nothing. An episode has 4 to 10 steps. The level decides its length, its colors
and where the squares appear.
"""

from functools import cache

import numpy as np

SIZE = 8  # of a frame; the square's is a quarter
ACTIONS = 15  # as many as Procgen has


@cache
def draw_level(level):
    """Return the frames (steps, SIZE, SIZE, 3) of a level, and the side (steps,) of the square in each."""
    random, square = np.random.default_rng(level), SIZE // 4
    steps = random.integers(4, 11)
    dark, bright = random.integers(0, 100, 3, dtype=np.uint8), random.integers(155, 256, 3, dtype=np.uint8)
    sides = random.integers(0, 2, steps)
    frames = np.broadcast_to(dark, (steps, SIZE, SIZE, 3)).copy()
    for frame, side in zip(frames, sides, strict=True):
        top, left = random.integers(0, SIZE - square + 1), random.integers(0, SIZE // 2 - square + 1) + side * SIZE // 2
        frame[top : top + square, left : left + square] = bright
    return frames, sides


class ToyGames:
    """It is opened as ``open_games`` opens Procgen's, and can stand in for that function."""

    def __init__(self, game="toy", *, count, levels, seed, backend="toy"):
        self._from = levels
        self._random = [np.random.default_rng([seed, each]) for each in range(count)]
        self._levels = np.array([self._draw(each) for each in range(count)])
        self._time = np.zeros(count, dtype=np.int64)
        self._rewards, self._ended = np.zeros(count, dtype=np.float32), np.zeros(count, dtype=np.bool_)

    def observe(self):
        frames = [draw_level(level)[0][time] for level, time in zip(self._levels.tolist(), self._time, strict=True)]
        return np.stack(frames), self._rewards.copy(), self._ended.copy()

    def act(self, actions):
        assert actions.shape == self._levels.shape
        assert 0 <= actions.min() <= actions.max() < ACTIONS
        for game, (level, time) in enumerate(zip(self._levels.tolist(), self._time, strict=True)):
            sides = draw_level(level)[1]
            self._rewards[game] = actions[game] == sides[time]
            self._ended[game] = time + 1 == len(sides)
            self._levels[game] = self._draw(game) if self._ended[game] else level
        self._time = np.where(self._ended, 0, self._time + 1)

    def levels(self):
        return self._levels.copy()

    def _draw(self, game):
        return self._from.first + self._random[game].integers(self._from.count)
