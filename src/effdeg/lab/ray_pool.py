"""Many runs at once on Ray, which may span many machines."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

from effdeg._utils.imports import require
from effdeg.lab.assignments import work_logged
from effdeg.lab.pools import TICK, Ended, Order, Progress


def on_ray(orders: Sequence[Order], address: str, per_gpu: int) -> Generator[Progress, None, None]:
    """Carry out runs as tasks of Ray, one core each; when the iterator is closed, they are cancelled.

    Args:
        orders: The runs. All machines must see their folder and the data by the same path, and have effdeg installed.
        address: The address of a cluster, or ``local`` for a Ray of this machine's own. A connection that there is
            already is used instead.
        per_gpu: How many runs share a GPU, if they run on GPUs.

    Yields:
        What is under way or waits, and what has ended.
    """
    ray = require("ray", extra="ray", purpose="a sweep on Ray")
    with _connected(ray, address):
        # A process for each run, as on one machine, so that nothing a run does to its process touches another.
        task = ray.remote(max_calls=1, max_retries=0)(work_logged)
        pending, unusable = {}, []
        for order in orders:
            try:
                order.prepare()
            except OSError as error:  # its folder cannot be used, which is no matter of the others
                unusable.append(Ended(order, str(error)))
                continue
            gpus = 1 / per_gpu if order.assignment.device.startswith("cuda") else 0
            pending[task.options(num_cpus=1, num_gpus=gpus).remote(order.assignment, str(order.log))] = order
        try:
            yield list(pending.values()), unusable
            while pending:
                ready, _ = ray.wait(list(pending), timeout=TICK)
                ended = []
                for each in ready:
                    order = pending.pop(each)
                    ended.append(_ended(ray, each, order))
                yield list(pending.values()), ended
        finally:
            for each in pending:
                ray.cancel(each)


def _ended(ray: ModuleType, task: object, order: Order) -> Ended:
    try:
        return order.ended(ray.get(task))
    except Exception as error:
        # Not an error of the run's code, which comes back as a value: its process died or did not find what it needs.
        return Ended(order, order.died(str(error).strip().splitlines()[-1]))


@contextmanager
def _connected(ray: ModuleType, address: str) -> Iterator[None]:
    if ray.is_initialized():
        yield
        return
    ray.init(address=address, log_to_driver=False, include_dashboard=False if address == "local" else None)
    try:
        yield
    finally:
        ray.shutdown()
