"""What all tests share: checked shapes, and examples in docstrings that leave the random state alone.

With EFFDEG_CHECK_SHAPES=1, as `make test` has it, the shapes in the signatures of the maths are checked.
"""

import os

import pytest
import torch
from jaxtyping import install_import_hook

from tests import shapes  # noqa: F401  (the hook below finds it by name)

# Examples in docstrings are executed in the library alone.
collect_ignore = ["src/effdeg/__main__.py", "src/effdeg/cli"]

if os.environ.get("EFFDEG_CHECK_SHAPES"):
    with install_import_hook("effdeg.functional", "tests.shapes.typechecker"):
        import effdeg.functional  # noqa: F401


@pytest.fixture(autouse=True)
def _random_state_of_docstrings(request):
    """Put the random state back after the examples in docstrings, which may seed it."""
    with torch.random.fork_rng(devices=[], enabled=isinstance(request.node, pytest.DoctestItem)):
        yield
