"""Jumper: find the carrot with a compass. With the paper's hyperparameters."""

from effdeg_lab.recipes._procgen import make_recipe
from effdeg_lab.rl.ppo_procgen import PPO

RECIPE = make_recipe(
    PPO(game="jumper"),
    game="Jumper",
    expects="ED learns faster, and has higher returns on unseen levels (a figure, no numbers).",
)
