"""A batch as the penalty sees it: the inputs of its examples, their labels, and examples without labels."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from effdeg._adapters.arguments import note_floating_masks
from effdeg._adapters.examples import count_examples, examples_only
from effdeg._adapters.frameworks import framework_of
from effdeg._adapters.labels import IGNORED
from effdeg._adapters.layers import advice_for_integers, base_model
from effdeg._adapters.paths import (
    check_integer_masks,
    check_interpolable,
    check_masks,
    check_real,
    innermost_key,
    interpolate,
    join_masks,
)
from effdeg._utils.device import is_readable, is_traced
from effdeg._utils.tree import Tree, entry, has_rows, named_map, named_tensors, tensors, tree_map


class OwnLossError(ValueError):
    """A model computes a loss of its own, in which the points would be counted as examples."""


@dataclass(frozen=True, eq=False)
class TrainingBatch:
    """A batch and the labels of its examples; unlabeled examples may follow these."""

    inputs: Tree  # what the points are appended to: `x`, or the named arguments and the keywords of a call
    examples: Tree  # the tensors with one row per example, named as messages name them, without labels
    model_labels: Any  # the `labels` among the inputs, from which a model may compute a loss
    labels: Any  # for anchoring: `y`, or else the labels among the inputs
    size: int
    unlabeled: int = 0  # how many of the examples, the last ones, have no labels
    is_call: bool = False  # whether `inputs` are named arguments and keywords
    joined: tuple[Tensor, ...] = ()  # the inputs to which the unlabeled examples were appended

    @property
    def labeled(self) -> int:
        """The number of examples of the batch itself."""
        return self.size - self.unlabeled

    @classmethod
    def of_call(cls, arguments: dict[str, Any], keywords: dict[str, Any], y: Tensor | None) -> "TrainingBatch":
        """Return the batch that a model is called with: positional arguments by name, and keywords."""
        return cls.of_inputs({**arguments, **keywords}, y, call=(arguments, keywords))

    @classmethod
    def of_inputs(cls, x: Tree, y: Tensor | None, call: Tree = None) -> "TrainingBatch":
        """Return the batch that a forward pass is given, if that is not a call of the model."""
        named, size = isinstance(x, Mapping), count_examples(x)
        own = x.get("labels") if named else None
        rest = {name: leaf for name, leaf in x.items() if name != "labels"} if named else x
        examples, labels = examples_only(rest, size), own if y is None else y
        return cls(x if call is None else call, examples, own, labels, size, is_call=call is not None)

    def append(self, unlabeled: Tree) -> "TrainingBatch":
        """Return the batch with unlabeled examples at its end: the same tensors, except labels."""
        count, own = count_examples(unlabeled, "unlabeled"), self.model_labels
        given = {name: leaf for name, leaf in named_tensors(unlabeled) if has_rows(leaf, count)}
        rows = [(name, leaf) for name, leaf in named_tensors(self.inputs) if has_rows(leaf, self.size)]
        wanted = {name: leaf for name, leaf in rows if leaf is not own}
        here, there = (
            {name: f"{tuple(leaf.shape[1:])} in {leaf.dtype}" for name, leaf in batch.items()}
            for batch in (wanted, given)
        )
        if here != there:
            advice = "A tensor that was passed by keyword belongs in x and unlabeled: two tuples, or two mappings."
            if here.keys() == there.keys():
                advice = "Crop or pad both to the same shape, in the same precision."
            raise ValueError(
                f"unlabeled must hold what x holds, except labels: examples of shape {' and '.join(here.values())}; "
                f"it holds {' and '.join(there.values())}. {advice}"
            )
        others = [given[name] for name in wanted]
        if isinstance(own, Tensor):
            own = torch.cat([own, own.new_full((count, *own.shape[1:]), IGNORED)])

        joined = [] if own is None else [own]

        def join(leaf: Any) -> Any:
            if leaf is self.model_labels:
                return own
            if not has_rows(leaf, self.size):
                return leaf
            joined.append(torch.cat([leaf, others.pop(0)]))
            return joined[-1]

        inputs, size = tree_map(join, self.inputs), self.size + count
        # Not replace(…), which torch.compile of torch 2.6 cannot trace.
        return TrainingBatch(inputs, self.examples, own, self.labels, size, count, self.is_call, tuple(joined))

    def _has_rows(self, leaf: Any) -> bool:
        """Return whether an input has one row per example, and not by chance as many as examples were joined."""
        joined = not self.unlabeled or any(leaf is each for each in self.joined)
        return joined and has_rows(leaf, self.size)

    def take_for_teacher(self, anchor: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what a teacher is called with: that of all examples, or with anchored labels of those without."""
        first = self.labeled if anchor == "labels" else 0
        cut = tree_map(lambda leaf: leaf[first:] if first and self._has_rows(leaf) else leaf, self.inputs)
        return tuple(cut[0].values()), cut[1]

    def change(self, rows: Tensor, change: Callable[[Tree], Tree]) -> Tree:
        """Return the inputs for changed copies of some examples; the function gets these as the batch was given."""
        given = self._given()
        own = [self._has_rows(leaf) for leaf in tensors(given)]
        taken = tree_map(lambda leaf: leaf[rows.to(leaf.device)] if self._has_rows(leaf) else leaf, given)
        with nullcontext() if is_traced() else self._naming_shared(given):
            changed = [leaf for leaf, has in zip(tensors(change(taken)), own, strict=True) if has]

        def fill(leaf: Any) -> Any:
            return changed.pop(0) if self._has_rows(leaf) and leaf is not self.model_labels else leaf

        return tree_map(fill, self.inputs)

    def _given(self) -> Tree:
        """Return the examples as a user has them, without labels."""
        if not self.is_call:
            return self._without_labels(self.inputs) if isinstance(self.inputs, Mapping) else self.inputs
        arguments, keywords = map(self._without_labels, self.inputs)
        keywords = {name: each for name, each in keywords.items() if any(map(self._has_rows, tensors(each)))}
        if keywords:
            return {**arguments, **keywords}
        positional = tuple(arguments.values())
        return positional[0] if len(positional) == 1 else positional

    @contextmanager
    def _naming_shared(self, given: Tree) -> Iterator[None]:
        """Add a note to the error of a function of partners= that reads what it is not given."""
        try:
            yield
        except KeyError as error:
            if self.is_call and isinstance(given, Mapping) and error.args[0] in {**self.inputs[0], **self.inputs[1]}:
                error.add_note(
                    f"The function of partners= gets {', '.join(map(repr, given))}: the entries of the batch with one "
                    f"row per example, without labels. If it needs {error.args[0]!r}, let it hold that itself."
                )
            raise

    def _without_labels(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {name: leaf for name, leaf in inputs.items() if leaf is None or leaf is not self.model_labels}

    def points(
        self, pairs: Tensor, alpha: Tensor, *, between: bool, unlabeled_rows: int, copies: Tree | None = None
    ) -> Tree:
        """Make what is appended to the batch: unlabeled examples, if they are run with it, and points.

        The points lie between the examples, or lead to changed copies. For paths at a layer they are placeholders.
        """

        def make(name: str, leaf: Any, copy: Any) -> Any:
            if not self._has_rows(leaf):
                return leaf
            made = make_points(name, leaf, None if copies is None else copy)
            return torch.cat([leaf[self.labeled :], made]) if unlabeled_rows else made

        def make_points(name: str, leaf: Tensor, copy: Any) -> Any:
            if name == "labels" and leaf is self.model_labels:
                # The model's own loss leaves out the points.
                return torch.full((alpha.numel(), *leaf.shape[1:]), IGNORED, device=leaf.device)
            first, second = ({name: leaf[end]} for end in pairs.to(leaf.device).unbind(1))
            if copy is not None:
                second = {name: copy}
            if between:
                return interpolate(first, second, alpha)[name]
            # In place of points there are changed copies, whose features are needed at the layer.
            placeholders = join_masks(first, second) if copy is None else join_masks(second, first)
            return placeholders[name].repeat_interleave(alpha.shape[1], dim=0)

        return named_map(make, self.inputs, self.inputs if copies is None else copies)

    def check_examples(self, model: object, *, between: bool, look: bool) -> None:
        """Raise unless the examples are real and, for paths ``between`` them, straight lines can join them.

        With ``look``, which waits for a GPU, their values are checked too.
        """
        check_real(self.examples, "x")
        if between:
            check_interpolable(self.examples, advice=partial(advice_for_integers, model))
        look = look and all(map(is_readable, tensors(self.examples)))
        if look:
            check_integer_masks(self.examples, "x")
        if look and not between:
            self._warn_of_padding(model)
        if between and look:
            check_masks(self.examples, "x")
            if note := note_floating_masks(self.examples):
                warnings.warn(note, stacklevel=4)

    def _warn_of_padding(self, model: object) -> None:
        base = base_model(model)
        if not framework_of(base).finds_last_token(base):
            return
        masks = [leaf for name, leaf in named_tensors(self.examples) if innermost_key(name) == "attention_mask"]
        if any(mask.dim() == 2 and bool((mask[:, -1] == 0).any()) for mask in masks):
            warnings.warn(
                f"{type(base).__name__} reads its output at the last token, which it finds by its id: along a path "
                "between two texts at that of the first. Pad on the left.",
                stacklevel=5,
            )

    def check_model_labels(self, model: object, *, anchored: bool, is_language: bool) -> None:
        """Raise if the model may count the points in a loss of its own, or shifts labels that are to be anchored."""
        own = self.model_labels
        # Soft labels have the shape of the outputs, and were made for them.
        tokens = anchored and not is_language and _are_tokens(self.labels)
        if not tokens and not is_language and not isinstance(own, Tensor):
            return  # before the framework of a function is asked for, which torch.compile does not trace
        base = base_model(model)
        framework = framework_of(base)
        if remedy := framework.loss_of_all_rows(base, self.inputs[1]):
            raise OwnLossError(
                f"{type(base).__name__} computes a loss of its routers, which counts the tokens of the points as well "
                f"as those of the batch. Set {remedy}, in its config or in the call."
            )
        if isinstance(own, Tensor) and not framework.leaves_out_ignored(base, own):
            raise OwnLossError(
                "x holds 'labels', from which the model may compute a loss of its own that counts the points too. Take "
                "them out of x, give them as y, and compute the loss from the outputs. If the model needs them for "
                "something else, wrap it in a function that takes them under another name."
            )
        if tokens and framework.language_model(base) is not None:
            raise ValueError(
                f"anchor='labels' puts labels where the outputs are, but {type(base).__name__} compares each "
                "output with the label of the next position. That is known for token ids and output='softmax'; "
                "otherwise use anchor='self' or anchor=None."
            )


def _are_tokens(labels: Any) -> bool:
    return isinstance(labels, Tensor) and labels.dim() > 1 and not labels.is_floating_point()


def check_no_loss(returned: Any) -> None:
    """Raise if a model returned a trainable number for the whole batch, in which the points are counted."""
    for name, leaf in named_tensors(returned):
        if leaf.requires_grad and leaf.dim() <= 1 and leaf.numel() == 1:
            raise OwnLossError(
                f"the model returned {entry('a single number', name)} for the whole batch, such as a loss of its own, "
                "which counts the points as examples. Leave out the arguments it is computed from and "
                "compute the loss from the outputs. If it is not a loss, wrap the model in a function that leaves it "
                "out, such as penalty(lambda x: model(x)[0], x, y)."
            )
