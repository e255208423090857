"""One model, and what belongs to the whole process, used by several threads at once."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

_LOCKS: WeakKeyDictionary[object, Any] = WeakKeyDictionary()
_LOCKS_LOCK = threading.Lock()


@contextmanager
def hold(objects: Iterable[object]) -> Iterator[None]:
    """Wait until no other thread holds any of these objects, and keep other threads waiting until the block ends.

    Objects that are needed together must be held by one call, or two threads might wait for each other.
    """
    with ExitStack() as stack:
        for each in sorted(set(objects), key=id):
            with _LOCKS_LOCK:
                lock = _LOCKS.setdefault(each, threading.RLock())
            stack.enter_context(lock)
        yield


class SharedContext:
    """A context for a state of the process: the first thread enters it, the last one leaves it."""

    def __init__(self, make: Callable[[], AbstractContextManager[object]]) -> None:
        self._make, self._inside = make, 0
        self._lock, self._entered = threading.Lock(), ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._entered.enter_context(self._make())
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._entered.close()


def in_this_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that changes nothing when another thread runs the layer."""
    thread = threading.get_ident()
    return lambda *given: hook(*given) if threading.get_ident() == thread else None
