"""A run from its settings to its summary; killed at any moment, it goes on from its last checkpoint."""

import math
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from effdeg._progress import progress_bar
from effdeg.distributed import rank_and_size
from effdeg.lab import data, models
from effdeg.lab.task import Task
from effdeg.lab.training.environment import environment
from effdeg.lab.training.evaluation import evaluated, followed, measured, proxied
from effdeg.lab.training.examples import Examples
from effdeg.lab.training.methods import made_method, on_random_pixels
from effdeg.lab.training.schedules import Schedules
from effdeg.lab.training.settings import Training
from effdeg.lab.training.step import Step
from effdeg.lab.training.turns import turn

# Between evaluations a checkpoint is written when so much work would be lost.
SECONDS_AT_RISK = 60.0


def train(settings: Training, task: Task) -> None:
    """Carry out a run, or what is left of it.

    Args:
        settings: The settings, which decide how it ends.
        task: Where to work.
    """
    made_method(settings)  # what is wrong with it is said before anything is read
    examples = Examples(data.load(settings.data, task.data), settings, task.device)
    state = _begin(task)
    with _Running(settings, task, examples) as running:
        running.prepare(state)
        with turn(task.device):
            running.capture(state)
            running.train()
            summary = running.summary()
        running.finish(summary)


def _begin(task: Task) -> dict[str, Any] | None:
    """Open the run's folder in the first process, and give all of them its last checkpoint."""
    rank, size = rank_and_size()
    shared = [task.run.begin(environment(task.device)) if rank == 0 else None]
    if size > 1:
        dist.broadcast_object_list(shared)
    return shared[0]


class _Running:
    """A run under way."""

    def __init__(self, settings: Training, task: Task, examples: Examples) -> None:
        self._settings, self._task, self._examples = settings, task, examples
        self._rank, self._size = rank_and_size()
        if settings.batch % self._size:
            raise ValueError(f"batch={settings.batch} cannot be shared evenly by {self._size} processes.")
        self._per_epoch = len(examples.train) // settings.batch
        self._model = self._untrained().to(task.device)
        self._method = made_method(settings, classes=examples.classes)
        if settings.ends == "random-pixels":
            self._method = on_random_pixels(self._method, examples)
        steps = settings.epochs * self._per_epoch
        self._schedules = Schedules(settings, steps=steps, weight=self._method.weight)
        self._step = Step(
            self._model, self._method, examples, settings, batch=settings.batch // self._size, called=self._wrapped()
        )
        self._epoch, self._seconds, self._saved = 0, 0.0, time.perf_counter()
        self._last: dict[str, Any] = {}

    def __enter__(self) -> "_Running":
        self._cudnn = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = True
        return self

    def __exit__(self, *_: object) -> None:
        torch.backends.cudnn.benchmark = self._cudnn

    def prepare(self, state: dict[str, Any] | None) -> None:
        """Compile, which takes long and needs the GPU for moments only."""
        torch.manual_seed(self._settings.seed + 1_000_003 * self._rank)
        self._fresh = {"model": _copied(self._model.state_dict()), "optimizer": {}}
        for penalized in self._kinds():
            self._step.compile(penalized=penalized)
        if state is not None and self._rank == 0 and self._task.progress:
            print(f"continuing at epoch {state['epoch']}")

    def capture(self, state: dict[str, Any] | None) -> None:
        """Capture the steps, and only then put everything where it is to begin: capturing has trained a little."""
        for penalized in self._kinds():
            self._step.capture(penalized=penalized)
        torch.manual_seed(self._settings.seed + 1_000_003 * self._rank)
        self._step.restore(self._fresh if state is None else state)
        if state is not None:
            self._epoch, self._seconds, self._last = state["epoch"], state["seconds"], state["last"]
            _set_random_state(state["random"][self._rank], self._task.device)

    def train(self) -> None:
        """Train to the end, evaluating and saving on the way."""
        settings = self._settings
        self._model.train()
        with progress_bar(f"{settings.method}, seed {settings.seed}", settings.epochs, enabled=self._shows) as update:
            update(self._epoch, self._note())
            while self._epoch < settings.epochs:
                self._train_epoch()
                self._epoch += 1
                due = self._epoch % settings.evaluate_every == 0 or self._epoch == settings.epochs
                if due:
                    self._evaluate()
                if due or time.perf_counter() - self._saved > SECONDS_AT_RISK:
                    self._save()
                update(self._epoch, self._note())

    def summary(self) -> dict[str, Any]:
        """Say how training ended, and measure the model."""
        settings = self._settings
        summary = {key: self._last[key] for key in ("test_accuracy", "test_loss", "train_accuracy", "train_loss")}
        return summary | {
            "gap": summary["train_accuracy"] - summary["test_accuracy"],
            "epochs": settings.epochs,
            "seconds": self._seconds,
            "seconds_per_epoch": self._seconds / settings.epochs,
            "milliseconds_per_step": 1e3 * self._seconds / (settings.epochs * self._per_epoch),
            "parameters": sum(each.numel() for each in self._model.parameters()),
            "effective_degree": measured(self._model, self._examples, settings),
        }

    def finish(self, summary: dict[str, Any]) -> None:
        """Evaluate the proxies, if any are wanted, and close the run."""
        settings, model = self._settings, self._model
        if settings.proxies:
            summary["effective_degree_random_pixels"] = measured(model, self._examples, settings, noise=True)
            untrained = self._untrained().to(self._task.device)
            summary |= proxied(model, untrained, self._examples, settings, progress=self._shows)
        if self._rank == 0:
            weights = {name: value.cpu().contiguous() for name, value in model.state_dict().items()}
            self._task.run.finish(summary, weights)

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
        found = evaluated(self._model, self._examples, settings, last=last)
        if not math.isfinite(found["train_loss"]):
            raise RuntimeError(
                f"the loss is no longer a number after epoch {self._epoch}: training diverged. Try a smaller lr than "
                f"{settings.lr:g}, or clip."
            )
        sums = float(self._step.penalties)
        entry: dict[str, Any] = {
            "epoch": self._epoch,
            "step": step,
            "seconds": self._seconds,
            **found,
            "penalty": sums / (self._penalized * self._step.passes) if self._penalized else None,
            "weight": self._weight(step - 1),
            "lr": self._schedules.rate(step - 1),
        }
        if settings.measure_every and (self._epoch % settings.measure_every == 0 or last):
            entry["effective_degree"] = followed(self._model, self._examples)
        self._last = entry
        if self._rank == 0:
            self._task.run.log(entry)

    def _save(self) -> None:
        random = [_random_state(self._task.device)]
        if self._size > 1:
            gathered: list[Any] = [None] * self._size
            dist.all_gather_object(gathered, random[0])
            random = gathered
        if self._rank == 0:
            state = self._step.state() | {"epoch": self._epoch, "seconds": self._seconds, "last": self._last}
            self._task.run.save(state | {"random": random})
        self._saved = time.perf_counter()

    def _kinds(self) -> list[bool]:
        """Tell which steps there will be: without and with a penalty."""
        weights = [self._weight(step) > 0 for step in range(self._schedules.steps)]
        return sorted(set(weights))

    def _weight(self, step: int) -> float:
        return self._schedules.weight(step) if self._method.penalty is not None else 0.0

    def _untrained(self) -> nn.Module:
        torch.manual_seed(self._settings.seed)
        return models.make(self._settings.model, shape=self._examples.shape, classes=self._examples.classes)

    def _wrapped(self) -> nn.Module | None:
        return DistributedDataParallel(self._model) if self._size > 1 else None

    def _note(self) -> str:
        if not self._last:
            return ""
        penalty = f" · penalty {self._last['penalty']:.3g}" if self._last["penalty"] is not None else ""
        degree = f" · ED {self._last['effective_degree']['value']:.3g}" if "effective_degree" in self._last else ""
        pace = f" · {self._seconds / max(self._epoch, 1):.2f} s/epoch"
        return f"{self._last['test_accuracy']:.1%}{penalty}{degree}{pace}"

    @property
    def _shows(self) -> bool:
        return self._task.progress and self._rank == 0


def _copied(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in state.items()}


def _random_state(device: torch.device) -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def _set_random_state(state: dict[str, torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
