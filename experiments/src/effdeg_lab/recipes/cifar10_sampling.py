"""Table 8 of the paper: where ED samples its paths, for ViT-Tiny on CIFAR-10."""

from effdeg_lab.recipe import Method, Reported
from effdeg_lab.recipes.cifar10_methods import DEPARTS, ED, make_recipe

FINE = {**ED, "nodes": 15, "degree": 14, "weight": 2.0}

RECIPE = make_recipe(
    name="cifar10-sampling",
    title="Where ED samples its paths",
    paper="Table 8, appendix C.4",
    expects="At low degree all samplings do well; at high degree uniform nodes are unstable and lose 12 points.",
    cost="8 min per run with 4 nodes on one H200, 26 with 15 nodes",
    methods=(
        Method("cosine-4", "4 nodes, degree 3: cosine", ED, Reported(89.99)),
        Method("chebyshev-4", "4 nodes, degree 3: Chebyshev", {**ED, "sampling": "chebyshev"}, Reported(89.47)),
        Method("uniform-4", "4 nodes, degree 3: uniform", {**ED, "sampling": "uniform"}, Reported(89.23)),
        Method("cosine-15", "15 nodes, degree 14: cosine", FINE, Reported(89.90)),
        Method("chebyshev-15", "15 nodes, degree 14: Chebyshev", {**FINE, "sampling": "chebyshev"}, Reported(90.40)),
        Method("uniform-15", "15 nodes, degree 14: uniform", {**FINE, "sampling": "uniform"}, Reported(78.42)),
    ),
    departs=(
        f"{DEPARTS} The paper gives no spread and names neither weight nor pairs: here 15 nodes have the weight of its "
        "precise configuration, 2, and there are half as many paths as examples. Its uniform nodes are not defined: "
        "here they are equispaced, both ends included."
    ),
)
