import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from effdeg._utils.threads import SharedContext, in_this_thread


def test_the_first_thread_enters_a_shared_context_and_the_last_one_leaves_it():
    events = []

    @contextmanager
    def record():
        events.append("in")
        yield
        events.append("out")

    shared = SharedContext(record)
    for _ in range(2):
        first, second = (threading.Thread(target=method) for method in (shared.__enter__, shared.__enter__))
        for thread in (first, second):
            thread.start()
            thread.join()
        shared.__exit__()
        assert events[-1] == "in"
        shared.__exit__()
    assert events == ["in", "out"] * 2


@pytest.mark.parametrize("here", [True, False])
def test_a_hook_of_another_thread_does_nothing(here):
    hook = in_this_thread(lambda value: value + 1)
    with ThreadPoolExecutor(1) as threads:
        assert (hook(1) if here else threads.submit(hook, 1).result()) == (2 if here else None)
