"""Which of several models will generalize best, without labels."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from effdeg import changes
from effdeg._adapters.arguments import ItemReader
from effdeg._adapters.examples import LABELS, DataSet, Examples, ReadOnce, as_examples, describe_shapes, keeps_order
from effdeg._adapters.inference import Model, check_precision, seed_everything
from effdeg._adapters.labels import check_range, read_class_ids
from effdeg._adapters.layers import base_model
from effdeg._adapters.partners import draw, name_partners, read_changes
from effdeg._adapters.spaces import are_tokens, default_layer
from effdeg._utils.checks import check_count, pluralize
from effdeg._utils.files import check_writable
from effdeg._utils.tree import Tree, map_tensors, named_tensors
from effdeg.pools._choice import Choice, Load, NotFinite, Observation, Observer, choose
from effdeg.pools._comparison import name_models, naming
from effdeg.pools._identity import HASHED, LabeledExamples
from effdeg.pools._runners import check_place, run_all

_TRIED = 256  # examples that a usual change is made for
_DROPPED = 0.1  # the share of tokens that the usual change of a text replaces
_NOISE = 0.1  # the usual noise of a number, as a share of its standard deviation
_USUAL_PIXEL = 20  # the largest value of a pixel that was normalized
_SHIFT = 8  # the usual shift of an image is its smaller side divided by this


def pick(
    models: Mapping[str, Model] | Sequence[Model],
    data: Any,
    *,
    labels: Any = None,
    train: Any = None,
    change: Any = None,
    at: str | None = None,
    examples: int = 2000,
    seed: int = 0,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    keep: str | Path | None = None,
    progress: bool = False,
) -> Choice:
    """Choose the model that is likely to be the most accurate, from examples without labels.

    Each model predicts the class of every example and of a changed copy, such as its mirror image, that should have the
    same class. The score of a model is the mean of two shares: of examples whose copy is classified differently
    (inconsistency), and of other models that classify an example differently (disagreement), each divided by what
    chance would give, so that a model is not chosen because it always says the same. The lowest score is chosen. The
    same forward passes give every other measure without labels: see ``measures`` of :class:`effdeg.Choice`.

    How often a model is best when the examples are drawn anew (the bootstrap) tells how much of the order is chance; it
    does not tell whether the score is right for these models: notes and a few labels do.

    Args:
        models: At least two classifiers for the same classes that return logits: a dict by name, or a list.
        data: Examples like those that the model will be used on, of any kind that :func:`effdeg.measure` accepts.
        labels: The classes of the first examples, if you know some: the accuracies on these are shown, and combined
            with the score to an estimate of each model's error.
        train: Training examples with labels, as ``(inputs, labels)`` or a data set, of which as many as ``examples``
            are drawn: models that do not fit them are noted.
        change: A function of a batch that should not change a class, or several, of which one is drawn for each
            example; see :mod:`effdeg.changes`. By default images are mirrored (not those of one channel) and shifted by
            up to an eighth of their size, a tenth of the tokens is replaced, and to vectors is added noise of a tenth
            of the standard deviation of each number.
        at: For token ids, the layer that embeds them; known for models of Hugging Face.
        examples: The number of examples, drawn with ``seed``; those with labels are always among them.
        seed: Determines examples, changes and resamples.
        batch_size: Points per forward pass; by default 1024, on the CPU 256.
        device: Run the models there; by default where they are.
        dtype: Run the models in this precision.
        keep: A folder in which what is observed of each model is kept for later calls with the same data and settings.
        progress: Show a progress bar.

    Returns:
        The choice: ``.best`` and ``.model``, all scores and measures, ``.tied`` and ``.notes``.

    Raises:
        ValueError: If there are fewer than two models, they have different classes, or all but one return NaN; if a
            setting is out of range, the change alters shapes, or labels are no classes or not those that the data hold.
        TypeError: If models or data cannot be read, or there is no usual change for such data.

    Example:
        >>> import effdeg, torch
        >>> x = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
        >>> models = {name: torch.nn.Linear(8, 3) for name in "abc"}
        >>> choice = effdeg.pick(models, x)
        >>> choice.best in models, round(sum(choice.probabilities.values()), 6)
        (True, 1.0)
    """
    named, loads = _name(models)
    check_count("examples", examples, least=2)
    check_count("seed", seed, least=0)
    if batch_size is not None:
        check_count("batch_size", batch_size, least=1)
    check_precision(dtype)
    check_place("models are picked by one process, not under torchrun.", device)
    if keep is not None:
        try:
            Path(keep).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"keep={str(keep)!r} cannot be made a folder: {error.strerror}.") from None
        check_writable(f"keep={str(keep)!r}", Path(keep).absolute())
    known = None if labels is None else read_class_ids(labels, "labels=")
    if known is not None and not keeps_order(data):
        raise ValueError(
            "labels= are those of the first examples, but this DataLoader's sampler selects and orders examples: give "
            "a Dataset, such as torch.utils.data.Subset(loader.dataset, indices)."
        )
    with seed_everything(seed):  # a loader may draw
        given = as_examples(data)
    if isinstance(given, DataSet):
        given = ReadOnce(given)
    indices = _draw(len(given), examples, seed, 0 if known is None else len(known))
    first = next(iter(loads.values()))()
    labeled = LabeledExamples.read(train, "train", ItemReader(first))
    reason = None
    if known is not None:
        _check_labels(known, given, ItemReader(first), seed)
    if change is None:
        with seed_everything(seed):  # a data set may draw
            # Evenly: the first examples may all be of one class.
            some = ItemReader(first)(given.fetch(indices[:: -(-len(indices) // _TRIED)])).inputs
        change, reason = choose_change(some, first, at)
    elif not read_changes(change):
        raise TypeError(
            f"change={change!r} must be a function of a batch, such as effdeg.changes.mirror, or a list of them."
        )
    observer = Observer(
        examples=given,
        indices=indices,
        change=change,
        at=at,
        seed=seed,
        train=labeled and labeled.examples,  # a generator is read only once
        batch_size=batch_size,
        device=device,
        dtype=dtype,
    )
    left_out = _try_out(observer, loads, known)
    if keep is not None:
        observer = observer.keep_in(Path(keep), first)
    loads = {name: load for name, load in loads.items() if name not in left_out}
    outcomes = dict(run_all(observer, loads, title="pick" if progress else ""))
    observations = {name: outcomes[name] for name in loads if isinstance(outcomes[name], Observation)}
    left_out |= {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, str)}
    notes = [] if reason is None else [f"{reason}; give change= if that can alter a class."]
    notes += dict.fromkeys(note for observation in observations.values() for note in observation.notes)
    notes += [f"{name} is left out: {why}" for name, why in left_out.items()]
    if len(observations) < 2:
        raise ValueError(f"fewer than two models are left to choose among: {' '.join(notes)}")
    counts = {"examples": len(indices), "labels": 0 if known is None else len(known)}
    return choose(named, observations, known, {"change": name_partners(change), **counts, "seed": seed}, notes)


def _name(models: Any) -> tuple[Mapping[str, Model], dict[str, Load]]:
    """Return models by name, and how to get each; a mapping other than a dict may load a model when it is asked for."""
    if isinstance(models, Mapping) and not isinstance(models, dict) and len(models) > 1:
        return models, {name: partial(models.__getitem__, name) for name in models}
    named = name_models(models)
    return named, {name: partial(named.__getitem__, name) for name in named}


def _check_labels(labels: Tensor, examples: Examples, read_item: ItemReader, seed: int) -> None:
    """Raise if the examples come with labels, and these are others."""
    differing: list[int] = []
    for start in range(0, min(len(labels), len(examples)), HASHED):
        part = labels[start : start + HASHED]
        with seed_everything(seed):  # a data set may draw
            held = read_item(examples.fetch(range(len(examples))[start : start + len(part)])).labels
        try:
            ids = read_class_ids(held, "the labels of data=")
        except (TypeError, ValueError):  # none, or other labels than classes
            return
        known = ids >= 0  # -1 and -100 are no labels
        differing += (start + (known & (ids != part)).nonzero().flatten()).tolist()
    if differing:
        raise ValueError(
            f"labels= differ from the labels in data= for {len(differing)} of {pluralize(len(labels), 'example')}, "
            f"first for example {differing[0]}. Give those of the first examples, in the order of data=, or data= "
            "without labels."
        )


def _draw(total: int, examples: int, seed: int, labeled: int) -> list[int]:
    """Draw examples; the first ``labeled`` are always among them."""
    if total < 2:
        raise ValueError(f"data= holds {total} examples; at least two are needed, better a thousand.")
    if labeled > total:
        raise ValueError(f"labels= are {labeled}, but data= holds {total} examples: give those of the first.")
    others = labeled + torch.randperm(total - labeled, generator=torch.Generator().manual_seed(seed), device="cpu")
    return [*range(labeled), *others[: max(0, examples - labeled)].sort().values.tolist()]


def _try_out(observer: Observer, loads: Mapping[str, Load], labels: Tensor | None) -> dict[str, str]:
    """Run every model on a few examples, to raise now what is wrong; return those whose outputs are not finite."""
    left_out, classes = {}, {}
    for name, load in loads.items():
        with naming(name):
            model = load()
            try:
                classes[name] = observer.try_out(model)
                if observer.train is not None and len(classes) == 1:
                    observer.try_training(model, classes[name])
            except NotFinite as error:
                left_out[name] = str(error)
    if len(set(classes.values())) > 1:
        listed = ", ".join(f"{name} has {count}" for name, count in classes.items())
        raise ValueError(f"the models have different numbers of classes: {listed}.")
    if labels is not None and classes:
        check_range(labels, "labels=", min(classes.values()))
    return left_out


def choose_change(inputs: Tree, model: Model, at: str | None) -> tuple[Any, str]:
    """Return the usual change of examples like these, and why it is chosen.

    Raises:
        TypeError: If there is none.
    """
    floating = [leaf for _, leaf in named_tensors(inputs) if leaf.is_floating_point()]
    if len(floating) == 1 and floating[0].dim() == 4 and floating[0].shape[1] in (1, 3, 4):
        pixels = changes.shift(max(1, min(floating[0].shape[-2:]) // _SHIFT))
        largest = float(floating[0].abs().max())
        doubt = f" (values reach {largest:g}: are they normalized as in training?)" if largest > _USUAL_PIXEL else ""
        if floating[0].shape[1] == 1:
            return pixels, f"images of one channel{doubt} are shifted, not mirrored: they may be digits or letters"
        return changes.compose(changes.mirror, pixels), f"images{doubt} are mirrored and shifted"
    if len(floating) == 1 and floating[0].dim() == 2:
        return _add_noise(floating[0]), f"noise of {_NOISE:g} standard deviations is added to each number"
    if are_tokens(inputs) and (at or default_layer(model, inputs)) is not None:
        token = getattr(getattr(base_model(model), "config", None), "pad_token_id", None) or 0
        return changes.drop_tokens(_DROPPED, token), (
            f"{_DROPPED:.0%} of token ids are replaced by {token}; for texts such picks are not shown to beat chance: "
            "label some examples (labels=)"
        )
    raise TypeError(
        f"there is no usual change for examples of {describe_shapes(inputs)}{_advise(inputs)}: give change=, a "
        "function of a batch that should not alter a class (effdeg.changes has some), and for token ids at=, the layer "
        "that embeds them."
    )


def _advise(inputs: Tree) -> str:
    """Return what may be wrong with examples for which there is no usual change, in parentheses."""
    names, leaves = zip(*named_tensors(inputs), strict=True)
    if labels := [name for name in names if name.strip("[]'") in LABELS]:
        return f" (leave out {labels[0].strip('[]')})"
    shape = leaves[0].shape
    if len(leaves) > 1 or len(shape) not in (3, 4):
        return ""
    if len(shape) == 3:
        return " (a single image? Write data[None]. Images without channels? Write data[:, None])"
    if shape[-1] in (1, 3, 4):
        return " (channels come second: data.permute(0, 3, 1, 2))"
    return "" if leaves[0].is_floating_point() else " (convert images to floating point: data.float() / 255)"


def _add_noise(vectors: Tensor) -> changes.Change:
    deviation = _NOISE * vectors.double().std(0)

    def add(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x
        return x + draw(x.device, *x.shape, by=torch.randn, dtype=x.dtype) * deviation.to(x)

    return changes.Change(f"noise of {_NOISE:g} standard deviations of each number", partial(map_tensors, add))
