"""One training step with any regularizer: eager on a CPU; on a GPU compiled, and the whole of it in one CUDA graph."""

import gc
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from effdeg.baselines import Method

State = dict[str, Any]


@dataclass(frozen=True)
class StepOptions:
    """How a step is computed.

    Attributes:
        optimizer: The optimizer's class.
        options: Its options, without the rate.
        clip: The highest norm of a gradient; None for any.
        loss: The loss of outputs and labels.
        precision: ``float32``, or ``bf16`` by autocast on a GPU.
        compile: Compile the step on a GPU.
        compile_penalty: Compile it also where it has a penalty.
        fused_on_cpu: Use the fused kernel of the optimizer on a CPU too, where its rounding is another one.
    """

    optimizer: type[torch.optim.Optimizer]
    options: dict[str, Any]
    clip: float | None = None
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    precision: str = "float32"
    compile: bool = True
    compile_penalty: bool = True
    fused_on_cpu: bool = False


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Compute in bf16 where that was asked for and pays, on a GPU; else in float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16" and device.type == "cuda")


class CapturedStep:
    """A training step in one CUDA graph, which replays it without the cost of launching its kernels.

    Capturing runs the step three times and leaves weights, optimizer and random state changed: restore them after.
    """

    def __init__(self, model: nn.Module, step: Callable[[], None]) -> None:
        # The graph works in the memory of what the step holds on to: the model, the optimizer's state and the batch.
        self.step = step
        # Work that is to be captured runs on a stream of its own a few times before.
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        model.zero_grad(set_to_none=True)
        # A graph of an earlier run that is garbage-collected during capture would spoil it.
        gc.collect()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            step()

    def __call__(self) -> None:
        """Replay the step."""
        self.graph.replay()


class Step:
    """Trains a model on given examples, with or without the regularizer's penalty.

    Attributes:
        optimizer: The optimizer, with the regularizer's around it if it has one.
        penalties: The sum of the penalties since it was last set to zero.
        passes: Forward and backward passes per step.
    """

    def __init__(
        self,
        model: nn.Module,
        regularizer: Method,
        batch: Callable[[Tensor], tuple[Tensor, Tensor]],
        options: StepOptions,
        *,
        size: int,
        wrapper: nn.Module | None = None,
    ) -> None:
        """Set up steps on ``size`` examples, of which ``batch`` returns inputs and labels by their indices.

        A ``wrapper`` is called instead of the model, such as DDP around it.
        """
        self._model, self._regularizer, self._options = model, regularizer, options
        self._wrapper = model if wrapper is None else wrapper
        device = next(model.parameters()).device
        self._device, self._on_gpu = device, device.type == "cuda"
        # Captured steps read these from their place, so they are written to, never replaced.
        self._rate, self._weight, self.penalties = (torch.zeros((), device=device) for _ in range(3))
        self._indices = torch.arange(size, device=device)
        self._fused = self._on_gpu or options.fused_on_cpu
        self.optimizer = self._make_optimizer()
        self.passes = 1 if regularizer.wrap is None else 2
        self._batch = self._compile(batch)
        self._losses = {penalized: self._make_loss(penalized) for penalized in (False, True)}
        self._steps: dict[bool, Callable[[], None]] = {}

    def compile(self, *, penalized: bool) -> None:
        """Run a step on a GPU, so that all is compiled before it is captured. Changes the model."""
        if self._on_gpu:
            with warnings.catch_warnings():
                # Advice to compute in TF32, and other asides of the compiler.
                warnings.filterwarnings("ignore", module="torch._inductor")
                self._run(penalized)
            torch.cuda.synchronize()

    def capture(self, *, penalized: bool) -> None:
        """Capture the step on a GPU, unless the model runs in several processes. Changes the model."""
        if self._on_gpu and self._wrapper is self._model:
            self._steps[penalized] = CapturedStep(self._model, lambda: self._run(penalized))
        else:
            self._steps[penalized] = lambda: self._run(penalized)

    def __call__(self, indices: Tensor, *, rate: float, weight: float) -> None:
        """Train on the examples with these indices; a penalty of no weight is not computed."""
        self._indices.copy_(indices)
        self._rate.fill_(rate)
        if not self._fused:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
        self._weight.fill_(weight)
        self._steps[weight > 0]()

    def state(self) -> State:
        """Return everything that training changes: weights, the optimizer's state, the sum of penalties."""
        return {
            "model": self._model.state_dict(),
            "optimizer": self.optimizer.state_dict()["state"],
            "penalties": self.penalties,
        }

    def restore(self, state: State) -> None:
        """Put a state back into the memory that graphs have captured; an empty one of the optimizer starts anew."""
        self._model.load_state_dict(state["model"])
        self.penalties.copy_(state["penalties"])
        present = self.optimizer.state_dict()["state"]
        if not present:
            groups = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict({"state": state["optimizer"], "param_groups": groups})
            if self._fused:  # the optimizer has a copy of the rate now
                for group in self.optimizer.param_groups:
                    group["lr"] = self._rate
            return
        for parameter, values in present.items():
            for name, value in values.items():
                if isinstance(value, Tensor):
                    kept = state["optimizer"].get(parameter, {}).get(name)
                    value.zero_() if kept is None else value.copy_(kept)

    def close(self) -> None:
        """Free the graphs, which hold on to this object and to the memory that they work in."""
        self._steps.clear()

    def _run(self, penalized: bool) -> None:
        x, y = self._regularizer.batch(*self._batch(self._indices))

        def closure() -> Tensor:
            self._model.zero_grad(set_to_none=True)
            loss, penalty = self._losses[penalized](x, y, self._weight)
            loss.backward()  # type: ignore[no-untyped-call]
            if self._options.clip is not None:
                nn.utils.clip_grad_norm_(self._model.parameters(), self._options.clip)
            self.penalties += penalty
            return loss

        self.optimizer.step(closure)  # type: ignore[arg-type]

    def _make_loss(self, penalized: bool) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
        penalty, criterion = self._regularizer.penalty if penalized else None, self._options.loss

        def loss(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            with autocast(self._device, self._options.precision):
                if penalty is None:
                    return criterion(self._wrapper(x), y), torch.zeros_like(weight)
                outputs, value = penalty(self._wrapper, x, y)
                return criterion(outputs, y) + weight * value, value.detach().float()

        alone = self._wrapper is self._model
        return self._compile(loss) if alone and (penalty is None or self._options.compile_penalty) else loss

    def _compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not (self._on_gpu and self._options.compile):
            return function
        return torch.compile(function, fullgraph=True, dynamic=False)

    def _make_optimizer(self) -> torch.optim.Optimizer:
        options = {"lr": self._rate if self._fused else 1.0, "fused": self._fused, **self._options.options}
        if self._on_gpu and issubclass(self._options.optimizer, torch.optim.AdamW):
            options["capturable"] = True
        return self._regularizer.optimizer(self._model, self._options.optimizer, **options)
