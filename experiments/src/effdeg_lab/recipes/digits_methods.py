"""The methods of Table 1 on 100 of the bundled digits: the whole lab in minutes, without data or a GPU."""

from dataclasses import replace

from effdeg_lab.engine import Training, check_training, train, train_together
from effdeg_lab.recipe import Recipe
from effdeg_lab.recipes import cifar10_methods
from effdeg_lab.studies.methods import Methods

DIGITS = Training(data="digits", model="mlp", batch=50, lr=1e-3, augment="none", precision="float32", compile=False)

RECIPE = Recipe(
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
    run=train,
    check_data=check_training,
    run_together=train_together,
    study=Methods(candidate="ed"),
    methods=tuple(replace(method, paper=None) for method in cifar10_methods.RECIPE.methods),
    tuning={"held_out": 200},
    equal_time="ed",
)
