"""How well do coarse settings of the estimator track the precise one? Over the pool of 27 ViT-Tinys on CIFAR-10.

Expected: the paper has no such experiment, but trains with 4 nodes and degree 3 and measures with 200 and 40. The runs
are those of ``cifar10-vit-pool``, measured in more ways at their end.
Seen, raw: a rank correlation of 0.80 over 27 networks after 30 epochs, where it was 0.01 over 27 after 12.
Cost on one H200: about two minutes per run of 100 epochs (from the pace of others), proxies included.
"""

from dataclasses import replace

from effdeg_lab.recipes import cifar10_vit_pool
from effdeg_lab.studies.tracking import ALSO, TrackingStudy

POOL = cifar10_vit_pool.RECIPE

RECIPE = replace(
    POOL,
    name="cifar10-estimators",
    title="Coarse and precise effective degrees of 27 ViT-Tinys",
    paper="none; settings of Table 10 and appendix D.1",
    expects="No such experiment; the paper trains with 4 nodes and degree 3, and measures with 200 and 40.",
    settings=POOL.settings.change({"measure_also": ALSO}),
    study=TrackingStudy(),
)
