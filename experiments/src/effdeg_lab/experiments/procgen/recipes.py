"""Procgen's games with the paper's hyperparameters: the methods, and all settings that do not depend on the game."""

from effdeg_lab.core.recipe import Method, Recipe
from effdeg_lab.core.results import Spread
from effdeg_lab.experiments.procgen.ppo import PPO, check_games, train
from effdeg_lab.experiments.procgen.study import Returns

# On an H200 with 16 CPU cores: `python -m benchmarks ppo_parts`.
STEPS_PER_SECOND = {"plain": 61_000, "ed": 39_000}

# PPO of github.com/openai/train-procgen with 500 hard levels, by millions of steps: returns on unseen levels and on
# training levels, means and standard deviations over 3 runs.
REFERENCES = {
    "dodgeball": {25: ((1.16, 0.02), (2.95, 0.10)), 50: ((1.58, 0.10), (3.81, 0.16))},
    "fruitbot": {25: ((-1.29, 0.13), (1.85, 0.07)), 50: ((-1.16, 0.41), (3.79, 0.33)), 100: ((1.5, 1.3), (8.57, 1.4))},
    "jumper": {25: ((2.64, 0.11), (4.89, 0.15)), 50: ((2.80, 0.07), (5.84, 0.13))},
    "starpilot": {25: ((3.47, 0.15), (6.40, 0.24)), 50: ((3.68, 0.15), (8.15, 0.42))},
}


def make_recipe(settings: PPO, *, game: str, expects: str) -> Recipe:
    """Make the recipe of a game, whose name is spelled as in the paper, from the paper's settings."""
    minutes = {name: round(settings.steps / rate / 60) for name, rate in STEPS_PER_SECOND.items()}
    references = {
        float(millions): (Spread(*unseen, 3), Spread(*training, 3))
        for millions, (unseen, training) in REFERENCES[settings.game].items()
    }
    return Recipe(
        name=f"procgen-{settings.game}",
        title=f"PPO on 500 levels of {game}, played on unseen levels",
        paper="Figure 6, section 6.4, appendix F.5",
        expects=expects,
        cost=f"{minutes['plain']} min per plain run on one H200, {minutes['ed']} with ED",
        settings=settings,
        run=train,
        check_data=check_games,
        study=Returns(game=game, references=references),
        methods=(
            Method("plain", "PPO"),
            Method("mixreg", "mixreg", {"mixreg": 0.2}),
            Method("ed", "ED", {"weight": 0.01}),
            Method("ed-self", "ED, self anchors", {"weight": 0.01, "anchor": "self"}),
            Method("mixreg-ed", "mixreg and ED", {"mixreg": 0.2, "weight": 0.01}),
        ),
        departs=(
            "128 games are played in parallel, as by mixreg's authors: with cleanrl's 64, a minibatch would have 2,048 "
            "observations, but the paper's 2,048 pairs are half a minibatch. Unseen levels are those numbered 500 to "
            "100,499, not all levels, so that none was trained on. Where the paper is silent: actor and critic share "
            "a trunk, as in cleanrl, and the penalty reaches it only through the actor's output; paths connect "
            "observations pixel by pixel; the degree is that of the action probabilities; it is penalized in every "
            "minibatch of every epoch; returns are raw, over the last 100 episodes during training and at least 500 "
            "at the end. Networks run in bfloat16 on a GPU. Mixreg has its authors' 0.2; ED with self anchors has the "
            "paper's λ for ED without."
        ),
    )


RECIPES = (
    make_recipe(
        PPO(game="dodgeball", ramp=0.0),
        game="Dodgeball",
        expects="ED ends with higher returns on unseen levels (a figure, no numbers).",
    ),
    make_recipe(
        PPO(game="fruitbot", steps=100_000_000),
        game="Fruitbot",
        expects="ED ends with higher returns on unseen levels (a figure, no numbers).",
    ),
    make_recipe(
        PPO(game="jumper"),
        game="Jumper",
        expects="ED learns faster, and has higher returns on unseen levels (a figure, no numbers).",
    ),
    make_recipe(
        PPO(game="starpilot"),
        game="StarPilot",
        expects="ED ends with higher returns on unseen levels (a figure, no numbers).",
    ),
)
