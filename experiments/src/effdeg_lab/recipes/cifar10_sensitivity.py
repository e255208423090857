"""How much ED's weight and its number of nodes matter, for ViT-Tiny on CIFAR-10 in short runs."""

from dataclasses import replace
from itertools import product

from effdeg_lab.recipe import Method
from effdeg_lab.recipes.cifar10_methods import DEPARTS, ED, PLAIN, SETTINGS, make_recipe
from effdeg_lab.studies.methods import Methods


def _make_method(nodes: int, weight: float) -> Method:
    changes = {**ED, "nodes": nodes, "degree": nodes - 1, "weight": weight}
    return Method(f"{nodes}-nodes-{weight:g}", f"ED, {nodes} nodes, λ = {weight:g}", changes)


RECIPE = make_recipe(
    name="cifar10-sensitivity",
    title="How much ED's weight and nodes matter",
    paper="none; the setting of Table 10",
    expects="No such experiment: the paper has a weight of 7 with 4 nodes, and of 2 with 15.",
    cost="1 min per plain run on one H200, 1.7 with ED",
    settings=replace(SETTINGS, epochs=60, measure_every=0),
    study=Methods(candidate="4-nodes-7"),
    methods=(
        Method("plain", "Baseline", PLAIN),
        *(_make_method(nodes, weight) for nodes, weight in product((4, 3), (1.0, 3.0, 7.0, 15.0, 30.0))),
    ),
    departs=f"{DEPARTS} Runs have 60 epochs, not 300. The paper has 4 nodes with λ = 7 only.",
    seeds=(0,),
)
