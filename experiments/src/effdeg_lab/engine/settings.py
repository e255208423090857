"""The settings of a classifier's training, whatever the data, the model and the regularizer."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from effdeg.proxies import check_names
from effdeg_lab.data import load
from effdeg_lab.models import PRETRAINED
from effdeg_lab.settings import MOST_NODES, Settings, check_fit, check_pairs, setting

LabelFree = Literal["confidence", "entropy", "nuclear_norm", "total_variation", "decision_regions", "jacobian_norm"]
"""The proxies that need examples but no labels, and that every network has."""
# The paper's 10 of 300 epochs.
_WARM_UP = 1 / 30


@dataclass(frozen=True)
class Training(Settings):
    """The settings of one training run. Shares are of all epochs, so a shorter run keeps the shape of its schedule."""

    # Or cifar10n-worst, mnist, mnist-cifar, pacs, digits, imagenet, or a file or folder in a known layout.
    data: str = "cifar10"
    # Or vit-tiny-mean, vit-s16, resnet18, resnet9, mlp, or package.module:callable; or pretrained, deit-tiny, clip-b32
    # or clip-b16.
    model: str = "vit-tiny"
    # pretrained: a pretrained network with a random new head, or CLIP's zero-shot head on ImageNet. probe: with a
    # logistic regression on the features of all training examples as its head.
    start_from: Literal["scratch", "pretrained", "probe"] = "scratch"
    # The side of images: they are resized to it on the device, or cropped to it when they are read from files.
    pixels: int | None = setting(None, least=1)
    dropout: float = setting(0.0, least=0, most=0.9)  # of a vision transformer, including at the points of paths
    regularizer: str = "plain"  # a name of effdeg.baselines.names(), or ict, or several joined by +
    epochs: int = setting(300, scale=True, least=1)
    batch: int = setting(256, least=1)  # examples per step, over all processes
    # Take a step in this many parts, to save memory. Paths lie within a part; the loss is the mean over parts.
    accumulate: int = setting(1, least=1)
    limit: int | None = setting(None, scale=True, least=1)  # train on this many examples only
    # Only this many training examples have labels, the same number of each class; the seed decides which. A step has
    # ``batch`` of them, and an epoch has as many steps as if all had labels.
    labeled: int | None = setting(None, least=1)
    unlabeled_batch: int = setting(0, least=0)  # training examples per step without their labels, for ed and ict
    held_out: int = setting(0, least=0)  # training examples to test on instead of the test set: for tuning
    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: float = setting(1e-3, above=0)  # the highest learning rate
    momentum: float = setting(0.9, least=0)  # of SGD
    weight_decay: float = setting(0.1, least=0)
    # matrices: the weights of linear and convolutional layers, not biases, norms, positions and class tokens.
    decay_on: Literal["all", "matrices"] = "all"
    # The rate falls along a cosine to 0, to a tenth at half and again at three quarters of the epochs, or not at all.
    decay: Literal["cosine", "steps", "constant"] = "cosine"
    warm_up: float = setting(_WARM_UP, scale=True, least=0, most=1)  # the share in which the rate rises linearly
    warm_up_epochs: float | None = setting(None, scale=True, least=0)  # replaces the share, which is then 0
    warm_up_steps: int | None = setting(None, scale=True, least=0)  # the same in steps
    clip: float | None = setting(1.0, above=0)  # the highest norm of a gradient
    smoothing: float = setting(
        0.0, least=0, most=1
    )  # of the labels in the loss: this share is spread evenly over all classes
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
    ] = "crop-flip"
    crop_scale: float = setting(0.08, above=0, most=1)  # the smallest share of the area that a resized crop covers
    # Images in files: decode all of them once and keep their middle on the device, instead of decoding every batch.
    # Training images keep their whole short side if random resized crops are taken from them.
    resident: bool = False
    decoder: Literal["pillow", "torchvision"] = "pillow"  # of images in files
    precision: Literal["float32", "bf16"] = setting("bf16", scale=True, named=False)  # a CPU computes in float32
    compile: bool = setting(True, scale=True, named=False)  # on a GPU
    fused: bool = setting(True, scale=True, named=False)  # the blocks of vit-tiny-mean by our kernels, on a GPU in bf16
    weight: float | None = setting(None, least=0)  # of the penalty (λ); by default the regularizer's own
    ramp: float = setting(1 / 3, least=0, most=1)  # the share in which the weight rises along a sine
    start: float = setting(0.0, least=0, most=1)  # the share before the penalty begins
    every: int = setting(1, least=1)  # apply the penalty only every n steps, with n times the weight
    alpha: float = setting(1.0, least=0)  # Mixup's α
    rho: float = setting(0.05, least=0)  # the radius of SAM and ASAM
    eta: float = setting(0.01, least=0)  # ASAM's η
    projections: int = setting(1, least=1)  # random projections of the Jacobian
    jacobian_share: float = setting(1.0, above=0, most=1)  # of a batch, for which the Jacobian is computed
    nodes: int = setting(4, least=1, most=MOST_NODES)  # on each path (r)
    degree: int = setting(3, least=1)  # the highest (K)
    pairs: float = setting(0.5, above=0, most=1)  # paths, as a share of the batch (n_p)
    sampling: Literal["cosine", "chebyshev", "uniform"] = "cosine"  # where the nodes lie
    basis: Literal["chebyshev", "legendre"] = "chebyshev"
    # The values at the ends of paths. labels: those of the two examples, or as for self if they have none. self: the
    # outputs of the network, or of its teacher, for the two examples. none: the network runs there as at other nodes.
    anchor: Literal["labels", "self", "none"] = "labels"
    end_gradients: bool = False  # through ends that are the network's own outputs
    degree_weights: Literal["degree", "square", "curvature"] = "degree"  # curvature: degree, but 0 for straight lines
    teacher: float | None = setting(None, above=0, most=1)  # the decay of an average of the network, for ends and ict
    # Where the loss is taken. points: at the points of paths, with labels mixed as in mixup; the examples themselves
    # are not run. boxes: the same with a box of one image in the other, as in CutMix.
    loss_on: Literal["examples", "points", "boxes"] = "examples"
    mixed_loss: Literal["cross-entropy", "brier", "l1"] = "cross-entropy"  # of regmixup at the mixed examples
    components: int | None = setting(
        None, least=1
    )  # principal components of the outputs; by default all outputs as they are
    at: str | None = None  # the layer at which the paths lie; by default the inputs
    batchnorm: Literal["joint", "frozen"] = "joint"  # how BatchNorm treats the points
    # What the paths join. data: two examples. random-pixels: images of noise. simple-half: an example and itself with
    # another's simple half, from which a linear function predicts the classes. cuts: an example and itself with a
    # random part of another, the label mixed by area. balanced: the same with a part and with the rest; the larger
    # effective degree counts. Only data and cuts have labels.
    ends: Literal["data", "random-pixels", "simple-half", "cuts", "balanced"] = "data"
    evaluate_every: int = setting(10, scale=True, named=False, least=1)  # epochs
    # Epochs between rough measurements of the effective degree, with an evaluation each; 0 measures only at the end.
    measure_every: int = setting(0, scale=True, named=False, least=0)
    measure_paths: int = setting(400, scale=True, named=False, least=2)  # at the end
    measure_nodes: int = setting(200, scale=True, named=False, most=MOST_NODES)
    measure_degree: int = setting(40, scale=True, named=False)
    # Other nodes/degree to measure with along the same pairs: how closely does 4/3 follow the main measurement?
    measure_also: tuple[str, ...] = setting((), scale=True, named=False)
    # Numbers of principal components to also measure with, along the same paths.
    measure_components: tuple[int, ...] = setting((), scale=True, named=False)
    # The number of training examples whose labels are scored at every evaluation; needs data with known wrong labels.
    suspect: int = setting(0, scale=True, named=False, least=0)
    proxies: tuple[str, ...] = setting((), scale=True, named=False)  # evaluated at the end; "all" for all of them
    proxy_examples: int = setting(2048, scale=True, named=False, least=1)  # training examples that they use
    # Proxies without labels, evaluated on as many test examples, where the effective degree is always measured.
    test_proxies: tuple[LabelFree, ...] = setting((), scale=True, named=False)

    @property
    def gives_own_ends(self) -> bool:
        """Whether ends of paths have the outputs of the network or of its teacher as their values."""
        return self.anchor == "self" or (self.anchor == "labels" and self.unlabeled_batch > 0)

    def together_key(self) -> str | None:
        """Return a hash of everything but the seed, the rate, the weight decay and the weight of the penalty.

        None for what ``torch.func.vmap`` cannot do: a second pass with other weights (SAM), differentiating twice (the
        Jacobian), hooks (a layer, frozen BatchNorm) and our own derivative of principal components. None as well for
        what a stack of networks has no code for: steps in parts, and parameters that are not decayed.
        """
        if self.data == "imagenet":  # it may be streamed, batch by batch for one network
            return None
        parts = {*self.regularizer.split("+")}
        hooked = self.at is not None or self.batchnorm == "frozen" or self.components is not None
        if parts - {"plain", "mixup", "ed"} or hooked or self.labeled or self.teacher or self.loss_on != "examples":
            return None
        if self.accumulate > 1 or self.decay_on != "all":
            return None
        # A penalty of weight 0 is not computed at all.
        return self.change({"seed": 0, "lr": 1.0, "weight_decay": 0.0, "weight": 0.0 if self.weight == 0 else 1.0}).hash

    def identify_data(self, folder: Path | None) -> str:
        """Load the data and return their fingerprint."""
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
        if self.accumulate > 1 and self.unlabeled_batch:  # every part would draw as many
            raise ValueError(
                f"unlabeled_batch={self.unlabeled_batch} is not possible with accumulate={self.accumulate}: set one to "
                "its default."
            )
        self.check_parts(self.batch)
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

    def check_parts(self, share: int) -> None:
        """Raise unless the share of a batch that one process has can be divided into parts that have paths."""
        whole = f"batch={self.batch}" if share == self.batch else f"the {share} examples of a process"
        if share % self.accumulate:
            raise ValueError(f"{whole} cannot be divided into accumulate={self.accumulate} equal parts.")
        if "ed" in self.regularizer.split("+"):
            part = whole if self.accumulate == 1 else f"each of accumulate={self.accumulate} parts of {whole}"
            check_pairs(self.pairs, share // self.accumulate, what=part)
            if self.unlabeled_batch:
                check_pairs(self.pairs, self.unlabeled_batch, what=f"unlabeled_batch={self.unlabeled_batch}")

    def check_steps(self, steps: int) -> None:
        """Raise if the warm-up is longer than a run of this many steps."""
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
        """Raise if a pretrained network would start from scratch, or if another one would not."""
        if self.model in PRETRAINED and self.start_from == "scratch":
            raise ValueError(f"model={self.model} is pretrained: set start_from=pretrained or start_from=probe.")
        if self.start_from != "scratch" and self.model not in PRETRAINED and ":" not in self.model:
            known = ", ".join(PRETRAINED)
            raise ValueError(
                f"start_from={self.start_from} needs a pretrained network; model={self.model} is not one: use "
                f"{known}, or your own as package.module:callable."
            )


def parse_nodes_and_degree(text: str) -> tuple[int, int]:
    """Read a number of nodes and a degree, written as ``4/3``."""
    nodes, _, degree = (part.strip() for part in text.partition("/"))
    if not (nodes.isdecimal() and degree.isdecimal()):
        raise ValueError(f"measure_also={text!r} is not possible: write nodes/degree, such as 4/3.")
    return int(nodes), int(degree)
