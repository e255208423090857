"""Fruitbot: collect fruit and nothing else. With the paper's hyperparameters: twice as many steps as other games."""

from effdeg_lab.recipes._procgen import make_recipe
from effdeg_lab.rl.ppo_procgen import PPO

RECIPE = make_recipe(
    PPO(game="fruitbot", steps=100_000_000),
    game="Fruitbot",
    expects="ED ends with higher returns on unseen levels (a figure, no numbers).",
)
