"""The settings of a classifier's training, whatever the data, the model and the regularizer."""

from dataclasses import dataclass
from typing import Literal

from effdeg.proxies import check_names
from effdeg_lab.settings import Settings, check_fit, setting

# The paper's 10 of 300 epochs.
_WARM_UP = 1 / 30


@dataclass(frozen=True)
class Training(Settings):
    """The settings of one training run. Shares are shares of all epochs, so that shorter runs keep their shape.

    Attributes:
        data: ``cifar10``, ``mnist``, ``mnist-cifar``, ``digits``, or a file or folder in a known layout.
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
        ramp: The share of training in which the weight of a penalty rises along a sine; 0 for a constant weight.
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
    epochs: int = setting(300, scale=True, least=1)
    batch: int = setting(256, least=1)
    limit: int | None = setting(None, scale=True, least=1)
    held_out: int = setting(0, least=0)
    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: float = setting(1e-3, above=0)
    momentum: float = setting(0.9, least=0)
    weight_decay: float = setting(0.1, least=0)
    decay: Literal["cosine", "steps", "constant"] = "cosine"
    warm_up: float = setting(_WARM_UP, scale=True, least=0, most=1)
    warm_up_epochs: float | None = setting(None, scale=True, least=0)
    clip: float | None = setting(1.0, above=0)
    augment: Literal["none", "crop", "crop-flip", "cutmix", "swap-simple-half"] = "crop-flip"
    precision: Literal["float32", "bf16"] = setting("bf16", scale=True, named=False)
    compile: bool = setting(True, scale=True, named=False)
    weight: float | None = None
    ramp: float = setting(1 / 3, least=0, most=1)
    start: float = setting(0.0, least=0, most=1)
    every: int = setting(1, least=1)
    alpha: float = 1.0
    rho: float = 0.05
    eta: float = 0.01
    projections: int = setting(1, least=1)
    jacobian_share: float = setting(1.0, above=0, most=1)
    nodes: int = 4
    degree: int = 3
    pairs: float = setting(0.5, above=0, most=1)
    sampling: Literal["cosine", "chebyshev", "uniform"] = "cosine"
    basis: Literal["chebyshev", "legendre"] = "chebyshev"
    anchor_labels: bool = True
    components: int | None = None
    at: str | None = None
    batchnorm: Literal["joint", "frozen"] = "joint"
    ends: Literal["data", "random-pixels", "simple-half", "cuts", "balanced"] = "data"
    evaluate_every: int = setting(10, scale=True, named=False, least=1)
    measure_every: int = setting(0, scale=True, named=False, least=0)
    measure_paths: int = setting(400, scale=True, named=False, least=2)
    measure_nodes: int = setting(200, scale=True, named=False)
    measure_degree: int = setting(40, scale=True, named=False)
    measure_also: tuple[str, ...] = setting((), scale=True, named=False)
    proxies: tuple[str, ...] = setting((), scale=True, named=False)
    proxy_examples: int = setting(2048, scale=True, named=False, least=1)

    def check(self) -> None:
        """Raise ``ValueError`` if the values do not fit together; write equal settings in one way."""
        object.__setattr__(self, "regularizer", "+".join(part.strip().lower() for part in self.regularizer.split("+")))
        check_fit(self.measure_nodes, self.measure_degree)
        check_names(name for name in self.proxies if name != "all")
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

    def _check_warm_up(self) -> None:
        epochs = self.warm_up_epochs
        if epochs is None:
            return
        if epochs > self.epochs:
            raise ValueError(
                f"warm_up_epochs={epochs:g} is more than epochs={self.epochs}: the rate would not reach lr."
            )
        if self.warm_up not in {0.0, _WARM_UP}:
            raise ValueError(
                f"warm_up={self.warm_up:g} and warm_up_epochs={epochs:g} exclude each other: set warm_up=0."
            )
        object.__setattr__(self, "warm_up", 0.0)


def parse_nodes_and_degree(text: str) -> tuple[int, int]:
    """Read a number of nodes and a degree, written as ``4/3``."""
    nodes, _, degree = (part.strip() for part in text.partition("/"))
    if not (nodes.isdecimal() and degree.isdecimal()):
        raise ValueError(f"measure_also={text!r} is not possible: write nodes/degree, such as 4/3.")
    return int(nodes), int(degree)
