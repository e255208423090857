"""What models do on examples and their changed copies, and the choice among them: scores, certainty, and notes."""

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from effdeg._adapters.arguments import DataNote, ItemReader
from effdeg._adapters.examples import Examples
from effdeg._adapters.inference import Device, Model, inference, seed_everything
from effdeg._adapters.labels import check_range, read_class_ids
from effdeg._adapters.outputs import as_class_logits, shaped_values
from effdeg._adapters.partners import Partners
from effdeg._adapters.paths import BLOCK
from effdeg._adapters.settings import FitSettings, PathSettings
from effdeg._utils.checks import pluralize, shorten
from effdeg._utils.files import dump, replace_nonfinite, write_atomically
from effdeg._utils.memo import Memo
from effdeg._utils.progress import Update, ignore
from effdeg._utils.statistics import format_estimate, mean_and_stderr
from effdeg._utils.tables import Rows, align_columns, make_frame, render_tables
from effdeg._utils.tree import take
from effdeg.measuring._estimator import summarize
from effdeg.measuring._path_runner import DrawnPaths, PathRunner, hash_examples, model_name, split_rows
from effdeg.pools._identity import LabeledExamples, agree, hash_parts, hash_text, hash_weights, list_numbers
from effdeg.proxies._along_paths import compare_neighbors
from effdeg.proxies._evaluator import Evaluator, NotApplicable
from effdeg.proxies._predictions import predict_classes, score_cot, score_energy, score_mano, score_nuclear_norm

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

NODES = 4
"""Points on the path from an example to its changed copy, both ends included: a fit of degree 3."""
PATHS = 32 * BLOCK
"""The most examples with such points; the score needs the ends alone."""
_CHECKED = 4  # blocks of paths whose outputs must be the same for what was kept to be read

Load = Callable[[], Model]
Estimate = tuple[float, float | None]


class NotFinite(ValueError):  # noqa: N818  (a model is left out)
    """The outputs of a model are NaN or infinite."""


@dataclass(frozen=True)
class Observation:
    """What was observed of one model; its logits are not kept, except for those of a few examples."""

    kind: str  # of model
    classes: int
    predicted: Tensor  # the class of each example
    copies: Tensor  # the class of each changed copy
    measures: Mapping[str, Estimate]
    checked: Tensor | None = None  # outputs at a few copies and examples, from which the model is known again
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _SomePaths(DrawnPaths):
    chosen: Sequence[slice] = ()

    def blocks(self) -> list[slice]:
        return [*self.chosen]


@dataclass(frozen=True, kw_only=True)
class Observer:
    """Observes one model after another on the same examples and the same changed copies."""

    examples: Examples
    indices: list[int]
    change: Any
    at: str | None
    seed: int
    train: Any
    batch_size: int | None
    device: Device
    dtype: torch.dtype | None
    keep: Path | None = None
    data: str = ""  # a hash of the examples and their copies, if observations are kept

    def keep_in(self, folder: Path, model: Model) -> "Observer":
        """Return one that keeps what it observes in a folder."""
        read_item, hashes = ItemReader(model), hash_parts(self.examples, self.indices, self.seed)
        partners = Partners(self.change, len(self.examples), read_item, option="change")
        with seed_everything(self.seed):  # a data set may draw
            for block in self._blocks:
                rows = self.indices[block]
                inputs = read_item(self.examples.fetch(rows)).inputs
                hashes.append(hash_examples(partners.fetch(inputs, rows, seed=self.seed, block=block.start)))
        return replace(self, keep=folder, data=hash_text("".join(hashes)))

    def measure(self, load: Load, update: Update = ignore) -> Observation:
        """Observe a model, or read what was kept of it."""
        model = load()
        if self.keep is None or not isinstance(model, nn.Module):
            return self._observe(model, update)
        identity = (
            hash_weights({**model.state_dict(), **dict(model.named_buffers())}),
            repr(model),
            list_numbers(model),
            self.data,
            self.train and LabeledExamples(self.train, "train", ItemReader(model)).fingerprint(self.seed),
            *(str(setting) for setting in (self.at, self.seed, self.dtype, self.indices)),
        )
        file = self.keep / f"{hash_text(repr(identity))}.pt"
        if (kept := self._read(file, model)) is not None:
            return kept
        observation = self._observe(model, update)
        write_atomically(file, dump(partial(torch.save, vars(observation))))
        return observation

    def _read(self, file: Path, model: Model) -> Observation | None:
        """Return what was kept, unless it cannot be read, or the model now returns something else."""
        try:
            kept = Observation(**torch.load(file, weights_only=True))
        except (OSError, EOFError, RuntimeError, TypeError, UnpicklingError):
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            columns, _ = self._run(model, self._checked)
        return kept if kept.checked is not None and agree(kept.checked, columns["outputs"]) else None

    def try_out(self, model: Model) -> int:
        """Observe a model on two examples, to raise now what would fail on all; return the number of classes."""
        few = replace(self, indices=self.indices[:2], train=None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return few._observe(model, ignore).classes

    @property
    def _blocks(self) -> list[slice]:
        """All paths, each from an example to its copy."""
        total = len(self.indices)
        return [slice(start, min(start + BLOCK, total)) for start in range(0, total, BLOCK)]

    @cached_property
    def _copies(self) -> Memo:
        return Memo()

    @property
    def _checked(self) -> list[slice]:
        return _choose_evenly(self._blocks, _CHECKED)

    def _run(
        self, model: Model, blocks: Sequence[slice], update: Update = ignore
    ) -> tuple[dict[str, Tensor], list[str]]:
        """Run a model along paths; return columns, of a row for each path or each with points between, and notes."""
        looks = count()

        def read(returned: Any, points: int) -> Tensor:
            outputs = shaped_values(returned, "identity", points=points, look=next(looks) == 0, whose="network")
            if outputs.dim() > 2:
                as_class_logits(outputs)  # raises
            return outputs.reshape(points, -1)

        rows: dict[str, dict[int, Tensor]] = defaultdict(dict)

        def add(blocks: list[slice], columns: Mapping[str, Tensor]) -> None:
            for block, part in split_rows(blocks):
                for name, column in columns.items():
                    rows[name][block.start] = column[part].cpu()

        settings = PathSettings(
            nodes=NODES, sampling="uniform", at=self.at, seed=self.seed, paths=len(self.indices), partners=self.change
        )
        pairs = torch.tensor([self.indices, self.indices], device="cpu").T
        whole, left = _choose_evenly(blocks, PATHS // BLOCK), [*blocks]
        drawn = _SomePaths(settings, pairs, "change", recorded=False, copies=self._copies, chosen=whole)
        with inference(model, seed=self.seed, device=self.device, dtype=self.dtype) as runner:
            path_runner = PathRunner(runner, self.examples, drawn, self.batch_size)
            for group in path_runner.run(read, update=lambda done: update(done / len(self.indices))):
                outputs = group.kept.unflatten(0, (-1, NODES))
                add(group.blocks, _summarize_paths(outputs, group.alpha))
                if group.reach_examples:
                    add(group.blocks, _summarize_ends(outputs[:, -1], outputs[:, 0]))
                    left = [block for block in left if block not in group.blocks]
            for few, outputs in path_runner.run_ends(read, left):
                add(few, _summarize_ends(*outputs.chunk(2)))
                update(few[-1].stop / len(self.indices))
        columns = {name: torch.cat([parts[start] for start in sorted(parts)]) for name, parts in rows.items()}
        return columns, path_runner.notes

    def _observe(self, model: Model, update: Update) -> Observation:
        columns, notes = self._run(model, self._blocks, update)
        outputs, copies = columns.pop("outputs"), columns.pop("copies")
        if not all(bool(columns.pop(name).all()) for name in ("finite", "finite_between")):
            raise NotFinite("its outputs are NaN or infinite.")
        logits = as_class_logits(outputs[:, 1])
        classes = logits.shape[1]
        log_probabilities = logits.double().log_softmax(1)
        probabilities = log_probabilities.exp()
        entropy = -(probabilities * log_probabilities).sum(1)
        of_examples = {"confidence": probabilities.amax(1), "entropy": entropy, **columns}
        measures: dict[str, Estimate] = {name: mean_and_stderr(values) for name, values in of_examples.items()}
        measures["nuclear_norm"] = score_nuclear_norm(probabilities)
        for name, score in {"mano": score_mano, "energy": score_energy}.items():
            with suppress(NotApplicable):  # to two classes, or log-probabilities
                measures[name] = score(logits)
        measures["cot"] = score_cot(probabilities)
        if self.train is not None:
            with self._open_training(model, classes) as (evaluator, labels):
                predicted = predict_classes(evaluator)
            right = (predicted == labels.to(predicted.device)).double()
            measures["train_accuracy"] = float(right.mean()), None
        small = torch.int16 if classes <= 2**15 else torch.int32
        return Observation(
            kind=model_name(model),
            classes=classes,
            predicted=logits.argmax(1).to(small),
            copies=copies.to(small),
            measures=measures,
            checked=torch.cat([outputs[block] for block in self._checked]),
            notes=tuple(notes),
        )

    def try_training(self, model: Model, classes: int) -> None:
        """Check the labels of training examples, and run a model on a few of them."""
        try:
            with self._open_training(model, classes) as (evaluator, _):
                few = take(evaluator.inputs, slice(2))
                with evaluator.open_beside(evaluator.runner.model, (few, None)) as beside:
                    predict_classes(beside)
        except Exception as error:
            error.add_note("This is about the examples of train=.")
            raise

    @contextmanager
    def _open_training(self, model: Model, classes: int) -> Iterator[tuple[Evaluator, Tensor]]:
        """Open a model with the training examples; their labels are among the classes."""
        options = {name: getattr(self, name) for name in ("seed", "batch_size", "device", "dtype")}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataNote)
            with Evaluator.open(model, self.train, examples=len(self.indices), **options) as evaluator:
                labels = read_class_ids(evaluator.labels, "the labels of train=", floats=True)
                check_range(labels, "the labels of train=", classes)
                yield evaluator, labels


def _choose_evenly(blocks: Sequence[slice], most: int) -> list[slice]:
    return [*blocks[:: -(-len(blocks) // most)]]


def _as_two_classes(outputs: Tensor) -> Tensor:
    """Return logits of classes; a single output is the logit of class 1 of two."""
    return outputs if outputs.shape[-1] > 1 else torch.cat([torch.zeros_like(outputs), outputs], dim=-1)


def _summarize_ends(examples: Tensor, copies: Tensor) -> dict[str, Tensor]:
    """Return the outputs at the examples and copies, and classes of the copies, of all paths."""
    logits, changed = _as_two_classes(examples), _as_two_classes(copies)
    outputs = torch.stack([copies, examples], dim=1)
    return {
        "outputs": outputs,
        "copies": changed.argmax(1),  # as of the examples: probabilities may be equal where logits are not
        "finite": outputs.isfinite().flatten(1).all(1),
        "inconsistency_soft": (changed.softmax(-1) - logits.softmax(-1)).abs().sum(1).double() / 2,
    }


def _summarize_paths(outputs: Tensor, alpha: Tensor) -> dict[str, Tensor]:
    """Return what is measured along paths, a number for each."""
    logits = _as_two_classes(outputs)
    probabilities = logits.softmax(-1)
    fitted = summarize(logits, alpha, FitSettings(degree=NODES - 1, output="identity"))
    return {
        "finite_between": outputs.isfinite().flatten(1).all(1),
        "effective_degree": summarize(probabilities, alpha, FitSettings(degree=NODES - 1))["effective_degree"],
        "effective_degree_normalized": fitted["effective_degree_normalized"],
        **compare_neighbors(probabilities),
    }


_RESAMPLES, _AT_ONCE = 1000, 50
_LEVEL = 0.05  # models that are at least as good as the best in more resamples than this share count as ties
_FITS = 0.97  # training accuracy
_TOO_STRONG = 0.5  # of the predictions are altered
_LEAST_SPREAD = 0.25  # of errors around those that scores predict, as a share of the scores' own spread
RELATIVE = {"inconsistency ÷ chance": "inconsistency_of_chance", "disagreement ÷ chance": "disagreement_of_chance"}
"""The measures that a score is the mean of, by what tables and figures call them."""

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, eq=False, repr=False)
class Choice:
    """Models in the order of their scores, best first. :func:`effdeg.pick` returns it.

    Example:
        >>> import effdeg, torch
        >>> x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
        >>> choice = effdeg.pick({"wave": lambda x: (20 * x).sin(), "line": lambda x: x, "same": lambda x: 2 * x}, x)
        >>> choice.rows()[0]
        ['model', 'score', 'best in', 'inconsistency ÷ chance', 'disagreement ÷ chance']
        >>> choice.tied
        ('same',)

    Attributes:
        models: The models that were given.
        scores: The score of each model by name, best first: the mean of inconsistency and disagreement, each as a share
            of what chance would give, or, with labels, the estimated error. Lower is better.
        probabilities: The share of resamples of the examples in which each model has the best score.
        tied: The models that are not distinguishable from the best: in more than 5% of the resamples their score is at
            least as good.
        measures: For each model every measure by name, with its standard error or None.
        settings: ``change``, ``examples``, ``labels`` and ``seed``.
        notes: What limits the trust in this choice.
    """

    models: Mapping[str, Model]
    scores: Mapping[str, float]
    probabilities: Mapping[str, float]
    tied: tuple[str, ...]
    measures: Mapping[str, Mapping[str, Estimate]]
    settings: Mapping[str, Any]
    notes: tuple[str, ...]

    @property
    def best(self) -> str:
        """The name of the chosen model."""
        return next(iter(self.scores))

    @property
    def model(self) -> Model:
        """The chosen model."""
        return self.models[self.best]

    @property
    def ranking(self) -> list[str]:
        """The models' names, best first."""
        return list(self.scores)

    def describe(self) -> str:
        """Describe in a sentence or two which model is chosen, and how certain that is."""
        said = f"{self.best} is chosen of {len(self.scores)}: best in {self.probabilities[self.best]:.0%} of resamples."
        if self.tied:
            said += f" Not distinguishable from it: {shorten(self.tied, 5)}."
        if labels := self.settings["labels"]:
            by_labels = max(self.scores, key=lambda name: self.measures[name]["accuracy"][0])
            said += f" The {labels} labels alone say {by_labels}."
        return said

    def rows(self) -> Rows:
        """Return a table of strings: a header, then a row per model, best first."""
        shown = {"accuracy": "accuracy", **RELATIVE, "train accuracy": "train_accuracy"}
        shown = {head: name for head, name in shown.items() if name in self.measures[self.best]}
        score = "estimated error" if self.settings["labels"] else "score"
        rows = [["model", score, "best in", *shown]]
        for name, value in self.scores.items():
            estimates = (format_estimate(*self.measures[name][each]) for each in shown.values())
            rows.append([name, f"{value:.4g}", f"{self.probabilities[name]:.0%}", *estimates])
        return rows

    def to_frame(self) -> "DataFrame":
        """Return a data frame with a row per model, best first: all measures. Needs the extra ``pools``."""
        return make_frame(self._list_rows())

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, names and lists, for JSON."""
        return {
            "best": self.best,
            "tied": list(self.tied),
            "models": replace_nonfinite(self._list_rows()),
            "settings": dict(self.settings),
            "notes": list(self.notes),
        }

    def plot(self, *, theme: str = "light") -> "Figure":
        """Draw the scores, what they consist of, and the share of resamples that each model is best in.

        Needs the extra ``plots``.
        """
        from effdeg.plots import plot_choice

        return plot_choice(self, theme=theme)

    def _list_rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for name, score in self.scores.items():
            rows.append({"model": name, "score": score, "best_in": self.probabilities[name]})
            for measure, (value, stderr) in self.measures[name].items():
                rows[-1] |= {measure: value} | ({} if stderr is None else {f"{measure}_stderr": stderr})
        return rows

    def conditions(self) -> str:
        """Describe the examples and changes that the choice was made with."""
        return f"{self.settings['examples']} examples, changed by {self.settings['change']}"

    def legend(self) -> str:
        """Describe what the table shows."""
        labels = self.settings["labels"]
        what = f"from the score and {pluralize(labels, 'label')}" if labels else "the mean of both columns ÷ chance"
        return f"{'estimated error' if labels else 'score'}: {what}; lower is better (±: standard error)"

    def warnings(self) -> list[str]:
        """Return the notes as sentences of their own."""
        return [f"note: {note}" for note in self.notes]

    def _repr_html_(self) -> str:
        return render_tables([(self.describe(), self.rows())], [self.legend(), self.conditions(), *self.warnings()])

    def __str__(self) -> str:
        table = align_columns(self.rows())
        return "\n".join([self.describe(), *table, self.legend(), self.conditions(), *self.warnings()])

    def __repr__(self) -> str:
        return f"Choice({' < '.join(self.ranking)})"


def choose(
    models: Mapping[str, Model],
    observations: Mapping[str, Observation],
    labels: Tensor | None,
    settings: Mapping[str, Any],
    notes: Sequence[str],
) -> Choice:
    """Score models by what was observed of them, and by the labels of the first examples, if any are known."""
    names, observed = list(observations), list(observations.values())
    predicted, copies = (
        torch.stack([getattr(each, kind) for each in observed], dim=1).long() for kind in ("predicted", "copies")
    )
    parts = {"inconsistency": (predicted != copies).double(), "disagreement": compare_predictions(predicted)}
    chances = _find_chances(predicted, copies, observed[0].classes)
    # As much as chance where chance would give nothing.
    pairs = zip(parts.values(), chances, strict=True)
    shares = [torch.where(chance > 0, part / chance.clamp(min=1e-12), 1.0) for part, chance in pairs]
    by_example = torch.stack(shares).mean(0).numpy()  # examples × models
    wrong = None if labels is None else (predicted[: len(labels)] != labels[:, None]).double()
    examples = len(by_example)
    estimate = partial(_estimate_scores, by_example, None if wrong is None else wrong.numpy())
    score = estimate(np.ones((1, examples)))[0]
    generator = np.random.default_rng(settings["seed"])
    drawn = (
        generator.multinomial(examples, [1 / examples] * examples, _AT_ONCE) for _ in range(0, _RESAMPLES, _AT_ONCE)
    )
    scores = np.concatenate([estimate(counts.astype(np.float64)) for counts in drawn])
    won = scores <= scores.min(1, keepdims=True) + 1e-9  # copies of a model differ by rounding
    probabilities = (won / won.sum(1, keepdims=True)).mean(0)
    order = np.lexsort((-probabilities, score))
    compared = parts | dict(zip(RELATIVE.values(), shares, strict=True))
    if wrong is not None:
        compared = {"accuracy": 1 - wrong, **compared}
    measures: dict[str, dict[str, Estimate]] = {
        names[j]: {part: mean_and_stderr(values[:, j]) for part, values in compared.items()} for j in order
    }
    for name, own in measures.items():
        own |= observations[name].measures
    return Choice(
        models=models,
        scores={names[j]: float(score[j]) for j in order},
        probabilities={names[j]: float(probabilities[j]) for j in order},
        tied=tuple(names[j] for j in order[1:] if (scores[:, j] <= scores[:, order[0]]).mean() > _LEVEL),
        measures=measures,
        settings=settings,
        notes=(*notes, *_note_labels(labels, wrong, observed[0].classes), *_find_notes(observations, predicted, parts)),
    )


def compare_predictions(predicted: Tensor) -> Tensor:
    """Return, for every example and model, the share of the other models that predict another class.

    Models with the same predictions count as one: a checkpoint that is given twice would otherwise agree with itself.
    """
    distinct, places = torch.unique(predicted, dim=1, return_inverse=True)
    differ = torch.stack([(distinct != column[:, None]).sum(1) for column in distinct.unbind(1)], dim=1)
    shares: Tensor = differ.double() / max(1, distinct.shape[1] - 1)
    return shares[:, places]


def _find_chances(predicted: Tensor, copies: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return each model's inconsistency and disagreement by chance, with the same frequencies (as for Cohen's κ)."""
    own, of_copies = (_count_classes(classified, classes) for classified in (predicted, copies))
    distinct, places = torch.unique(predicted, dim=1, return_inverse=True)
    shares = _count_classes(distinct, classes)
    others = (shares.sum(0) - shares) / max(1, len(shares) - 1)
    return 1 - (own * of_copies).sum(1), 1 - (shares * others).sum(1)[places]


def _count_classes(predicted: Tensor, classes: int) -> Tensor:
    """Return the share of each class among the predictions of each model, models × classes."""
    return torch.stack([column.bincount(minlength=classes) for column in predicted.unbind(1)]).double() / len(predicted)


def _estimate_scores(by_example: Array, wrong: Array | None, counts: Array) -> Array:
    """Return the score of each model, resamples × models, for how often each resample has each example."""
    scores: Array = counts @ by_example / counts.sum(1, keepdims=True)
    if wrong is None:
        return scores
    # What all examples say, not a resample, which would follow its labels further: their noise is in it twice.
    line = _fit_line(by_example.mean(0), wrong.mean(0), find_variance(wrong))
    labeled = counts[:, : len(wrong)]
    # A resample without any labeled example says as much about the labels as the examples themselves do.
    labeled = np.where(labeled.sum(1, keepdims=True) > 0, labeled, 1.0)
    return _follow(*line, scores, labeled @ wrong / labeled.sum(1, keepdims=True))


def find_variance(wrong: Array) -> Array:
    """Return the variance of the error of a model on labeled examples, less what all models have in common.

    Args:
        wrong: 1 where a model is wrong: labeled examples × models, after axes of any number.

    Returns:
        The variance, in the shape of the axes before.

    Example:
        >>> import numpy as np
        >>> from effdeg.pools import find_variance
        >>> find_variance(np.array([[[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]])).round(4)
        array([0.0347])
    """
    own = wrong - wrong.mean(-1, keepdims=True)
    labels = wrong.shape[-2]
    # One more example on which a model is right and another is wrong: few labels may show no difference at all.
    return np.asarray((own.var(-2).mean(-1) * labels + 0.25) / (labels + 1) / labels)


def estimate_errors(scores: Array, errors: Array, variance: float | Array) -> Array:
    """Estimate the errors of models from scores without labels and from their errors on a few labels.

    Errors are taken to be a straight line in the scores plus a deviation of each model (Fay and Herriot, 1979). The
    slope is a ridge regression towards 1. The estimate lies between line and labels, nearer to many labels than to few.

    Args:
        scores: The scores of the models, which come last.
        errors: The share of labeled examples that each gets wrong.
        variance: The variance of these shares, less what all models have in common.

    Returns:
        The estimates, in the shape of the scores.

    Example:
        >>> import numpy as np
        >>> from effdeg.pools import estimate_errors
        >>> estimate_errors(np.array([0.1, 0.2, 0.3]), np.array([0.4, 0.2, 0.3]), variance=1e-9).round(3)
        array([0.4, 0.2, 0.3])
    """
    return _follow(*_fit_line(scores, errors, variance), scores, errors)


def _center(values: Array) -> Array:
    return values - values.mean(-1, keepdims=True)  # type: ignore[no-any-return]


def _fit_line(scores: Array, errors: Array, variance: float | Array) -> tuple[Array, Array]:
    """Return the slope of errors in scores, and the share of a model's deviation from the line that is believed."""
    x, y = _center(scores), _center(errors)
    slope = ((x * y).sum(-1, keepdims=True) / variance + 1) / ((x * x).sum(-1, keepdims=True) / variance + 1)
    slope = np.maximum(slope, 0.0)
    least = _LEAST_SPREAD**2 * (x * x).mean(-1, keepdims=True) + 1e-12
    deviation = np.maximum(((y - slope * x) ** 2).mean(-1, keepdims=True) - variance, least)
    return slope, deviation / (deviation + variance)


def _follow(slope: Array, believed: Array, scores: Array, errors: Array) -> Array:
    on_line = slope * _center(scores)
    return errors.mean(-1, keepdims=True) + on_line + believed * (_center(errors) - on_line)  # type: ignore[no-any-return]


def _note_labels(labels: Tensor | None, wrong: Tensor | None, classes: int) -> Iterator[str]:
    if labels is None or wrong is None:
        return
    if len(labels) > 1 and len({*labels.tolist()}) == 1:
        yield (
            f"all {len(labels)} labels= are of class {int(labels[0])}, and favor models that predict it often: label "
            "examples of other classes, too."
        )
    if (best := 1 - float(wrong.mean(0).min())) <= 1 / classes:
        yield (
            f"no model is better than guessing, 1 in {classes}, on the {pluralize(len(labels), 'label')} "
            f"({best:.0%} at best): are labels= those of the first examples, and in the order of the models' outputs?"
        )


def _find_notes(
    observations: Mapping[str, Observation], predicted: Tensor, parts: Mapping[str, Tensor]
) -> Iterator[str]:
    names, observed = list(observations), list(observations.values())
    inconsistency, disagreement = (part.mean(0) for part in parts.values())
    if not bool(inconsistency.any()):
        yield (
            "no change altered any prediction, so that only the disagreement among the models tells them apart. Give "
            "a stronger change=."
        )
    if (typical := float(inconsistency.median())) > _TOO_STRONG:
        yield (
            f"the change alters {typical:.0%} of the predictions of a typical model: it is too strong for these models "
            "to say which is better. Give a weaker change=."
        )
    if not bool(disagreement.any()):
        left = "only the inconsistency" if bool((inconsistency != inconsistency[0]).any()) else "nothing here"
        yield f"all models predict the same for every example: {left} tells them apart."
    elif twins := [
        f"{names[i]} and {names[j]}"
        for i in range(len(names))
        for j in range(i)
        if torch.equal(predicted[:, i], predicted[:, j])
    ]:
        yield f"some predict the same for every example, and count as one model: {shorten(twins, 3)}."
    unfit = [name for name, each in observations.items() if each.measures.get("train_accuracy", (1.0, None))[0] < _FITS]
    if unfit:
        yield (
            f"{_list(unfit)} below {_FITS:.0%} on the training examples: among models that do not fit them, these "
            "measures say less."
        )
    if len(kinds := sorted({each.kind for each in observed})) > 1:
        yield f"the models are of several kinds ({shorten(kinds, 4)}): measures compare best within one kind."
    # How many classes are predicted: the exponential of the entropy of their shares.
    shares = _count_classes(predicted, observed[0].classes)
    counts = torch.special.entr(shares).sum(1).exp()
    if narrow := [name for name, count in zip(names, counts, strict=True) if count < counts.median() / 2]:
        yield f"{_list(narrow)} predicting far fewer classes than the others: collapsed, or not trained?"
    if (typical := float(counts.median())) < min(shares.shape[1], len(predicted)) / 2:
        yield (
            f"most predictions fall into few classes, as if there were {typical:.1f} of {shares.shape[1]}: unless "
            "these data are so unbalanced, they are unlike the training data, or normalized in another way (mean and "
            "standard deviation), and such choices hardly beat chance. Label some examples (labels=)."
        )
    signs = [torch.sign(each[:, None] - each[None, :]) for each in (inconsistency, disagreement)]
    if len(names) > 3 and float((signs[0] * signs[1]).mean()) < 0:
        yield (
            "inconsistency and disagreement contradict each other about more pairs of models than they agree on: check "
            "with a few labels (labels=)."
        )
    if len(names) == 2:
        yield "two models disagree with each other alike: the inconsistency alone decides."


def _list(names: list[str]) -> str:
    return f"{shorten(names, 5)} {'is' if len(names) == 1 else 'are'}"
