"""What all tests share: checked shapes, and the model and batches that the examples in docstrings train.

With EFFDEG_CHECK_SHAPES=1, as `make test` has it, the shapes in the signatures of the maths are checked.
"""

import os

import pytest
import torch
from jaxtyping import install_import_hook
from torch import nn
from torch.nn.functional import cross_entropy

import effdeg
from tests import shapes  # noqa: F401  (the hook below finds it by name)

# Examples in docstrings are executed in the library alone.
collect_ignore = ["src/effdeg/__main__.py", "src/effdeg/cli", "src/effdeg/lab"]

if os.environ.get("EFFDEG_CHECK_SHAPES"):
    with install_import_hook("effdeg.functional", "tests.shapes.typechecker"):
        import effdeg.functional  # noqa: F401


@pytest.fixture(autouse=True)
def _names_in_docstrings(request, doctest_namespace):
    """Give the examples of training a model and its batches; the random state is put back, as examples may seed it."""
    if not isinstance(request.node, pytest.DoctestItem):
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        loader = [(torch.randn(16, 8), torch.randint(10, (16,))) for _ in range(3)]
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 10))
        doctest_namespace.update(effdeg=effdeg, torch=torch, cross_entropy=cross_entropy, model=model, loader=loader)
        doctest_namespace.update(zip("xy", loader[0], strict=True), total_steps=len(loader))
        yield
