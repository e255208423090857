"""Games: one protocol for Procgen and the toy game; level sets, seeds and errors; the contact sheet.

Procgen plays for real where it is installed; elsewhere a stand-in takes its place.
"""

import importlib
import sys
import warnings
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from effdeg_lab.experiments.procgen.games import ACTIONS, TRAINING, UNSEEN, ToyGames, draw_frames, open_games

STEPS = 120  # enough for several episodes of fruitbot, which random actions end after about 30


class StandIn:
    """Procgen's ``ProcgenGym3Env`` as its source has it, with episodes of 3 to 7 steps and rewards equal to actions.

    The first frame of every episode is marked, also the very first; it shows the level and the time. ``get_info``
    returns a dictionary per game.
    """

    def __init__(self, *, num, env_name, distribution_mode, num_levels, start_level, rand_seed, num_threads):
        assert distribution_mode == "hard"
        assert 0 <= rand_seed < 2**31
        assert num_threads >= 1
        seeds = np.random.default_rng(rand_seed).integers(2**31, size=num)
        self.random = [np.random.default_rng(seed) for seed in seeds]
        self.draw = lambda game: start_level + int(self.random[game].integers(num_levels))
        self.level, self.time = np.array([self.draw(game) for game in range(num)], dtype=np.int32), np.zeros(num, int)
        self.rewards, self.first = np.zeros(num, np.float32), np.ones(num, np.bool_)

    def observe(self):
        frames = np.zeros((len(self.level), 64, 64, 3), np.uint8)
        frames[..., 0], frames[..., 1] = (self.level % 256)[:, None, None], self.time[:, None, None]
        return self.rewards.copy(), {"rgb": frames}, self.first.copy()

    def act(self, actions):
        assert actions.dtype == np.int32
        self.rewards, self.time = actions.astype(np.float32), self.time + 1
        self.first = self.time == 3 + self.level % 5
        self.time[self.first] = 0
        for game in np.flatnonzero(self.first):
            self.level[game] = self.draw(game)

    def get_info(self):
        return [{"prev_level_seed": np.int32(0), "level_seed": level} for level in self.level]


@pytest.fixture(params=["toy", "procgen"])
def opened(request, monkeypatch):
    """Return what opens games of one kind, fruitbot if there are several."""
    if request.param == "procgen":
        try:
            with warnings.catch_warnings(action="ignore"):  # procgen leaves a file open
                importlib.import_module("procgen")
        except ImportError:
            monkeypatch.setitem(sys.modules, "procgen", SimpleNamespace(ProcgenGym3Env=StandIn))
    return lambda **given: open_games("fruitbot", backend=request.param, **given)


@dataclass
class Played:
    """Everything that games show, time first: one more moment than there are actions."""

    frames: np.ndarray
    rewards: np.ndarray
    ended: np.ndarray
    levels: np.ndarray


def draw_actions(count, steps=STEPS):
    return np.random.default_rng(0).integers(ACTIONS, size=(steps, count))


def read_levels(games):
    toy = isinstance(games, ToyGames)
    return games._levels.copy() if toy else np.array([each["level_seed"] for each in games._games.get_info()])


def play(games, actions):
    moments = [(*games.observe(), read_levels(games))]
    for each in actions:
        games.act(each)
        moments.append((*games.observe(), read_levels(games)))
    return Played(*map(np.stack, zip(*moments, strict=True)))


def test_a_level_lasts_until_its_episode_ends(opened):
    played = play(opened(count=4, levels=TRAINING, seed=0), draw_actions(4))
    assert played.ended.any(0).all()
    changed = played.levels[1:] != played.levels[:-1]
    assert not (changed & ~played.ended[1:]).any()
    # The next level may be the same one, but seldom is.
    assert (changed & played.ended[1:]).sum() >= 0.9 * played.ended.sum()


def test_training_levels_and_unseen_levels_are_disjoint(opened):
    training = play(opened(count=16, levels=TRAINING, seed=0), draw_actions(16)).levels
    unseen = play(opened(count=16, levels=UNSEEN, seed=0), draw_actions(16)).levels
    assert 0 <= training.min() <= training.max() < 500 <= unseen.min() <= unseen.max() < 100_500
    assert len(np.unique(training)) > 30
    assert len(np.unique(unseen)) > 30


def test_the_seed_decides_what_is_played(opened):
    actions = draw_actions(3)
    first, again, other = (play(opened(count=3, levels=UNSEEN, seed=seed), actions) for seed in (0, 0, 1))
    assert (first.levels == again.levels).all()
    assert (first.rewards == again.rewards).all()
    assert (first.ended == again.ended).all()
    assert (first.frames == again.frames).all()
    # Neighboring seeds have no game in common, not even under another number.
    levels = [set(played.levels[:, game]) for played in (first, other) for game in range(3)]
    assert sum(map(len, levels)) == len(set.union(*levels)) > 10


def test_procgens_marks_become_ends(monkeypatch):
    monkeypatch.setitem(sys.modules, "procgen", SimpleNamespace(ProcgenGym3Env=StandIn))
    actions = draw_actions(4)
    played = play(open_games("jumper", count=4, levels=TRAINING, seed=0, backend="procgen"), actions)
    assert not played.ended[0].any()
    assert (played.rewards[1:] == actions).all()
    time = played.frames[..., 0, 0, 1]
    assert played.ended.any()
    assert (played.ended[1:] == (time[1:] == 0)).all()
    assert (played.frames[..., 0, 0, 0] == played.levels % 256).all()


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "procgen", None)
    with pytest.raises(ImportError, match=r"Importing procgen has failed .*pip install 'effdeg-lab\[procgen\]'"):
        open_games("starpilot", count=1, levels=TRAINING, seed=0, backend="procgen")


def test_a_contact_sheet_has_a_row_per_game_and_a_column_per_moment(tmp_path):
    frames = np.random.default_rng(0).integers(256, size=(2, 3, 5, 7, 3), dtype=np.uint8)
    draw_frames(frames, tmp_path / "frames.png")
    sheet = np.asarray(Image.open(tmp_path / "frames.png"))
    assert sheet.shape == (2 * 5 + 2, 3 * 7 + 2 * 2, 3)
    for game in range(2):
        for moment in range(3):
            assert (sheet[game * 7 :, moment * 9 :][:5, :7] == frames[game, moment]).all()
    assert (sheet[5:7] == 255).all()
    assert (sheet[:, 7:9] == 255).all()
