"""What is the same function: outputs up to rounding, and numbers that are no weights."""

import pytest
import torch
from torch import nn

from effdeg.pools._identity import agree, list_numbers

torch.manual_seed(0)
OUTPUTS = torch.randn(16, 4)


@pytest.mark.parametrize("masked", [0.0, -1e4, -torch.inf])
def test_a_masked_class_hides_no_change_of_the_others(masked):
    kept = torch.cat([OUTPUTS, torch.full((16, 1), masked)], 1)
    assert agree(kept, kept + 1e-6)
    shifted = kept + 0.01 * torch.eye(5)[0]
    assert not agree(kept, shifted)
    assert not agree(kept, kept[:, [1, 0, 2, 3, 4]])
    assert agree(kept[:, None], kept[:, None]), "of several predictions per example"


def test_numbers_of_a_model_are_in_lists_too_and_activations_are_none():
    def shift(by):
        model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))
        model[0].shift = by
        return list_numbers(model)

    assert len({repr(shift(each)) for each in (0.5, [0.5, 1.0], [0.5, 2.0])}) == 3
    for other in ("a name", torch.rand(3), [torch.rand(3)]):
        assert shift(other) == list_numbers(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)))
