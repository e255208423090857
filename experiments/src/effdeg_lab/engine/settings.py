"""The settings of a classifier's training, whatever the data, the model and the regularizer."""

from dataclasses import dataclass, field
from typing import Literal

from effdeg.proxies import check_names
from effdeg_lab.settings import SCALE, Settings

# The paper's 10 of 300 epochs.
_WARM_UP = 1 / 30


@dataclass(frozen=True)
class Training(Settings):
    """The settings of one training run. Shares are shares of all epochs, so that shorter runs keep their shape.

    Attributes:
        data: ``cifar10``, ``mnist``, ``mnist-cifar``, ``digits``, or a file or folder in a known layout, within the
            data folder or by its path.
        model: ``vit-tiny``, ``resnet18``, ``mlp``, or ``package.module:callable``.
        regularizer: A name of :func:`effdeg.baselines.names`, or several joined by ``+``.
        seed: Decides the first weights, the order of the examples and everything drawn.
        epochs: How often the training examples are seen.
        batch: Examples per step, over all processes.
        limit: Train on this many examples only.
        held_out: Training examples that are kept aside, and tested on instead of the test set: for tuning.
        optimizer: ``adamw``, or ``sgd`` with momentum.
        lr: The highest learning rate.
        momentum: SGD's momentum.
        weight_decay: The weight decay.
        decay: How the rate falls: along a ``cosine`` to 0, in ``steps`` to a tenth at half and at three quarters of the
            epochs, or not at all (``constant``).
        warm_up: The share of training in which the rate rises linearly.
        warm_up_epochs: The epochs in which it does, however long training is. Replaces the share, which is then 0.
        clip: The highest norm of a gradient.
        augment: What is done to training images: nothing; ``crop`` (from a border of 4 pixels) or ``crop-flip``;
            ``cutmix``: each is joined with a part of another, and its label mixed by area; ``swap-simple-half``: about
            every second image gets another's simple half.
        precision: ``float32``, or ``bf16`` by autocast; a CPU always computes in float32.
        compile: Compile the step, on a GPU.
        weight: The weight of the penalty (λ); by default the regularizer's own.
        ramp: The share of training in which the weight of a penalty, whichever it is, rises along a sine; 0 for a
            constant weight.
        start: The share of training before the penalty begins.
        every: Apply the penalty every ``n`` steps only, with ``n`` times the weight.
        alpha: Mixup's α.
        rho: The radius of SAM and ASAM.
        eta: ASAM's η.
        projections: Random projections of the Jacobian.
        jacobian_share: The share of a batch on which the Jacobian is taken.
        nodes: Nodes on each path (r).
        degree: The highest degree (K).
        pairs: Paths, as a share of the batch (n_p).
        sampling: Where the nodes lie.
        basis: The polynomials.
        anchor_labels: Put the labels at the ends of paths.
        components: Principal components of the outputs; by default all outputs as they are.
        at: The layer at which the paths live; by default the inputs.
        batchnorm: What BatchNorm makes of the points.
        ends: What the paths join. ``data``: two examples. ``random-pixels``: images of noise. ``simple-half``: an
            example and itself with another's simple half, from which a linear function tells the classes. ``cuts``: an
            example and itself with a random part of another, the label mixed by area. ``balanced``: the same by a part
            and by the rest, of which the larger effective degree counts. Only ``data`` and ``cuts`` have labels.
        evaluate_every: Epochs between evaluations.
        measure_every: Epochs between measurements of the effective degree, which are coarser than that at the end
            (100 paths × 64 nodes, degree 40), and between evaluations then; 0 measures at the end alone.
        measure_paths: Paths of the measurement at the end.
        measure_nodes: Nodes on them.
        measure_degree: The highest degree of their fits.
        measure_also: Other numbers of nodes and degrees to measure with along the same pairs, each as ``nodes/degree``:
            how closely does ``4/3`` follow the main measurement?
        proxies: Proxies to evaluate at the end, ``all`` for all of them.
        proxy_examples: Training examples that the proxies see.
    """

    data: str = "cifar10"
    model: str = "vit-tiny"
    regularizer: str = "plain"
    epochs: int = field(default=300, metadata=SCALE)
    batch: int = 256
    limit: int | None = field(default=None, metadata=SCALE)
    held_out: int = 0
    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 0.1
    decay: Literal["cosine", "steps", "constant"] = "cosine"
    warm_up: float = field(default=_WARM_UP, metadata=SCALE)
    warm_up_epochs: float | None = field(default=None, metadata=SCALE)
    clip: float | None = 1.0
    augment: Literal["none", "crop", "crop-flip", "cutmix", "swap-simple-half"] = "crop-flip"
    precision: Literal["float32", "bf16"] = field(default="bf16", metadata=SCALE)
    compile: bool = field(default=True, metadata=SCALE)
    weight: float | None = None
    ramp: float = 1 / 3
    start: float = 0.0
    every: int = 1
    alpha: float = 1.0
    rho: float = 0.05
    eta: float = 0.01
    projections: int = 1
    jacobian_share: float = 1.0
    nodes: int = 4
    degree: int = 3
    pairs: float = 0.5
    sampling: Literal["cosine", "chebyshev", "uniform"] = "cosine"
    basis: Literal["chebyshev", "legendre"] = "chebyshev"
    anchor_labels: bool = True
    components: int | None = None
    at: str | None = None
    batchnorm: Literal["joint", "frozen"] = "joint"
    ends: Literal["data", "random-pixels", "simple-half", "cuts", "balanced"] = "data"
    evaluate_every: int = field(default=10, metadata=SCALE)
    measure_every: int = field(default=0, metadata=SCALE)
    measure_paths: int = field(default=400, metadata=SCALE)
    measure_nodes: int = field(default=200, metadata=SCALE)
    measure_degree: int = field(default=40, metadata=SCALE)
    measure_also: tuple[str, ...] = field(default=(), metadata=SCALE)
    proxies: tuple[str, ...] = field(default=(), metadata=SCALE)
    proxy_examples: int = field(default=2048, metadata=SCALE)

    def check(self) -> None:
        """Raise ``ValueError`` if the values do not fit together; write equal settings in one way."""
        object.__setattr__(self, "regularizer", "+".join(part.strip().lower() for part in self.regularizer.split("+")))
        check_least(self, 1, "epochs", "batch", "limit", "every", "evaluate_every", "proxy_examples", "projections")
        check_least(self, 0, "held_out", "measure_every", "weight_decay", "momentum")
        check_least(self, 2, "measure_paths")
        for name in ("warm_up", "ramp", "start"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)!r} is a share of training: it must lie between 0 and 1.")
        for name in ("pairs", "jacobian_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)!r} is a share of the batch: above 0, at most 1.")
        check_positive(self, "lr", "clip")
        check_fit(self.measure_nodes, self.measure_degree)
        check_names(name for name in self.proxies if name != "all")
        self._check_warm_up()
        self._check_measure_also()

    def _check_warm_up(self) -> None:
        epochs = self.warm_up_epochs
        if epochs is None:
            return
        if not 0 <= epochs <= self.epochs:
            raise ValueError(
                f"warm_up_epochs={epochs:g} must lie between 0 and epochs={self.epochs}, or the rate never reaches "
                f"lr={self.lr:g}: train longer, or set warm_up_epochs lower."
            )
        if self.warm_up not in {0.0, _WARM_UP}:
            raise ValueError(
                f"warm_up={self.warm_up:g} and warm_up_epochs={epochs:g} both say how long the rate rises: set "
                "warm_up=0, or warm_up_epochs=none."
            )
        object.__setattr__(self, "warm_up", 0.0)

    def _check_measure_also(self) -> None:
        also = [parse_nodes_and_degree(each) for each in self.measure_also]
        for nodes, degree in also:
            if degree >= self.measure_nodes:
                raise ValueError(
                    f"measure_also={nodes}/{degree} is compared with a fit of the same degree on measure_nodes="
                    f"{self.measure_nodes}, which determine degree {self.measure_nodes - 1} at most: lower the degree "
                    "or raise measure_nodes."
                )
        object.__setattr__(self, "measure_also", tuple(f"{nodes}/{degree}" for nodes, degree in also))


def parse_nodes_and_degree(text: str) -> tuple[int, int]:
    """Read a number of nodes and a degree that they determine, written as ``4/3``."""
    nodes, _, degree = (part.strip() for part in text.partition("/"))
    if not (nodes.isdecimal() and degree.isdecimal()):
        raise ValueError(f"measure_also={text!r} is not possible: write nodes/degree, such as 4/3.")
    check_fit(int(nodes), int(degree), least_degree=1)
    return int(nodes), int(degree)


def check_least(settings: Settings, least: int, *names: str) -> None:
    """Raise unless each of these settings is None or at least ``least``."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < least:
            raise ValueError(f"{name}={value} is too small: it must be at least {least}.")


def check_positive(settings: Settings, *names: str) -> None:
    """Raise unless each of these settings is None or above 0."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not value > 0:
            raise ValueError(f"{name}={value!r} must be positive.")


def check_fit(nodes: int, degree: int, *, least_degree: int = 0) -> None:
    """Raise unless this many nodes determine a polynomial of this degree."""
    if degree < least_degree:
        raise ValueError(f"degree={degree} is too small: it must be at least {least_degree}.")
    if nodes < degree + 1:
        raise ValueError(
            f"nodes={nodes} cannot determine a polynomial of degree={degree}, which has {degree + 1} coefficients. "
            f"Use nodes={degree + 1} or more, or a lower degree."
        )
