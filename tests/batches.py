"""Small batches, and the draws that the penalty makes on them."""

import torch

X = torch.randn(12, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.randint(4, (12,), generator=torch.Generator().manual_seed(1))


def seeded(function, *given, seed=0, **named):
    """Call a function after seeding."""
    torch.manual_seed(seed)
    return function(*given, **named)


def same_draw(penalty, x, y=None, **named):
    """Draw the points that the next call after the same seed draws."""
    points = seeded(penalty.points, x, y, seed=7, **named)
    torch.manual_seed(7)
    return points


def split(batch):
    return [dict(zip(batch, example, strict=True)) for example in zip(*batch.values(), strict=True)]


def tokens(examples=10, length=7):
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, length + 1, (examples, 1), generator=generator)
    return {
        "input_ids": torch.randint(30, (examples, length), generator=generator),
        "attention_mask": (torch.arange(length) < lengths).long(),
    }
