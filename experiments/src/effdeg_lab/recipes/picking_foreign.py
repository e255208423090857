"""Which of these classifiers? Five networks for ImageNet that others trained, with different architectures."""

from effdeg_lab.finetuning.foreign import Foreign, check_foreign, run
from effdeg_lab.recipe import Method, Recipe
from effdeg_lab.studies.picking import Picking

MODELS = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2", "resnet50_keras", "deit-tiny")

RECIPE = Recipe(
    name="picking-foreign",
    title="Picking the best of five ImageNet classifiers of others without labels",
    paper="not in the paper",
    expects="Little: four of the five are within a point of each other on these images; DeiT-Tiny is 4 points below.",
    cost="about 10 s per run on an H200 (estimated); 2 to 10 min on one core of a CPU with 500 images",
    settings=Foreign(),
    run=run,
    check_data=check_foreign,
    study=Picking(),
    methods=(Method("given", "As published"),),
    departs="EfficientNet-Lite 0 to 2, Keras's ResNet-50 and DeiT-Tiny; images whose short side has 256 pixels, 5 of "
    "each class.",
    seeds=(0,),
    grid={"model": MODELS},
)
