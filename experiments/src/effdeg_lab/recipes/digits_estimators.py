"""How well do coarse settings of the estimator track the precise one? Over 48 small networks on the bundled digits."""

from dataclasses import replace

from effdeg_lab.engine import check_training, train, train_together
from effdeg_lab.recipe import Method, Recipe
from effdeg_lab.recipes.digits_methods import DIGITS
from effdeg_lab.studies.tracking import ALSO, TrackingStudy

RECIPE = Recipe(
    name="digits-estimators",
    title="Coarse and precise effective degrees of 48 small networks on digits",
    paper="none; settings of Table 10 and appendix D.1",
    expects="No such experiment; the paper trains with 4 nodes and degree 3, and measures with 200 and 40.",
    cost="10 s per run on one CPU core, 4 min in all on two",
    settings=replace(DIGITS, epochs=40, limit=200, evaluate_every=20, measure_also=ALSO),
    run=train,
    check_data=check_training,
    run_together=train_together,
    methods=(
        Method("plain", "plain", {"regularizer": "plain"}),
        Method("mixup", "mixup", {"regularizer": "mixup"}),
        Method("ed-2", "ED, λ = 2", {"regularizer": "ed", "weight": 2.0}),
        Method("ed-7", "ED, λ = 7", {"regularizer": "ed", "weight": 7.0}),
    ),
    seeds=(0,),
    grid={"batch": (20, 50), "lr": (1e-3, 3e-3, 1e-2), "weight_decay": (0.01, 1.0)},
    study=TrackingStudy(),
)
