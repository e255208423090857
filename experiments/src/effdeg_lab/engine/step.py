"""One training step with any regularizer: eager on a CPU; on a GPU compiled, and captured whole in one CUDA graph."""

import gc
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from effdeg import Penalty
from effdeg.baselines import ICT, UDA, Consistency, FixMatch, Method, RDrop
from effdeg_lab.engine.flat import Decays, FlatParameters

State = dict[str, Any]


class Teacher(nn.Module):
    """An exponential moving average of a network's weights and running statistics, in evaluation mode.

    In update n the new weights count with 1 − min(decay, 1 − 1/n), so the first ones are forgotten early. Torch's
    ``AveragedModel`` reads n on the CPU, so it cannot be captured in a CUDA graph.
    """

    count: Tensor

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__()
        self.model, self._decay = deepcopy(model).eval().requires_grad_(False), decay
        self.register_buffer("count", torch.zeros((), device=next(model.parameters()).device))

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.count += 1
        kept = (1 - 1 / self.count).clamp(max=self._decay)
        averages, values = _list_values(self.model), _list_values(model)
        torch._foreach_mul_(averages, kept)
        torch._foreach_add_(averages, torch._foreach_mul(values, 1 - kept))

    def restore(self, state: dict[str, Tensor] | None, model: nn.Module) -> None:
        """Continue from a state, or begin with the network's weights if there is none."""
        if state is not None:
            self.load_state_dict(state)
            return
        self.model.load_state_dict(model.state_dict())
        self.count.zero_()


def _list_values(model: nn.Module) -> list[Tensor]:
    return [each.detach() for each in (*model.parameters(), *model.buffers()) if each.is_floating_point()]


@dataclass(frozen=True, eq=False)
class Task:
    """What is trained and how, and when it is evaluated."""

    model: nn.Module  # on its device, with its initial weights
    regularizer: Method
    # Returns the training examples of given indices, their labels and, if the penalty uses them, more examples without
    # labels. If batches differ in shape, it also takes the shape of the batch. If there is a source, it takes what the
    # source yields instead of indices.
    batch: Callable[..., tuple[Tensor, ...]]
    examples: int
    batch_size: int  # over all processes; an epoch drops an incomplete last batch
    steps: int
    optimizer: type[torch.optim.Optimizer]
    options: dict[str, Any]  # of the optimizer, without the rate
    rate: Callable[[int], float]
    weight: Callable[[int], float]  # of the penalty
    evaluation_steps: Collection[int]
    # Takes the number of steps and the mean penalty of the epoch so far, None if there is none; returns what to log. If
    # an entry whose name ends in _loss is not finite, training has diverged.
    # It must leave torch's random numbers alone, and is called again if the run was stopped in it.
    evaluate: Callable[[int, float | None], dict[str, Any]]
    describe: Callable[[dict[str, Any]], str]  # writes a log entry in a few words, for the progress bar
    source: Any = None  # of batches that are not on the device already: StreamedExamples
    teacher: Teacher | None = None  # an average of the model, updated after each step
    memory: Any = None  # of the evaluations, kept in checkpoints: WrongLabels
    # If steps differ in shape, such as in the length of texts: all shapes, and which one the examples of given indices
    # need. A graph is captured for each.
    shapes: tuple[int, ...] = ()
    shape: Callable[[Tensor], int] | None = None
    clip: float | None = None
    decays: Decays | None = None  # the parameters that decay, if not all
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    precision: str = "float32"  # or bf16, by autocast on a GPU
    compile: bool = True  # on a GPU
    compile_penalty: bool = True
    fused_on_cpu: bool = False  # use the optimizer's fused kernel on a CPU too, where it rounds differently
    frees_gpu: bool = False  # let other runs use the GPU during evaluations, which keep the CPU busy


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Compute in bf16 if requested, on a GPU, where it pays off; else in float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16" and device.type == "cuda")


@contextmanager
def evaluating(model: nn.Module, precision: str = "float32") -> Iterator[None]:
    """Run a model as it is used, without dropout and gradients; afterwards it is in the mode in which it was."""
    training, device = model.training, next((each.device for each in model.parameters()), torch.device("cpu"))
    model.eval()
    with torch.no_grad(), autocast(device, precision):
        yield
    model.train(training)


def compile_on(device: torch.device, function: Callable[..., Any], *, enabled: bool) -> Callable[..., Any]:
    """Compile a function of a step if requested, on a GPU, where it pays off; else return it as it is."""
    compiles = enabled and device.type == "cuda"
    return torch.compile(function, fullgraph=True, dynamic=False) if compiles else function


class CapturedStep:
    """A training step in one CUDA graph, which replays it without the cost of launching its kernels.

    Capturing runs the step three times and leaves weights, optimizer and random state changed: restore them after.
    """

    def __init__(self, model: nn.Module, step: Callable[[], None]) -> None:
        # The graph works in the memory of what the step holds on to: the model, the optimizer's state and the batch.
        self.step = step
        # Work must run a few times on a side stream before it is captured.
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        model.zero_grad(set_to_none=True)
        # If a graph of an earlier run were garbage-collected during capture, it would spoil it.
        gc.collect()
        self.graph = torch.cuda.CUDAGraph()
        # On a stream of its own: cuBLAS has one workspace per stream, which concurrent graphs must not share.
        with torch.cuda.graph(self.graph, stream=side):
            step()

    def __call__(self) -> None:
        self.graph.replay()


def refill(optimizer: torch.optim.Optimizer, state: State) -> None:
    """Copy a state into an optimizer's own tensors, which graphs may have captured; what the state lacks becomes 0."""
    for parameter, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                kept = state.get(parameter, {}).get(name)
                value.zero_() if kept is None else value.copy_(kept)


class Objective(nn.Module):
    """The loss of a model on a batch and, if there is one, the penalty: what a step differentiates.

    A model of two halves, ``embed`` and ``encode``, is penalized in between: paths lie at the output of the first. Only
    R-Drop runs all of it twice.
    """

    model: Any  # a module, perhaps with the two halves as methods

    def __init__(self, model: nn.Module, task: Task, *, penalized: bool) -> None:
        super().__init__()
        self.model, self.penalty = model, task.regularizer.penalty if penalized else None
        self._criterion, self._options = task.loss, dict[str, Any]()
        if task.teacher is not None and isinstance(self.penalty, Penalty):
            self._options["teacher"] = task.teacher.model
        in_halves = hasattr(model, "embed") and hasattr(model, "encode")  # a vision transformer has the first only
        self._in_halves = in_halves and not isinstance(self.penalty, RDrop)

    def forward(self, x: Tensor, y: Tensor, weight: Tensor, *unlabeled: Tensor) -> tuple[Tensor, Tensor]:
        if self.penalty is None:
            return self._criterion(self.model(x), y), torch.zeros_like(weight)
        options = self._options
        if unlabeled or isinstance(self.penalty, ICT | Consistency | UDA | FixMatch):
            # If all examples have labels, these get the same examples without them.
            options = {**options, "unlabeled": unlabeled[0] if unlabeled else x}
        # A penalty that takes the loss elsewhere than on the batch also returns the labels there.
        run, given = (self.model.encode, self.model.embed(x)) if self._in_halves else (self.model, x)
        outputs, value, *labels = self.penalty(run, given, y, **options)
        return self._criterion(outputs, labels[0] if labels else y) + weight * value, value.detach().float()


class Step:
    """A training step of a task on ``size`` examples, with or without the regularizer's penalty.

    ``loss`` is that of the last step, with the penalty in it. A ``wrapper`` is called instead of the model, such as DDP
    around it. With ``flat`` the parameters are trained as a
    few flat tensors, by default on a GPU: this is faster there and, but for rounding, the same.
    """

    def __init__(self, task: Task, *, size: int, wrapper: nn.Module | None = None, flat: bool | None = None) -> None:
        self._task, self._model, self._wrapper = task, task.model, task.model if wrapper is None else wrapper
        self._device = device = next(task.model.parameters()).device
        self._on_gpu = device.type == "cuda"
        # Captured steps read these from their memory, so they are written to, never replaced.
        self._rate, self._weight, self.penalties, self.loss = (torch.zeros((), device=device) for _ in range(4))
        indices = torch.arange(size, device=device)
        self._given: tuple[Tensor, ...] = (indices,) if task.source is None else task.source.allocate(size)
        self._fused = self._on_gpu or task.fused_on_cpu
        options = {"lr": self._rate if self._fused else 1.0, "fused": self._fused, **task.options}
        if self._on_gpu and issubclass(task.optimizer, torch.optim.AdamW):
            options["capturable"] = True
        self._flat: FlatParameters | None = None
        # DDP averages the gradients of the model's own parameters.
        if (self._on_gpu if flat is None else flat) and wrapper is None:
            half = task.precision == "bf16" and self._on_gpu
            self._flat = FlatParameters(task.model, self._find_trained(), half=half, decays=task.decays)
            options["params"] = self._flat.named()
        # The indices of the optimizer's parameters among the model's, if their groups change the order.
        self._places: list[int] | None = None
        if task.decays is not None:
            options["params"], self._places = self._group_by_decay(task.decays)
        self.optimizer = task.regularizer.optimizer(task.model, task.optimizer, **options)
        self._batch = compile_on(device, task.batch, enabled=task.compile)
        self._losses = {penalized: self._make_loss(penalized) for penalized in (False, True)}
        self._steps: dict[tuple[bool, int | None], Callable[[], None]] = {}

    def compile(self, *, penalized: bool) -> None:
        """Run a step of each shape on a GPU, to compile everything before it is captured. Changes the model."""
        if self._on_gpu:
            with warnings.catch_warnings():
                # Advice to compute in TF32, and other asides of the compiler.
                warnings.filterwarnings("ignore", module="torch._inductor")
                for shape in self._find_new(penalized):
                    self._run(penalized, shape)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # another run may train on this GPU until it is this one's turn

    def capture(self, *, penalized: bool) -> None:
        """Capture the step of each shape on a GPU, unless the model runs in several processes. Changes the model."""
        for shape in self._find_new(penalized):
            run = partial(self._run, penalized, shape)
            captured = self._on_gpu and self._wrapper is self._model
            self._steps[penalized, shape] = CapturedStep(self._model, run) if captured else run

    def __call__(self, *given: Tensor, rate: float, weight: float, shape: int | None = None) -> None:
        """Train on the examples with given indices or of a batch; a penalty of weight 0 is not computed."""
        for own, each in zip(self._given, given, strict=True):
            own.copy_(each)
        self._rate.fill_(rate)
        if not self._fused:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
        self._weight.fill_(weight)
        self._steps[weight > 0, shape]()

    def state(self) -> State:
        """Return everything that training changes: weights, the optimizer's state, the sum of penalties."""
        optimizer = self.optimizer.state_dict()["state"]
        if self._places is not None:
            optimizer = {self._places[number]: values for number, values in optimizer.items()}
        if self._flat is not None:
            optimizer = self._flat.split_state(optimizer)
        state = {"model": self._model.state_dict(), "optimizer": optimizer, "penalties": self.penalties}
        return state if self._task.teacher is None else {**state, "teacher": self._task.teacher.state_dict()}

    def restore(self, state: State) -> None:
        """Put a state back into the memory that graphs have captured; an empty optimizer state resets the optimizer."""
        self._model.load_state_dict(state["model"])
        if self._task.teacher is not None:
            self._task.teacher.restore(state.get("teacher"), self._model)
        self.penalties.copy_(state["penalties"])
        own, optimizer = self.optimizer.state_dict(), state["optimizer"]
        if self._flat is not None:
            optimizer = self._flat.join_state(optimizer)
        if self._places is not None:
            optimizer = {self._places.index(number): values for number, values in optimizer.items()}
        if not own["state"]:
            self.optimizer.load_state_dict(own | {"state": optimizer})
            if self._fused:  # the optimizer has a copy of the rate now
                for group in self.optimizer.param_groups:
                    group["lr"] = self._rate
            return
        refill(self.optimizer, optimizer)

    def close(self) -> None:
        """Free the graphs, which hold on to this object and to the memory that they work in."""
        self._steps.clear()

    def _find_new(self, penalized: bool) -> list[int | None]:
        """Return the shapes for which there is no step yet."""
        return [shape for shape in self._task.shapes or (None,) if (penalized, shape) not in self._steps]

    def _run(self, penalized: bool, shape: int | None) -> None:
        # Examples and labels, mixed if the regularizer mixes, and perhaps examples without labels.
        x, y, *unlabeled = self._batch(*self._given) if shape is None else self._batch(*self._given, shape)
        mixed = *self._task.regularizer.batch(x, y), *unlabeled

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            self._differentiate(penalized, *mixed)
            if self._task.clip is not None:
                trained = [each for group in self.optimizer.param_groups for each in group["params"]]
                nn.utils.clip_grad_norm_(trained, self._task.clip)
            return self.loss

        self.optimizer.step(closure)  # type: ignore[arg-type]
        if self._task.teacher is not None:
            self._task.teacher.update(self._model)

    def _differentiate(self, penalized: bool, x: Tensor, y: Tensor, *unlabeled: Tensor) -> None:
        """Add up the gradients, and keep the loss and the penalty."""
        parameters = {} if self._flat is None else self._flat.unflatten()
        loss, penalty = self._losses[penalized](parameters, x, y, self._weight, *unlabeled)
        loss.backward()  # type: ignore[no-untyped-call]
        self.penalties += penalty
        self.loss.copy_(loss.detach())

    def _group_by_decay(self, decays: Decays) -> tuple[list[dict[str, Any]], list[int]]:
        """Return what an optimizer trains in two groups, with weight decay and without, and the places of all."""
        if self._flat is None:
            named = [(name, each, decays(self._model, name)) for name, each in self._model.named_parameters()]
        else:
            named = [(name, each, self._flat.decays(name)) for name, each in self._flat.named()]
        places = sorted(range(len(named)), key=lambda place: not named[place][2])
        groups: list[dict[str, Any]] = [
            {"params": [named[place][:2] for place in places if named[place][2] is decayed], **changes}
            for decayed, changes in ((True, {}), (False, {"weight_decay": 0.0}))
        ]
        return [group for group in groups if group["params"]], places

    def _make_loss(self, penalized: bool) -> Callable[..., tuple[Tensor, Tensor]]:
        objective = Objective(self._wrapper, self._task, penalized=penalized)

        def loss(parameters: dict[str, Tensor], *batch: Tensor) -> tuple[Tensor, Tensor]:
            with autocast(self._device, self._task.precision):
                named = {f"model.{name}": value for name, value in parameters.items()}
                # Without new parameters this simply calls the objective.
                return functional_call(objective, named, batch, tie_weights=False)

        alone = self._wrapper is self._model
        enabled = self._task.compile and alone and (not penalized or self._task.compile_penalty)
        return compile_on(self._device, loss, enabled=enabled)

    def _find_trained(self) -> list[nn.Parameter]:
        """Return the parameters that the loss depends on: those that an optimizer changes."""
        given = [each for each in self._model.parameters() if each.requires_grad]
        buffers = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
        with (
            torch.random.fork_rng([self._device] if self._on_gpu else []),
            autocast(self._device, self._task.precision),
        ):
            x, y, *_ = self._task.batch(*(each[:2] for each in self._given), *self._task.shapes[:1])
            loss = self._task.loss(functional_call(self._model, buffers, (x,), tie_weights=False), y)
        gradients = torch.autograd.grad(loss, given, allow_unused=True)
        return [each for each, gradient in zip(given, gradients, strict=True) if gradient is not None]
