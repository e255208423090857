"""Consistency on examples without labels: of mixed ones (ICT), and of changed copies (Π-model, UDA, FixMatch, …)."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor

from effdeg._adapters.arguments import name_arguments
from effdeg._adapters.examples import as_arguments, count_examples, examples_only
from effdeg._adapters.inference import check_has_values
from effdeg._adapters.outputs import shaped_values
from effdeg._adapters.partners import Change, check_changes, make_copies, name_partners, read_changes
from effdeg._adapters.paths import check_real
from effdeg._utils.checks import check_number
from effdeg._utils.device import is_readable
from effdeg._utils.tree import Tree, has_rows, named_leaves, tensors
from effdeg.baselines._mixup import Mixing, check_mixable
from effdeg.baselines._shared import Call, Configured, check_no_labels, join_batches, run_joined
from effdeg.train._anchors import run_teacher, teacher_values


class _OnUnlabeled(Configured):
    """What runs a model on a batch and on examples made of unlabeled ones, in one forward pass."""

    teacher: Callable[..., Any] | None
    generator: torch.Generator | None

    def forward(
        self,
        model: Callable[..., Any],
        x: Tree,
        y: Tensor | None = None,  # noqa: ARG002
        *,
        unlabeled: Tree,
    ) -> tuple[Any, Tensor]:
        """Run a model on a batch and on examples made of unlabeled ones, and compute what is added to the loss.

        Args:
            model: Any callable. It is called as usual, ``model(x)``, on a larger batch.
            x: The batch with labels: a tensor, a tuple (passed as arguments) or a mapping (passed as keywords).
            y: Ignored: all penalties have the same signature.
            unlabeled: Any number of examples without labels, in the form of ``x``.

        Returns:
            The model's output for ``x``, and the penalty: a scalar.

        Raises:
            TypeError: If the unlabeled examples are not of the form of ``x``, or hold no floating-point tensor to mix.
            ValueError: If labels are among the inputs, a change alters shapes or types, a model does not return one
                row per example, both models do not return the same outputs, or, in the first call with a model, these
                are probabilities already.
        """
        call, others = as_arguments(x), as_arguments(unlabeled)
        check_no_labels(call[1])
        check_no_labels(others[1])
        check_has_values(model)
        if self.teacher is not None:
            check_has_values(self.teacher, "teacher")
        return self._compare(model, call, unlabeled, count_examples(others, "unlabeled"))

    def _compare(self, model: Callable[..., Any], call: Call, unlabeled: Tree, count: int) -> tuple[Any, Tensor]:
        raise NotImplementedError

    def _run(self, model: Callable[..., Any], call: Call, more: Call) -> tuple[Any, Tensor, Tensor]:
        rows, look = count_examples(more), self._is_first_call(model, more)
        outputs, rest = run_joined(model, call, more)
        values = shaped_values(rest, "softmax", points=rows, look=look, whose="student")
        if look:
            self._checked.add(model)
        return outputs, values, shaped_values(rest, "identity", points=rows)

    def _ask_teacher(self, examples: Call, like: Tensor) -> Tensor:
        """Return the teacher's probabilities.

        To be called after the model, with which it may share weights: autocast of older torch keeps those it casts
        without gradients, and would use them for the model.
        """
        assert self.teacher is not None
        look = self._is_first_call(self.teacher, examples)
        returned = run_teacher(self.teacher, *examples)
        values = teacher_values(returned, "softmax", like=like, examples=len(like), look=look)
        if look:
            self._checked.add(self.teacher)
        return values


@dataclass(eq=False, repr=False)
class ICT(_OnUnlabeled):
    """Interpolation consistency training on examples without labels (Verma et al., 2019), to be added to the loss.

    With one λ ~ Beta(α, α) and a permutation π for the unlabeled batch u, it is the mean over examples and
    classes of

        (p(λ u + (1 - λ) u[π]) - λ q(u) - (1 - λ) q(u[π]))²,

    where p and q are the probabilities (softmax over the last dimension) of the model and of its teacher, a moving
    average of the model. The model runs once, on both batches together, and BatchNorm sees one batch. The teacher runs
    on u without gradients, in its current mode. The authors' code mixes the teacher's logits before the softmax.

    The caller owns the teacher and updates it after each step of the optimizer. ``use_buffers=True`` also averages the
    running statistics of BatchNorm, which are used after ``teacher.eval()``.

    Example:
        >>> import torch
        >>> from torch.nn.functional import cross_entropy
        >>> from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
        >>> from effdeg.baselines import ICT
        >>> model = torch.nn.Linear(6, 3)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> teacher = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999), use_buffers=True).eval()
        >>> ict = ICT(teacher, alpha=1.0)
        >>> x, y, unlabeled = torch.rand(8, 6), torch.randint(3, (8,)), torch.rand(20, 6)
        >>> outputs, consistency = ict(model, x, unlabeled=unlabeled)
        >>> loss = cross_entropy(outputs, y) + 10.0 * consistency
        >>> loss.backward()
        >>> optimizer.step()
        >>> teacher.update_parameters(model)
        >>> outputs.shape, consistency.shape
        (torch.Size([8, 3]), torch.Size([]))

    Args:
        teacher: The model whose outputs are the targets. It does not become a part of this module.
        alpha: α, how strongly examples are mixed, as in :func:`mixup`.
        generator: The source of randomness, as in :func:`mixup`.

    Raises:
        TypeError: If the teacher is not a model, or a setting has the wrong type.
        ValueError: If a setting is out of range.
    """

    teacher: Callable[..., Any]
    _: KW_ONLY
    alpha: float = 1.0
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        if not callable(self.teacher):
            raise TypeError(
                f"teacher={self.teacher!r} must be a model, such as torch.optim.swa_utils.AveragedModel(model, "
                "multi_avg_fn=get_ema_multi_avg_fn(0.999))."
            )
        super().__post_init__()

    def _compare(self, model: Callable[..., Any], call: Call, unlabeled: Tree, count: int) -> tuple[Any, Tensor]:
        others = as_arguments(unlabeled)
        named = name_arguments(others[0], model), others[1]  # the name tells how a mask is joined
        check_real(examples_only(named, count), "unlabeled")
        check_mixable(named, count, "unlabeled")
        check_same_form(call, others)
        mixing = Mixing.draw(count, self.alpha, device=tensors(others)[0].device, generator=self.generator)
        arguments, keywords = mixing.mix(named)
        outputs, values, _ = self._run(model, call, (tuple(arguments.values()), keywords))
        return outputs, (values - mixing.mix(self._ask_teacher(others, like=values))).square().mean()


def check_same_form(x: Tree, unlabeled: Tree) -> None:
    """Raise unless examples of two batches can be joined: the same tensors, apart from the number of rows."""
    wanted, given = _describe_form(x, "x"), _describe_form(unlabeled, "unlabeled")
    if wanted != given:
        raise TypeError(
            f"unlabeled examples ({given}) do not have the form of those in x ({wanted}), with which they are run in "
            "one batch. Give both as the model takes them, of the same shape and type."
        )


def _describe_form(batch: Tree, what: str) -> str:
    """Return the name of each leaf, and the shape of an example and the type if it is a tensor."""
    count, form = count_examples(batch, what), []
    for name, leaf in named_leaves(batch):
        shape = leaf.shape[1:] if has_rows(leaf, count) else getattr(leaf, "shape", ())
        form.append(f"{name} {tuple(shape)} {leaf.dtype}" if isinstance(leaf, Tensor) else name)
    return ", ".join(form)


@dataclass(eq=False, repr=False)
class _OnCopies(_OnUnlabeled):
    """What compares unlabeled examples with their changed copies."""

    change: Change | Sequence[Change]

    def __post_init__(self) -> None:
        check_changes(self.change, "here a batch does not say which examples of it are theirs", "change")
        super().__post_init__()

    def _compare(self, model: Callable[..., Any], call: Call, unlabeled: Tree, count: int) -> tuple[Any, Tensor]:
        others = as_arguments(unlabeled)
        check_same_form(call, others)
        first = self._is_first_call(model, others)
        look = first or (tensors(others)[0].is_cpu and is_readable(tensors(others)[0]))
        changes = read_changes(self.change)
        copied = make_copies(unlabeled, changes, count, self.generator, "change", first=first, look=look)
        copies = as_arguments(copied)
        # A teacher takes the model's place on the unchanged examples.
        more = join_batches(others, copies) if self.teacher is None else copies
        outputs, values, logits = self._run(model, call, more)
        return outputs, self._penalize(values, logits, others)

    def _penalize(self, values: Tensor, logits: Tensor, unlabeled: Call) -> Tensor:
        """Return the penalty from probabilities and logits, those of unchanged examples first if they were run."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Show the change."""
        return f"{name_partners(self.change)}"


@dataclass(eq=False, repr=False)
class Consistency(_OnCopies):
    """The squared difference of predictions on an example without a label and on its changed copy, for the loss.

    With p, the probabilities (softmax over the last dimension) of the model, it is the mean over the unlabeled batch u
    and classes of

        (p(change(u)) - q(u))².

    Without a teacher q is p, and gradients flow through both: the Π-model (Laine & Aila, 2017), if u itself is changed
    by the loader of the data. With a ``teacher``, a moving average of the model, q are its probabilities, without
    gradients: Mean Teacher (Tarvainen & Valpola, 2017). The model runs once, as for :class:`ICT`.

    Example:
        >>> import torch
        >>> from torch.nn.functional import cross_entropy
        >>> from effdeg import changes
        >>> from effdeg.baselines import Consistency
        >>> model = torch.nn.Linear(6, 3)
        >>> x, y, unlabeled = torch.rand(8, 6), torch.randint(3, (8,)), torch.rand(20, 6)
        >>> outputs, consistency = Consistency(changes.noise(0.1))(model, x, unlabeled=unlabeled)
        >>> (cross_entropy(outputs, y) + 30.0 * consistency).backward()
        >>> outputs.shape, consistency.shape
        (torch.Size([8, 3]), torch.Size([]))

    Args:
        change: A function of a batch, such as those of :mod:`effdeg.changes`, or several, of which one is drawn for
            each example.
        teacher: The model whose outputs are the targets, as in :class:`ICT`.
        generator: The source of randomness for changes of :mod:`effdeg.changes`; by default torch's global one.

    Raises:
        TypeError: If a change or the teacher is not a function, or the generator none of torch's.
    """

    _: KW_ONLY
    teacher: Callable[..., Any] | None = None
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        if self.teacher is not None and not callable(self.teacher):
            raise TypeError(f"the teacher is a {type(self.teacher).__name__}, which cannot be called.")
        super().__post_init__()

    def _penalize(self, values: Tensor, logits: Tensor, unlabeled: Call) -> Tensor:  # noqa: ARG002
        if self.teacher is None:
            targets, values = values.chunk(2)
        else:
            targets = self._ask_teacher(unlabeled, like=values)
        return (values - targets).square().mean()


class _PseudoLabels(_OnCopies):
    """The cross-entropy of copies with targets from predictions on the unchanged examples, where these are certain."""

    teacher = None
    threshold: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if check_number("threshold", self.threshold, "0.95 uses predictions of that probability", zero=True) >= 1:
            raise ValueError(f"threshold={self.threshold:g} must be below 1: no prediction would be used.")

    def _penalize(self, values: Tensor, logits: Tensor, unlabeled: Call) -> Tensor:  # noqa: ARG002
        certain = values.detach().chunk(2)[0].amax(-1) > self.threshold
        own, copies = logits.chunk(2)
        return (certain * self._weigh(own.detach(), copies)).mean()

    def _weigh(self, own: Tensor, copies: Tensor) -> Tensor:
        """Return the loss of each copy, from logits."""
        raise NotImplementedError


@dataclass(eq=False, repr=False)
class UDA(_PseudoLabels):
    """Unsupervised data augmentation (Xie et al., 2020): the divergence from a sharpened prediction, for the loss.

    With z, the logits of the model, it is the mean over the unlabeled batch u of

        KL(softmax(z(u) / T) ‖ softmax(z(change(u))))    if max softmax(z(u)) > threshold, else 0.

    Gradients flow through the copies alone. The model runs once, as for :class:`ICT`. The authors also leave out
    labeled examples that are learned already early in training, which this does not.

    Example:
        >>> import torch
        >>> from effdeg import changes
        >>> from effdeg.baselines import UDA
        >>> model, x, unlabeled = torch.nn.Linear(6, 3), torch.rand(8, 6), torch.rand(20, 6)
        >>> outputs, divergence = UDA(changes.noise(0.5))(model, x, unlabeled=unlabeled)
        >>> outputs.shape, divergence.shape
        (torch.Size([8, 3]), torch.Size([]))

    Args:
        change: A strong change, or several, as for :class:`Consistency`.
        temperature: T, below 1 to sharpen predictions; the authors' for CIFAR-10.
        threshold: The probability above which a prediction is used; the authors' for CIFAR-10.
        generator: The source of randomness, as for :class:`Consistency`.

    Raises:
        TypeError: If a change is not a function, or a setting has the wrong type.
        ValueError: If a setting is out of range.
    """

    _: KW_ONLY
    temperature: float = 0.4
    threshold: float = 0.8
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("temperature", self.temperature, "0.4 sharpens predictions")

    def _weigh(self, own: Tensor, copies: Tensor) -> Tensor:
        targets = (own / self.temperature).log_softmax(-1)
        weights, differences = targets.exp(), targets - copies.log_softmax(-1)
        return (weights * differences.where(weights > 0, 0.0)).sum(-1)  # 0 for a class that is masked with -inf


@dataclass(eq=False, repr=False)
class FixMatch(_PseudoLabels):
    """FixMatch (Sohn et al., 2020): certain predictions are the labels of strongly changed copies, for the loss.

    With p, the probabilities of the model, it is the mean over the unlabeled batch u, which the loader of the data may
    have changed weakly, of

        -log p(change(u))[argmax p(u)]    if max p(u) > threshold, else 0.

    Gradients flow through the copies alone. The model runs once, as for :class:`ICT`.

    Example:
        >>> import torch
        >>> from effdeg import changes
        >>> from effdeg.baselines import FixMatch
        >>> model, x, unlabeled = torch.nn.Linear(6, 3), torch.rand(8, 6), torch.rand(20, 6)
        >>> outputs, loss = FixMatch(changes.noise(0.5))(model, x, unlabeled=unlabeled)
        >>> outputs.shape, loss.shape
        (torch.Size([8, 3]), torch.Size([]))

    Args:
        change: A strong change, or several, as for :class:`Consistency`.
        threshold: The probability above which a prediction is used.
        generator: The source of randomness, as for :class:`Consistency`.

    Errors are those of :class:`UDA`.
    """

    _: KW_ONLY
    threshold: float = 0.95
    generator: torch.Generator | None = None

    def _weigh(self, own: Tensor, copies: Tensor) -> Tensor:
        return -copies.log_softmax(-1).gather(-1, own.argmax(-1, keepdim=True))[..., 0]
