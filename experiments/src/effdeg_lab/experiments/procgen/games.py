"""Procgen's games (Cobbe et al., 2020), in hard mode, and a toy game that stands in for them."""

import importlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from effdeg.io import describe_install

ACTIONS = 15  # of every game: nine directions and six buttons, whether the game uses them or not

Observation = tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.bool_]]


@dataclass(frozen=True)
class Levels:
    """The levels with numbers ``first`` to ``first + count - 1``. A level's number decides everything in it."""

    first: int
    count: int


TRAINING = Levels(0, 500)
UNSEEN = Levels(500, 100_000)


def open_games(game: str, *, count: int, levels: Levels, seed: int, backend: str) -> "Procgen | ToyGames":
    """Start several copies of a game of ``"procgen"``, or of the ``"toy"`` game, which stands in for any.

    Episodes are drawn from the levels, with replacement, in an order that the seed decides. Each copy starts its next
    episode by itself. ``act`` starts the next step of all games, one action for each, without waiting for them;
    ``observe`` waits, and returns the frames (games, height, width, 3), the rewards, and which episodes have ended.
    Where one has ended, the frame is the first of the next. Later calls do not change the returned arrays.
    """
    if backend == "toy":
        return ToyGames(count, levels, seed)
    # Procgen requires less than 2**31.
    return Procgen(game, count, levels, int(np.random.SeedSequence(seed).generate_state(1)[0]) >> 1)


def import_procgen() -> ModuleType:
    """Import the package of the games; raise an error that says how to install it."""
    try:
        return importlib.import_module("procgen")
    except ImportError as error:
        # The package may be installed without its own requirements: the error says so.
        missing = ImportError(f"Importing procgen has failed ({error}): {describe_install('procgen', 'effdeg-lab')}")
        missing.missing = "procgen"  # type: ignore[attr-defined]  # for effdeg-lab list
        missing.add_note("To try the recipe without it, on a tiny game of our own: --smoke")
        raise missing from error


class Procgen:
    """Games of the package procgen: threads in C++ play them between ``act`` and ``observe``."""

    def __init__(self, game: str, count: int, levels: Levels, seed: int) -> None:
        self._acted = False
        self._games = import_procgen().ProcgenGym3Env(
            num=count,
            env_name=game,
            distribution_mode="hard",
            num_levels=levels.count,
            start_level=levels.first,
            rand_seed=seed,
            # Threads without work sleep, so two sets of games that take turns may each have all the cores.
            num_threads=min(count, os.cpu_count() or 1),
        )

    def observe(self) -> Observation:
        rewards, frames, first = self._games.observe()
        # "First" marks the first frame of an episode, and so the end of the one before, if there was one.
        return frames["rgb"], rewards, first & self._acted

    def act(self, actions: NDArray[np.integer]) -> None:
        self._games.act(actions.astype(np.int32))
        self._acted = True


TOY_SIZE = 8  # of a frame; the square's is a quarter


@cache
def draw_toy_level(level: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the frames (steps, TOY_SIZE, TOY_SIZE, 3) of a level, and the side (steps,) of the square in each."""
    random, square = np.random.default_rng(level), TOY_SIZE // 4
    steps = int(random.integers(4, 11))
    dark, bright = random.integers(0, 100, 3, dtype=np.uint8), random.integers(155, 256, 3, dtype=np.uint8)
    sides = random.integers(0, 2, steps)
    frames = np.broadcast_to(dark, (steps, TOY_SIZE, TOY_SIZE, 3)).copy()
    for frame, side in zip(frames, sides, strict=True):
        top, left = (
            random.integers(0, TOY_SIZE - square + 1),
            random.integers(0, TOY_SIZE // 2 - square + 1) + side * TOY_SIZE // 2,
        )
        frame[top : top + square, left : left + square] = bright
    return frames, sides


class ToyGames:
    """Copies of a tiny game with generated levels, for smoke tests and tests: its returns say nothing about Procgen.

    A square appears on the left or on the right of every frame. Action 0 catches it on the left, action 1 on the right;
    a catch is worth 1. All other actions do nothing. An episode has 4 to 10 steps. The level decides its length, its
    colors and where the squares appear.
    """

    def __init__(self, count: int, levels: Levels, seed: int) -> None:
        self._from = levels
        self._random = [np.random.default_rng([seed, each]) for each in range(count)]
        self._levels = np.array([self._draw(each) for each in range(count)])
        self._time = np.zeros(count, dtype=np.int64)
        self._rewards, self._ended = np.zeros(count, dtype=np.float32), np.zeros(count, dtype=np.bool_)

    def observe(self) -> Observation:
        """Return the frames, the rewards of the last actions, and which episodes have ended."""
        frames = [draw_toy_level(level)[0][time] for level, time in zip(self._levels.tolist(), self._time, strict=True)]
        return np.stack(frames), self._rewards.copy(), self._ended.copy()

    def act(self, actions: NDArray[np.integer]) -> None:
        for game, (level, time) in enumerate(zip(self._levels.tolist(), self._time, strict=True)):
            sides = draw_toy_level(level)[1]
            self._rewards[game] = actions[game] == sides[time]
            self._ended[game] = time + 1 == len(sides)
            self._levels[game] = self._draw(game) if self._ended[game] else level
        self._time = np.where(self._ended, 0, self._time + 1)

    def _draw(self, game: int) -> int:
        return self._from.first + int(self._random[game].integers(self._from.count))


Frames = NDArray[np.uint8]
# Takes frames; returns the actions and anything else about them.
Choose = Callable[[Frames], tuple[NDArray[np.int64], Any]]

_ROWS, _COLUMNS, _STRIDE = 6, 12, 6  # of frames to show: games, moments, and steps between these
_GAP = 2  # white pixels between frames


class Players:
    """Games that are played side by side: what they show now, and the returns of the episodes that have ended."""

    def __init__(self, games: Procgen | ToyGames) -> None:
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
        return {"count": self.count, "mean": self.mean, "variance": self.variance}

    def restore(self, state: dict[str, float]) -> None:
        self.count, self.mean, self.variance = state["count"], state["mean"], state["variance"]
