"""Hugging Face: a ``Trainer`` with the penalty, and a callback that tracks the effective degree.

::

trainer = PenaltyTrainer(model, arguments, train_dataset=data, penalty=penalty, penalty_weight=0.5)
trainer.add_callback(MeasureCallback(trainer, tokens, at="bert.embeddings"))
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

import effdeg
from effdeg.integrations._calls import joined_calls, only
from effdeg.penalty import Penalty
from effdeg.schedules import Schedule, as_schedule

try:
    from transformers import Trainer, TrainerCallback
except ImportError as error:  # pragma: no cover
    raise ImportError("this needs transformers: pip install 'effdeg[huggingface]'") from error


class PenaltyTrainer(Trainer):  # type: ignore[misc]
    """A ``Trainer`` that adds the penalty to the loss.

    The reported ``loss`` stays the task's own, so that runs with and without the penalty can be compared; the penalty
    and its weight are logged beside it as ``effective_degree_penalty`` and ``effective_degree_weight``. Under gradient
    accumulation the penalty is the mean over the accumulated batches, however the task's loss is counted.

    Args:
        *arguments: As for ``Trainer``.
        penalty: The penalty. For token ids let its paths live at the embeddings, ``at="bert.embeddings"``.
        penalty_weight: Its weight: a number, a schedule, or any function of the step (``state.global_step``).
        **options: As for ``Trainer``.
    """

    def __init__(self, *arguments: Any, penalty: Penalty, penalty_weight: float | Schedule, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if "Classification" in type(self.accelerator.unwrap_model(self.model)).__name__:
            # transformers 5 takes these models' loss, a mean over the batch, for a share of all accumulated items, and
            # adds up what it should average: their loss would grow with accumulation, against the penalty's.
            self.model_accepts_loss_kwargs = False
        self.penalty, self.penalty_weight = penalty, as_schedule(penalty_weight)
        self._degree: Tensor | None = None
        self._seen: list[Tensor] = []

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, **rest: Any) -> Any:
        """Compute the task's loss; in training, run the points of paths along."""
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs=return_outputs, **rest)
        labels = inputs.get("labels")
        with joined_calls(model, self.penalty, labels) as degrees:
            if isinstance(labels, Tensor) and labels.is_floating_point() and self.compute_loss_func is None:
                outputs = model(**{name: given for name, given in inputs.items() if name != "labels"})
                loss = _loss_of_floats(outputs.logits, labels, self.accelerator.unwrap_model(model).config)
            else:
                loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **rest)
        self._degree = only(degrees, "the model")
        return (loss, outputs) if return_outputs else loss

    def training_step(self, *arguments: Any, **keywords: Any) -> Any:
        """Run a step whose backward pass takes in the penalty."""
        backward = self.accelerator.backward

        def with_penalty(loss: Tensor, **options: Any) -> None:
            # Whether the task's loss is a mean or a share of all accumulated items differs by model and by version of
            # transformers. Here, at the last moment, it is what it is, and the penalty is a mean.
            batches = getattr(self, "current_gradient_accumulation_steps", self.args.gradient_accumulation_steps)
            backward(loss + self._take_penalty() / batches, **options)

        self.accelerator.backward = with_penalty
        try:
            return super().training_step(*arguments, **keywords)
        finally:
            del self.accelerator.backward

    def log(self, logs: dict[str, float], *arguments: Any, **keywords: Any) -> None:
        """Log the penalty beside the loss."""
        if self._seen and "loss" in logs:
            logs = {
                **logs,
                "effective_degree_penalty": float(torch.stack(self._seen).mean()),
                "effective_degree_weight": float(self.penalty_weight(max(self.state.global_step - 1, 0))),
            }
            self._seen.clear()
        super().log(logs, *arguments, **keywords)

    def _take_penalty(self) -> Tensor:
        degree, self._degree = self._degree, None
        if degree is None:
            raise RuntimeError("compute_loss was overridden without calling PenaltyTrainer's, which makes the penalty.")
        self._seen.append(degree.detach())
        weighted: Tensor = self.penalty_weight(self.state.global_step) * degree
        return weighted


class MeasureCallback(TrainerCallback):  # type: ignore[misc]
    """Measures the effective degree every few epochs and logs it as ``effective_degree``, with its standard error.

    Args:
        trainer: The trainer through which to log.
        inputs: The examples to measure on, as :func:`effdeg.measure` takes them; no labels are needed.
        every_n_epochs: How often.
        **settings: Settings for :func:`effdeg.measure`, such as ``at="bert.embeddings"``.
    """

    def __init__(self, trainer: Trainer, inputs: Any, *, every_n_epochs: int = 1, **settings: Any) -> None:
        self.trainer, self.inputs, self.every_n_epochs, self.settings = trainer, inputs, every_n_epochs, settings

    def on_epoch_end(self, args: Any, state: Any, control: Any, *, model: nn.Module, **rest: Any) -> None:  # noqa: ARG002
        """Measure, if it is time."""
        if round(state.epoch) % self.every_n_epochs == 0:
            measured = effdeg.measure(model, self.inputs, **self.settings)
            self.trainer.log({"effective_degree": measured.value, "effective_degree_stderr": measured.stderr})


def _loss_of_floats(logits: Tensor, labels: Tensor, config: Any) -> Tensor:
    """Compute the loss that models make of floating-point labels: these cannot be marked as to be left out."""
    if config.problem_type == "regression" or (config.problem_type is None and config.num_labels == 1):
        return mse_loss(logits.squeeze(), labels.squeeze())
    return binary_cross_entropy_with_logits(logits, labels)
