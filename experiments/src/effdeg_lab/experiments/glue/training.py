"""A run that fine-tunes a text classifier, from its settings to its summary: the paper's appendix F.4.

The loss is the cross-entropy of a batch plus λ times the effective degree along paths between embeddings. Here are the
settings, the tokens, the schedule, the regularizers and the scores. The loop over steps, with its checkpoints and CUDA
graphs, is that of all experiments: ``engine/loop.py`` and ``engine/step.py``.
"""

import gc
import hashlib
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from effdeg import Penalty, changes
from effdeg.baselines import R3F, Method, RDrop, mixup
from effdeg_lab.core.runs import CannotStackError, Job, StoppedError
from effdeg_lab.core.settings import check_pairs, setting, unnamed
from effdeg_lab.data.sentences import load_task
from effdeg_lab.data.sources import HUB, explain_missing
from effdeg_lab.engine.examples import count_examples
from effdeg_lab.engine.loop import Loop, open_loop
from effdeg_lab.engine.observation import draw, make_copies, observe
from effdeg_lab.engine.settings import PenaltySettings, choose_weights
from effdeg_lab.engine.stacked import Member, train_stack
from effdeg_lab.engine.step import Task, autocast
from effdeg_lab.models.text import TextClassifier, check_folder, load_classifier, load_tokenizer, tokenize

_CHUNK = 512
_MOST_BATCHES = 0.75
# From a fine-tuned network, embedding mixup starts at a fifth of the rate (Park et al., 2022).
_SECOND_RATE = 0.2
_DROPPED = 0.1
_OWNERS = {"all-": "sentence-transformers", "SmolLM2": "HuggingFaceTB", "gemma": "google"}
_OBSERVED: dict[str, Any] = {"paths": 200, "nodes": 64}


@dataclass(frozen=True)
class FineTuning(PenaltySettings):
    """The settings of one run; the defaults are the paper's for RTE, or run_glue.py's where the paper gives none."""

    data: str = setting("rte", "the task: rte, mrpc or cola")
    model: str = setting("all-MiniLM-L6-v2", "a folder with a Hugging Face model, in the data folder or by its path")
    regularizer: Literal["plain", "mixup", "rdrop", "r3f", "ed"] = setting("plain", "how training is regularized")
    epochs: int = setting(10, "passes over the training examples", scale=True, least=1, smoke=1)
    batch: int = setting(32, "examples per step", least=1, smoke=8)
    limit: int | None = setting(None, "train on this many examples only", scale=True, least=1, smoke=lambda _: 32)
    held_out: int = setting(0, "training examples to test on instead of the dev set: for tuning", least=0, smoke=16)
    lr: float = setting(5e-5, "the highest learning rate, from which it falls linearly to 0", above=0)
    weight_decay: float = setting(0.0, "except of biases and LayerNorms, as in Hugging Face's Trainer", least=0)
    warm_up: float = setting(0.0, "share of steps in which the rate rises linearly", least=0, most=1)
    clip: float | None = setting(1.0, "the highest norm of a gradient", above=0)
    longest: int = setting(128, "tokens of a text; longer ones are truncated", least=8, smoke=32)
    # For the same number of epochs at the full rate, then with it at a fifth.
    two_stages: bool = setting(False, "first train without the regularizer")
    weight: float = setting(0.5, "of the penalty (λ)", least=0)
    alpha: float = setting(1.0, "mixup's α", above=0)
    noise: float = setting(1e-5, "R3F's noise", above=0)
    degree_weights: Literal["degree", "square", "curvature"] = setting("degree", "what coefficients are weighted by")
    place: Literal["embeddings", "sum"] = setting(
        "embeddings", "where paths lie: after LayerNorm and dropout, or before"
    )
    point_dropout: bool = setting(True, "also apply dropout at the points of paths")
    masks: Literal["either", "both"] = setting("either", "at points: positions that either text has, or both have")
    similar_lengths: bool = setting(False, "join texts that are next to each other in length")
    precision: Literal["float32", "bf16"] = unnamed("bf16", "of training on a GPU; a CPU computes in float32")
    compile: bool = unnamed(True, "compile the training step, on a GPU")
    # Those of hundreds of encoders fill a disk.
    keep_weights: bool = unnamed(False, "keep the trained weights")
    # And of copies of which a tenth of the tokens is replaced.
    observe: int = unnamed(0, "dev examples of which predictions are kept, to choose among encoders", least=0, smoke=24)

    def stack_key(self) -> str:
        """Return a hash of everything but the seed."""
        return self.change({"seed": 0}).hash

    def check(self) -> None:
        """Raise ``ValueError`` if the values do not fit together."""
        make_regularizer(self, classes=2)
        if self.regularizer == "ed":
            check_pairs(self.pairs, self.batch)
        own = not self.point_dropout or self.masks == "both" or self.similar_lengths
        if own and self.regularizer != "ed":
            raise ValueError("point_dropout, masks and similar_lengths are for the paths of regularizer=ed.")
        if own and self.anchor == "self":
            raise ValueError("point_dropout, masks and similar_lengths work only with anchor=labels or none.")


def train(settings: FineTuning, job: Job) -> None:  # noqa: ARG001
    """Carry out a run, or continue it."""
    train_in_turn([job])


def train_stacked(jobs: Sequence[Job]) -> None:
    """Carry out runs that differ only in the seed: stacked on a GPU, or one after another where that is not possible.

    A run that fails is recorded as failed, and the others continue.
    """
    if jobs[0].device.type == "cuda":
        try:
            return train_in_one_step(jobs)
        except CannotStackError:
            traceback.print_exc()
        gc.collect()  # the networks that could not be stacked
    return train_in_turn(jobs)


def train_in_turn(jobs: Sequence[Job]) -> None:
    """Carry out runs that differ only in the seed one by one, with a step that is compiled and captured once."""
    prepared = Prepared(jobs[0])
    model = prepared.load(jobs[0]).to(jobs[0].device)
    with open_loop(make_task(prepared.settings, prepared.texts, model), jobs[0]) as first:
        for job in jobs:
            try:
                if job is not jobs[0]:
                    model.load_state_dict(prepared.load(job).state_dict())
                loop = first if job is jobs[0] else first.repeat(job)
                loop.start(prepared.texts.fingerprint)
                loop.train()
                _finish(loop, model, prepared)
            except Exception as error:
                if len(jobs) == 1 or isinstance(error, StoppedError):
                    raise
                job.fail(traceback.format_exc())


def train_in_one_step(jobs: Sequence[Job]) -> None:
    """Carry out runs that differ only in the seed in one step; raise :class:`CannotStackError` where that fails."""
    prepared = Prepared(jobs[0])
    members = []
    for job in jobs:
        # Fused attention kernels cannot be stacked.
        model = prepared.load(job, attention="eager").to(job.device)
        members.append(Member(make_task(prepared.settings, prepared.texts, model), job, group=None))
    train_stack(members, prepared.texts.fingerprint, lambda member: _finish(member, member.task.model, prepared))


class Prepared:
    """What runs that differ only in the seed share: settings, texts, and the folder of the encoder."""

    def __init__(self, job: Job) -> None:
        assert isinstance(job.settings, FineTuning)
        self.settings = job.settings
        self._folder = find_folder(self.settings.model, job.data)
        self.texts = Texts(self.settings, self._folder, job.data, job.device)

    def load(self, job: Job, attention: str | None = None) -> TextClassifier:
        """Load the encoder, with a head drawn with the seed: it is the same for every method."""
        torch.manual_seed(job.settings.seed)
        place = self.settings.place
        return load_classifier(self._folder, classes=self.texts.classes, place=place, attention=attention)


def _finish(loop: Loop, model: nn.Module, prepared: Prepared) -> None:
    settings = prepared.settings
    kept = {key: value for key, value in loop.last.items() if key.startswith(("dev_", "train_", "score"))}
    times = {"seconds": loop.seconds, "milliseconds_per_step": 1e3 * loop.seconds / loop.step}
    summary = {**kept, "test_accuracy": kept["score"], "epochs": settings.epochs, **times}
    if settings.observe:
        summary["observed"] = {"test": loop.measure(_observe, model, prepared.texts, settings.observe)}
    loop.finish(summary, keep_weights=settings.keep_weights)


def check_texts(several: Iterable[FineTuning], data: Path | None) -> None:
    """Raise unless runs with these settings find their sentences, their encoders and enough examples for a batch."""
    several = list(several)
    tasks = {name: load_task(name, data) for name in dict.fromkeys(each.data for each in several)}
    for each in several:
        count_examples(len(tasks[each.data].train), each)
    for name in dict.fromkeys(each.model for each in several):
        load_tokenizer(find_folder(name, data))


def find_folder(name: str, data: Path | None) -> Path:
    """Find the folder of a model: within the data folder, or by its path."""
    places = [*([data / name, data / "models" / name] if data else []), Path(name)]
    found = next((place for place in places if place.is_dir()), None)
    owner = next((owner for start, owner in _OWNERS.items() if name.startswith(start)), None)
    source = "" if owner is None else f"{owner}/{name} {HUB}"
    with explain_missing(name, data, source):
        if found is None:
            raise FileNotFoundError(
                f"model={name!r} was not found: expected a folder with a Hugging Face model and its tokenizer, "
                f"{' or '.join(map(str, dict.fromkeys(places)))}."
            )
        check_folder(found)
        return found


class Texts:
    """The tokens of a task on the device, and their labels."""

    def __init__(self, settings: FineTuning, folder: Path, data: Path | None, device: torch.device) -> None:
        task = load_task(settings.data, data)
        kept, self.count = count_examples(len(task.train), settings)
        train, dev = tokenize(folder, [task.train, task.dev], longest=settings.longest)
        labels = torch.tensor(task.train.labels)
        tests = (train[kept:], labels[kept:]) if settings.held_out else (dev, torch.tensor(task.dev.labels))
        self.classes, self.metric = task.classes, task.metric
        self.fingerprint = hashlib.sha256(repr((task.train, task.dev)).encode()).hexdigest()[:16]
        self._lengths = train[: self.count, 1].sum(1)
        self.tokens, self.labels = train[: self.count].to(device), labels[: self.count].to(device)
        self.dev_tokens, self.dev_labels = (each.to(device) for each in tests)
        # Few lengths, as each is compiled and captured: one that is enough for most batches, and one for all.
        random = torch.Generator().manual_seed(0)
        chosen = torch.randint(self.count, (1000, settings.batch), generator=random)
        most = int(self._lengths[chosen].amax(1).float().quantile(_MOST_BATCHES))
        self.shapes = tuple(sorted({min(-(-most // 8) * 8, train.shape[2]), train.shape[2]}))

    def batch(self, indices: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Return training examples, cut to a length that is enough for them, and their labels."""
        return self.tokens[indices, :, :length], self.labels[indices]

    def shape(self, indices: Tensor) -> int:
        """Return the smallest length that is enough for a batch."""
        longest = int(self._lengths[indices].max())
        return next(length for length in self.shapes if length >= longest)


def _observe(model: Any, texts: Texts, count: int) -> dict[str, Any]:
    """Observe an encoder on dev examples; as in :func:`effdeg.pick`, a tenth of their tokens become padding."""
    drop = changes.drop_tokens(_DROPPED, getattr(model.model.config, "pad_token_id", None) or 0)

    def change(tokens: Tensor) -> Tensor:
        ids, mask, types = tokens.unbind(1)
        return torch.stack([drop({"input_ids": ids, "attention_mask": mask})["input_ids"], mask, types], dim=1)

    chosen = draw(len(texts.dev_labels), count).to(texts.dev_labels.device)
    tokens, training = texts.dev_tokens[chosen], model.training
    model.eval()  # also where only a half of it is run
    found = observe(
        model, tokens, make_copies(tokens, change), texts.dev_labels[chosen], embed=model.embed, **_OBSERVED
    )
    model.train(training)
    return found


def make_task(settings: FineTuning, texts: Texts, model: TextClassifier) -> Task:
    """Describe the fine-tuning of a classifier for the loop."""
    stages = 2 if settings.two_stages else 1
    per_epoch = texts.count // settings.batch
    steps = stages * settings.epochs * per_epoch
    regularizer = make_regularizer(settings, classes=texts.classes, model=model)

    def rate(step: int) -> float:
        stage, place = divmod(step, steps // stages)
        whole, rise = steps // stages, round(settings.warm_up * steps / stages)
        highest = settings.lr * (_SECOND_RATE if stage else 1.0)
        return highest * ((place + 1) / rise if place < rise else (whole - place) / (whole - rise))

    def weight(step: int) -> float:
        return 0.0 if regularizer.penalty is None or step < steps - steps // stages else regularizer.weight

    def evaluate(step: int, penalty: float | None) -> dict[str, Any]:
        epoch = step // per_epoch
        found = _evaluate(model, texts, settings, last=step == steps)
        return {"epoch": epoch, **found, "penalty": penalty, "lr": rate(step - 1)}

    return Task(
        model=model,
        regularizer=regularizer,
        batch=texts.batch,
        shapes=texts.shapes,
        shape=texts.shape,
        examples=texts.count,
        batch_size=settings.batch,
        steps=steps,
        optimizer=torch.optim.AdamW,
        options={"weight_decay": settings.weight_decay},
        rate=rate,
        weight=weight,
        evaluation_steps=frozenset(epoch * per_epoch for epoch in range(1, stages * settings.epochs + 1)),
        evaluate=evaluate,
        describe=lambda entry: f"{entry['score']:.3f}",
        clip=settings.clip,
        decays=(lambda model, name: model.get_parameter(name).dim() > 1) if settings.weight_decay > 0 else None,
        precision=settings.precision,
        compile=settings.compile,
    )


def make_regularizer(settings: FineTuning, *, classes: int, model: nn.Module | None = None) -> Method:
    """Make the regularizer of a run."""
    made: dict[str, Callable[[], nn.Module | None]] = {
        "plain": lambda: None,
        "mixup": lambda: Mixed(settings.alpha, classes),
        "rdrop": RDrop,
        "r3f": lambda: R3F(noise=settings.noise),
        "ed": lambda: TextPenalty(
            settings,
            Penalty(**settings.penalty_options, weights=choose_weights(settings.degree_weights, settings.degree)),
            model,
        ),
    }
    weight = 1.0 if settings.regularizer == "mixup" else settings.weight
    return Method(settings.regularizer, {}, weight=weight, penalty=made[settings.regularizer]())


class Mixed(nn.Module):
    """Embedding mixup as a penalty of value 0, so that it can begin with the second stage."""

    def __init__(self, alpha: float, classes: int) -> None:
        super().__init__()
        self._alpha, self._classes = alpha, classes

    def forward(self, run: Callable[..., Tensor], x: tuple[Tensor, Tensor], y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the outputs for mixed embeddings, nothing, and mixed labels."""
        soft = one_hot(y, self._classes).float()
        mixed, labels = mixup(x, soft, alpha=self._alpha)
        outputs = run(*mixed)
        return outputs, outputs.new_zeros(()), labels


class TextPenalty(nn.Module):
    """The effective degree between embeddings, with options that exist only for texts."""

    def __init__(self, settings: FineTuning, penalty: Penalty, model: nn.Module | None) -> None:
        super().__init__()
        self.penalty, self._settings = penalty, settings
        # In a tuple, so that the model does not become a submodule of its own penalty.
        self._models = () if model is None else (model,)

    def forward(self, run: Callable[..., Tensor], x: tuple[Tensor, Tensor], y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the batch's outputs and the effective degree."""
        settings = self._settings
        if settings.point_dropout and settings.masks == "either" and not settings.similar_lengths:
            outputs, degree = self.penalty(run, x, y)
            return outputs, degree
        hidden, mask = x
        pairs = self._pair_similar(mask) if settings.similar_lengths else None
        points = self.penalty.points(x, y, pairs=pairs)
        inputs, masks = points.inputs
        if settings.masks == "both":
            first, second = (mask[end] for end in points.pairs.unbind(1))
            masks = (first & second).repeat_interleave(len(points) // len(points.pairs), dim=0)
        if settings.point_dropout:
            outputs = run(torch.cat([hidden, inputs]), torch.cat([mask, masks]))
            return outputs[: len(hidden)], self.penalty.degree(outputs, points)
        outputs = run(hidden, mask)
        for model in self._models:
            model.eval()
        between = run(inputs, masks)
        for model in self._models:
            model.train()
        return outputs, self.penalty.degree(between, points)

    def _pair_similar(self, mask: Tensor) -> Tensor:
        """Pair texts of neighboring lengths; if fewer pairs are asked for, a random subset of these."""
        order = mask.sum(1).argsort()
        count = self.penalty.settings.count_pairs(len(mask))
        pairs = torch.stack([order, order.roll(-1)], dim=1)[:-1]  # not the longest with the shortest
        chosen = torch.randperm(len(pairs), device=mask.device)[:count]
        return pairs[chosen]


@torch.no_grad()
def _evaluate(model: nn.Module, texts: Texts, settings: FineTuning, *, last: bool) -> dict[str, Any]:
    """Score the dev examples: all of them, and the two halves, one to choose by and one to report.

    Training examples are scored only at the end: that takes longer, and says little before.
    """
    training = model.training
    model.eval()
    with autocast(texts.labels.device, settings.precision):
        dev = torch.cat([model(part).float() for part in torch.split(texts.dev_tokens, _CHUNK)])
        shown = torch.split(texts.tokens[:1000], _CHUNK) if last else ()
        train = [model(part).float() for part in shown]
    model.train(training)
    predicted, truth = dev.argmax(1).cpu(), texts.dev_labels.cpu()
    found: dict[str, Any] = {f"dev_{name}": measure(predicted, truth) for name, measure in METRICS.items()}
    found["dev_loss"] = float(nn.functional.cross_entropy(dev, texts.dev_labels))
    if last:
        logits, labels = torch.cat(train), texts.labels[:1000]
        found["train_loss"] = float(nn.functional.cross_entropy(logits, labels))
        found["train_accuracy"] = float((logits.argmax(1) == labels).float().mean())
    measure = METRICS[texts.metric]
    halves = {"": slice(None), "_to_choose": slice(0, None, 2), "_to_report": slice(1, None, 2)}
    found |= {f"score{name}": measure(predicted[half], truth[half]) for name, half in halves.items()}
    # The score of always answering with the most frequent class; a run that is not above it has failed.
    found["dev_majority"] = measure(torch.full_like(truth, int(truth.bincount().argmax())), truth)
    return found


def _accuracy(predicted: Tensor, truth: Tensor) -> float:
    return float((predicted == truth).double().mean())


def _f1(predicted: Tensor, truth: Tensor) -> float:
    both = int(((predicted == 1) & (truth == 1)).sum())
    return 2 * both / max(1, int((predicted == 1).sum() + (truth == 1).sum()))


def _matthews(predicted: Tensor, truth: Tensor) -> float:
    """Return the correlation of two classes; 0 where one of them is never predicted."""
    one, other = predicted.double() - predicted.double().mean(), truth.double() - truth.double().mean()
    norm = float(one.norm() * other.norm())
    return float(one @ other) / norm if norm > 0 else 0.0


METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {"accuracy": _accuracy, "f1": _f1, "matthews": _matthews}
"""What predictions are judged by."""
