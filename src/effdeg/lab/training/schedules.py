"""How the learning rate and the weight of the penalty move over the steps of a run."""

import math

from effdeg.lab.training.settings import Training
from effdeg.train._schedules import SineRamp


class Schedules:
    """The rate and the weight at each step.

    Attributes:
        steps: How many steps the run has.
    """

    def __init__(self, settings: Training, *, steps: int, weight: float) -> None:
        self.steps, self._settings = steps, settings
        epochs = settings.warm_up_epochs
        share = settings.warm_up if epochs is None else epochs / settings.epochs
        self._warm_up = round(share * steps)
        self._begin = round(settings.start * steps)
        self._ramp = SineRamp(weight, steps=round(settings.ramp * (steps - self._begin)))

    def rate(self, step: int) -> float:
        """Return the learning rate at a step."""
        highest = self._settings.lr
        if step < self._warm_up:
            return highest * (step + 1) / self._warm_up
        if self._settings.decay == "constant":
            return highest
        if self._settings.decay == "steps":
            share: float = 0.1 ** ((step >= self.steps // 2) + (step >= 3 * self.steps // 4))
            return highest * share
        done = (step - self._warm_up) / max(1, self.steps - self._warm_up)
        return highest * (1 + math.cos(math.pi * done)) / 2

    def strength(self, step: int) -> float:
        """Return the penalty's weight (λ) at a step, on average over steps with it and without."""
        # The ramp has left 0 with the first step, which is therefore a step with the penalty.
        return 0.0 if step < self._begin else float(self._ramp(step - self._begin + 1))

    def weight(self, step: int) -> float:
        """Return the weight that the penalty has in a step: 0 where the step is to be one without it."""
        return 0.0 if step % self._settings.every else self._settings.every * self.strength(step)
