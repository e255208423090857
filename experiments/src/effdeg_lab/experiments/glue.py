"""Fine-tuning a text encoder on GLUE with the paper's hyperparameters (appendix F.4).

The loss is the cross-entropy of a batch plus λ times the effective degree along paths between embeddings. The loop over
steps, with its checkpoints and CUDA graphs, is that of all experiments: ``engine/loop.py`` and ``engine/step.py``.
"""

import gc
import hashlib
import math
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from effdeg import Penalty
from effdeg.baselines import R3F, RDrop, mixup
from effdeg.baselines import Method as Regularizer
from effdeg_lab.core.recipe import Method, Recipe, Reported, Study
from effdeg_lab.core.results import Difference, MethodRuns, Results
from effdeg_lab.core.runs import CannotStackError, Job, Run, StoppedError
from effdeg_lab.core.settings import check_pairs, setting, unnamed
from effdeg_lab.data.sentences import load_task
from effdeg_lab.data.sources import HUB, explain_missing
from effdeg_lab.engine.examples import count_examples
from effdeg_lab.engine.loop import Loop, open_loop
from effdeg_lab.engine.observation import draw, drop_tokens, make_copies, observe
from effdeg_lab.engine.settings import PenaltySettings, choose_weights
from effdeg_lab.engine.stacked import Member, train_stack
from effdeg_lab.engine.step import Task, evaluating
from effdeg_lab.models.text import TextClassifier, check_folder, load_classifier, load_tokenizer, tokenize
from effdeg_lab.show.columns import ROUGH, MethodTable, count_seeds, format_price, is_rough, measure_price, tested_on
from effdeg_lab.show.methods import judge_difference
from effdeg_lab.show.tables import NOTHING, Table
from effdeg_lab.show.verdicts import Verdict, judge_all

_CHUNK = 512
_MOST_BATCHES = 0.75
# From a fine-tuned network, embedding mixup starts at a fifth of the rate (Park et al., 2022).
_SECOND_RATE = 0.2
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
    degree_weights: Literal["degree", "curvature"] = setting("degree", "what coefficients are weighted by")
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
        return self.change({"seed": 0}).hash

    def check(self) -> None:
        make_regularizer(self, classes=2)
        if self.regularizer == "ed":
            check_pairs(self.pairs, self.batch)
        own = not self.point_dropout or self.masks == "both" or self.similar_lengths
        if own and self.regularizer != "ed":
            raise ValueError("point_dropout, masks and similar_lengths are for the paths of regularizer=ed.")
        if own and self.anchor == "self":
            raise ValueError("point_dropout, masks and similar_lengths work only with anchor=labels or none.")


def train(settings: FineTuning, job: Job) -> None:  # noqa: ARG001
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
        return self.tokens[indices, :, :length], self.labels[indices]

    def shape(self, indices: Tensor) -> int:
        longest = int(self._lengths[indices].max())
        return next(length for length in self.shapes if length >= longest)


def _observe(model: Any, texts: Texts, count: int) -> dict[str, Any]:
    """Observe an encoder on dev examples, and on copies without a tenth of their tokens."""
    padding = getattr(model.model.config, "pad_token_id", None) or 0
    chosen = draw(len(texts.dev_labels), count).to(texts.dev_labels.device)
    tokens, labels = texts.dev_tokens[chosen], texts.dev_labels[chosen]
    copies = make_copies(tokens, partial(drop_tokens, padding=padding))
    with evaluating(model):  # also where only a half of it is run
        return observe(model, tokens, copies, labels, embed=model.embed, **_OBSERVED)


def make_task(settings: FineTuning, texts: Texts, model: TextClassifier) -> Task:
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


def make_regularizer(settings: FineTuning, *, classes: int, model: nn.Module | None = None) -> Regularizer:
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
    return Regularizer(settings.regularizer, {}, weight=weight, penalty=made[settings.regularizer]())


class Mixed(nn.Module):
    """Embedding mixup as a penalty of value 0, so that it can begin with the second stage."""

    def __init__(self, alpha: float, classes: int) -> None:
        super().__init__()
        self._alpha, self._classes = alpha, classes

    def forward(self, run: Callable[..., Tensor], x: tuple[Tensor, Tensor], y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
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


def _evaluate(model: nn.Module, texts: Texts, settings: FineTuning, *, last: bool) -> dict[str, Any]:
    """Score the dev examples; training examples only at the end: that takes longer, and says little before."""
    with evaluating(model, settings.precision):
        dev = torch.cat([model(part).float() for part in torch.split(texts.dev_tokens, _CHUNK)])
        shown = torch.split(texts.tokens[:1000], _CHUNK) if last else ()
        train = [model(part).float() for part in shown]
    predicted, truth = dev.argmax(1).cpu(), texts.dev_labels.cpu()
    found: dict[str, Any] = {"dev_loss": float(nn.functional.cross_entropy(dev, texts.dev_labels))}
    if last:
        logits, labels = torch.cat(train), texts.labels[:1000]
        found["train_loss"] = float(nn.functional.cross_entropy(logits, labels))
        found["train_accuracy"] = float((logits.argmax(1) == labels).float().mean())
    measure = METRICS[texts.metric]
    found["score"] = measure(predicted, truth)
    # The score of always answering with the most frequent class; a run that is not above it has failed.
    found["dev_majority"] = measure(torch.full_like(truth, int(truth.bincount().argmax())), truth)
    return found


def _accuracy(predicted: Tensor, truth: Tensor) -> float:
    return float((predicted == truth).double().mean())


def _matthews(predicted: Tensor, truth: Tensor) -> float:
    """Return the correlation of two classes; 0 where one of them is never predicted."""
    return float(torch.corrcoef(torch.stack([predicted, truth]).double())[0, 1].nan_to_num())


METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {"accuracy": _accuracy, "matthews": _matthews}
"""What predictions are judged by."""


@dataclass(frozen=True)
class FineTuned(Study):
    """Compares methods by the score of fine-tuned classifiers, paired by seed.

    The claim is that the best method in the paper is ahead of all others that it reports, with 95% intervals above
    zero.
    """

    task: str  # as the paper calls it
    metric: str  # the name of the score
    needs: ClassVar[str | None] = "score"

    def claim(self, results: Results) -> Verdict:
        reported = [(each.method.paper.mean, each) for each in results.methods if each.method.paper]
        reported.sort(key=lambda pair: -pair[0])
        (_, first), *others = reported
        return judge_all(judge_difference(results, first, other, above=0.0) for _, other in others)

    def tables(self, results: Results) -> list[Table]:
        return [self._list_scores(results)]

    def headline(self, run: Run) -> str:
        return f"{self.metric} {100 * run.value('score'):.2f}%"

    def _name(self, results: Results) -> str:
        encoders = dict.fromkeys(Path(run.settings["model"]).name for each in results.done for run in each.runs)
        return ", ".join([self.task, *encoders])

    def _list_scores(self, results: Results) -> Table:
        methods = [each for each in results.methods if each.state != "not run"]
        table, papers = MethodTable(results, methods), [each.method.paper for each in methods]
        table.add("paper, %", (f"{paper.mean:.2f}" if paper else NOTHING for paper in papers))
        table.add_means("here, %", "score", states=True, bold=True)
        failed = (f"{_count_failed(each)} of {len(each.runs)}" if each.runs else NOTHING for each in methods)
        table.add("failed", failed)
        table.add_differences(f"against {table.first}", "score")
        # The recipe's number of seeds is only for its own settings.
        planned = "" if results.changes else f"of the recipe's {len(results.recipe.seeds)} "
        notes = [
            f"After the last epoch, on {_name_examples(results)}; {count_seeds(results)} {planned}seeds. ±: standard "
            "deviation over seeds. Failed: not above what the most frequent class scores.",
            "Differences have 95% intervals, paired by seed; * excludes zero.",
            *_describe_paper(methods),
        ]
        if any(each.time() is not None for each in methods):
            table.add("step, ms", (_format_step(results, each) for each in methods))
            notes.append(f"Step: of runs that had the device to themselves; in brackets, against {table.first}'s.")
            notes += [ROUGH] if is_rough(results) else []
        notes += results.failures
        absent = [each.method.title for each in results.methods if each not in methods]
        notes += [f"Not run: {'; '.join(absent)}."] if absent else []
        return table.make(f"{self._name(results)}: {self.metric}, {results.heading}", notes)


def count_exceptions(several: Iterable[Results], *, at_once: bool) -> tuple[int, int, int]:
    """Count the differences from the first method: all, those above zero, and those below, by 95% intervals.

    With ``at_once``, intervals hold for all differences at once (Bonferroni); otherwise for each by itself.
    """
    pairs = [
        [dict(each.values("score")), dict(results.methods[0].values("score"))]
        for results in several
        for each in results.done
        if results.methods[0].runs and each is not results.methods[0]
    ]
    comparisons = len(pairs) if at_once else 1
    found = [Difference.of(*pair, comparisons=comparisons).interval or (-math.inf, math.inf) for pair in pairs]
    return len(pairs), sum(low > 0 for low, _ in found), sum(high < 0 for _, high in found)


def _count_failed(each: MethodRuns) -> int:
    return sum(run.value("score") <= run.value("dev_majority") for run in each.runs)


def _describe_paper(methods: Iterable[MethodRuns]) -> list[str]:
    known = ", ".join(f"{each.method.title} {each.method.paper}" for each in methods if each.method.paper)
    return [f"Paper: BERT-base, 9 seeds; {known}."] if known else []


def _format_step(results: Results, each: MethodRuns) -> str:
    step, price = each.time("milliseconds_per_step"), measure_price(results, each)
    if step is None:
        return NOTHING
    return f"{step:,.1f}" + ("" if price is None else f" ({format_price(price)})")


def _name_examples(results: Results) -> str:
    return "dev" if tested_on(results) == "test" else "the held-out training examples"


# The authors' 0.5 is for a divergence summed over batches of 16; for the mean that RDrop returns, it is 0.5 · 16 / 2.
RDROP_WEIGHT = 4.0
ED = {"regularizer": "ed"}
R3F_WEIGHT = 0.7  # from the authors' example for RTE


def make_recipe(
    settings: FineTuning, task: str, metric: str, *paper: tuple[float, float], expects: str, cost: str, seeds: int
) -> Recipe:
    """Make the recipe of a task from the paper's settings and its numbers of plain training, mixup and ED."""
    plain, mixup, ed = (Reported(*row) for row in paper)
    return Recipe(
        name=f"glue-{settings.data}",
        title=f"Fine-tuning a text encoder on {task}",
        paper="Table 4, appendix F.4",
        expects=expects,
        cost=f"{cost} stacked, after compiling",
        settings=settings,
        run=train,
        run_stacked=train_stacked,
        check_data=check_texts,
        study=FineTuned(task=task, metric=metric),
        # The paper's three, relatives of ED, and variants of ED that the paper leaves open.
        methods=(
            Method("plain", "Plain", {"regularizer": "plain"}, plain),
            Method("mixup", "Mixup", {"regularizer": "mixup"}, mixup),
            Method("mixup-later", "Mixup in a second stage", {"regularizer": "mixup", "two_stages": True}),
            Method("rdrop", "R-Drop", {"regularizer": "rdrop", "weight": RDROP_WEIGHT}),
            Method("r3f", "R3F", {"regularizer": "r3f", "weight": R3F_WEIGHT}),
            Method("ed", "ED", ED, ed),
            Method("ed-self", "ED, self anchors", {**ED, "anchor": "self"}),
            Method("ed-curvature", "ED, curvature", {**ED, "degree_weights": "curvature"}),
            Method("ed-sum", "ED at the sum", {**ED, "place": "sum"}),
            Method("ed-no-dropout", "ED, no dropout at points", {**ED, "point_dropout": False}),
            Method("ed-both-masks", "ED, tokens of both ends", {**ED, "masks": "both"}),
            Method("ed-all-pairs", "ED, twice the pairs", {**ED, "pairs": 1.0}),
            Method("ed-similar", "ED, similar lengths", {**ED, "similar_lengths": True}),
        ),
        departs=(
            "The encoder is all-MiniLM-L6-v2 (22.7 million parameters, trained further to embed sentences), not "
            "BERT-base, so only differences can be compared with the paper's. Where the paper is silent: AdamW "
            "without weight decay, a learning rate that falls linearly to 0 without warm-up, clipping at 1, texts cut "
            "off at 128 tokens, bfloat16 on a GPU, and the score after the last epoch. The weight of R-Drop is its "
            "authors' 0.5 at a batch of 16, which is 4 for the mean over examples, at every batch size. The weight of "
            "R3F is its authors' 0.7 for RTE, and its noise of 1e-5 is smaller than the rounding of bfloat16. ED with "
            "self anchors and ED with weights for curvature have the paper's λ for ED with labels."
        ),
        seeds=tuple(range(seeds)),
    )


RECIPES = (
    make_recipe(
        FineTuning(data="cola", lr=2e-5, batch=64, epochs=20, weight=0.3),
        *("CoLA", "Matthews correlation", (62.31, 1.01), (61.04, 0.91), (62.45, 1.01)),
        expects="ED is ahead by 0.14 points; mixup at the embeddings loses 1.27.",
        cost="3.5 s per plain run on one H200, 5.5 with ED, 7 with mixup in two stages, eight",
        seeds=9,
    ),
    make_recipe(
        FineTuning(data="mrpc", lr=5e-5, batch=16, epochs=10, weight=0.5),
        *("MRPC", "accuracy", (86.74, 1.06), (86.30, 1.22), (87.66, 0.90)),
        expects="ED is ahead by 0.92 points; mixup at the embeddings loses 0.44.",
        cost="3 s per plain run on one H200, 4.5 with ED, 6 with mixup in two stages, six",
        seeds=25,
    ),
    make_recipe(
        FineTuning(data="rte", lr=5e-5, batch=32, epochs=10, weight=0.5),
        *("RTE", "accuracy", (70.28, 1.73), (70.28, 3.07), (71.12, 1.96)),
        expects="ED is ahead by 0.84 points; mixup at the embeddings gains nothing.",
        cost="2 s per plain run on one H200, 3 with ED, 3.5 with mixup in two stages; with mpnet 8 and 13, three",
        seeds=25,
    ),
)
