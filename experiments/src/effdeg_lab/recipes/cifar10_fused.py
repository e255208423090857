"""Do our kernels train as well as PyTorch's own? ViT-Tiny on CIFAR-10, both in bf16, in short runs."""

from dataclasses import replace

from effdeg_lab.recipe import Method
from effdeg_lab.recipes.cifar10_contest import POOLED
from effdeg_lab.recipes.cifar10_methods import PLAIN, make_recipe
from effdeg_lab.studies.methods import Methods

RECIPE = make_recipe(
    name="cifar10-fused",
    title="Our kernels against PyTorch's",
    paper="none; a check of the engine",
    expects="The same accuracy, to within one point.",
    cost="0.3 min per run on one H200",
    settings=replace(POOLED, epochs=30, measure_every=0),
    study=Methods(candidate="fused", within=1.0),
    methods=(
        Method("pytorch", "PyTorch's kernels", {**PLAIN, "fused": False}),
        Method("fused", "our kernels", {**PLAIN, "fused": True}),
    ),
    departs="These are plain runs of cifar10-contest, with 30 epochs instead of 300.",
)
