"""Interpolation consistency: between unlabeled examples, a model should follow the straight line of its teacher."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from effdeg._adapters.arguments import name_arguments
from effdeg._adapters.checked import CheckedModels
from effdeg._adapters.examples import as_arguments, count_examples
from effdeg._adapters.inference import check_has_values
from effdeg._adapters.outputs import shaped_values
from effdeg._utils.checks import check_generator
from effdeg._utils.device import is_readable
from effdeg._utils.tree import Tree, has_rows, named_leaves, tensors
from effdeg.baselines._mixup import Mixing, check_alpha, check_mixable, check_no_labels
from effdeg.baselines._regmixup import run_joined
from effdeg.train._anchors import run_teacher, teacher_values


class ICT(nn.Module):
    """Interpolation consistency training on examples without labels (Verma et al., 2019), to be added to the loss.

    With one λ ~ Beta(α, α) and a permutation π for the unlabeled batch u, the penalty is the mean over examples and
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

    def __init__(
        self, teacher: Callable[..., Any], *, alpha: float = 1.0, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        if not callable(teacher):
            raise TypeError(
                f"teacher={teacher!r} must be a model, such as torch.optim.swa_utils.AveragedModel(model, "
                "multi_avg_fn=get_ema_multi_avg_fn(0.999))."
            )
        check_alpha(alpha)
        check_generator(generator)
        self.alpha, self.generator = alpha, generator
        self._checked = CheckedModels()
        # Past nn.Module, so that the teacher does not become a submodule of this one.
        self.__dict__["teacher"] = teacher

    def forward(
        self,
        model: Callable[..., Any],
        x: Tree,
        y: Tensor | None = None,  # noqa: ARG002
        *,
        unlabeled: Tree,
    ) -> tuple[Any, Tensor]:
        """Run a model on a batch and between unlabeled examples, and compare it with its teacher there.

        Args:
            model: Any callable. It is called as usual, ``model(x)``, with both batches joined.
            x: The batch with labels: a tensor, a tuple (passed as arguments) or a mapping (passed as keywords).
            y: Ignored: all penalties have the same signature.
            unlabeled: Any number of examples without labels, in the form of ``x``.

        Returns:
            The model's output for ``x``, and the penalty: a scalar.

        Raises:
            TypeError: If the unlabeled examples hold no floating-point tensor to mix, or are not of the form of ``x``.
            ValueError: If labels are among the inputs, a model does not return one row per example, both do not return
                the same outputs, or, in the first call with a model, these are probabilities already.
        """
        call, others = as_arguments(x), as_arguments(unlabeled)
        check_no_labels(call[1])
        check_no_labels(others[1])
        check_has_values(model)
        check_has_values(self.teacher, "teacher")
        count = count_examples(others, "unlabeled")
        named = name_arguments(others[0], model), others[1]  # the name tells how a mask is joined
        check_mixable(named, count, "unlabeled")
        check_same_form(call, others)
        mixing = Mixing.draw(count, self.alpha, device=tensors(others)[0].device, generator=self.generator)
        arguments, keywords = mixing.mix(named)
        outputs, between = run_joined(model, call, (tuple(arguments.values()), keywords))
        # After the model, with which it may share weights: autocast of older torch keeps those it casts without
        # gradients, and would use them for the model.
        returned = run_teacher(self.teacher, *others)
        look, look_at_teacher = (
            is_readable(mixing.partners) and each not in self._checked for each in (model, self.teacher)
        )
        values = shaped_values(between, "softmax", points=count, look=look, whose="student")
        ends = teacher_values(returned, "softmax", like=values, examples=count, look=look_at_teacher)
        for each, looked in ((model, look), (self.teacher, look_at_teacher)):
            if looked:
                self._checked.add(each)
        return outputs, (values - mixing.mix(ends)).square().mean()

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"alpha={self.alpha}"


def check_same_form(x: Tree, unlabeled: Tree) -> None:
    """Raise unless examples of two batches can be joined: the same tensors, apart from the number of rows."""
    one, other = _find_form(x, "x"), _find_form(unlabeled, "unlabeled")
    if one != other:
        shown, wanted = (", ".join(" ".join(map(str, leaf)) for leaf in form) for form in (other, one))
        raise TypeError(
            f"unlabeled examples ({shown}) do not have the form of those in x ({wanted}), with which they are run in "
            "one batch. Give both as the model takes them, of the same shape and type."
        )


def _find_form(batch: Tree, what: str) -> list[tuple[Any, ...]]:
    """Return the name of each leaf, and the shape of an example and the type if it is a tensor."""
    count = count_examples(batch, what)
    form: list[tuple[Any, ...]] = []
    for name, leaf in named_leaves(batch):
        shape = leaf.shape[1:] if has_rows(leaf, count) else getattr(leaf, "shape", ())
        form.append((name, tuple(shape), leaf.dtype) if isinstance(leaf, Tensor) else (name,))
    return form
