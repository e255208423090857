"""The loop over training steps. It knows no task: whoever calls it says what is trained, and what to look at when.

A run that is killed or stopped at any step continues from its last checkpoint, bit for bit on a CPU.
"""

import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from effdeg.baselines import Method
from effdeg_lab.engine.step import State, Step, StepOptions
from effdeg_lab.progress import progress_bar
from effdeg_lab.runs import Job, StoppedError

SECONDS_AT_RISK = 60.0
"""A checkpoint is written when this much work would be lost."""

# Several processes agree only this often, in steps, on whether to save or to stop: agreeing takes time.
_STEPS_BETWEEN_AGREEMENTS = 20
_SECONDS_BETWEEN_UPDATES = 0.5


@dataclass(frozen=True, eq=False)
class Task:
    """What the loop trains, and when it looks at it.

    Attributes:
        model: The model, on its device, with its first weights.
        regularizer: The regularizer.
        batch: Returns the training examples of given indices, and their labels.
        examples: The number of training examples.
        batch_size: Examples per step, over all processes. An epoch leaves out what does not fill a batch.
        steps: The number of steps.
        options: How a step is computed.
        rate: The learning rate at a step.
        weight: The weight of the penalty at a step.
        evaluation_steps: The numbers of steps after which to evaluate.
        evaluate: Looks at the model after this many steps, and returns what to log. It is also given the mean penalty
            of the epoch so far, None if there was none. It must leave torch's random numbers alone.
        describe: Writes a log entry in a few words, for the progress bar.
        frees_gpu: Let other runs use the GPU during evaluations, which keep the CPU busy.
    """

    model: nn.Module
    regularizer: Method
    batch: Callable[[Tensor], tuple[Tensor, Tensor]]
    examples: int
    batch_size: int
    steps: int
    options: StepOptions
    rate: Callable[[int], float]
    weight: Callable[[int], float]
    evaluation_steps: Collection[int]
    evaluate: Callable[[int, float | None], dict[str, Any]]
    describe: Callable[[dict[str, Any]], str]
    frees_gpu: bool = False

    @property
    def steps_per_epoch(self) -> int:
        """The number of whole batches."""
        return self.examples // self.batch_size


class Loop:
    """Training under way.

    Attributes:
        step: The number of steps done.
        seconds: The time that they took, evaluations and checkpoints left out.
        last: What the last evaluation logged.
        first_process: Whether this is the process that writes.
        turn: Held while the run needs the GPU for itself.
    """

    def __init__(self, task: Task, job: Job) -> None:
        self._task, self._job, self._device = task, job, job.device
        self._rank, self._size = get_rank_and_size()
        self.first_process = self._rank == 0
        if task.batch_size % self._size:
            raise ValueError(f"batch={task.batch_size} cannot be shared evenly by {self._size} processes.")
        self._share = task.batch_size // self._size
        # Which steps there will be: without a penalty, with it, or both.
        self._kinds = sorted({task.weight(step) > 0 for step in range(task.steps)})
        self._step = Step(
            task.model, task.regularizer, task.batch, task.options, size=self._share, wrapper=self._wrap()
        )
        self.step, self.seconds, self.last = 0, 0.0, State()
        self._penalized = 0
        self._order: Tensor | None = None
        self.turn = Turn(job)

    def start(self, data: str | None = None) -> None:
        """Open the run, read its last checkpoint, and compile, which needs the GPU for moments only.

        The fingerprint of the data must be the same whenever a run is continued.
        """
        surroundings: State = {} if data is None else {"data": data}
        if shares_gpu(self._device):
            surroundings["shared"] = True
        self._data = data
        self._checkpoint: State | None = broadcast(self._job.start(**surroundings) if self.first_process else None)
        if self._checkpoint is not None and self._checkpoint["data"] != data:
            raise ValueError(
                f"{self._job.file} was started with other data than the data folder holds now. Give the former data "
                f"folder, or delete {self._job.folder} to start again."
            )
        model = {name: value.clone() for name, value in self._task.model.state_dict().items()}
        self._fresh: State = {"model": model, "optimizer": {}, "penalties": torch.zeros(())}
        for penalized in self._kinds:
            self._step.compile(penalized=penalized)

    def train(self) -> None:
        """Train to the end, evaluating and saving on the way; :class:`StoppedError` if the run is asked to stop."""
        task, job = self._task, self._job
        with self.turn:
            self._capture()
            task.model.train()
            self._saved = self._since = time.perf_counter()
            shows = job.progress and self.first_process
            with progress_bar(f"{job.method}, seed {job.settings.seed}", task.steps, enabled=shows) as update:
                shown = 0.0
                while self.step < task.steps:
                    self._train_step()
                    if self.step in task.evaluation_steps:
                        self._evaluate()
                    self._save_or_stop()
                    due = time.perf_counter() - shown > _SECONDS_BETWEEN_UPDATES or self.step == task.steps
                    if shows and due:
                        update(self.step, task.describe(self.last) if self.last else "")
                        shown = time.perf_counter()

    def save(self) -> None:
        """Write a checkpoint."""
        state = self._step.state() | {
            "step": self.step,
            "seconds": self.seconds,
            "last": self.last,
            "data": self._data,
            "penalized": self._penalized,
            "random": _get_random_states(self._device),
        }
        if self.first_process:
            self._job.save(state)
        self._saved = time.perf_counter()

    def finish(self, summary: State) -> None:
        """End the run with this summary and the weights."""
        if self.first_process:
            weights = {name: value.cpu().contiguous() for name, value in self._task.model.state_dict().items()}
            self._job.finish(summary, weights)

    def close(self) -> None:
        """Free the memory of graphs and compiled code: a worker trains many runs in one process."""
        self._step.close()
        # Without this, the compiler would refuse after a few runs: they are all of the same function.
        if "torch._dynamo" in sys.modules and self._device.type == "cuda":
            torch._dynamo.reset()

    def _wrap(self) -> nn.Module | None:
        if self._size == 1:
            return None
        model, options = self._task.model, self._task.options
        if self._device.type == "cuda" and options.compile and options.compile_penalty:
            model = torch.compile(model, dynamic=False)  # type: ignore[assignment]  # DDP itself cannot be compiled
        return DistributedDataParallel(model)

    def _capture(self) -> None:
        """Capture the steps, and only then restore where to start: capturing has trained a little."""
        for penalized in self._kinds:
            self._step.capture(penalized=penalized)
        torch.manual_seed(self._job.settings.seed + 1_000_003 * self._rank)
        state, self._checkpoint = self._checkpoint, None
        self._step.restore(self._fresh if state is None else state)
        if state is not None:
            self.step, self.seconds, self.last = state["step"], state["seconds"], state["last"]
            self._penalized = state["penalized"]
            _set_random_state(state["random"], self._device)
            if self._job.progress and self.first_process:
                print(f"continuing at step {self.step}")

    def _train_step(self) -> None:
        task = self._task
        epoch, number = divmod(self.step, task.steps_per_epoch)
        if number == 0:
            self._step.penalties.zero_()
            self._penalized = 0
        if number == 0 or self._order is None:
            self._order = self._shuffle(epoch)
        first = number * task.batch_size + self._rank * self._share
        weight = task.weight(self.step)
        self._penalized += weight > 0
        self._step(self._order[first : first + self._share], rate=task.rate(self.step), weight=weight)
        self.step += 1

    def _shuffle(self, epoch: int) -> Tensor:
        """Draw the order of an epoch from seed and epoch alone, so that a resumed run needs no memory of it."""
        generator = torch.Generator().manual_seed(self._job.settings.seed * 1_000_003 + epoch)
        order = torch.randperm(self._task.examples, generator=generator)
        # From pinned memory the copy does not wait for the steps that are queued.
        return order.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else order

    @contextmanager
    def _clock_stopped(self) -> Iterator[None]:
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        self.seconds += time.perf_counter() - self._since
        yield
        self._since = time.perf_counter()

    def _evaluate(self) -> None:
        task = self._task
        with self._clock_stopped(), self.turn.released() if task.frees_gpu else nullcontext():
            penalty = None
            if self._size > 1:
                # DDP keeps the running statistics of every process its own until the next pass.
                for buffer in task.model.buffers():
                    dist.broadcast(buffer, 0)
            if self._penalized:
                penalties = float(_sum_over_processes(self._step.penalties))
                penalty = penalties / (self._penalized * self._step.passes * self._size)
            self.last = {"step": self.step, "seconds": self.seconds, **task.evaluate(self.step, penalty)}
            if self.first_process:
                self._job.log(self.last)

    def _save_or_stop(self) -> None:
        if self._size > 1 and self.step % _STEPS_BETWEEN_AGREEMENTS:
            return
        stop, at_risk = self._job.asked_to_stop(), time.perf_counter() - self._saved > SECONDS_AT_RISK
        if self._size > 1:
            stop, at_risk = (bool(_sum_over_processes(torch.tensor(float(each)))) for each in (stop, at_risk))
        if stop or at_risk:
            with self._clock_stopped():
                self.save()
        if stop:
            raise StoppedError


@contextmanager
def open_loop(task: Task, job: Job) -> Iterator[Loop]:
    """Make a loop, let cuDNN choose the fastest convolutions for its fixed sizes, and free its memory afterwards."""
    loop = Loop(task, job)
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        yield loop
    finally:
        loop.close()
        torch.backends.cudnn.benchmark = before


def shares_gpu(device: torch.device) -> bool:
    """Return whether runs on this device train at the same time, as ``EFFDEG_SHARE_GPU=1`` asks for."""
    return device.type == "cuda" and os.environ.get("EFFDEG_SHARE_GPU") == "1"


class Turn:
    """Runs on one GPU take turns, by a lock on a file in the temporary folder.

    Of networks that are trained at the same time on one GPU, the time of each says nothing. So a run holds its GPU
    while it trains; others compile in the meantime. What training two at once would gain is measured by ``python -m
    benchmarks models_at_once``. Where times do not matter, ``EFFDEG_SHARE_GPU=1`` lets runs train at the same time;
    tables then leave out their times.
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


def get_rank_and_size() -> tuple[int, int]:
    """Return the rank of this process and the number of processes."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)


def broadcast(value: Any) -> Any:
    """Return to every process what the first one holds."""
    if get_rank_and_size()[1] == 1:
        return value
    shared = [value]
    dist.broadcast_object_list(shared)
    return shared[0]


def _sum_over_processes(value: Tensor) -> Tensor:
    if get_rank_and_size()[1] == 1:
        return value
    total = value.to("cuda" if dist.get_backend() == "nccl" else "cpu", copy=True)
    dist.all_reduce(total)
    return total


def _get_random_states(device: torch.device) -> list[dict[str, Tensor]]:
    """Return the states of torch's random numbers in all processes, to every one of them."""
    own = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        own["cuda"] = torch.cuda.get_rng_state(device)
    size = get_rank_and_size()[1]
    if size == 1:
        return [own]
    states: list[Any] = [None] * size
    dist.all_gather_object(states, own)
    return states


def _set_random_state(states: list[dict[str, Tensor]], device: torch.device) -> None:
    """Continue to draw where a checkpoint was; from the seed if it knows nothing of this process or device."""
    rank, size = get_rank_and_size()
    if len(states) != size or (device.type == "cuda") != ("cuda" in states[0]):
        warnings.warn(
            "the checkpoint is of another number of processes or another kind of device: the run continues, but does "
            "not end where an uninterrupted one would.",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    torch.set_rng_state(states[rank]["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[rank]["cuda"], device)
