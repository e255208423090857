"""Do measures that order ResNet-9s also order MLPs? A random search over one MLP, at lower learning rates."""

from dataclasses import replace

from effdeg_lab.recipes.cifar10_random_pool import RECIPE as RESNETS
from effdeg_lab.recipes.cifar10_random_pool import draw
from effdeg_lab.search import draw_points
from effdeg_lab.studies.random_pool import FITS, RandomPool

RATES = {"sgd": (0.01, 0.1), "adamw": (1e-4, 3e-3)}

RECIPE = replace(
    RESNETS,
    name="cifar10-random-mlps",
    title="Measures of MLPs from a random search, on training images and on unlabeled test images",
    expects="Unknown: in the trial behind cifar10-random-pool there were CNNs only.",
    cost="about 80 s per run on one core of a CPU",
    study=RandomPool(fit=FITS),
    departs="32 MLPs, on 5,000 images without augmentation, which most networks fit.",
    search=draw_points(lambda draws: draw(draws, ["mlp"], RATES), 32, seed=1),
)
