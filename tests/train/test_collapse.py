import warnings

import pytest
import torch
from torch import nn

from effdeg import Penalty
from effdeg.train._collapse import CollapseWatch

VARIED = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
CONSTANT = torch.tensor([[0.5, 0.5], [0.501, 0.499], [0.499, 0.501]])


def look(watch, *several, calls=50):
    for values in several:
        for _ in range(calls):
            watch.look(values)


def test_outputs_that_have_become_constant_are_named_once():
    watch = CollapseWatch()
    look(watch, VARIED)
    with pytest.warns(RuntimeWarning, match=r"collapsed: .* 3 unlabeled .* at most 0\.002.* by 0\.7 before") as caught:
        look(watch, CONSTANT, VARIED, CONSTANT)
    assert len(caught) == 1


@pytest.mark.parametrize(
    "several",
    [
        (torch.zeros(3, 2), CONSTANT, VARIED),  # the last layer starts at zero
        (CONSTANT, CONSTANT),
        (VARIED, VARIED[:1]),  # one example does not vary
        (VARIED, torch.full((3, 2), torch.nan)),
    ],
)
def test_others_are_not(several):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        look(CollapseWatch(), *several)
    assert not caught


def test_it_looks_rarely_and_not_at_traced_values(monkeypatch):
    watch, seen = CollapseWatch(), []
    monkeypatch.setattr(torch.Tensor, "amax", lambda values, dim: seen.append(dim) or values.max(dim).values)
    look(watch, VARIED, VARIED)
    assert len(seen) == 2
    torch.vmap(lambda values: watch.look(values) or values)(VARIED[None])
    assert watch._calls == 100


def test_the_penalty_looks_at_unlabeled_outputs():
    x, model, penalty = torch.randn(4, 3), nn.Linear(3, 2), Penalty(anchor="self")
    penalty(model, x, unlabeled=torch.randn(8, 3))
    nn.init.zeros_(model.weight)
    for _ in range(49):
        penalty(model, x, unlabeled=torch.randn(8, 3))
    with pytest.warns(RuntimeWarning, match="8 unlabeled examples"):
        penalty(model, x, unlabeled=torch.randn(8, 3))
