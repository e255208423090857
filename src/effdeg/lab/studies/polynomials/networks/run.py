"""One run: a network is fitted to a map, then both are measured along the same paths."""

import math
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import effdeg
from effdeg._models.inference import Model
from effdeg._utils.progress import progress_bar
from effdeg.lab.studies.beginning import begun
from effdeg.lab.studies.polynomials.networks.columns import measured
from effdeg.lab.studies.polynomials.networks.exact import integrated
from effdeg.lab.studies.polynomials.networks.least_squares import levenberg_marquardt
from effdeg.lab.studies.polynomials.networks.network import PolynomialNetwork
from effdeg.lab.studies.polynomials.networks.settings import PolynomialFit
from effdeg.lab.studies.polynomials.networks.targets import TASKS, draw_inputs, target
from effdeg.lab.task import Task
from effdeg.lab.training.turns import turn

_FIRST_DAMPING = 0.01
# A step takes a fraction of a second: no more than so many are lost when a run is killed.
_EVALUATE_EVERY = 10
_FRESH = 10_000
# Paths join examples, and error bars take paths for independent: with so many examples, few lie on two paths.
_EXAMPLES_PER_PATH = 10


def fit_and_measure(settings: PolynomialFit, task: Task) -> None:
    """Carry out a run, or what is left of it."""
    with begun(task) as state:
        fitting = _Fitting(settings, task)
        if state is not None:
            fitting.restore(state)
        with turn(task.device, progress=task.progress):
            fitting.fit()
            summary = fitting.summary()
        fitting.finish(summary)


class _Fitting:
    """A fit under way."""

    def __init__(self, settings: PolynomialFit, task: Task) -> None:
        self._settings, self._task = settings, task
        # Tasks 4 to 6 are learned from other weights and inputs than 1 to 3: that their values are twice as large is
        # then a result. The paths are the same for all tasks, which makes it a sharp one.
        own = torch.Generator().manual_seed(len(TASKS) * settings.seed + settings.task)
        shared = torch.Generator().manual_seed(settings.seed)
        self._inputs = draw_inputs(settings.examples, own).to(task.device)
        self._fresh = draw_inputs(_FRESH, own).to(task.device)
        self._ends = draw_inputs(_EXAMPLES_PER_PATH * settings.paths, shared)
        self._targets = target(settings.task, self._inputs)
        torch.manual_seed(int(torch.randint(2**32, (), generator=own)))
        self._network = PolynomialNetwork(settings.width).to(task.device)
        self._network.scale.copy_(self._targets.std(0))
        self._step, self._damping, self._seconds, self._last = 0, _FIRST_DAMPING, 0.0, dict[str, Any]()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._network.load_state_dict(state["network"])
        self._step, self._damping = state["step"], state["damping"]
        self._seconds, self._last = state["seconds"], state["last"]

    @torch.no_grad()
    def fit(self) -> None:
        """Train to the end, evaluating and saving on the way."""
        settings = self._settings
        what = f"task {settings.task}, seed {settings.seed}"
        with progress_bar(what, settings.steps, enabled=self._task.progress) as update:
            while self._step < settings.steps:
                begin = time.perf_counter()
                self._take_step()
                self._seconds += time.perf_counter() - begin
                self._step += 1
                if self._step % _EVALUATE_EVERY == 0 or self._step == settings.steps:
                    self._evaluate()
                update(self._step, f"relative error {self._last['test_error']:.1e}" if self._last else "")

    def summary(self) -> dict[str, Any]:
        """Measure the network and the map along the same paths, and say how well one fits the other."""
        settings = self._settings
        return {
            **{key: self._last[key] for key in ("train_error", "test_error", "step", "seconds")},
            "parameters": sum(each.numel() for each in self._network.parameters()),
            "network": self._measured(self._network),
            "same_paths": self._measured(partial(target, settings.task)),
            "exact": integrated(settings.task, pairs=settings.pairs, seed=settings.seed),
        }

    def finish(self, summary: dict[str, Any]) -> None:
        """End the run."""
        weights = {name: value.cpu() for name, value in self._network.state_dict().items()}
        self._task.run.finish(summary, weights)

    def _take_step(self) -> None:
        # Divided by the root of their number, the residuals have their mean square for a sum of squares.
        size = self._network.scale * math.sqrt(self._targets.numel())

        def residuals(weights: Tensor) -> Tensor:
            vector_to_parameters(weights, self._network.parameters())
            off: Tensor = self._network(self._inputs) - self._targets
            return (off / size).flatten()

        jacobian = (self._network.jacobian(self._inputs) / size[:, None]).flatten(0, 1)
        before = parameters_to_vector(self._network.parameters())
        after, self._damping = levenberg_marquardt(residuals, jacobian, before, self._damping)
        vector_to_parameters(after, self._network.parameters())

    def _evaluate(self) -> None:
        self._last = {
            "step": self._step,
            "seconds": self._seconds,
            "train_error": self._error(self._inputs),
            "test_error": self._error(self._fresh),
            "damping": self._damping,
        }
        self._task.run.log(self._last)
        state = {"network": self._network.state_dict(), "step": self._step, "damping": self._damping}
        self._task.run.save(state | {"seconds": self._seconds, "last": self._last})

    def _error(self, inputs: Tensor) -> float:
        """Return the root mean square error, relative to the output's standard deviation, of the worst output."""
        wanted = target(self._settings.task, inputs)
        errors = (self._network(inputs) - wanted).square().mean(0).sqrt() / wanted.std(0)
        return float(errors.max())

    def _measured(self, model: Model) -> dict[str, dict[str, float]]:
        settings = self._settings
        # At Chebyshev nodes, principal components are those of the Chebyshev measure, whatever the number of nodes.
        trace = effdeg.trace(
            model,
            self._ends,
            paths=settings.paths,
            nodes=settings.nodes,
            sampling="chebyshev",
            seed=settings.seed,
            device=self._task.device,
        )
        return measured(trace, settings.degree)
