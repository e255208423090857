"""What identifies examples and models, so that only what is the same is continued."""

import copy
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from effdeg._adapters.arguments import Item, ItemReader
from effdeg._adapters.examples import Batch, Examples, as_examples
from effdeg._adapters.inference import seed_everything
from effdeg._utils.tree import Tree, take
from effdeg.measuring._path_runner import hash_examples

HASHED = 64  # examples at a time
_IDENTIFYING = 2000  # examples that identify a data set that is not in memory
_SAME = 1e-3  # an output that differs by more than this share of its range is not that of the same function


def hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def hash_parts(examples: Examples, indices: Sequence[int], seed: int) -> list[str]:
    """Return hashes of examples, a few at a time."""
    with seed_everything(seed):  # a data set may draw
        starts = range(0, len(indices), HASHED)
        return [hash_examples(examples.fetch(indices[start : start + HASHED])) for start in starts]


def hash_weights(state: Mapping[str, Any]) -> str:
    return hash_examples({name: value.reshape(-1) for name, value in state.items() if torch.is_tensor(value)})


def list_numbers(model: nn.Module) -> dict[str, Any]:
    """Return the numbers, also in lists, that may decide what a model returns but are no weights: a temperature.

    Not tensors: models keep activations as attributes. :func:`agree` sees those that matter.
    """
    held = {f"{name}.{key}": value for name, part in model.named_modules() for key, value in vars(part).items()}
    lists = {key: value if isinstance(value, list | tuple) else [value] for key, value in held.items()}
    numbers = {key for key, values in lists.items() if all(isinstance(each, int | float) for each in values)}
    return {key: value for key, value in held.items() if key in numbers and key[-9:] != ".training"}


def agree(kept: Tensor, now: Tensor) -> bool:
    """Return whether outputs at the same examples are those of the same function, up to rounding.

    Each output has its own range: that of a class that is masked is far from the others.
    """
    if kept.shape != now.shape:
        return False
    rounding = max(1e-5, 2 * torch.finfo(now.dtype).eps)  # relative to the largest value of an output
    kept, now = (each.double().reshape(-1, each.shape[-1]) for each in (kept, now))
    finite = kept.where(kept.isfinite(), 0.0)
    largest = finite.abs().amax(0)
    limit = _SAME * (finite.amax(0) - finite.amin(0)) + rounding * torch.maximum(largest, largest.median())
    return bool(((now == kept) | ((now - kept).abs() <= limit)).all())


class LabeledExamples:
    """Examples for a model that may have labels, in any form that :func:`effdeg.proxies.evaluate` reads."""

    def __init__(self, data: Any, name: str, read_item: ItemReader) -> None:
        self.read_item = read_item
        try:
            with seed_everything(0):  # a loader may draw
                self.examples, self.name = as_examples(data, labeled=True), name
        except (TypeError, ValueError) as error:
            error.add_note(f"These are the examples of {name}=…")
            raise
        if len(self.examples) < 2:
            raise ValueError(f"{name} must hold at least two examples, not {len(self.examples)}.")
        with seed_everything(0):  # a data set may draw
            self.two = self.fetch_item([0, 1])

    @classmethod
    def read(cls, data: Any, name: str, read_item: ItemReader) -> "LabeledExamples | None":
        """Return examples that must have labels, if any are given."""
        examples = None if data is None else cls(data, name, read_item)
        if examples is not None and not examples.has_labels:
            advice = "give (inputs, labels), or a Dataset or DataLoader of such pairs."
            raise ValueError(f"{name}= holds no labels: {advice}")
        return examples

    @property
    def has_labels(self) -> bool:
        return self.two.labels is not None

    def __len__(self) -> int:
        return len(self.examples)

    def fetch(self, indices: Sequence[int]) -> Tree:
        """Return an item without labels."""
        return (self.fetch_item(indices).inputs,)

    def fetch_item(self, indices: Sequence[int]) -> Item:
        return self.read_item(self.examples.fetch(indices))

    def fingerprint(self, seed: int) -> str:
        """Return what identifies the examples: their number, and a hash of them with their labels, or of many."""
        count = len(self) if isinstance(self.examples, Batch) else _IDENTIFYING
        hashes = hash_parts(self.examples, self.choose(count), seed)
        return f"{len(self)} {self.has_labels} {hash_text(''.join(hashes))}"

    def shares_inputs_with(self, other: "LabeledExamples", seed: int) -> bool:
        """Return whether more than half of the inputs of either are those of the other, in any order.

        What occurs more than once does not count: few features with few values are alike in any two data sets.
        """
        one, two = (Counter(examples._hash_inputs(seed)) for examples in (self, other))
        shared = sum(times == two[each] == 1 for each, times in one.items())
        return one == two or shared > min(one.total(), two.total()) / 2

    def _hash_inputs(self, seed: int) -> Iterator[str]:
        """Return a hash of each example's inputs; of some examples if there are many and each must be read."""
        readable = isinstance(self.examples, Batch) or len(self) <= _IDENTIFYING
        indices = self.choose(len(self) if readable else HASHED)
        with seed_everything(seed):  # a data set may draw
            for start in range(0, len(indices), HASHED):
                part = indices[start : start + HASHED]
                inputs = self.fetch_item(part).inputs
                yield from (hash_examples(take(inputs, slice(row, row + 1))) for row in range(len(part)))

    def choose(self, count: int) -> list[int]:
        """Return indices that are the same each time, but not every n-th, which might all be of one class."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(0), device="cpu")
        return sorted(order[:count].tolist())

    def first(self, count: int) -> "LabeledExamples":
        few = copy.copy(self)
        few.examples = _First(self.examples, min(count, len(self)))
        return few


@dataclass(frozen=True)
class _First:
    examples: Examples
    count: int

    def __len__(self) -> int:
        return self.count

    def fetch(self, indices: Sequence[int]) -> Tree:
        return self.examples.fetch(indices)
