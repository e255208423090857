"""How well do coarse settings of the estimator track the precise one? Over the pool of 27 ViT-Tinys on CIFAR-10."""

from dataclasses import replace

from effdeg_lab.recipes.cifar10_vit_pool import RECIPE as POOL
from effdeg_lab.studies.tracking import ALSO, TrackingStudy

RECIPE = replace(
    POOL,
    name="cifar10-estimators",
    title="Coarse and precise effective degrees of 27 ViT-Tinys",
    paper="none; settings of Table 10 and appendix D.1",
    expects="No such experiment; the paper trains with 4 nodes and degree 3, and measures with 200 and 40.",
    settings=POOL.settings.change({"measure_also": ALSO}),
    study=TrackingStudy(),
)
