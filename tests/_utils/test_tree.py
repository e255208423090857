from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from effdeg._utils.tree import concatenate, entry, map_tensors, named_leaves, named_map, take, tensors


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Tokens:
    ids: Any
    mask: Any
    length: int = field(init=False, default=3)


class Output(OrderedDict):
    """A mapping that is built from keywords, as the outputs of Hugging Face models are."""

    __dataclass_fields__ = ()

    def __init__(self, **entries):
        super().__init__(entries)


def test_the_structure_of_every_container_is_kept():
    tree = {
        "pair": Pair(torch.ones(2), [torch.zeros(2), "text"]),
        "tokens": Tokens(torch.ones(2), None),
        "output": Output(logits=torch.ones(2)),
        "ordered": OrderedDict(a=torch.ones(2)),
    }
    doubled = map_tensors(lambda leaf: 2 * leaf, tree)
    assert isinstance(doubled["pair"], Pair)
    assert isinstance(doubled["pair"].second, list)
    assert doubled["pair"].second[1] == "text"
    assert isinstance(doubled["tokens"], Tokens)
    assert (doubled["tokens"].mask, doubled["tokens"].length) == (None, 3)
    assert isinstance(doubled["output"], Output)
    assert type(doubled["ordered"]) is OrderedDict
    assert [each.sum().item() for each in tensors(doubled)] == [4, 0, 4, 4, 4]


def test_leaves_have_the_names_that_lead_to_them():
    tree = {"tokens": Tokens(torch.ones(2), None), "rest": (1, [2])}
    assert [name for name, _ in named_leaves(tree)] == [
        *("tokens.ids", "tokens.mask", "tokens.length"),
        *("rest[0]", "rest[1][0]"),
    ]
    innermost = named_map(lambda name, leaf: name, tree)
    assert (innermost["tokens"].ids, innermost["rest"]) == ("ids", ("rest", ["rest"]))
    assert named_map(lambda name, leaf: name, 3) == ""
    assert entry("inputs", "mask") == "inputs ('mask')"
    assert entry("inputs", "") == "inputs"


def test_rows_are_taken_and_joined():
    batch = {"x": torch.arange(6).view(3, 2), "name": "digits"}
    assert take(batch, torch.tensor([2, 0]))["x"].tolist() == [[4, 5], [0, 1]]
    joined = concatenate([take(batch, slice(0, 1)), take(batch, slice(1, 3))])
    assert torch.equal(joined["x"], batch["x"])
    assert joined["name"] == "digits"
    assert concatenate([batch]) is batch
