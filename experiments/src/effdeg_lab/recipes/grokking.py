"""Section 4.2 of the paper: does the effective degree show when a network turns from memorizing to generalizing?

Expected: ED rises while the network memorizes, peaks near the drop of the validation loss, and then falls; the
parameter norm rises monotonically, and sharpness decays early or fluctuates.
Found: without weight decay, no generalization in 100,000 steps. With it, ED is highest long before the drop, low at the
drop, and rises again afterwards.
Cost on one H200: 200 s of training per run if five share it. On one CPU core, 0.13 s per step; docs/grokking.md has a
smaller run of three minutes.
"""

from effdeg_lab.recipe import Method, Recipe
from effdeg_lab.studies.grokking import Grokking, GrokkingStudy, train

RECIPE = Recipe(
    name="grokking",
    title="The effective degree while a network groks modular division",
    paper="Figure 4, section 4.2, appendix D.2",
    expects=(
        "ED rises while the network memorizes, peaks near the drop of the validation loss, and then falls. The "
        "parameter norm rises monotonically; sharpness and adaptive sharpness decay early or fluctuate."
    ),
    cost="4 min per run on one H200 that five runs share",
    settings=Grokking(),
    run=train,
    methods=(
        Method("paper", "30%, no weight decay"),
        Method("precise", "30%, no decay, float64 softmax", {"softmax": "float64"}),
        Method("half", "50%, no weight decay", {"fraction": 0.5}),
        Method("decay", "30%, weight decay 1", {"weight_decay": 1.0}),
        Method("half-decay", "50%, weight decay 1", {"fraction": 0.5, "weight_decay": 1.0}),
    ),
    departs=(
        "The paper states the task, the training fraction, the optimizer, its learning rate and weight decay, and the "
        "settings of ED; everything else is as in Power et al. (2022), with three exceptions: incomplete batches are "
        "left out, the network does not predict the end of the line after the answer, and it chooses among numbers "
        "only. The paper does not state the number of steps; Power et al. need close to a million for 50% without "
        "weight decay, and find that weight decay 1 generalizes from the least data. The paper does not say which "
        "equations its paths connect: here validation equations. Sharpness is that of the loss on all training "
        "equations, in float64."
    ),
    study=GrokkingStudy(),
)
