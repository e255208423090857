"""CLIP ViT-B/32 on ImageNet, from its zero-shot head. With the paper's hyperparameters."""

from effdeg_lab.engine import Training
from effdeg_lab.recipe import Reported
from effdeg_lab.recipes._shifts import make_clip_recipe

SETTINGS = Training(
    data="imagenet",
    model="clip-b32",
    start_from="pretrained",
    pixels=224,
    epochs=10,
    batch=512,
    lr=3e-5,
    weight_decay=0.1,
    warm_up_steps=500,
    augment="resized-crop",
    crop_scale=0.9,
    evaluate_every=1,
    measure_paths=200,
    measure_nodes=64,
    measure_degree=20,
)

RECIPE = make_clip_recipe(
    SETTINGS,
    network="ViT-B/32",
    expects="ED gains 0.94 points on ImageNet and 1.27 on the mean of five shifts; its curve lies above that of plain.",
    # ImageNet, V2, R, A, Sketch, ObjectNet, and the mean of the five.
    paper={
        "plain": (
            *(Reported(76.20, 0.02), Reported(64.21, 0.11), Reported(56.82, 0.31), Reported(20.48, 0.17)),
            *(Reported(39.08, 0.07), Reported(39.62, 0.10), Reported(44.04, 0.08)),
        ),
        "ed": (
            *(Reported(77.14, 0.05), Reported(65.37, 0.18), Reported(58.28, 0.09), Reported(22.03, 0.37)),
            *(Reported(40.46, 0.24), Reported(40.41, 0.17), Reported(45.31, 0.08)),
        ),
    },
)
