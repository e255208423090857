"""PyTorch Lightning: the penalty as a callback for an ordinary LightningModule, and one that tracks the degree."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import wraps
from typing import Any

from torch import Tensor, nn

from effdeg._adapters.examples import LABELS
from effdeg._adapters.layers import find_layer
from effdeg._utils.checks import check_count
from effdeg._utils.imports import describe_install
from effdeg._utils.tree import Tree
from effdeg.integrations._calls import check_parts, get_only, join_calls, replace_attribute, weight_at
from effdeg.measuring import measure
from effdeg.measuring._estimator import check_measurable
from effdeg.train._penalty import Penalty
from effdeg.train._schedules import Schedule, as_schedule

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    try:
        from pytorch_lightning import Callback, LightningModule, Trainer
    except ImportError as error:  # pragma: no cover
        raise ImportError(f"this needs Lightning: {describe_install('lightning')}") from error


class PenaltyCallback(Callback):  # type: ignore[misc]
    """Add the penalty to the loss that ``training_step`` returns; the module needs no change.

    The model's forward pass within ``training_step`` is joined with that of the points. The penalty and its weight are
    logged as ``effective_degree_penalty`` and ``effective_degree_weight``.

    The examples must reach the model in the order of the batch, or the labels at the ends of a path are not those of
    its examples: a ``training_step`` that permutes or mixes them needs :class:`effdeg.Penalty` in the step itself.
    Examples that are permuted and not changed are refused; if they are changed, a warning says that their order is not
    known. Lightning's checkpoints do not contain torch's random state, so a resumed run draws other paths.

    Args:
        penalty: The penalty.
        weight: Its weight: a number, a schedule, or any function of the step (``trainer.global_step``).
        model: The name of the module that ``training_step`` calls, if it is not the LightningModule itself.
        labels: Finds the labels in a batch; by default the second entry of two, or the entry of a mapping that is named
            like labels. Only used if the penalty anchors labels.
        unlabeled: Finds examples without labels in a batch, such as one of a ``CombinedLoader``, in the form in which
            the model is given its examples.
        teacher: The ``teacher`` in calls of the penalty, on the module's device. Lightning moves and saves it if it is
            a part of the module, with ``requires_grad_(False)``. An average of the model is updated in
            ``on_train_batch_end``.

    Raises:
        TypeError: If ``penalty`` is no :class:`effdeg.Penalty`, the weight is neither a number nor a function, or
            ``labels``, ``unlabeled`` or ``teacher`` cannot be called.
        ValueError: If the weight is negative or not finite; when the fit starts, if the module uses manual
            optimization, there is a second penalty, or there is no module ``model``; in the first step, if
            no labels are found or a batch does not suit the penalty; in any step on a CPU, and in the first on a GPU,
            if examples reach the model in another order.
        RuntimeError: In the first step, if the model is not called exactly once.

    Example:
        >>> import effdeg
        >>> from lightning.pytorch import Trainer
        >>> from effdeg.integrations.lightning import PenaltyCallback
        >>> callback = PenaltyCallback(effdeg.Penalty.efficient(), weight=effdeg.SineRamp(7.0, steps=1000))
        >>> trainer = Trainer(callbacks=[callback], accelerator="cpu", logger=False, enable_checkpointing=False)
        >>> round(callback.weight(500), 2)
        4.95
    """

    def __init__(
        self,
        penalty: Penalty,
        weight: float | Schedule,
        *,
        model: str | None = None,
        labels: Callable[[Any], Tensor] | None = None,
        unlabeled: Callable[[Any], Tree] | None = None,
        teacher: Callable[..., Any] | None = None,
    ) -> None:
        check_parts(penalty, labels=labels, unlabeled=unlabeled, teacher=teacher)
        self.penalty, self.weight = penalty, as_schedule(weight)
        self.model, self.labels = model, labels or _find_labels
        self.unlabeled, self.teacher = unlabeled, teacher
        self._replaced = ExitStack()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Wrap the training step."""
        if not pl_module.automatic_optimization:
            raise ValueError(
                "PenaltyCallback adds to the loss that training_step returns, but this module uses manual "
                "optimization. Use effdeg.Penalty in training_step itself."
            )
        penalties = sum(isinstance(callback, PenaltyCallback) for callback in trainer.callbacks)
        if penalties > 1:
            # Each would also run the other's points, as if they were examples.
            raise ValueError(
                f"the trainer has {penalties} PenaltyCallbacks, but only one is allowed: they would put paths between "
                "each other's points. Keep one of them, or use effdeg.Penalty in training_step itself."
            )
        self._replaced.close()  # in case an earlier fit never ended
        model = _find_part(pl_module, self.model)
        step = pl_module.training_step

        @wraps(step)  # Lightning looks at the signature for what to pass
        def training_step(batch: Any, *rest: Any, **keywords: Any) -> Any:
            labels = self.labels(batch) if self.penalty.settings.anchor == "labels" else None
            unlabeled = None if self.unlabeled is None else self.unlabeled(batch)
            given: dict[str, Any] = {"batch": batch, "unlabeled": unlabeled, "teacher": self.teacher}
            with join_calls(model, self.penalty, labels, **given) as degrees:
                result = step(batch, *rest, **keywords)
            if result is None:  # Lightning skips this step
                return None
            degree = get_only(degrees, f"the module {self.model!r}" if self.model else "the LightningModule")
            loss = result.get("loss") if isinstance(result, Mapping) else result
            if not isinstance(loss, Tensor) or not loss.requires_grad:
                return result  # for Lightning to refuse: with the penalty added, it could not tell
            weight = weight_at(self.weight, trainer.global_step)
            logged = {"effective_degree_penalty": degree.detach(), "effective_degree_weight": float(weight)}
            pl_module.log_dict(logged, batch_size=1)
            total = loss + weight * degree
            return {**result, "loss": total} if isinstance(result, Mapping) else total

        self._replaced.enter_context(replace_attribute(pl_module, "training_step", training_step))

    def on_fit_end(self, *_: Any) -> None:
        """Restore the module's own training step."""
        self._replaced.close()

    on_exception = on_fit_end


class MeasureCallback(Callback):  # type: ignore[misc]
    """Measure the effective degree every few epochs and log it as ``effective_degree``, with its standard error.

    Args:
        inputs: The examples to measure on, as :func:`effdeg.measure` takes them; no labels are needed.
        every_n_epochs: The number of epochs from one measurement to the next.
        model: The name of the module to measure, if it is not the LightningModule itself.
        **settings: Settings for :func:`effdeg.measure`.

    Raises:
        TypeError: If there is no such setting, or as :func:`effdeg.measure` does for its settings and inputs.
        ValueError: If ``every_n_epochs`` is not positive, or as :func:`effdeg.measure` does; when the fit starts, if
            there is no module ``model`` or no layer ``at``.

    Example:
        >>> import torch
        >>> from lightning.pytorch import Trainer
        >>> from effdeg.integrations.lightning import MeasureCallback
        >>> callback = MeasureCallback(torch.randn(100, 8), every_n_epochs=5, paths=50)
        >>> trainer = Trainer(callbacks=[callback], accelerator="cpu", logger=False, enable_checkpointing=False)
        >>> callback.settings
        {'paths': 50}
    """

    def __init__(self, inputs: Any, *, every_n_epochs: int = 1, model: str | None = None, **settings: Any) -> None:
        self.every_n_epochs = check_count("every_n_epochs", every_n_epochs, least=1)
        self.inputs, self.model, self.settings = check_measurable(inputs, settings), model, settings

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Look for the model and the layer, before an epoch is spent."""
        model = _find_part(pl_module, self.model)
        if self.settings.get("at") is not None:
            find_layer(model, self.settings["at"])

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure, if it is time."""
        if (trainer.current_epoch + 1) % self.every_n_epochs == 0:
            measured = measure(_find_part(pl_module, self.model), self.inputs, **self.settings)
            pl_module.log("effective_degree", measured.value, prog_bar=True)
            pl_module.log("effective_degree_stderr", measured.stderr)


def _find_part(module: LightningModule, name: str | None) -> nn.Module:
    part: nn.Module = module if name is None else find_layer(module, name, "model")[1]
    return part


def _find_labels(batch: Any) -> Any:
    kind, where = type(batch).__name__, "Say where they are: PenaltyCallback(…, labels=lambda batch: …)."
    if isinstance(batch, (tuple, list)) and len(batch) > 2:
        raise ValueError(f"the batch is a {kind} of {len(batch)} entries, any of which may be the labels. {where}")
    if isinstance(batch, (tuple, list)) and len(batch) > 1 and isinstance(batch[1], Tensor):
        return batch[1]
    names = [name for name in batch if name in LABELS] if isinstance(batch, Mapping) else []
    if len(names) != 1:
        raise ValueError(f"no labels were found in a batch that is a {kind}. {where}")
    return batch[names[0]]
