"""What ED costs, which the paper leaves as future work: accuracy against the time of a step, on CIFAR-10."""

from effdeg_lab.engine import train
from effdeg_lab.recipe import Method, Recipe
from effdeg_lab.recipes.cifar10_methods import ED, PLAIN, SETTINGS, TRAINING_DEPARTS, TUNING
from effdeg_lab.studies.prices import Prices

# Every method has its own best weight: fewer nodes see less, fewer pairs and steps see it less often.
WEIGHTS = {"weight": (7.0, 20.0, 50.0)}
# More degrees weigh more.
HIGH_DEGREE_WEIGHTS = {"weight": (2.0, 7.0, 20.0)}
THREE = {**ED, "nodes": 3, "degree": 2}


def _use_nodes(nodes: int) -> Method:
    changes = {**ED, "nodes": nodes, "degree": nodes - 1}
    return Method(f"nodes-{nodes}", f"{nodes} nodes, degree {nodes - 1}", changes, tune=HIGH_DEGREE_WEIGHTS)


RECIPE = Recipe(
    name="cifar10-cost",
    title="What ED costs, and what it could cost",
    paper="Appendix G",
    expects=(
        "An epoch takes 9.75 s with the efficient configuration and 6.14 s without: 1.59 times as long. Cheaper "
        "settings are left as future work."
    ),
    cost="5 min per plain run on one H200, 5.5 to 15 with ED",
    settings=SETTINGS,
    run=train,
    study=Prices(full="ed"),
    methods=(
        Method("plain", "Baseline", PLAIN),
        Method("ed", "ED: 4 nodes, degree 3, pairs ½ batch", ED, tune=WEIGHTS),
        Method("nodes-3", "3 nodes, degree 2", THREE, tune=WEIGHTS),
        *(_use_nodes(nodes) for nodes in (5, 6, 7, 8)),
        Method("pairs-eighth", "pairs ⅛ batch", {**ED, "pairs": 0.125}, tune=WEIGHTS),
        Method("pairs-quarter", "pairs ¼ batch", {**ED, "pairs": 0.25}, tune=WEIGHTS),
        Method("pairs-all", "pairs 1 batch", {**ED, "pairs": 1.0}, tune=WEIGHTS),
        Method("every-2", "every 2nd step", {**ED, "every": 2}, tune=WEIGHTS),
        Method("every-4", "every 4th step", {**ED, "every": 4}, tune=WEIGHTS),
        Method("start-half", "in the second half", {**ED, "start": 0.5}, tune=WEIGHTS),
        Method("nodes-3-pairs-quarter", "3 nodes, pairs ¼ batch", {**THREE, "pairs": 0.25}, tune=WEIGHTS),
        Method("nodes-3-every-2", "3 nodes, every 2nd step", {**THREE, "every": 2}, tune=WEIGHTS),
        Method("nodes-3-start-half", "3 nodes, in the second half", {**THREE, "start": 0.5}, tune=WEIGHTS),
        Method(
            "pairs-quarter-start-half",
            "pairs ¼ batch, in the second half",
            {**ED, "pairs": 0.25, "start": 0.5},
            tune=WEIGHTS,
        ),
    ),
    departs=f"{TRAINING_DEPARTS} All methods but the first two are not in the paper.",
    tuning=TUNING,
    equal_time="ed",
)
