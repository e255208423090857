"""The loop over training steps. It knows no task: the caller says what is trained, and what to evaluate when.

A run that is killed or stopped at any step continues from its last checkpoint, bit for bit on a CPU.
"""

import math
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import filelock
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from effdeg_lab.core.progress import progress_bar
from effdeg_lab.core.runs import Job, StoppedError, get_rank_and_size
from effdeg_lab.engine.step import State, Step, Task

P = ParamSpec("P")
T = TypeVar("T")

SECONDS_AT_RISK = 60.0
"""A checkpoint is written when this much work would be lost."""
# Several processes agree only this often, in steps, on whether to save or to stop: agreeing takes time.
_STEPS_BETWEEN_AGREEMENTS = 20
# So does reading the loss, for which a GPU must finish the steps that are queued.
_STEPS_BETWEEN_CHECKS = 100
_SECONDS_BETWEEN_UPDATES = 0.5
# With 65 tokens flash attention is as fast as the memory-efficient kernel, with 196 faster.
_FEW_TOKENS = 65


class _AskedError(BaseException):
    """The run was asked to stop. Not an ``Exception``, which a measure might take for one raised by the model."""


class Loop:
    """Training under way: ``step`` steps are done, which took ``seconds``, and ``last`` was logged last."""

    def __init__(self, task: Task, job: Job, step: Step | None = None) -> None:
        self._task, self._job, self._device, self._on_gpu = task, job, job.device, job.device.type == "cuda"
        self._rank, self._size = get_rank_and_size()
        self.first_process = self._rank == 0
        self._share = share_batch(task.batch_size)
        task.model.train()  # steps are captured in this mode; a network from a file may be in the other
        # Which steps there will be: without a penalty, with it, or both.
        self.kinds = sorted({task.weight(step) > 0 for step in range(task.steps)})
        self._step = self._make_step() if step is None else step
        self.step, self.seconds, self.last = 0, 0.0, State()
        self.penalized = 0
        self._order: Tensor | None = None
        self._batches: Iterator[tuple[Tensor, ...]] | None = None  # of a source
        self._shapes: list[int | None] = []
        self.gpu_lock = GpuLock(job)

    def repeat(self, job: Job) -> "Loop":
        """Make a loop for another run of the same task, with the steps that this one compiles and captures."""
        return Loop(self._task, job, self._step)

    def start(self, data: str | None = None) -> None:
        """Open the run, check the data's fingerprint, and compile, which needs the GPU only for moments."""
        self.open(data)
        for penalized in self.kinds:
            self._step.compile(penalized=penalized)

    def open(self, data: str | None = None, **environment: Any) -> None:
        environment |= {"steps": self._task.steps} | ({} if data is None else {"data": data})
        if shares_gpu(self._device):
            environment["shared"] = True
        self._data = data
        self._checkpoint: State | None = gather(self._job.start(**environment) if self.first_process else None)[0]
        if self._checkpoint is not None and self._checkpoint["data"] != data:
            raise ValueError(
                f"{self._job.file} was started with other data: give its data folder, or delete {self._job.folder} to "
                "start again."
            )
        self.first_weights = {name: value.clone() for name, value in self._task.model.state_dict().items()}

    def train(self) -> None:
        """Train to the end, evaluating and saving on the way, or until the run is asked to stop."""
        task, job, shown = self._task, self._job, 0.0
        shows = job.progress and self.first_process
        title = f"{job.method}, seed {job.settings.seed}"
        with self.gpu_lock, ExitStack() as stack, progress_bar(title, task.steps, enabled=shows) as update:
            self._capture()
            if task.source is not None:
                self._batches = stack.enter_context(closing(task.source.read(self._plan(), self._share)))
            self._saved = self._since = time.perf_counter()
            self._evaluate()  # a run may have been stopped in an evaluation
            while self.step < task.steps:
                self._train_step()
                if self.step % _STEPS_BETWEEN_CHECKS == 0:
                    self._check_for_divergence(gather(float(self._step.loss)))
                self._evaluate()
                self._save_or_stop()
                if shows and (time.perf_counter() - shown > _SECONDS_BETWEEN_UPDATES or self.step == task.steps):
                    update(self.step, task.describe(self.last) if self.last else "")
                    shown = time.perf_counter()

    def measure(self, function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Call a function that runs the model and leaves it as it was, and return its result.

        If the run is asked to stop meanwhile, a checkpoint is saved, and the run stops at the next call of a module.
        Several processes agree on it only before the call, in which they may have different shares of the work.
        """

        def stop_if_asked(*_: object) -> None:
            if any(gather(self._job.asked_to_stop())):
                raise _AskedError

        try:
            with register_module_forward_pre_hook(stop_if_asked) if self._size == 1 else nullcontext():
                stop_if_asked()
                return function(*arguments, **options)
        except _AskedError:
            self.save()  # not where the error was raised: weights may be replaced there
            raise StoppedError from None

    def save(self) -> None:
        random = {"cpu": torch.get_rng_state()}
        if self._on_gpu:
            random["cuda"] = torch.cuda.get_rng_state(self._device)
        state = self._step.state() | {
            "step": self.step,
            "seconds": self.seconds,
            "last": self.last,
            "data": self._data,
            "penalized": self.penalized,
            "random": gather(random),
        }
        if self._task.memory is not None:
            state["memory"] = self._task.memory.state()
        if self._task.source is not None:
            state["source"] = self._task.source.state()
        if self.first_process:
            self._job.save(state)
        self._saved = time.perf_counter()

    def measure_speed(self) -> dict[str, float]:
        """Return images per second, and the share of time that steps waited for them; nothing without a source."""
        if self._task.source is None:
            return {}
        images = self.step * self._task.batch_size
        return {"images_per_second": images / self.seconds, "waited": self._task.source.waited / self.seconds}

    def finish(self, summary: State, *, keep_weights: bool = True) -> None:
        if self.first_process and not keep_weights:
            self._job.finish(summary)
        elif self.first_process:
            # Copies, because torch would save all memory that a tensor shares with others.
            own = self._task.model.state_dict().items()
            weights = {name: value.cpu().clone(memory_format=torch.contiguous_format) for name, value in own}
            self._job.finish(summary, weights)

    def _make_step(self) -> Any:
        return Step(self._task, size=self._share, wrapper=self._wrap())

    def _wrap(self) -> nn.Module | None:
        if self._size == 1:
            return None
        task, model = self._task, self._task.model
        if self._on_gpu and task.compile and task.compile_penalty:
            model = torch.compile(model, dynamic=False)  # type: ignore[assignment]  # DDP itself cannot be compiled
        return DistributedDataParallel(model)

    def _capture(self) -> None:
        """Capture the steps, and only then restore the starting state: capturing trains a little."""
        for penalized in self.kinds:
            self._step.capture(penalized=penalized)
        self._restore()

    def _restore(self) -> None:
        torch.manual_seed(self._job.settings.seed + 1_000_003 * self._rank)
        state, self._checkpoint = self._checkpoint, None
        fresh: State = {"model": self.first_weights, "optimizer": {}, "penalties": torch.zeros(())}
        self._step.restore(fresh if state is None else state)
        if self._task.source is not None:
            self._task.source.restore(None if state is None else state["source"])
        if state is None:
            return
        self.step, self.seconds, self.last = state["step"], state["seconds"], state["last"]
        self.penalized = state["penalized"]
        if self._task.memory is not None:
            self._task.memory.restore(state["memory"])
        if self._job.progress and self.first_process:
            print(f"continuing at step {self.step}")
        states = state["random"]
        if len(states) != self._size or self._on_gpu != ("cuda" in states[0]):
            warning = (
                "the checkpoint is from another number of processes or kind of device: random numbers will differ."
            )
            warnings.warn(warning, RuntimeWarning, stacklevel=2)
            return
        torch.set_rng_state(states[self._rank]["cpu"])
        if self._on_gpu:
            torch.cuda.set_rng_state(states[self._rank]["cuda"], self._device)

    def _train_step(self) -> None:
        task = self._task
        epoch, number = divmod(self.step, task.examples // task.batch_size)
        if number == 0:
            self._step.penalties.zero_()
            self.penalized = 0
        if number == 0 or self._order is None:
            order = self.shuffle(epoch)
            self._order = send(order, self._device)
            batches = order[: len(order) // task.batch_size * task.batch_size].view(-1, task.batch_size)
            self._shapes = [task.shape(batch) for batch in batches] if task.shape else [None] * len(batches)
        first = number * task.batch_size + self._rank * self._share
        weight = task.weight(self.step)
        self.penalized += weight > 0
        given = (self._order[first : first + self._share],) if self._batches is None else next(self._batches)
        self._step(*given, rate=task.rate(self.step), weight=weight, shape=self._shapes[number])
        self.step += 1

    def _plan(self) -> Iterator[tuple[int, Tensor]]:
        """Yield the epoch and the indices of this process's share of the batch, for every remaining step."""
        order, per_epoch = None, self._task.examples // self._task.batch_size
        for step in range(self.step, self._task.steps):
            epoch, number = divmod(step, per_epoch)
            order = self.shuffle(epoch) if order is None or number == 0 else order
            first = number * self._task.batch_size + self._rank * self._share
            yield epoch, order[first : first + self._share]

    def shuffle(self, epoch: int) -> Tensor:
        # It depends only on seed and epoch, so a resumed run need not remember it.
        generator = torch.Generator().manual_seed(self._job.settings.seed * 1_000_003 + epoch)
        return torch.randperm(self._task.examples, generator=generator)

    @contextmanager
    def _clock_stopped(self) -> Iterator[None]:
        if self._on_gpu:
            torch.cuda.synchronize()
        self.seconds += time.perf_counter() - self._since
        yield
        self._since = time.perf_counter()

    def _evaluate(self) -> None:
        task = self._task
        if self.step not in task.evaluation_steps or self.last.get("step") == self.step:
            return
        with self._clock_stopped(), self.gpu_lock.released() if task.frees_gpu else nullcontext():
            # DDP keeps the running statistics of the processes apart until the next pass.
            for buffer in task.model.buffers() if self._size > 1 else ():
                dist.broadcast(buffer, 0)
            penalty = None
            if self.penalized:
                passes = 1 if task.regularizer.wrap is None else 2  # in a step
                penalty = sum(gather(float(self._step.penalties))) / (self.penalized * passes * self._size)
            speed = self.measure_speed()
            found = self.measure(task.evaluate, self.step, penalty)
            self._check_for_divergence(value for name, value in found.items() if name.endswith("_loss"))
            self.last = {"step": self.step, "seconds": self.seconds, **speed, **found}
            if self.first_process:
                self._job.log(self.last)

    def _check_for_divergence(self, losses: Iterable[float]) -> None:
        """Raise if a loss is not finite, before more time or a checkpoint is spent on the run."""
        if not all(map(math.isfinite, losses)):
            rate, clip = self._task.rate(self.step - 1), "" if self._task.clip else ", or clip"
            hint = f"The learning rate was {rate:.3g}: try a smaller lr{clip}."
            raise ValueError(f"training diverged: the loss at step {self.step} is not finite. {hint}")

    def _save_or_stop(self) -> None:
        if self._size > 1 and self.step % _STEPS_BETWEEN_AGREEMENTS:
            return
        at_risk = time.perf_counter() - self._saved > SECONDS_AT_RISK
        stops, risks = zip(*gather((self._job.asked_to_stop(), at_risk)), strict=True)
        if any(stops) or any(risks):
            self._check_for_divergence(gather(float(self._step.loss)))
            with self._clock_stopped():
                self.save()
        if any(stops):
            raise StoppedError


@contextmanager
def open_loop(task: Task, job: Job) -> Iterator[Loop]:
    loop = Loop(task, job)
    tokens = getattr(task.model, "tokens", 0)
    with tune_kernels(job.device, tokens=tokens, benchmark=task.compile), closing(loop._step):
        yield loop


@contextmanager
def tune_kernels(device: torch.device, *, tokens: int = 0, benchmark: bool = True) -> Iterator[None]:
    """Choose cuDNN's fastest convolutions for fixed sizes, and not its attention; forget compiled code afterwards.

    A step that is not compiled is of a short run, which a ``benchmark`` of convolutions would take longer than.

    On an H200, the gradients of cuDNN's attention, which torch prefers, can be NaN for 64 tokens, and for other numbers
    that leave the remainder 64 when divided by 128 (https://github.com/pytorch/pytorch/issues/196678).
    """
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, benchmark
    attention = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION]
    if tokens > _FEW_TOKENS:
        attention.reverse()
    try:
        with sdpa_kernel([*attention, SDPBackend.MATH], set_priority=True):
            yield
    finally:
        torch.backends.cudnn.benchmark = before
        # Otherwise the compiler would refuse after a few runs in one process, as they all compile the same function.
        if "torch._dynamo" in sys.modules and device.type == "cuda":
            torch._dynamo.reset()


def send(values: Tensor, device: torch.device) -> Tensor:
    """Move values from the CPU to a device without waiting for the steps that are queued there."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values


def share_batch(batch: int) -> int:
    """Return how many examples of a batch this process has; raise unless all have the same number."""
    size = get_rank_and_size()[1]
    if batch % size:
        raise ValueError(f"batch={batch} cannot be shared evenly by {size} processes.")
    return batch // size


def shares_gpu(device: torch.device) -> bool:
    """Return whether runs on this device train at the same time, as ``EFFDEG_SHARE_GPU=1`` requests."""
    return device.type == "cuda" and os.environ.get("EFFDEG_SHARE_GPU") == "1"


class GpuLock:
    """Lets runs on one GPU take turns, by a lock on a file in the temporary folder.

    If several networks train on one GPU at the same time, their times mean nothing. So a run holds its GPU while it
    trains; others compile in the meantime. Where times do not matter, ``EFFDEG_SHARE_GPU=1`` lets runs train
    at the same time; tables then leave out their times.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._lock: filelock.BaseFileLock | None = None
        if job.device.type == "cuda" and get_rank_and_size()[1] == 1 and not shares_gpu(job.device):
            user = os.getuid() if hasattr(os, "getuid") else "user"
            name = f"effdeg-{user}-{torch.cuda.get_device_properties(job.device).uuid}.lock"
            self._lock = filelock.FileLock(Path(tempfile.gettempdir()) / name)

    def __enter__(self) -> None:
        waited = False
        while self._lock is not None:
            try:
                self._lock.acquire(timeout=1.0 if waited else 0.0)
                return
            except filelock.Timeout:
                if self._job.asked_to_stop():
                    raise StoppedError from None
                if self._job.progress and not waited:
                    print("another run trains on this GPU: waiting for it")
                waited = True

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.release()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Let another run have the GPU within the block."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()


def measure_each(job: Job, title: str, items: Sequence[T], measure: Callable[[T], list[dict[str, Any]]]) -> float:
    """Log what is measured of every item, with a checkpoint after each, and return the seconds that it took.

    A run that is killed or stopped continues with the item after its last checkpoint.
    """
    state = job.start() or {"done": 0, "seconds": 0.0}
    with GpuLock(job), progress_bar(title, len(items), enabled=job.progress) as update:
        for item in items[state["done"] :]:
            job.stop_if_asked(lambda: state)
            begin = time.perf_counter()
            entries = measure(item)
            state["seconds"] += time.perf_counter() - begin
            for entry in entries:
                job.log(entry)
            state["done"] += 1
            job.save(state)
            update(state["done"])
    return float(state["seconds"])


def gather(value: T) -> list[T]:
    size = get_rank_and_size()[1]
    if size == 1:
        return [value]
    values: list[Any] = [None] * size
    dist.all_gather_object(values, value)
    return values
