"""A run from its settings to its summary; killed at any moment, it goes on from its last checkpoint."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from effdeg._utils.distributed import broadcast_from_first, rank_and_size, sum_over_ranks
from effdeg._utils.progress import progress_bar
from effdeg.lab import data
from effdeg.lab.task import Task
from effdeg.lab.training.environment import environment
from effdeg.lab.training.evaluation import (
    describe_followed,
    evaluate,
    follow_degree,
    measure_degree,
    measure_on_noise,
    measure_proxies,
)
from effdeg.lab.training.examples import DeviceExamples
from effdeg.lab.training.methods import made_method, on_examples
from effdeg.lab.training.network import check_network, made_network
from effdeg.lab.training.randomness import random_states, seed, seeds_kept, set_random_state
from effdeg.lab.training.schedules import Schedules
from effdeg.lab.training.settings import Training
from effdeg.lab.training.step import Step, compiled
from effdeg.lab.training.turns import turn

# Between evaluations a checkpoint is written when so much work would be lost.
SECONDS_AT_RISK = 60.0
State = dict[str, Any]


def train(settings: Training, task: Task) -> None:
    """Carry out a run, or what is left of it.

    Args:
        settings: The settings, which decide how it ends.
        task: Where to work.
    """
    if task.run.settings != settings:
        raise ValueError("the task's run is one of other settings than those that are to be trained with.")
    made_method(settings)  # what is wrong with it is said before anything is read
    on_device = torch.cuda.device(task.device) if task.device.type == "cuda" else nullcontext()
    with on_device, seeds_kept(task.device), _fastest_convolutions():
        labelled = data.load(settings.data, task.data)
        running = _TrainingRun(settings, task, DeviceExamples(labelled, settings, task.device))
        try:
            running.begin(labelled.fingerprint())
            with turn(task.device, progress=running.shows):
                running.capture()
                running.train()
                summary = running.summary()
            # Not within the turn: proxies take long, and leave much of a GPU to the next run.
            running.finish(summary)
        finally:
            running.close()


@contextmanager
def _fastest_convolutions() -> Iterator[None]:
    """Let cuDNN try which of its convolutions are fastest for the sizes of a run, which stay the same."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


class _TrainingRun:
    """A run under way.

    Attributes:
        shows: Whether it shows its progress.
    """

    def __init__(self, settings: Training, task: Task, examples: DeviceExamples) -> None:
        self._settings, self._task, self._examples = settings, task, examples
        self._rank, self._size = rank_and_size()
        self.shows = task.progress and self._rank == 0
        if settings.batch % self._size:
            raise ValueError(f"batch={settings.batch} cannot be shared evenly by {self._size} processes.")
        self._per_epoch = len(examples.train) // settings.batch
        self._model = made_network(settings, examples, task.device)
        check_network(self._model, settings, examples)
        self._method = on_examples(made_method(settings, classes=examples.classes), settings, examples)
        steps = settings.epochs * self._per_epoch
        self._schedules = Schedules(settings, steps=steps, weight=self._method.weight)
        # Which steps there will be: without a penalty, with it, or both.
        self._kinds = sorted({self._weight(step) > 0 for step in range(steps)})
        called = DistributedDataParallel(compiled(self._model, settings)) if self._size > 1 else None
        self._step = Step(
            self._model, self._method, examples, settings, batch=settings.batch // self._size, called=called
        )
        self._epoch, self._seconds, self._saved = 0, 0.0, time.perf_counter()
        self._last: State = {}

    def begin(self, fingerprint: str) -> None:
        """Open the run's folder, find its last checkpoint, and compile, which needs the GPU for moments only."""
        self._data = fingerprint
        surroundings = environment(self._task.device) | {"data": fingerprint}
        self._state: State | None = broadcast_from_first(
            self._task.run.begin(surroundings) if self._rank == 0 else None
        )
        if self._state is not None and self._state.get("data", fingerprint) != fingerprint:
            raise ValueError(
                f"{self._task.run.folder} was begun with other data than those that {self._settings.data} names now. "
                "Name the former, or delete the folder to begin again."
            )
        self._fresh = {"model": _copied(self._model.state_dict()), "optimizer": {}}
        for penalized in self._kinds:
            self._step.compile(penalized=penalized)
        if self._state is not None and self.shows:
            print(f"continuing at epoch {self._state['epoch']}")

    def capture(self) -> None:
        """Capture the steps, and only then put everything where it is to begin: capturing has trained a little."""
        for penalized in self._kinds:
            self._step.capture(penalized=penalized)
        seed(self._settings.seed)
        state, self._state = self._state, None
        self._step.restore(self._fresh if state is None else state)
        if state is not None:
            self._epoch, self._seconds, self._last = state["epoch"], state["seconds"], state["last"]
            set_random_state(state["random"], self._task.device)

    def train(self) -> None:
        """Train to the end, evaluating and saving on the way."""
        settings = self._settings
        self._model.train()
        with progress_bar(f"{settings.method}, seed {settings.seed}", settings.epochs, enabled=self.shows) as update:
            update(self._epoch, self._note())
            while self._epoch < settings.epochs:
                self._train_epoch()
                self._epoch += 1
                last = self._epoch == settings.epochs
                due = last or self._measures_degree() or self._epoch % settings.evaluate_every == 0
                if due:
                    self._evaluate()
                if due or self._at_risk():
                    self._save()
                update(self._epoch, self._note())

    def summary(self) -> State:
        """Describe how training ended, and measure the model."""
        settings = self._settings
        kept = ("test_accuracy", "test_loss", "train_accuracy", "train_loss", "further_tests")
        summary = {key: self._last[key] for key in kept if key in self._last}
        return summary | {
            "gap": summary["train_accuracy"] - summary["test_accuracy"],
            "epochs": settings.epochs,
            "seconds": self._seconds,
            "seconds_per_epoch": self._seconds / settings.epochs,
            "milliseconds_per_step": 1e3 * self._seconds / (settings.epochs * self._per_epoch),
            "parameters": sum(each.numel() for each in self._model.parameters()),
            **measure_degree(self._model, self._examples, settings),
        }

    def finish(self, summary: State) -> None:
        """Evaluate the proxies, if any are wanted, and end the run."""
        settings, model = self._settings, self._model
        if settings.proxies:
            summary["effective_degree_random_pixels"] = measure_on_noise(model, self._examples, settings)
            untrained = made_network(settings, self._examples, self._task.device)
            summary |= measure_proxies(model, untrained, self._examples, settings, progress=self.shows)
        if self._rank == 0:
            weights = {name: value.cpu().contiguous() for name, value in model.state_dict().items()}
            self._task.run.finish(summary, weights)

    def close(self) -> None:
        """Let go of the run's folder and of the memory that its graphs hold, however it ended."""
        self._step.close()
        if self._rank == 0:
            self._task.run.close()

    def _train_epoch(self) -> None:
        settings = self._settings
        # Drawn from seed and epoch alone, so that a resumed run needs no memory of it.
        generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + self._epoch)
        order = torch.randperm(len(self._examples.train), generator=generator).to(self._task.device)
        share = settings.batch // self._size
        self._step.penalties.zero_()
        self._penalized = 0
        begin = time.perf_counter()
        for number in range(self._per_epoch):
            step = self._epoch * self._per_epoch + number
            first = number * settings.batch + self._rank * share
            weight = self._weight(step)
            self._penalized += weight > 0
            self._step(order[first : first + share], rate=self._schedules.rate(step), weight=weight)
        if self._task.device.type == "cuda":
            torch.cuda.synchronize()
        self._seconds += time.perf_counter() - begin

    def _evaluate(self) -> None:
        settings, last = self._settings, self._epoch == self._settings.epochs
        if self._size > 1:
            # DDP keeps the running statistics of every process its own until the next pass.
            for buffer in self._model.buffers():
                dist.broadcast(buffer, 0)
        step = self._epoch * self._per_epoch
        found = evaluate(self._model, self._examples, settings, last=last)
        if not math.isfinite(found["train_loss"]):
            raise ValueError(
                f"the loss is no longer a number after epoch {self._epoch}: training diverged. Try a smaller lr than "
                f"{settings.lr:g}, or clip."
            )
        passes = self._penalized * self._step.passes * self._size
        entry: State = {
            "epoch": self._epoch,
            "step": step,
            "seconds": self._seconds,
            **found,
            "penalty": float(sum_over_ranks(self._step.penalties.cpu())) / passes if passes else None,
            "weight": self._schedules.strength(step - 1) if self._method.penalty is not None else 0.0,
            "lr": self._schedules.rate(step - 1),
        }
        if self._measures_degree():
            entry["effective_degree"] = follow_degree(self._model, self._examples)
        self._last = entry
        if self._rank == 0:
            self._task.run.log(entry)

    def _measures_degree(self) -> bool:
        """Return whether the effective degree is measured after this epoch; accuracies then are, too."""
        every = self._settings.measure_every
        return bool(every) and (self._epoch % every == 0 or self._epoch == self._settings.epochs)

    def _save(self) -> None:
        random = random_states(self._task.device)
        if self._rank == 0:
            state = {"epoch": self._epoch, "seconds": self._seconds, "last": self._last, "data": self._data}
            self._task.run.save(self._step.state() | state | {"random": random})
        self._saved = time.perf_counter()

    def _at_risk(self) -> bool:
        """Return whether much would be lost by now, for all processes by the clock of the first, so that they agree."""
        return bool(broadcast_from_first(time.perf_counter() - self._saved > SECONDS_AT_RISK))

    def _weight(self, step: int) -> float:
        return self._schedules.weight(step) if self._method.penalty is not None else 0.0

    def _note(self) -> str:
        if not self._last:
            return ""
        penalty = f" · penalty {self._last['penalty']:.3g}" if self._last["penalty"] is not None else ""
        degree = self._last.get("effective_degree")
        degree = f" · {describe_followed()} {degree['value']:.3g}" if degree else ""
        pace = f" · {self._seconds / max(self._epoch, 1):.2f} s/epoch"
        return f"{self._last['test_accuracy']:.1%}{penalty}{degree}{pace}"


def _copied(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in state.items()}
