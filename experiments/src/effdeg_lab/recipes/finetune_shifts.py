"""DeiT-Tiny fine-tuned on the photos of PACS, tested on paintings, cartoons and sketches."""

from effdeg_lab.engine import Training, check_training, train
from effdeg_lab.recipe import Recipe
from effdeg_lab.recipes._shifts import make_small_methods
from effdeg_lab.studies.shifts import Shifts

# The paper's protocol for CLIP, with batch, learning rate and epochs for smaller data.
SETTINGS = Training(
    data="pacs",
    model="deit-tiny",
    start_from="probe",
    pixels=224,
    epochs=30,
    batch=64,
    lr=1e-4,
    weight_decay=0.1,
    warm_up=0.05,
    augment="resized-crop",
    crop_scale=0.9,
    compile=False,  # takes longer than training
    evaluate_every=5,
    measure_paths=200,
    measure_nodes=64,
    measure_degree=20,
)
# Shared by the recipes on small data.
DEPARTS = (
    "DeiT-Tiny, trained on ImageNet with labels, replaces CLIP, and a logistic regression on its features replaces "
    "CLIP's zero-shot head. All methods start from this probe, so that plain fine-tuning is LP-FT (Kumar et al., "
    "2022), except one that starts from a random head, to show what that costs. ED has the paper's settings for "
    "CLIP: 3 components, λ = 2, 4 nodes, degree 3, half of the batch as pairs, no ramp. Learning rates and ED's λ can "
    "be tuned on held-out training images, never on shifted ones; without tuning, λ is the paper's."
)

RECIPE = Recipe(
    name="finetune-shifts",
    title="Fine-tuning DeiT-Tiny on photos, tested on paintings, cartoons and sketches (PACS)",
    paper="not in the paper; Table 2 and Figure 5 at small scale",
    expects="As with CLIP: ED is ahead on photos and under shifts, and its curve lies above that of plain fine-tuning.",
    cost="0.2 to 5 min per run on an H200 that several runs shared; not timed alone",
    settings=SETTINGS,
    run=train,
    check_data=check_training,
    study=Shifts(),
    methods=make_small_methods(),
    departs=f"{DEPARTS} Of 1,670 photos, 1,336 are trained on and 334 tested on.",
    seeds=(0, 1, 2, 3, 4),
    tuning={"held_out": 300},
)
