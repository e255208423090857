"""Hugging Face: a ``Trainer`` with the penalty, and a callback that tracks the effective degree."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from effdeg._adapters.frameworks import class_of
from effdeg._adapters.labels import IGNORED
from effdeg._adapters.layers import base_model, find_layer
from effdeg._utils.checks import check_count
from effdeg._utils.imports import describe_install
from effdeg.integrations._calls import check_parts, get_only, join_calls, replace_attribute, weight_at
from effdeg.measuring import measure
from effdeg.measuring._estimator import check_measurable
from effdeg.train._batch import OwnLossError
from effdeg.train._penalty import Penalty
from effdeg.train._schedules import Schedule, as_schedule

try:
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.loss.loss_utils import ForSequenceClassificationLoss
except ImportError as error:  # pragma: no cover
    raise ImportError(f"this needs transformers: {describe_install('huggingface')}") from error


_DOC = """that adds the penalty to the loss: see :func:`with_penalty`.

    Example:
        >>> from transformers import Trainer
        >>> from effdeg.integrations.huggingface import PenaltyTrainer, with_penalty
        >>> PenaltyTrainer is with_penalty(Trainer)
        True
    """

_Base: Any = object  # some Trainer


class _WithPenalty(_Base):  # type: ignore[misc]
    """The methods that :func:`with_penalty` puts in front of those of a trainer."""

    def __init__(
        self,
        *arguments: Any,
        penalty: Penalty,
        weight: float | Schedule,
        teacher: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        check_parts(penalty, teacher=teacher)
        _check_not_packed([*arguments, *options.values()])
        self.penalty, self.weight, self.teacher = penalty, as_schedule(weight), teacher
        super().__init__(*arguments, **options)
        inner = base_model(self.accelerator.unwrap_model(self.model))
        if self.compute_loss_func is None and "Classification" in type(inner).__name__:
            # If these losses were summed, they would grow with accumulation, and the penalty would not.
            self.model_accepts_loss_kwargs = False
        self._degree: Tensor | None = None  # of this step, to be added to the loss
        self._sum_of_degrees: Tensor | float = 0.0  # since the last entry in the log
        self._count_of_degrees = 0

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, **rest: Any) -> Any:
        """Compute the task's loss; in training, also run the model at the points of paths."""
        unlabeled = inputs.get("unlabeled")
        inputs = {name: given for name, given in inputs.items() if name != "unlabeled"}
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs=return_outputs, **rest)
        labels: Any = inputs.get("labels")
        inner = base_model(self.accelerator.unwrap_model(model))
        here = self._computes_loss_here(inner, labels)
        if here and not labels.is_floating_point():
            labels = labels.to(inner.dtype)  # numbers, not class ids
        given: dict[str, Any] = {"batch": inputs, "unlabeled": unlabeled, "teacher": self.teacher}
        with join_calls(model, self.penalty, labels, **given) as degrees:
            if here:
                loss, outputs = _compute_known_loss(model, inputs, labels, inner.config)
                result = (loss, outputs) if return_outputs else loss
            else:
                with replace_attribute(model, "forward", _with_logits(model.forward)):
                    result = self._compute_trainer_loss(model, inputs, return_outputs=return_outputs, **rest)
        self._degree = get_only(degrees, "the model")
        return result

    def training_step(self, *arguments: Any, **keywords: Any) -> Any:
        """Run a step whose backward pass includes the penalty."""
        backward = self.accelerator.backward

        def with_penalty(loss: Tensor, **options: Any) -> None:
            # Whether the task's loss is a mean or a share of all accumulated items differs by model and by version of
            # transformers. Here it is final, so the penalty can be added as a mean over batches.
            batches = getattr(self, "current_gradient_accumulation_steps", self.args.gradient_accumulation_steps)
            backward(loss + self._take_penalty() / batches, **options)

        with replace_attribute(self.accelerator, "backward", with_penalty):
            return super().training_step(*arguments, **keywords)

    def log(self, logs: dict[str, float], *arguments: Any, **keywords: Any) -> None:
        """Log the penalty next to the loss."""
        if self._count_of_degrees and "loss" in logs:
            logs = {
                **logs,
                "effective_degree_penalty": float(self._sum_of_degrees) / self._count_of_degrees,
                "effective_degree_weight": float(self.weight(max(self.state.global_step - 1, 0))),
            }
            self._sum_of_degrees, self._count_of_degrees = 0.0, 0
        super().log(logs, *arguments, **keywords)

    def _computes_loss_here(self, inner: Any, labels: Any) -> bool:
        """Return whether labels are numbers that only serve a known loss of transformers, which can be computed here.

        Such labels cannot be set to -100, so if the model computed the loss itself, it would include the points.
        """
        replaced = self.compute_loss_func is not None or self.label_smoother is not None
        if replaced or super().compute_loss.__func__ is not Trainer.compute_loss:
            return False
        return isinstance(labels, Tensor) and _takes_numbers(inner, labels)

    def _compute_trainer_loss(self, model: nn.Module, inputs: dict[str, Any], **options: Any) -> Any:
        has_labels = "labels" in inputs  # the Trainer may remove them
        try:
            return super().compute_loss(model, inputs, **options)
        except OwnLossError as error:
            if not has_labels or self.compute_loss_func is not None:
                raise
            raise OwnLossError(
                f"{error} With a Trainer, give compute_loss_func=…: transformers then takes the labels out of the "
                "inputs and computes the loss from the outputs."
            ) from error

    def _take_penalty(self) -> Tensor:
        degree, self._degree = self._degree, None
        if degree is None:
            raise RuntimeError("compute_loss was overridden without calling that of with_penalty: there is no penalty.")
        self._sum_of_degrees = self._sum_of_degrees + degree.detach().float()
        self._count_of_degrees += 1
        weighted: Tensor = weight_at(self.weight, self.state.global_step) * degree
        return weighted


@cache
def with_penalty(trainer: type[Trainer]) -> type[Trainer]:
    """Return a subclass of a trainer that adds the penalty to the loss; :class:`PenaltyTrainer` is that of ``Trainer``.

    The trainer may be TRL's ``SFTTrainer``, ``Seq2SeqTrainer`` or your own, if it calls the model once in a step.
    Objects of the class are made as before, with the arguments ``penalty``, ``weight`` and ``teacher`` by name:

    - **penalty**: The penalty.
    - **weight**: Its weight: a number, a schedule, or any function of the step (``state.global_step``).
    - **teacher**: The ``teacher`` in calls of the penalty, on the trainer's device (``arguments.device``). An average
      of the model is updated in ``on_step_end`` of a callback.

    The reported ``loss`` stays the task's own; the penalty and its weight are logged next to it as
    ``effective_degree_penalty`` and ``effective_degree_weight``. Under gradient accumulation the penalty is the mean
    over the accumulated batches. So are the losses of models with ``Classification`` in their name, unless there is a
    ``compute_loss_func``: ``model_accepts_loss_kwargs`` is set to False. For most of these models, BERT among them,
    transformers 5.22 adds the losses up, so the logged loss and the effective learning rate are then smaller here than
    a plain ``Trainer``'s, by the number of accumulated batches.

    A model that computes its own loss sees the batch and the points; integer class labels of the points are set to
    -100, which the loss ignores. Where labels are numbers (regression, or several labels per example), the
    ``…ForSequenceClassification`` models of transformers run without them, and the same loss is computed here. Other
    models with such labels need a ``compute_loss_func``. A loss of routers counts every token: a mixture of experts
    needs ``output_router_logits=False``.

    Examples without labels come from the ``data_collator``: an entry ``unlabeled`` of its batches is a mapping like the
    batch itself without labels, padded to the same length, and goes to the penalty, not to the model.

    TRL's trainers compute the loss without logits. With the penalty the logits exist, which takes more memory. Packed
    sequences (``packing``, ``padding_free``) are refused.

    For the same trainer, ``transformers.Trainer`` or a subclass, it is the same class each time.

    Raises:
        TypeError: If this is no class of trainers. When an object is made, if ``penalty`` is no
            :class:`effdeg.Penalty`, the weight is neither a number nor a function, or the teacher cannot be called.
        ValueError: If the weight is negative or not finite, or sequences are packed; in a step, if the model computes
            its own loss and cannot ignore the points.
        RuntimeError: In a step, if the model is not called exactly once.

    Example:
        >>> import tempfile, torch, transformers, effdeg
        >>> from effdeg.integrations.huggingface import PenaltyTrainer, with_penalty
        >>> small = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> model = transformers.BertForSequenceClassification(transformers.BertConfig(**small))
        >>> arguments = transformers.TrainingArguments(tempfile.mkdtemp(), report_to="none", use_cpu=True)
        >>> penalty = effdeg.Penalty(anchor="labels")
        >>> trainer = PenaltyTrainer(model, arguments, penalty=penalty, weight=0.5)
        >>> batch = {"input_ids": torch.randint(30, (4, 7)), "labels": torch.tensor([0, 1, 1, 0])}
        >>> trainer.compute_loss(model.train(), batch).shape
        torch.Size([])
        >>> with_penalty(transformers.Seq2SeqTrainer)  # or trl.SFTTrainer
        <class 'effdeg.integrations.huggingface.PenaltySeq2SeqTrainer'>
    """
    if not (isinstance(trainer, type) and issubclass(trainer, Trainer)):
        raise TypeError(f"with_penalty({trainer!r}) needs a class: transformers.Trainer or a subclass of it.")
    if issubclass(trainer, _WithPenalty):
        return trainer
    own = {"__doc__": f"A ``{trainer.__name__}`` {_DOC}", "__module__": __name__}
    return type(f"Penalty{trainer.__name__}", (_WithPenalty, trainer), own)


PenaltyTrainer = with_penalty(Trainer)


class MeasureCallback(TrainerCallback):  # type: ignore[misc]
    """Measure the effective degree every few epochs and log it as ``effective_degree``, with its standard error.

    Args:
        trainer: The trainer through which to log.
        inputs: The examples to measure on, as :func:`effdeg.measure` takes them; no labels are needed.
        every_n_epochs: The number of epochs from one measurement to the next.
        **settings: Settings for :func:`effdeg.measure`, such as ``paths=100``.

    Raises:
        TypeError: If ``trainer`` is no ``Trainer``, there is no such setting, or as :func:`effdeg.measure` does.
        ValueError: If ``every_n_epochs`` is not positive, there is no layer ``at``, or as :func:`effdeg.measure` does.

    Example:
        >>> import tempfile, torch, transformers
        >>> from effdeg.integrations.huggingface import MeasureCallback
        >>> arguments = transformers.TrainingArguments(tempfile.mkdtemp(), report_to="none", use_cpu=True)
        >>> trainer = transformers.Trainer(torch.nn.Linear(8, 3), arguments)
        >>> trainer.add_callback(MeasureCallback(trainer, torch.randn(100, 8), every_n_epochs=5, paths=50))
    """

    def __init__(self, trainer: Trainer, inputs: Any, *, every_n_epochs: int = 1, **settings: Any) -> None:
        if not isinstance(trainer, Trainer):
            kind = type(trainer).__name__
            raise TypeError(f"trainer is of type {kind}; expected the transformers.Trainer that gets this callback.")
        self.every_n_epochs = check_count("every_n_epochs", every_n_epochs, least=1)
        self.trainer, self.inputs, self.settings = trainer, check_measurable(inputs, settings), settings
        if trainer.model is not None and settings.get("at") is not None:
            find_layer(trainer.model, settings["at"])

    def on_epoch_end(self, args: Any, state: Any, control: Any, *, model: nn.Module, **rest: Any) -> None:  # noqa: ARG002
        """Measure, if it is time."""
        if round(state.epoch) % self.every_n_epochs == 0:
            measured = measure(model, self.inputs, **self.settings)
            self.trainer.log({"effective_degree": measured.value, "effective_degree_stderr": measured.stderr})


def _check_not_packed(given: list[Any]) -> None:
    """Raise if a trainer of TRL is to put several sequences into a row, between which there are no paths."""
    arguments = next((argument for argument in given if isinstance(argument, TrainingArguments)), None)
    packed = [name for name in ("packing", "padding_free") if getattr(arguments, name, False)]
    if packed:
        raise ValueError(f"{packed[0]}=True puts several sequences into one row, but paths join rows. Leave it out.")


def _with_logits(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a forward function that gives TRL, which asks for no logits, what it computes from them."""

    def run(*arguments: Any, **keywords: Any) -> Any:
        if not torch.is_grad_enabled() or not keywords.get("fused_lm_head"):
            return forward(*arguments, **keywords)
        from trl.trainer.utils import FusedCausalLMOutput

        labels = keywords["labels"][:, 1:]
        rest = {name: given for name, given in keywords.items() if name not in {"labels", "fused_lm_head"}}
        outputs = forward(*arguments, **rest)
        known = labels != IGNORED
        logits = outputs.logits[:, :-1][known]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        tokens = labels[known]

        def scatter(values: Tensor) -> Tensor:
            return values.new_zeros(known.shape).masked_scatter(known, values)

        return FusedCausalLMOutput(
            log_probs=scatter(logits.gather(1, tokens[:, None])[:, 0]),
            entropy=scatter(-(logits.detach().exp() * logits.detach()).sum(-1)),
            is_top1=scatter(logits.argmax(-1) == tokens),
            label_mask=known,
            aux_loss=outputs.get("aux_loss"),
        )

    return run


def _takes_numbers(model: Any, labels: Tensor) -> bool:
    """Return whether a model's loss is known and takes numbers: a regression, or several labels per example."""
    kind = class_of(model)
    if not (kind.__module__.startswith("transformers.") and kind.__name__.endswith("ForSequenceClassification")):
        return False
    if model.loss_function is not ForSequenceClassificationLoss:  # the user replaced it
        return False
    if model.main_input_name in {"input_values", "input_features"}:  # audio models only have cross entropy
        return False
    if model.config.problem_type is not None:
        return model.config.problem_type in {"regression", "multi_label_classification"}
    if model.config.num_labels == 1:
        return True
    # Without a problem_type, DeBERTa treats several numbers per example as soft labels.
    return labels.dtype not in {torch.long, torch.int} and not kind.__name__.startswith("Deberta")


def _compute_known_loss(model: nn.Module, inputs: Mapping[str, Any], labels: Tensor, config: Any) -> tuple[Tensor, Any]:
    outputs = model(**{name: given for name, given in inputs.items() if name != "labels"})
    named = isinstance(outputs, dict)
    logits = outputs["logits"] if named else outputs[0]
    # This also sets the config's problem_type, as the model would.
    loss = ForSequenceClassificationLoss(labels, logits, config)
    return loss, type(outputs)(**{**outputs, "loss": loss}) if named else (loss, *outputs)
