"""Consistency of an example without a label and its changed copy: the Π-model, Mean Teacher, UDA and FixMatch."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from effdeg._adapters.checked import CheckedModels
from effdeg._adapters.examples import as_arguments, count_examples
from effdeg._adapters.inference import check_has_values
from effdeg._adapters.outputs import shaped_values
from effdeg._adapters.partners import check_changes, name_partners, read_changes
from effdeg._utils.checks import check_generator, check_number
from effdeg._utils.device import is_readable
from effdeg._utils.tree import Tree, tensors
from effdeg.baselines._ict import check_same_form
from effdeg.baselines._mixup import check_no_labels
from effdeg.baselines._regmixup import join_batches, run_joined
from effdeg.train._anchors import run_teacher, teacher_values
from effdeg.train._copies import Change, make_copies


class _OnCopies(nn.Module):
    """What runs a model on a batch, on unlabeled examples and on their changed copies, in one forward pass."""

    teacher: Callable[..., Any] | None = None  # in whose place the model runs on the unchanged examples, too

    def __init__(self, change: Change | Sequence[Change], generator: torch.Generator | None) -> None:
        super().__init__()
        check_changes(change, "here a batch does not say which examples of it are theirs", "change")
        check_generator(generator)
        self.generator = generator
        self._change, self._checked = change, CheckedModels()

    def forward(
        self,
        model: Callable[..., Any],
        x: Tree,
        y: Tensor | None = None,  # noqa: ARG002
        *,
        unlabeled: Tree,
    ) -> tuple[Any, Tensor]:
        """Run a model on a batch and on changed copies of unlabeled examples, and compare the predictions.

        Args:
            model: Any callable. It is called as usual, ``model(x)``, on a larger batch.
            x: The batch with labels: a tensor, a tuple (passed as arguments) or a mapping (passed as keywords).
            y: Ignored: all penalties have the same signature.
            unlabeled: Any number of examples without labels, in the form of ``x``.

        Returns:
            The model's output for ``x``, and the penalty: a scalar.

        Raises:
            TypeError: If the unlabeled examples are not of the form of ``x``.
            ValueError: If labels are among the inputs, the change alters shapes or types, a model does not return one
                row per example, or, in the first call with a model, these are probabilities already.
        """
        outputs, values, logits = self._run(model, x, unlabeled, unchanged=self.teacher is None)
        return outputs, self._penalize(values, logits, unlabeled)

    def _penalize(self, values: Tensor, logits: Tensor, unlabeled: Tree) -> Tensor:
        """Return the penalty from probabilities and logits, those of unchanged examples first if they were run."""
        raise NotImplementedError

    def _run(
        self, model: Callable[..., Any], x: Tree, unlabeled: Tree, *, unchanged: bool
    ) -> tuple[Any, Tensor, Tensor]:
        """Return the outputs for ``x``, and the probabilities and logits on unlabeled examples and their copies.

        The rows of the ``unchanged`` examples come first, if these are run.
        """
        call, others = as_arguments(x), as_arguments(unlabeled)
        check_no_labels(call[1])
        check_no_labels(others[1])
        check_has_values(model)
        check_same_form(call, others)
        count = count_examples(others, "unlabeled")
        first = self._may_look(model, others)
        look = first or (tensors(others)[0].is_cpu and is_readable(tensors(others)[0]))
        changes = read_changes(self._change)
        copied = make_copies(unlabeled, changes, count, self.generator, "change", first=first, look=look)
        copies = as_arguments(copied)
        outputs, rest = run_joined(model, call, join_batches(others, copies) if unchanged else copies)
        rows = count * (1 + unchanged)
        values = shaped_values(rest, "softmax", points=rows, look=first, whose="student")
        if first:
            self._checked.add(model)
        return outputs, values, shaped_values(rest, "identity", points=rows)

    def _may_look(self, model: object, examples: Tree) -> bool:
        return is_readable(tensors(examples)[0]) and model not in self._checked

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"{name_partners(self._change)}"


class Consistency(_OnCopies):
    """The squared difference of predictions on an example without a label and on its changed copy, for the loss.

    With p, the probabilities (softmax over the last dimension) of the model, it is the mean over the unlabeled batch u
    and classes of

        (p(change(u)) - q(u))².

    Without a teacher q is p, and gradients flow through both: the Π-model (Laine & Aila, 2017), if u itself is changed
    by the loader of the data. With a ``teacher``, a moving average of the model, q are its probabilities, without
    gradients: Mean Teacher (Tarvainen & Valpola, 2017). The model runs once, on all examples together, and BatchNorm
    sees one batch.

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

    def __init__(
        self,
        change: Change | Sequence[Change],
        *,
        teacher: Callable[..., Any] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(change, generator)
        if teacher is not None and not callable(teacher):
            raise TypeError(f"the teacher is a {type(teacher).__name__}, which cannot be called.")
        # Past nn.Module, so that the teacher does not become a submodule of this one.
        self.__dict__["teacher"] = teacher

    def _penalize(self, values: Tensor, logits: Tensor, unlabeled: Tree) -> Tensor:  # noqa: ARG002
        if self.teacher is None:
            targets, values = values.chunk(2)
        else:
            check_has_values(self.teacher, "teacher")
            others = as_arguments(unlabeled)
            look = self._may_look(self.teacher, others)
            # After the model, with which it may share weights: autocast of older torch keeps those it casts without
            # gradients, and would use them for the model.
            returned = run_teacher(self.teacher, *others)
            targets = teacher_values(returned, "softmax", like=values, examples=len(values), look=look)
            if look:
                self._checked.add(self.teacher)
        return (values - targets).square().mean()


class _PseudoLabels(_OnCopies):
    """The cross-entropy of copies with targets from predictions on the unchanged examples, where these are certain."""

    def __init__(self, change: Change | Sequence[Change], threshold: float, generator: torch.Generator | None) -> None:
        super().__init__(change, generator)
        self.threshold = check_number("threshold", threshold, "0.95 uses predictions of that probability", zero=True)
        if threshold >= 1:
            raise ValueError(f"threshold={threshold:g} must be below 1: no prediction would be used.")

    def _penalize(self, values: Tensor, logits: Tensor, unlabeled: Tree) -> Tensor:  # noqa: ARG002
        certain = values.detach().chunk(2)[0].amax(-1) > self.threshold
        own, copies = logits.chunk(2)
        return (certain * self._compare(own.detach(), copies)).mean()

    def _compare(self, own: Tensor, copies: Tensor) -> Tensor:
        """Return the loss of each copy, from logits."""
        raise NotImplementedError


class UDA(_PseudoLabels):
    """Unsupervised data augmentation (Xie et al., 2020): the divergence from a sharpened prediction, for the loss.

    With z, the logits of the model, it is the mean over the unlabeled batch u of

        KL(softmax(z(u) / T) ‖ softmax(z(change(u))))    if max softmax(z(u)) > threshold, else 0.

    Gradients flow through the copies alone. The model runs once, on all examples together, and BatchNorm sees one
    batch. The authors also leave out labeled examples that are learned already early in training, which this does not.

    Example:
        >>> import torch
        >>> from effdeg import changes
        >>> from effdeg.baselines import UDA
        >>> model, x, unlabeled = torch.nn.Linear(6, 3), torch.rand(8, 6), torch.rand(20, 6)
        >>> outputs, divergence = UDA(changes.noise(0.5))(model, x, unlabeled=unlabeled)
        >>> outputs.shape, divergence.shape
        (torch.Size([8, 3]), torch.Size([]))

    Args:
        change: A strong change: a function of a batch, or several, of which one is drawn for each example.
        temperature: T, below 1 to sharpen predictions; the authors' for CIFAR-10.
        threshold: The probability above which a prediction is used; the authors' for CIFAR-10.
        generator: The source of randomness for changes of :mod:`effdeg.changes`; by default torch's global one.

    Raises:
        TypeError: If a change is not a function, or a setting has the wrong type.
        ValueError: If a setting is out of range.
    """

    def __init__(
        self,
        change: Change | Sequence[Change],
        *,
        temperature: float = 0.4,
        threshold: float = 0.8,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(change, threshold, generator)
        self.temperature = check_number("temperature", temperature, "0.4 sharpens predictions")

    def _compare(self, own: Tensor, copies: Tensor) -> Tensor:
        targets = (own / self.temperature).log_softmax(-1)
        return (targets.exp() * (targets - copies.log_softmax(-1))).sum(-1)


class FixMatch(_PseudoLabels):
    """FixMatch (Sohn et al., 2020): certain predictions are the labels of strongly changed copies, for the loss.

    With p, the probabilities of the model, it is the mean over the unlabeled batch u, which the loader of the data may
    have changed weakly, of

        -log p(change(u))[argmax p(u)]    if max p(u) > threshold, else 0.

    Gradients flow through the copies alone. The model runs once, on all examples together, and BatchNorm sees one
    batch.

    Example:
        >>> import torch
        >>> from effdeg import changes
        >>> from effdeg.baselines import FixMatch
        >>> model, x, unlabeled = torch.nn.Linear(6, 3), torch.rand(8, 6), torch.rand(20, 6)
        >>> outputs, loss = FixMatch(changes.noise(0.5))(model, x, unlabeled=unlabeled)
        >>> outputs.shape, loss.shape
        (torch.Size([8, 3]), torch.Size([]))

    Args:
        change: A strong change: a function of a batch, or several, of which one is drawn for each example.
        threshold: The probability above which a prediction is used.
        generator: The source of randomness for changes of :mod:`effdeg.changes`; by default torch's global one.

    Raises:
        TypeError: If a change is not a function, or a setting has the wrong type.
        ValueError: If a setting is out of range.
    """

    def __init__(
        self,
        change: Change | Sequence[Change],
        *,
        threshold: float = 0.95,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(change, threshold, generator)

    def _compare(self, own: Tensor, copies: Tensor) -> Tensor:
        return -copies.log_softmax(-1).gather(-1, own.argmax(-1, keepdim=True))[..., 0]
