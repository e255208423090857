"""The settings of a classifier's training, whatever the data, the model and the regularizer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from effdeg.proxies import check_names
from effdeg_lab.core.settings import MOST_NODES, Settings, check_fit, check_pairs, setting, unnamed
from effdeg_lab.data import load
from effdeg_lab.models import PRETRAINED

LabelFree = Literal["confidence", "entropy", "nuclear_norm", "total_variation", "decision_regions", "jacobian_norm"]
"""The proxies that need examples but no labels, and that every network has."""
# The paper's 10 of 300 epochs.
_WARM_UP = 1 / 30


def _keep_one_of_each(proxies: Sequence[str]) -> tuple[str, ...]:
    """Return the first of proxies that differ only in a parameter, such as sharpness@0.05."""
    return tuple({name.split("@")[0]: name for name in reversed(proxies)}.values())


def _shrink_model(name: str) -> str:
    """Return a network of the same kind for smoke tests; those that are pretrained are small because of their files."""
    if re.fullmatch(r"vit-\d+x\d+-\d+", name):
        return f"vit-32x1-{name.rpartition('-')[2]}"  # the patches fit the images
    if name.startswith("vit-"):
        _, size, *rest = name.split("-")
        return "-".join(["vit", "mu16" if size.endswith("16") else "mu8", *rest])
    return re.sub(r"^(resnet9|resnet18)(-\d+)?$", "resnet9-2", name)


@dataclass(frozen=True)
class PenaltySettings(Settings):
    nodes: int = setting(4, "nodes on each path (r)", least=1, most=MOST_NODES)
    degree: int = setting(3, "the highest degree that is fitted along a path (K)", least=1)
    pairs: float = setting(0.5, "paths, as a share of the batch (n_p)", above=0, most=1)
    # labels: those of the two examples, or as for self if they have none. self: the outputs of the network, or of its
    # teacher, for the two examples. none: the network runs there as at other nodes.
    anchor: Literal["labels", "self", "none"] = setting("labels", "the values at the ends of paths")

    @property
    def penalty_options(self) -> dict[str, Any]:
        """These settings as :class:`effdeg.Penalty` takes them."""
        anchor = None if self.anchor == "none" else self.anchor
        return {"nodes": self.nodes, "degree": self.degree, "pairs": self.pairs, "anchor": anchor}


def choose_weights(name: Literal["degree", "curvature"], degree: int) -> Literal["degree"] | list[float]:
    """Return the weights of degrees, as :class:`effdeg.Penalty` takes them; those of curvature leave out lines."""
    return [float(k) if k > 1 else 0.0 for k in range(degree + 1)] if name == "curvature" else "degree"


@dataclass(frozen=True)
class Training(PenaltySettings):
    """The settings of one training run. Shares are of all epochs, so a shorter run keeps the shape of its schedule."""

    data: str = setting("cifar10", "a data set of docs/lab.md, or a file or folder in a known layout")
    model: str = setting(
        "vit-tiny", "the network: vit-s16, resnet9, mlp, deit-tiny, … or package.module:callable", smoke=_shrink_model
    )
    # pretrained: with a random new head, or CLIP's zero-shot head on ImageNet. probe: with a logistic regression on the
    # features of all training examples as its head.
    start_from: Literal["scratch", "pretrained", "probe"] = setting("scratch", "the weights that training starts from")
    pixels: int | None = setting(
        None, "side of images, which are resized, or cropped when read from files", least=1, smoke=32
    )
    dropout: float = setting(0.0, "of a vision transformer, including at the points of paths", least=0, most=0.9)
    # For examples without labels, next to ict: ed-copies (ED along paths to changed copies), consistency (the squared
    # difference between an example and its copy: the Π-model, and with a teacher Mean Teacher), uda and fixmatch (with
    # RandAugment). Two penalties joined by + take a forward pass each.
    regularizer: str = setting(
        "plain", "a name of effdeg.baselines.names(), or ict, ed-copies, …, or several joined by +"
    )
    epochs: int = setting(300, "passes over the training examples", scale=True, least=1, smoke=2)
    batch: int = setting(256, "examples per step, over all processes", least=1, smoke=16)
    limit: int | None = setting(None, "train on this many examples only", scale=True, least=1, smoke=lambda _: 64)
    # The seed decides which. A step has ``batch`` of them, and an epoch has as many steps as if all had labels.
    labeled: int | None = setting(None, "training examples with labels, as many of each class", least=1, smoke=20)
    unlabeled_batch: int = setting(
        0, "training examples per step without their labels, for ed, ict, …", least=0, smoke=16
    )
    held_out: int = setting(0, "training examples to test on instead of the test set: for tuning", least=0, smoke=16)
    optimizer: Literal["adamw", "sgd"] = setting("adamw", "AdamW, or SGD with momentum 0.9")
    lr: float = setting(1e-3, "the highest learning rate", above=0)
    weight_decay: float = setting(0.1, "of the optimizer", least=0)
    # matrices: the weights of linear and convolutional layers, not biases, norms, positions and class tokens.
    decay_on: Literal["all", "matrices"] = setting("all", "the parameters that weight decay acts on")
    # steps: to a tenth at half and again at three quarters of the epochs.
    decay: Literal["cosine", "steps", "constant"] = setting("cosine", "how the learning rate falls")
    warm_up: float = setting(
        _WARM_UP, "share of training in which the rate rises linearly", scale=True, least=0, most=1
    )
    warm_up_epochs: float | None = setting(None, "warm-up in epochs instead of a share", scale=True, least=0, smoke=1)
    warm_up_steps: int | None = setting(None, "warm-up in steps instead of a share", scale=True, least=0, smoke=1)
    clip: float | None = setting(1.0, "the highest norm of a gradient", above=0)
    smoothing: float = setting(0.0, "share of each label that is spread evenly over all classes", least=0, most=1)
    # crop: from a border of 4 pixels. cutmix: each image is joined with a part of another along a straight line, and
    # its label mixed by area. crop-flip-cutmix: the same after crops and flips, with a box of another image as in the
    # paper on CutMix. swap-simple-half: about every second image gets another's simple half. resized-crop: a crop of
    # any size and place, resized to the image's size; with randaugment, RandAugment(2, 10) as in big_vision.
    augment: Literal[
        "none",
        "crop",
        "crop-flip",
        "crop-flip-cutmix",
        "cutmix",
        "swap-simple-half",
        "resized-crop",
        "resized-crop-flip",
        "resized-crop-flip-randaugment",
    ] = setting("crop-flip", "random changes of the training images")
    crop_scale: float = setting(0.08, "the smallest share of the area that a resized crop covers", above=0, most=1)
    precision: Literal["float32", "bf16"] = unnamed("bf16", "of training on a GPU; a CPU computes in float32")
    compile: bool = unnamed(True, "compile the training step, on a GPU; blocks of vit-tiny-mean then use our kernels")
    weight: float | None = setting(None, "of the penalty (λ); by default the regularizer's own", least=0)
    second_weight: float = setting(1.0, "of the second of two penalties, times the weight", least=0)
    ramp: float = setting(1 / 3, "share of training in which the weight rises along a sine", least=0, most=1)
    start: float = setting(0.0, "share of training before the penalty begins", least=0, most=1)
    every: int = setting(1, "apply the penalty only every n steps, with n times the weight", least=1)
    alpha: float = setting(1.0, "mixup's α", least=0)
    rho: float = setting(0.05, "the radius of SAM and ASAM", least=0)
    jacobian_share: float = setting(1.0, "share of a batch for which the Jacobian is computed", above=0, most=1)
    sampling: Literal["cosine", "chebyshev", "uniform"] = setting("cosine", "where the nodes lie")
    basis: Literal["chebyshev", "legendre"] = setting("chebyshev", "the polynomials that are fitted")
    # curvature: degree, but 0 for straight lines.
    degree_weights: Literal["degree", "curvature"] = setting("degree", "what coefficients are weighted by")
    teacher: float | None = setting(None, "decay of an average of the network, for ends and ict", above=0, most=1)
    # points: at the points of paths, with labels mixed as in mixup; the examples themselves are not run. boxes: the
    # same with a box of one image in the other, as in CutMix.
    loss_on: Literal["examples", "points", "boxes"] = setting("examples", "where the loss is taken")
    mixed_loss: Literal["cross-entropy", "brier"] = setting("cross-entropy", "of regmixup at the mixed examples")
    components: int | None = setting(
        None, "principal components of the outputs; by default all outputs as they are", least=1
    )
    at: str | None = setting(None, "the layer at which the paths lie; by default the inputs")
    # simple-half: an example and itself with another's simple half, from which a linear function predicts the classes.
    # cuts: an example and itself with a random part of another, the label mixed by area. balanced: the same with a part
    # and with the rest; the larger effective degree counts. Only data and cuts have labels.
    ends: Literal["data", "random-pixels", "simple-half", "cuts", "balanced"] = setting("data", "what the paths join")
    evaluate_every: int = unnamed(10, "epochs between evaluations", least=1, smoke=1)
    measure_every: int = unnamed(
        0, "epochs between rough measurements of the effective degree; 0: only at the end", least=0, smoke=1
    )
    measure_paths: int = unnamed(400, "paths of the measurement at the end", least=2, smoke=4)
    measure_nodes: int = unnamed(200, "nodes on each of these paths", most=MOST_NODES, smoke=24)
    measure_degree: int = unnamed(40, "the highest degree fitted along them", smoke=12)
    # How closely does 4/3 follow the main measurement?
    measure_also: tuple[str, ...] = unnamed(
        (),
        "other nodes/degree to measure with, along the same pairs",
        smoke=lambda several: tuple(each for each in several if parse_nodes_and_degree(each)[1] < 10),
    )
    measure_components: tuple[int, ...] = unnamed((), "numbers of principal components to also measure with")
    # Needs data with known wrong labels.
    suspect: int = unnamed(0, "training examples whose labels are scored at evaluations", least=0, smoke=16)
    proxies: tuple[str, ...] = unnamed((), "proxies evaluated at the end; all for all", smoke=_keep_one_of_each)
    # The effective degree is always measured on test examples.
    test_proxies: tuple[LabelFree, ...] = unnamed((), "proxies without labels, evaluated on test examples")
    # And of their changed copies; weights are not kept then, and nothing else is measured.
    observe: int = unnamed(
        0, "test examples of which predictions are kept, to choose among networks", least=0, smoke=24
    )

    @property
    def gives_own_ends(self) -> bool:
        """Whether ends of paths have the outputs of the network or of its teacher as their values."""
        return self.anchor == "self" or (self.anchor == "labels" and self.unlabeled_batch > 0)

    def stack_key(self) -> str | None:
        """Return a hash of everything but the seed, the rate, the weight decay and the weight of the penalty.

        None for what ``torch.func.vmap`` cannot do: a second pass with other weights (SAM), differentiating twice (the
        Jacobian), hooks (paths at a layer) and our own derivative of principal components. None as well for
        what a stack of networks has no code for: parameters that are not decayed.
        """
        if self.data == "imagenet":  # it may be streamed, batch by batch for one network
            return None
        parts = {*self.regularizer.split("+")}
        hooked = self.at is not None or self.components is not None
        if parts - {"plain", "mixup", "ed"} or hooked or self.labeled or self.teacher:
            return None
        if self.loss_on != "examples" or self.decay_on != "all":
            return None
        # A penalty of weight 0 is not computed at all.
        return self.change({"seed": 0, "lr": 1.0, "weight_decay": 0.0, "weight": 0.0 if self.weight == 0 else 1.0}).hash

    def identify_data(self, folder: Path | None) -> str:
        return load(self.data, folder, self.pixels).fingerprint()

    def check(self) -> None:
        """Raise ``ValueError`` if the values do not fit together; bring equal settings into one form."""
        object.__setattr__(self, "regularizer", "+".join(part.strip().lower() for part in self.regularizer.split("+")))
        check_fit(self.measure_nodes, self.measure_degree, prefix="measure_")
        self._check_start()
        check_names(name for name in self.proxies if name != "all")
        for each in self.measure_components:
            if not 1 <= each < self.measure_nodes:
                raise ValueError(
                    f"measure_components={each} is out of range: paths of measure_nodes={self.measure_nodes} have 1 to "
                    f"{self.measure_nodes - 1} components."
                )
        self.check_share(self.batch)
        self._check_warm_up()
        also = [parse_nodes_and_degree(each) for each in self.measure_also]
        for nodes, degree in also:
            check_fit(nodes, degree, least_degree=1)
            if degree >= self.measure_nodes:
                raise ValueError(
                    f"measure_also={nodes}/{degree} is compared with a fit of the same degree, which measure_nodes="
                    f"{self.measure_nodes} cannot determine: lower the degree, or raise measure_nodes."
                )
        object.__setattr__(self, "measure_also", tuple(f"{nodes}/{degree}" for nodes, degree in also))

    def check_share(self, share: int) -> None:
        if {"ed", "ed-copies"} & {*self.regularizer.split("+")}:
            what = f"batch={self.batch}" if share == self.batch else f"the {share} examples of a process"
            check_pairs(self.pairs, share, what=what)
            if self.unlabeled_batch:
                check_pairs(self.pairs, self.unlabeled_batch, what=f"unlabeled_batch={self.unlabeled_batch}")

    def check_steps(self, steps: int) -> None:
        if self.warm_up_steps is not None and self.warm_up_steps > steps:
            raise ValueError(
                f"warm_up_steps={self.warm_up_steps} is more than the {steps} steps of this run: use fewer."
            )

    def _check_warm_up(self) -> None:
        """Raise if the warm-up is given twice or is too long; bring equal warm-ups into one form."""
        epochs, steps = self.warm_up_epochs, self.warm_up_steps
        if epochs is None and steps is None:
            return
        if epochs is not None and steps is not None:
            raise ValueError(f"warm_up_epochs={epochs:g} and warm_up_steps={steps} cannot be combined: use one.")
        if epochs is not None and epochs > self.epochs:
            raise ValueError(f"warm_up_epochs={epochs:g} is more than epochs={self.epochs}: lr would not be reached.")
        if self.warm_up not in {0.0, _WARM_UP}:
            name, given = ("warm_up_steps", steps) if epochs is None else ("warm_up_epochs", epochs)
            raise ValueError(f"warm_up={self.warm_up:g} and {name}={given:g} cannot be combined: set {name}=none.")
        object.__setattr__(self, "warm_up", 0.0)

    def _check_start(self) -> None:
        if self.model in PRETRAINED and self.start_from == "scratch":
            raise ValueError(f"model={self.model} is pretrained: set start_from=pretrained or start_from=probe.")
        if self.start_from != "scratch" and self.model not in PRETRAINED and ":" not in self.model:
            known = ", ".join(PRETRAINED)
            raise ValueError(
                f"start_from={self.start_from} needs a pretrained network; model={self.model} is not one: use "
                f"{known}, or your own as package.module:callable."
            )


def parse_nodes_and_degree(text: str) -> tuple[int, int]:
    nodes, _, degree = (part.strip() for part in text.partition("/"))
    if not (nodes.isdecimal() and degree.isdecimal()):
        raise ValueError(f"measure_also={text!r} is not possible: write nodes/degree, such as 4/3.")
    return int(nodes), int(degree)
