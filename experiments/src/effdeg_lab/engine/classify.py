"""A run that trains a classifier, from its settings to its summary."""

import math
import warnings
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import effdeg_lab.engine.evaluation as evaluation
from effdeg import SineRamp
from effdeg.io import find_code
from effdeg_lab.core.runs import Job, get_rank_and_size
from effdeg_lab.core.settings import suggest
from effdeg_lab.data import CIFAR10N, ImageSet, Size, check_all, get_size
from effdeg_lab.data import load_shared as load
from effdeg_lab.engine.examples import DeviceExamples, check_images, check_labeled, count_examples
from effdeg_lab.engine.finetuning import find_more_shifts, fit_head, measure_interpolated
from effdeg_lab.engine.flat import is_matrix
from effdeg_lab.engine.label_noise import WrongLabels
from effdeg_lab.engine.loop import Loop, open_loop, share_batch
from effdeg_lab.engine.observation import observe_tests
from effdeg_lab.engine.regularizers import can_compile_penalty, make_regularizer
from effdeg_lab.engine.settings import Training
from effdeg_lab.engine.step import Task, Teacher, evaluating
from effdeg_lab.engine.streaming import StreamedExamples, check_stored, make_examples
from effdeg_lab.models import PRETRAINED, ViT, check_model, make_model
from effdeg_lab.models.pretrained import find_pretrained


def train(settings: Training, job: Job) -> None:
    # What cannot be is reported before any data are read.
    settings.check_share(share_batch(settings.batch))
    make_regularizer(settings)
    data = load(settings.data, job.data, settings.pixels)
    examples = make_examples(data, settings, job.device)
    if isinstance(data, ImageSet) and get_rank_and_size()[0] == 0:
        for gap in data.list_gaps():
            warnings.warn(gap, RuntimeWarning, stacklevel=1)
    if job.progress:
        count, tests, classes = examples.count, len(examples.test), examples.classes
        print(f"{count:,} training and {tests:,} test examples of {classes:,} classes")
    examples.shifted |= find_more_shifts(settings, examples.classes, job.data)
    model = make_network(settings, examples, job.device, job.data)
    check_network(model, settings, examples)
    task = make_task(settings, examples, model)
    with open_loop(task, job) as loop:
        loop.start(data.fingerprint())
        with loop.gpu_lock:
            loop.train()
            summary = summarize(loop, task, examples, settings)
        # Without the lock: proxies take long, and leave much of a GPU to the next run.
        finish(loop, task, examples, job, summary)


def check_training(several: Iterable[Training], folder: Path | None) -> None:
    """Raise unless runs with these settings find their data, and their settings fit together.

    Whether settings fit the data is checked only for published data sets, whose sizes are known without reading them.
    """
    several = list(dict.fromkeys(each.change({"seed": 0}) for each in several))
    check_all(several, folder)
    for name in dict.fromkeys(each.model for each in several):
        if name in PRETRAINED:
            find_pretrained(name, folder)
        elif ":" in name:
            find_code(name)
    for settings in several:
        check_model(settings.model, dropout=settings.dropout)
        regularizer = make_regularizer(settings)
        if size := get_size(settings.data):
            _check_size(settings, size, regularizer.weight)
        elif settings.data == "imagenet":
            check_stored(settings)
            if settings.limit is not None:
                settings.check_steps(settings.epochs * (settings.limit // settings.batch))
    # Many runs of a sweep have the same network.
    for settings in {(each.model, each.dropout, each.at, each.data, each.pixels): each for each in several}.values():
        # Images in files get their size from the settings; a network fits any number of classes.
        size = Size(0, 0, (3,), 2) if settings.data == "imagenet" else get_size(settings.data)
        if size and settings.model not in PRETRAINED and ":" not in settings.model:
            _check_network(settings, size)


def _check_size(settings: Training, size: Size, weight: float) -> None:
    _, count = count_examples(size.train, settings)
    if settings.labeled is not None and settings.labeled > count:
        raise ValueError(f"labeled={settings.labeled} is more than the {count} training examples.")
    if settings.labeled is not None:
        check_labeled(settings.labeled, size.classes)
    check_images(settings, size.shape)
    check_suspect(settings, known=settings.data in CIFAR10N)
    Schedules(settings, steps=settings.epochs * (count // settings.batch), weight=weight)


def _check_network(settings: Training, size: Size) -> None:
    """Raise unless the network fits the shape of the examples, and has the layer that paths lie at."""
    side = settings.pixels
    shape = size.shape if side is None else (size.shape[0], side, side)
    with torch.random.fork_rng(devices=[]):
        network = make_model(settings.model, shape=shape, classes=size.classes, dropout=settings.dropout)
    check_layer(network, settings)


def finish(loop: Loop, task: Task, examples: DeviceExamples, job: Job, summary: dict[str, Any]) -> None:
    """Finish a trained run: evaluate its proxies, if any, and the weights between its start and its end."""
    settings, shows = job.settings, job.progress and loop.first_process
    assert isinstance(settings, Training)
    if settings.start_from != "scratch" and not settings.held_out and not settings.observe:
        # All of its weights will be replaced: it needs no head that fits.
        network = make_network(settings.change({"start_from": "pretrained"}), examples, job.device, job.data)
        ends = loop.first_weights, task.model.state_dict()
        summary |= loop.measure(measure_interpolated, network, *ends, examples, settings)
    if settings.proxies or settings.test_proxies:
        loop.save()
    if settings.test_proxies:
        summary |= loop.measure(evaluation.measure_test_proxies, task.model, examples, settings, progress=shows)
    if settings.proxies:
        on_noise = loop.measure(evaluation.measure_on_noise, task.model, examples, settings)
        summary["effective_degree_random_pixels"] = on_noise
        summary |= loop.measure(
            evaluation.measure_proxies, task.model, loop.first_weights, examples, settings, progress=shows
        )
    loop.finish(summary, keep_weights=not settings.observe)


def make_task(settings: Training, examples: DeviceExamples, model: nn.Module) -> Task:
    check_suspect(settings, known=examples.truth is not None)
    memory = None if examples.truth is None else WrongLabels(examples, settings)
    teacher = None if settings.teacher is None else Teacher(model, settings.teacher)
    regularizer = make_regularizer(settings, examples, teacher and teacher.model)
    per_epoch = examples.count // settings.batch
    steps = settings.epochs * per_epoch
    schedules = Schedules(settings, steps=steps, weight=regularizer.weight)
    penalizes, adamw = regularizer.penalty is not None, settings.optimizer == "adamw"

    def is_due(epoch: int, every: int) -> bool:
        return every > 0 and (epoch % every == 0 or epoch == settings.epochs)

    every = (settings.evaluate_every, settings.measure_every)
    looked_at = (epoch for epoch in range(1, settings.epochs + 1) if any(is_due(epoch, each) for each in every))

    def evaluate(step: int, penalty: float | None) -> dict[str, Any]:
        epoch = step // per_epoch
        found = evaluation.evaluate(model, examples, settings, last=step == steps)
        weight = schedules.strength(step - 1) if penalizes else 0.0
        entry = {"epoch": epoch, **found, "penalty": penalty, "weight": weight, "lr": schedules.rate(step - 1)}
        if not math.isfinite(found["train_loss"] + found["test_loss"]):
            return entry  # the loop says that training has diverged, a measurement would only say that outputs are NaN
        if is_due(epoch, settings.measure_every):
            entry["effective_degree"] = evaluation.follow_degree(model, examples)
        if memory is not None:
            entry |= memory.look(model, epoch, found["test_accuracy"])
        return entry

    return Task(
        model=model,
        regularizer=regularizer,
        batch=examples.batch,
        examples=examples.count,
        batch_size=settings.batch,
        steps=steps,
        optimizer=torch.optim.AdamW if adamw else torch.optim.SGD,
        options={"weight_decay": settings.weight_decay} | ({} if adamw else {"momentum": 0.9}),
        decays=is_matrix if settings.decay_on == "matrices" else None,
        rate=schedules.rate,
        weight=schedules.weight if penalizes else lambda _: 0.0,
        evaluation_steps=frozenset(epoch * per_epoch for epoch in looked_at),
        evaluate=evaluate,
        describe=_describe,
        source=examples if isinstance(examples, StreamedExamples) else None,
        teacher=teacher,
        memory=memory,
        clip=settings.clip,
        loss=partial(cross_entropy, label_smoothing=settings.smoothing) if settings.smoothing else cross_entropy,
        precision=settings.precision,
        compile=settings.compile,
        compile_penalty=can_compile_penalty(settings),
    )


def make_network(
    settings: Training, examples: DeviceExamples, device: torch.device, folder: Path | None = None
) -> nn.Module:
    """Make the network, with initial weights drawn with the seed; a pretrained one is read from the data folder."""
    torch.manual_seed(settings.seed)
    fitted: dict[str, Any] = {"shape": examples.shape, "classes": examples.classes, "dropout": settings.dropout}
    model = make_model(settings.model, data=folder, **fitted).to(device)
    if settings.start_from == "probe":
        fit_head(model, examples, settings)
    if isinstance(model, ViT):
        # What cannot be compiled needs second derivatives or hooks, which the kernels do not have either.
        model.fuse(settings.compile and can_compile_penalty(settings))
    return model


def check_network(network: nn.Module, settings: Training, examples: DeviceExamples) -> None:
    check_layer(network, settings)
    with evaluating(network):
        outputs = network(examples.normalize(examples.train.first(2).inputs))
    if not isinstance(outputs, Tensor) or outputs.shape != (2, examples.classes):
        given = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(
            f"model={settings.model} returns {given} for 2 examples of {settings.data}, which has {examples.classes} "
            f"classes: expected shape (2, {examples.classes}). It may take classes or num_classes, and channels."
        )


def check_layer(network: nn.Module, settings: Training) -> None:
    layers = [name for name, _ in network.named_modules() if name]
    if settings.at is not None and settings.at not in layers:
        raise ValueError(f"at={settings.at!r} is not a layer of {settings.model}. {suggest(settings.at, layers)}")


def check_suspect(settings: Training, *, known: bool) -> None:
    if settings.suspect and not known:
        raise ValueError(
            f"suspect={settings.suspect} needs data with known wrong labels, such as cifar10n-worst; for "
            f"{settings.data} they are not known: set suspect=0."
        )


class Schedules:
    def __init__(self, settings: Training, *, steps: int, weight: float) -> None:
        self._steps, self._settings = steps, settings
        epochs, warm_up = settings.warm_up_epochs, settings.warm_up_steps
        settings.check_steps(steps)
        if warm_up is None:
            warm_up = round((settings.warm_up if epochs is None else epochs / settings.epochs) * steps)
        self._warm_up = warm_up
        self._start = round(settings.start * steps)
        self._ramp = SineRamp(weight, steps=round(settings.ramp * (steps - self._start)))

    def rate(self, step: int) -> float:
        highest, decay = self._settings.lr, self._settings.decay
        if step < self._warm_up:
            return highest * (step + 1) / self._warm_up
        if decay == "cosine":
            done = (step - self._warm_up) / max(1, self._steps - self._warm_up)
            return highest * (1 + math.cos(math.pi * done)) / 2
        falls = (step >= self._steps // 2) + (step >= 3 * self._steps // 4) if decay == "steps" else 0
        return highest * float(0.1**falls)

    def strength(self, step: int) -> float:
        """Return the penalty's weight (λ) at a step, on average over steps with it and without."""
        # The ramp has left 0 with the first step, which is therefore a step with the penalty.
        return 0.0 if step < self._start else float(self._ramp(step - self._start + 1))

    def weight(self, step: int) -> float:
        """Return the weight that the penalty has in a step: 0 for steps without it."""
        return 0.0 if step % self._settings.every else self._settings.every * self.strength(step)


def summarize(loop: Loop, task: Task, examples: DeviceExamples, settings: Training) -> dict[str, Any]:
    kept = ("test_accuracy", "test_loss", "train_accuracy", "train_loss", "further_tests")
    model = task.model
    further = loop.measure(evaluation.score_test, model, examples, settings)
    if settings.observe:
        further |= loop.measure(observe_tests, model, examples, settings)
    else:
        further |= loop.measure(evaluation.evaluate_corrupted, model, examples, settings)
        mean = further.get("corrupted_accuracy")
        further |= loop.measure(evaluation.evaluate_shifted, model, examples, mean, settings)
        further |= loop.measure(evaluation.measure_degree, model, examples, settings)
    return {key: loop.last[key] for key in kept if key in loop.last} | {
        "gap": loop.last["train_accuracy"] - loop.last["test_accuracy"],
        "epochs": settings.epochs,
        "seconds": loop.seconds,
        "seconds_per_epoch": loop.seconds / settings.epochs,
        "milliseconds_per_step": 1e3 * loop.seconds / task.steps,
        "parameters": sum(each.numel() for each in model.parameters()),
        **loop.measure_speed(),
        **examples.summarize(),
        **further,
        **({} if task.memory is None else task.memory.summarize()),
    }


def _describe(entry: dict[str, Any]) -> str:
    penalty = "" if entry["penalty"] is None else f" · penalty {entry['penalty']:.3g}"
    degree = f" · ED {entry['effective_degree']['value']:.3g}" if "effective_degree" in entry else ""
    waited = f" · waited {entry['waited']:.0%}" if "waited" in entry else ""
    return f"{entry['test_accuracy']:.1%}{penalty}{degree} · {entry['seconds'] / entry['epoch']:.2f} s/epoch{waited}"
