from collections import Counter

import pytest
import torch

from effdeg.lab.studies.grokking.equations import all_equations, count_equations, split
from effdeg.lab.studies.grokking.settings import Grokking

CPU = torch.device("cpu")
# What an answer c to x and y must satisfy, modulo p, without a division.
TRUTHS = {
    "add": lambda x, y, c: x + y - c,
    "subtract": lambda x, y, c: x - y - c,
    "multiply": lambda x, y, c: x * y - c,
    "divide": lambda x, y, c: c * y - x,
    "quadratic": lambda x, y, c: x * x + x * y + y * y - c,
    "by-parity": lambda x, y, c: c * y - x if y % 2 else x - y - c,
}


@pytest.mark.parametrize("operation", TRUTHS)
@pytest.mark.parametrize("prime", [2, 7, 11])
def test_every_equation_is_true_and_there_once(operation, prime):
    equations = all_equations(operation, prime)
    for (x, sign, y, equals), answer in zip(equations.tokens.tolist(), equations.answers.tolist(), strict=True):
        assert TRUTHS[operation](x, y, answer) % prime == 0
        assert 0 <= answer < prime
        assert (sign, equals) == (prime, prime + 1)
    pairs = {(x, y) for x, _, y, _ in equations.tokens.tolist()}
    expected = {(x, y) for x in range(prime) for y in range(prime) if y or operation != "divide"}
    assert pairs == expected
    assert len(equations) == len(expected) == count_equations(operation, prime)


def test_division_by_hand():
    equations = all_equations("divide", 7)
    found = {(x, y): c for (x, _, y, _), c in zip(equations.tokens.tolist(), equations.answers.tolist(), strict=True)}
    assert found[1, 3] == 5  # 3 · 5 = 15 = 1
    assert found[0, 4] == 0
    assert Counter(found.values()) == dict.fromkeys(range(7), 6)


@pytest.mark.parametrize("fraction", [0.3, 0.5])
def test_what_is_trained_on_does_not_validate_and_nothing_is_lost(fraction):
    settings = Grokking(prime=11, fraction=fraction)
    everything = all_equations("divide", 11)
    train, validation = split(everything, settings.train_equations, seed=3, device=CPU)
    assert len(train) == settings.train_equations == round(fraction * 110)
    seen, kept = ({tuple(row) for row in part.tokens.tolist()} for part in (train, validation))
    assert not seen & kept
    assert seen | kept == {tuple(row) for row in everything.tokens.tolist()}
    for part in (train, validation):
        x, _, y, _ = part.tokens.unbind(1)
        assert bool(((part.answers * y - x) % 11 == 0).all())


def test_the_seed_decides_the_split():
    everything = all_equations("add", 7)
    one, same, other = (split(everything, 20, seed=seed, device=CPU)[0].tokens for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
