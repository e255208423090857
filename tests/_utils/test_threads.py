"""Several threads at once: who waits for whom, and who sees what."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from torch import nn

from effdeg._utils.threads import SharedContext, hold, in_this_thread


def test_one_thread_at_a_time_holds_an_object_and_others_are_free():
    one, other, third = nn.Identity(), nn.Identity(), nn.Identity()
    held = threading.Event()

    def take(*objects):
        with hold(objects):
            held.set()

    with ThreadPoolExecutor(2) as threads:
        with hold([one, other]), hold([one]):
            waiting = threads.submit(take, other)
            assert not held.wait(0.1)
            threads.submit(take, third).result(timeout=30)
        waiting.result(timeout=30)


def test_two_threads_do_not_wait_for_each_other():
    objects = [nn.Identity() for _ in range(4)]

    def take(order):
        taken = 0
        for _ in range(200):
            with hold(order):
                taken += 1
        return taken

    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(take, order) for order in (objects, objects[::-1])]
        assert [each.result(timeout=60) for each in waiting] == [200, 200]


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
