"""A run from its settings to its summary; killed at any moment, it goes on from its last checkpoint."""

import math
import time
from typing import Any

import torch

from effdeg._utils.progress import progress_bar
from effdeg.lab.studies.beginning import begun
from effdeg.lab.studies.grokking.course import DEGREE
from effdeg.lab.studies.grokking.equations import all_equations, split
from effdeg.lab.studies.grokking.network import Decoder
from effdeg.lab.studies.grokking.settings import Grokking
from effdeg.lab.studies.grokking.step import GrokkingStep
from effdeg.lab.studies.grokking.tracking import looked_at
from effdeg.lab.task import Task
from effdeg.lab.training.loop import SECONDS_AT_RISK
from effdeg.lab.training.turns import turn

# Steps between two looks at the clock.
_STRETCH = 500


def train(settings: Grokking, task: Task) -> None:
    """Carry out a run, or what is left of it."""
    with begun(task) as state:
        with turn(task.device, progress=task.progress):
            running = _GrokkingRun(settings, task, state)
        running.train()
        running.finish()


class _GrokkingRun:
    """A run under way, or one that goes on from the state of a checkpoint."""

    def __init__(self, settings: Grokking, task: Task, state: dict[str, Any] | None) -> None:
        self._settings, self._task = settings, task
        self._train, self._validation = split(
            all_equations(settings.operation, settings.prime),
            settings.train_equations,
            seed=settings.seed,
            device=task.device,
        )
        # Drawn on the CPU, so that a seed means the same network on every device.
        torch.manual_seed(settings.seed)
        self._model = Decoder(prime=settings.prime, width=settings.width, heads=settings.heads, depth=settings.depth)
        self._step = GrokkingStep(self._model.to(task.device), self._train, settings)
        self._seconds, self._saved = 0.0, time.perf_counter()
        self._last: dict[str, Any] = {"step": 0}
        if state is not None:
            self._step.restore(state)
            self._seconds, self._last = state["seconds"], state["last"]
            if task.progress:
                print(f"continuing at step {self._step.step}")

    def train(self) -> None:
        """Train to the end, looking and saving on the way."""
        settings = self._settings
        looks = [step for step in evaluation_steps(settings.steps, settings.evaluations) if step > self._last["step"]]
        title = f"{settings.operation} modulo {settings.prime}, seed {settings.seed}"
        with progress_bar(title, settings.steps, enabled=self._task.progress) as update:
            for look in looks:
                while self._step.step < look:
                    self._train_stretch(min(_STRETCH, look - self._step.step))
                    self._save_in_time()
                    update(self._step.step, self._note())
                found = looked_at(self._model, self._train, self._validation, settings)
                self._last = {"step": look, "seconds": self._seconds, **found}
                self._task.run.log(self._last)

    def finish(self) -> None:
        """End the run."""
        steps = self._settings.steps
        summary = {name: value for name, value in self._last.items() if name != "step"} | {
            "steps": steps,
            "seconds": self._seconds,
            "milliseconds_per_step": 1e3 * self._seconds / steps,
            "parameters": sum(each.numel() for each in self._model.parameters()),
        }
        weights = {name: value.cpu().contiguous() for name, value in self._model.state_dict().items()}
        self._task.run.finish(summary, weights)

    def _train_stretch(self, steps: int) -> None:
        # A turn no longer than that: while one run is looked at, which is work for the CPU as well, another trains.
        with turn(self._task.device):
            begin = time.perf_counter()
            for _ in range(steps):
                self._step()
            if self._task.device.type == "cuda":
                torch.cuda.synchronize()
            self._seconds += time.perf_counter() - begin

    def _save_in_time(self) -> None:
        """Write a checkpoint if much would be lost by now."""
        if time.perf_counter() - self._saved > SECONDS_AT_RISK:
            self._task.run.save(self._step.state() | {"seconds": self._seconds, "last": self._last})
            self._saved = time.perf_counter()

    def _note(self) -> str:
        if DEGREE not in self._last:
            return ""
        return f"validation {self._last['validation_accuracy']:.1%} · ED {self._last[DEGREE]['value']:.3g}"


def evaluation_steps(steps: int, evaluations: int) -> list[int]:
    """Choose the steps after which a network is looked at.

    Half of them are spaced evenly in the logarithm of the step, since memorizing takes hundreds of steps and
    generalizing may take hundreds of thousands, and half evenly in the step, so that late transitions are seen as well.

    Args:
        steps: How many steps there are.
        evaluations: How many are wanted.

    Returns:
        The steps, the first and the last among them; fewer than wanted where the two spacings coincide.
    """
    half = max(2, evaluations // 2)
    by_factor = (round(math.exp(math.log(steps) * number / (half - 1))) for number in range(half))
    rest = max(1, evaluations - half)
    evenly = (round(steps * number / rest) for number in range(1, rest + 1))
    return sorted({*by_factor, *evenly} - {0})
