"""A lock on a folder: one process at a time works there. It ends with its process, however that ends."""

import os
import weakref
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class Lock:
    """An advisory lock, held from the moment it is made; where the system has none, it locks nothing.

    Attributes:
        taken: Whether it is held elsewhere, in this process or another, and so not here.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        self.taken = not _locks(handle)
        # Forgetting a run must end its lock, or an error would keep this process from trying again.
        self._close = weakref.finalize(self, os.close, handle)

    def release(self) -> None:
        """Let others work here."""
        self._close()

    def delete(self) -> None:
        """Leave no trace of it, where nobody is to work again."""
        self._file.unlink(missing_ok=True)


def _locks(handle: int) -> bool:
    if fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            return True
    return True
