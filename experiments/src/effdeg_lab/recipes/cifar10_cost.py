"""The cost of ED, which the paper leaves to future work: accuracy against the time of a step, on CIFAR-10."""

from typing import Any

from effdeg_lab.recipe import Method
from effdeg_lab.recipes.cifar10_methods import DEPARTS, ED, PLAIN, TUNING, WEIGHTS, make_recipe
from effdeg_lab.studies.prices import Prices

THREE: dict[str, Any] = {"nodes": 3, "degree": 2}


def _change_ed(name: str, title: str, **changes: Any) -> Method:
    """Make a variant of ED with a weight of its own: fewer nodes, pairs or steps need more, higher degrees less."""
    tune = {"weight": (2.0, 7.0, 20.0)} if changes.get("degree", 3) > 3 else WEIGHTS
    return Method(name, title, {**ED, **changes}, tune=tune)


RECIPE = make_recipe(
    name="cifar10-cost",
    title="What ED costs, and what it could cost",
    paper="Appendix G",
    expects="An epoch takes 9.75 s with the efficient configuration and 6.14 s without: 1.59 times as long.",
    cost="5 min per plain run on one H200, 5.5 to 15 with ED",
    study=Prices(full="ed"),
    methods=(
        Method("plain", "Baseline", PLAIN),
        _change_ed("ed", "ED: 4 nodes, degree 3, pairs ½ batch"),
        *(
            _change_ed(f"nodes-{nodes}", f"{nodes} nodes, degree {nodes - 1}", nodes=nodes, degree=nodes - 1)
            for nodes in (3, 5, 6, 7, 8)
        ),
        _change_ed("pairs-eighth", "pairs ⅛ batch", pairs=0.125),
        _change_ed("pairs-quarter", "pairs ¼ batch", pairs=0.25),
        _change_ed("pairs-all", "pairs 1 batch", pairs=1.0),
        _change_ed("every-2", "every 2nd step", every=2),
        _change_ed("every-4", "every 4th step", every=4),
        _change_ed("start-half", "in the second half", start=0.5),
        _change_ed("nodes-3-pairs-quarter", "3 nodes, pairs ¼ batch", **THREE, pairs=0.25),
        _change_ed("nodes-3-every-2", "3 nodes, every 2nd step", **THREE, every=2),
        _change_ed("nodes-3-start-half", "3 nodes, in the second half", **THREE, start=0.5),
        _change_ed("pairs-quarter-start-half", "pairs ¼ batch, in the second half", pairs=0.25, start=0.5),
    ),
    departs=f"{DEPARTS} Only the first two methods are in the paper.",
    tuning=TUNING,
    equal_time="ed",
)
