import torch

from effdeg.demo import load_digits


def test_the_split_is_disjoint_and_determined_by_its_seed():
    digits, again, other = (load_digits(per_class=5, seed=seed) for seed in (0, 0, 1))
    assert digits.labels.bincount().tolist() == [5] * 10
    assert all(any(torch.equal(digit, each) for each in digits.pool) for digit in digits.labeled)
    assert len(digits.held_out) == len(digits.held_out_labels) == 1000
    assert 0 == digits.pool.min() < digits.pool.max() == 1
    assert torch.equal(digits.pool, again.pool)
    assert not torch.equal(digits.pool, other.pool)
