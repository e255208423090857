"""StarPilot: shoot enemies, and avoid their shots. With the paper's hyperparameters."""

from effdeg_lab.recipes._procgen import make_recipe
from effdeg_lab.rl.ppo_procgen import PPO

RECIPE = make_recipe(
    PPO(game="starpilot"),
    game="StarPilot",
    expects="ED ends with higher returns on unseen levels (a figure, no numbers).",
)
