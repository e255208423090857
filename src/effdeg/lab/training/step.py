"""One training step of any method: eager on a CPU; on a GPU compiled, and the whole of it in one CUDA graph."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from effdeg.baselines import Method
from effdeg.lab.training.capture import CapturedStep
from effdeg.lab.training.examples import DeviceExamples
from effdeg.lab.training.precision import autocast
from effdeg.lab.training.settings import Training

State = dict[str, Any]


def can_be_compiled(settings: Training) -> bool:
    """Return whether a penalty can be: one that differentiates twice or hooks a layer runs as it is written."""
    hooks = settings.at is not None or settings.batchnorm == "frozen"
    return not hooks and "jacobian" not in settings.method.split("+")


def compiled(model: nn.Module, settings: Training) -> nn.Module:
    """Compile the model alone, for wrappers that cannot be compiled, such as DDP; on a GPU, and where it can be."""
    on_gpu = next(model.parameters()).device.type == "cuda"
    wanted = on_gpu and settings.compile and can_be_compiled(settings)
    return torch.compile(model, dynamic=False) if wanted else model  # type: ignore[return-value]


class Step:
    """Trains a model on given examples, with or without the method's penalty.

    Attributes:
        optimizer: The optimizer, with the method's around it if it has one.
        penalties: The sum of the penalties since it was last emptied.
        passes: How many passes forward and backward a step has.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        examples: DeviceExamples,
        settings: Training,
        *,
        batch: int,
        called: nn.Module | None = None,
    ) -> None:
        self._model, self._method, self._settings = model, method, settings
        # What is called to run the model: a wrapper such as DDP, or the model itself.
        self._called = model if called is None else called
        device = next(model.parameters()).device
        self._device, self._on_gpu = device, device.type == "cuda"
        # Captured steps read these from their place, so they are written to, never replaced.
        self._rate, self._weight, self.penalties = (torch.zeros((), device=device) for _ in range(3))
        self._indices = torch.arange(batch, device=device)
        self.optimizer = self._make_optimizer()
        self.passes = 1 if method.wrap is None else 2
        self._prepare = self._compiled(examples.batch)
        self._losses = {penalized: self._make_loss(penalized) for penalized in (False, True)}
        self._steps: dict[bool, Callable[[], None]] = {}

    def compile(self, *, penalized: bool) -> None:
        """Let everything be compiled that can be before it is captured. Changes the model."""
        if self._on_gpu:
            self._run(penalized)
            torch.cuda.synchronize()

    def capture(self, *, penalized: bool) -> None:
        """Capture the step on a GPU, unless the model runs in several processes. Changes the model."""
        alone = self._called is self._model
        if self._on_gpu and alone:
            self._steps[penalized] = CapturedStep(self._model, lambda: self._run(penalized))
        else:
            self._steps[penalized] = lambda: self._run(penalized)

    def __call__(self, indices: Tensor, *, rate: float, weight: float) -> None:
        """Train on the examples with these indices; a penalty of no weight is not computed."""
        self._indices.copy_(indices)
        self._set_rate(rate)
        self._weight.fill_(weight)
        self._steps[weight > 0]()

    def state(self) -> State:
        """Return everything that moves: weights and the optimizer's state."""
        return {"model": self._model.state_dict(), "optimizer": self.optimizer.state_dict()["state"]}

    def restore(self, state: State) -> None:
        """Put weights and the optimizer's state back, into the memory where they are: graphs have captured it.

        Args:
            state: What :meth:`state` gave; an optimizer's state that is empty begins anew.
        """
        self._model.load_state_dict(state["model"])
        held = self.optimizer.state_dict()["state"]
        if not held:
            groups = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict({"state": state["optimizer"], "param_groups": groups})
            self._tie_rate()
            return
        for parameter, values in held.items():
            for name, value in values.items():
                if isinstance(value, Tensor):
                    kept = state["optimizer"].get(parameter, {}).get(name)
                    value.zero_() if kept is None else value.copy_(kept)

    def close(self) -> None:
        """Let go of the graphs, which hold on to this and to the memory that they work in."""
        self._steps.clear()

    def _run(self, penalized: bool) -> None:
        x, y = self._method.batch(*self._prepare(self._indices))

        def closure() -> Tensor:
            self._model.zero_grad(set_to_none=True)
            loss, penalty = self._losses[penalized](x, y, self._weight)
            loss.backward()  # type: ignore[no-untyped-call]
            if self._settings.clip is not None:
                nn.utils.clip_grad_norm_(self._model.parameters(), self._settings.clip)
            self.penalties += penalty
            return loss

        self.optimizer.step(closure)  # type: ignore[arg-type]

    def _make_loss(self, penalized: bool) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
        penalty = self._method.penalty if penalized else None

        def loss(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            with autocast(self._device, self._settings.precision):
                if penalty is None:
                    return cross_entropy(self._called(x), y), torch.zeros_like(weight)
                outputs, value = penalty(self._called, x, y)
                return cross_entropy(outputs, y) + weight * value, value.detach().float()

        alone = self._called is self._model
        return self._compiled(loss) if alone and (penalty is None or can_be_compiled(self._settings)) else loss

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not (self._on_gpu and self._settings.compile):
            return function
        return torch.compile(function, fullgraph=True, dynamic=False)

    def _make_optimizer(self) -> torch.optim.Optimizer:
        settings = self._settings
        options: dict[str, Any] = {"lr": self._rate, "weight_decay": settings.weight_decay, "fused": True}
        if settings.optimizer == "adamw":
            base: type[torch.optim.Optimizer] = torch.optim.AdamW
            options["capturable"] = self._on_gpu
        else:
            base = torch.optim.SGD
            options["momentum"] = settings.momentum
        if not self._on_gpu:
            # Elsewhere a rate is a number, which no graph holds on to, and kernels need not be fused.
            options |= {"lr": settings.lr, "fused": False}
        return self._method.optimizer(self._model, base, **options)

    def _set_rate(self, rate: float) -> None:
        self._rate.fill_(rate)
        if not self._on_gpu:
            for group in self.optimizer.param_groups:
                group["lr"] = rate

    def _tie_rate(self) -> None:
        """Let the optimizer read the rate from its place again; loading a state leaves it with a copy."""
        if self._on_gpu:
            for group in self.optimizer.param_groups:
                group["lr"] = self._rate
