"""ViT-Tiny on CIFAR-10: Table 1 of the paper, and a fair contest of ED, mixup and CutMix."""

from dataclasses import replace
from functools import partial

from effdeg_lab.core.recipe import Method, Recipe, Reported
from effdeg_lab.engine import Training, check_training, train
from effdeg_lab.show.methods import Methods

SETTINGS = Training(
    data="cifar10",
    model="vit-tiny",
    epochs=300,
    batch=256,
    optimizer="adamw",
    lr=1e-3,
    weight_decay=0.1,
    decay="cosine",
    warm_up=10 / 300,
    clip=1.0,
    augment="crop-flip",
    ramp=100 / 300,
    measure_every=50,
)
# Shared by the ablations, so that these methods are run only once.
PLAIN = {"regularizer": "plain"}
ED = {"regularizer": "ed", "weight": 7.0, "nodes": 4, "degree": 3, "pairs": 0.5, "sampling": "cosine"}
NO_ANCHORS = {**ED, "anchor": "none"}
MIXUP_ED = {**ED, "regularizer": "mixup+ed", "alpha": 1.0}
# On a quarter of every fourth batch, without ED's ramp.
JACOBIAN = {"regularizer": "jacobian", "weight": 0.01, "ramp": 0.0, "jacobian_share": 0.25, "every": 4}

TUNING = {"held_out": 5000, "epochs": 30}
WEIGHTS = {"weight": (7.0, 20.0, 50.0)}
# The paper's values.
SAM_RADII = {"rho": (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)}
ASAM_RADII = {"rho": (5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)}
JACOBIAN_WEIGHTS = {"weight": (0.01, 0.05, 0.1, 0.5, 1.0)}

UNSTATED = (
    "The paper does not state the following: gradients are clipped at norm 1; training runs in bf16; weight decay acts "
    "on all parameters, normalization, biases and positions included; ViT-Tiny has a class token, patches of 4 pixels, "
    "width 192, depth 12 and 3 heads"
)
DEPARTS = (
    "The learning rate is 0.001, not the paper's 0.005: both train after 10 epochs of warm-up, but 0.001 was 0.2 to "
    "1.5 points better on held-out images after 60 epochs, with and without ED and clipping (cifar10-learning-rate, "
    f"one seed). {UNSTATED}; ED's fits are damped by 1e-3, and its pairs are of different examples."
)

# For recipes that train ViT-Tiny on CIFAR-10 in this way.
make_recipe = partial(Recipe, settings=SETTINGS, run=train, check_data=check_training, study=Methods(), departs=DEPARTS)


TABLE_1 = make_recipe(
    name="cifar10-methods",
    title="Regularizers of ViT-Tiny on CIFAR-10",
    paper="Tables 1 and 10, appendix F.1",
    expects=(
        "ED is best (90.82 with its precise configuration, 90.18 with the efficient one that is run here), also "
        "without anchors. Mixup is a point above the baseline; SAM, ASAM and the Jacobian are level with it."
    ),
    cost="5 min per plain run on one H200, 8 with ED, 11 without anchors, 10 with SAM, ASAM, Jacobian; tuning 35 min",
    study=Methods(candidate="ed"),
    methods=(
        Method("plain", "Baseline", PLAIN, Reported(87.80, 1.17)),
        Method("mixup", "Mixup", {"regularizer": "mixup", "alpha": 1.0}, Reported(88.83, 1.48)),
        Method("mixup-0.2", "Mixup, α = 0.2", {"regularizer": "mixup", "alpha": 0.2}),
        Method("sam", "SAM", {"regularizer": "sam", "rho": 0.05}, Reported(87.85, 1.27), SAM_RADII),
        Method("asam", "ASAM", {"regularizer": "asam", "rho": 0.5}, Reported(87.85, 1.24), ASAM_RADII),
        Method("jacobian", "Jacobian reg.", JACOBIAN, Reported(87.81, 0.17), JACOBIAN_WEIGHTS),
        Method("ed-without-anchors", "ED without anchors", NO_ANCHORS, Reported(90.00, 0.60), {"weight": (2.0, 7.0)}),
        # Table 10's number for this configuration; Table 1 has the precise one.
        Method("ed", "ED", ED, Reported(90.18, 0.14), WEIGHTS),
        Method("ed-cheap", "ED, 3 nodes", {**ED, "nodes": 3, "degree": 2}, tune={"weight": (7.0, 20.0)}),
        Method("mixup+ed", "Mixup + ED", MIXUP_ED, tune={"weight": (2.0, 7.0, 20.0)}),
    ),
    departs=(
        f"{DEPARTS} Weights and radii are tuned on 5,000 held-out training images in short runs, over the paper's "
        "grids as far as the table of tuning shows; the paper chose those of SAM, ASAM and the Jacobian on the test "
        "set, and does not name the chosen ones. It does not say which weights of ED it tried: here two or three "
        "values each. ED is the efficient configuration, with its number of Table 10; Table 1 has the precise one (15 "
        "nodes, degree 7, as many pairs as examples, λ = 2; 90.82 ± 0.11), and does not say which one ED without "
        "anchors is. The Jacobian is taken on a quarter of every fourth batch, at four times the weight, since with "
        "all of it a step costs 8 times a plain one; its weight is constant. Mixup has the paper's α = 1. Mixup with "
        "α = 0.2, ED with 3 nodes, and Mixup + ED, whose α is not tuned, are not in the paper."
    ),
    tuning=TUNING,
    equal_time="ed",
)


POOLED = replace(SETTINGS, model="vit-tiny-mean")  # 64 tokens, for which there are faster kernels
POOLED_DEPARTS = DEPARTS.replace("has a class token,", "averages over its patches instead of a class token; it has")


RECIPES = (
    TABLE_1,
    make_recipe(
        name="cifar10-contest",
        title="ED against mixup and CutMix, at equal epochs and in equal time",
        paper="Appendix F.1 and Tables 1 and 10 (their setting)",
        expects="ED is best (90.18), mixup a point above the baseline (88.83 and 87.80). CutMix is not in the paper.",
        cost="2.7 min per plain run on one H200, 4.8 with ED, 2.7 with ED in 166 epochs",
        settings=POOLED,
        study=Methods(candidate="ed"),
        methods=(
            Method("plain", "Baseline", PLAIN, Reported(87.80, 1.17)),
            Method("mixup", "Mixup", {"regularizer": "mixup", "alpha": 1.0}, Reported(88.83, 1.48)),
            Method("cutmix", "CutMix", {**PLAIN, "augment": "crop-flip-cutmix"}),
            Method("ed", "ED", ED, Reported(90.18, 0.14)),
            # A step with ED takes 1.81 times as long as a plain one (engine_speedups in results/benchmarks/gpu.json).
            Method("ed-166", "ED, 166 epochs", {**ED, "epochs": 166}),
        ),
        departs=(
            f"{POOLED_DEPARTS} Nothing is tuned: ED is the efficient configuration with the paper's λ = 7, and mixup "
            "and CutMix have α = 1. CutMix pastes a box of another image, of uniformly distributed area, into every "
            "image after crops and flips. A step with ED takes 1.81 times as long as a plain one "
            "(results/benchmarks), so 166 epochs with ED take as long as 300 without; warm-up and ramp take the same "
            "shares of them."
        ),
    ),
)
