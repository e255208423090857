"""Dodgeball: throw balls at enemies, and avoid theirs. With the paper's hyperparameters; λ has no ramp."""

from effdeg_lab.recipes._procgen import make_recipe
from effdeg_lab.rl.ppo_procgen import PPO

RECIPE = make_recipe(
    PPO(game="dodgeball", ramp=0.0),
    game="Dodgeball",
    expects="ED ends with higher returns on unseen levels (a figure, no numbers).",
)
