"""What all tests share: checked shapes, groups of one process; docstring examples keep the random state.

With EFFDEG_CHECK_SHAPES=1, as `make test` has it, the shapes in the signatures of the maths are checked.
"""

import os
import signal

import jaxtyping
import pytest
import torch

# torch sends SIGINT to forked processes whose parent has died; it must end them even if they hang, as Python's own
# handler would not: they hold the pipe by which xdist notices the end of a worker.
os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))

# Examples in docstrings are executed in the library alone.
collect_ignore = ["src/effdeg/__main__.py", "src/effdeg/cli"]

if os.environ.get("EFFDEG_CHECK_SHAPES"):
    from tests import shapes  # noqa: F401  (the hook finds it by name)

    with jaxtyping.install_import_hook("effdeg.functional", "tests.shapes.typechecker"):
        import effdeg.functional  # noqa: F401


@pytest.fixture(autouse=True)
def _random_state_of_docstrings(request):
    """Put the random state back after the examples in docstrings, which may seed it."""
    with torch.random.fork_rng(devices=[], enabled=isinstance(request.node, pytest.DoctestItem)):
        yield


@pytest.fixture
def without_shape_checks(monkeypatch):
    """Do not check shapes, since what checks them cannot be compiled; forget what is compiled meanwhile."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    yield
    torch.compiler.reset()


@pytest.fixture
def process_group(tmp_path):
    """Join a group of one process."""
    from tests import properties  # not before the shapes of all that it imports are checked

    with properties.process_group(tmp_path / "store"):
        yield
