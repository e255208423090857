"""A disk that is full."""

import errno
import os
import resource
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def full_disk(monkeypatch, stage, *, room):
    """Make files refuse more than some bytes (part of which is written), or their syncing or renaming."""
    if stage == "write":
        former = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, former[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, former)
        return

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(*{"sync": (os, "fsync"), "replace": (Path, "replace")}[stage], full)
        yield
