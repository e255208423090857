"""Games as a policy sees them: frames in, actions out, and the returns of the episodes that have ended."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from effdeg_lab.experiments.procgen.games import Games, Levels, open_games

Frames = NDArray[np.uint8]
# Takes frames; returns the actions and anything else about them.
Choose = Callable[[Frames], tuple[NDArray[np.int64], Any]]

_ROWS, _COLUMNS, _STRIDE = 6, 12, 6  # of frames to show: games, moments, and steps between these
_GAP = 2  # white pixels between frames


class Players:
    """Games that are played side by side: what they show now, and the returns of the episodes that have ended."""

    def __init__(self, games: Games) -> None:
        self._games = games
        self.frames, self.rewards, self.starts = games.observe()
        self._running = np.zeros(len(self.frames))
        self._ended: list[tuple[int, float]] = []

    def act(self, choose: Choose) -> Any:
        """Choose actions and start the next step, without waiting for it; return what else the policy returned."""
        actions, found = choose(self.frames)
        self._games.act(actions)
        return found

    def wait(self) -> None:
        """Wait for the next frames and the rewards."""
        self.frames, self.rewards, self.starts = self._games.observe()
        self._running += self.rewards
        for game in np.flatnonzero(self.starts):
            self._ended.append((int(game), float(self._running[game])))
            self._running[game] = 0.0

    def take(self) -> list[tuple[int, float]]:
        """Return the episodes that have ended since the last call: the game, and the return."""
        ended, self._ended = self._ended, []
        return ended


def open_halves(game: str, levels: Levels, *, count: int, backend: str, seeds: Sequence[int]) -> list[Players]:
    """Open games in two halves, with random numbers decided by the seeds."""
    drawn = np.random.SeedSequence(seeds).generate_state(2) % 2**31
    given: dict[str, Any] = {"count": count // 2, "levels": levels, "backend": backend}
    return [Players(open_games(game, seed=int(seed), **given)) for seed in drawn]


def play(choose: Choose, halves: Sequence[Players], steps: int) -> None:
    """Play some steps: while a policy looks at the frames of one half, the other moves on."""
    for step in range(steps + 1):
        for each in halves:
            if step > 0:
                each.wait()
            if step < steps:
                each.act(choose)


def play_episodes(choose: Choose, halves: Sequence[Players], episodes: int) -> tuple[NDArray[np.float64], Frames]:
    """Play until every game has ended its share of the episodes; return their returns, and frames of a few games.

    All games count equally: if the first episodes to end were counted, short ones would count more.
    """
    share = -(-episodes // sum(len(each.frames) for each in halves))
    ended, frames = [[list[float]() for _ in each.frames] for each in halves], list[Frames]()
    while any(len(returns) < share for half in ended for returns in half):
        if len(frames) < _COLUMNS * _STRIDE:
            frames.append(halves[0].frames[:_ROWS].copy())
        play(choose, halves, 1)
        for each, half in zip(halves, ended, strict=True):
            for game, value in each.take():
                half[game].append(value)
    return np.array([returns[:share] for half in ended for returns in half]).ravel(), np.stack(frames[::_STRIDE], 1)


def draw_frames(frames: Frames, file: Path) -> None:
    """Write frames, games × moments × height × width × 3, as one PNG with a row per game and a column per moment."""
    margin = (0, _GAP)
    tiles = np.pad(frames, ((0, 0), (0, 0), margin, margin, (0, 0)), constant_values=255)
    games, moments, height, width, _ = tiles.shape
    sheet = tiles.transpose(0, 2, 1, 3, 4).reshape(games * height, moments * width, 3)[:-_GAP, :-_GAP]
    Image.fromarray(np.ascontiguousarray(sheet)).save(file, format="PNG")


class RewardScale:
    """Divides rewards by the standard deviation of the discounted returns so far, and clips them at 10."""

    def __init__(self, games: int, discount: float) -> None:
        self._discount, self._returns = discount, np.zeros(games)
        self.count, self.mean, self.variance = 1e-4, 0.0, 1.0

    def __call__(self, rewards: NDArray[np.float32], ends: NDArray[np.bool_], part: slice) -> NDArray[np.float64]:
        """Scale the rewards of some of the games."""
        found = self._returns[part] = self._returns[part] * self._discount + rewards
        # From sums: for a few numbers, NumPy's mean and variance take many times as long.
        mean = float(found.sum()) / len(found)
        total, shift = self.count + len(found), mean - self.mean
        squares = self.variance * self.count + max(0.0, float(found @ found) - len(found) * mean**2)
        squares += shift**2 * self.count * len(found) / total
        self.count, self.mean, self.variance = total, self.mean + shift * len(found) / total, squares / total
        self._returns[part][ends] = 0.0
        return np.clip(rewards / math.sqrt(self.variance + 1e-8), -10, 10)

    def state(self) -> dict[str, float]:
        """Return the state to keep in a checkpoint."""
        return {"count": self.count, "mean": self.mean, "variance": self.variance}

    def restore(self, state: dict[str, float]) -> None:
        """Continue from a checkpoint's state."""
        self.count, self.mean, self.variance = state["count"], state["mean"], state["variance"]
