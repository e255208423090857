import pytest
import torch

from tests.models import mlp


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(40, 6, generator=generator), torch.arange(40) % 4


@pytest.fixture
def train():
    generator = torch.Generator().manual_seed(2)
    return torch.randn(30, 6, generator=generator), torch.arange(30) % 4


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "weights"
    made.mkdir()
    for seed, name in enumerate("abc", start=1):
        torch.save(mlp(seed=seed).state_dict(), made / f"{name}.pt")
    return made
