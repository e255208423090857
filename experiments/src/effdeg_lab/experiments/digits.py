"""Small networks on the bundled digits: the whole lab in minutes, without data or a GPU."""

from dataclasses import replace
from functools import partial

from effdeg_lab.core.recipe import Method, Recipe
from effdeg_lab.engine import Training, check_training, train, train_stacked
from effdeg_lab.experiments.cifar10.contest import TABLE_1
from effdeg_lab.experiments.pools.tracking import ALSO, TrackingStudy
from effdeg_lab.show.methods import Methods

DIGITS = Training(data="digits", model="mlp", batch=50, lr=1e-3, augment="none", precision="float32", compile=False)
make_recipe = partial(Recipe, run=train, run_stacked=train_stacked, check_data=check_training)

RECIPES = (
    make_recipe(
        name="digits-methods",
        title="Regularizers of a small network on 100 digits",
        paper="none; the methods of Table 1",
        expects="No such experiment: this one is here to try the lab.",
        cost="3 s per run on one CPU core",
        settings=replace(
            DIGITS,
            epochs=100,
            limit=100,
            evaluate_every=10,
            measure_every=20,
            measure_paths=100,
            measure_nodes=50,
            measure_degree=20,
        ),
        study=Methods(candidate="ed"),
        methods=tuple(replace(method, paper=None) for method in TABLE_1.methods),
        tuning={"held_out": 200},
        equal_time="ed",
    ),
    make_recipe(
        name="digits-estimators",
        title="Coarse and precise effective degrees of 48 small networks on digits",
        paper="none; settings of Table 10 and appendix D.1",
        expects="No such experiment; the paper trains with 4 nodes and degree 3, and measures with 200 and 40.",
        cost="10 s per run on one CPU core, 4 min in all on two",
        settings=replace(DIGITS, epochs=40, limit=200, evaluate_every=20, measure_also=ALSO),
        methods=(
            Method("plain", "plain", {"regularizer": "plain"}),
            Method("mixup", "mixup", {"regularizer": "mixup"}),
            Method("ed-2", "ED, λ = 2", {"regularizer": "ed", "weight": 2.0}),
            Method("ed-7", "ED, λ = 7", {"regularizer": "ed", "weight": 7.0}),
        ),
        seeds=(0,),
        grid={"batch": (20, 50), "lr": (1e-3, 3e-3, 1e-2), "weight_decay": (0.01, 1.0)},
        study=TrackingStudy(),
    ),
)
