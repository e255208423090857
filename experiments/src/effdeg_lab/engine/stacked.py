"""Networks of one kind, trained at once: their parameters are stacked, and one step trains them all.

A small network leaves most of a GPU idle, since a step takes as long as its kernels take to start. Under
``torch.func.vmap`` each kernel works for all networks. Every network has its own weights, order of examples, gradient
norm, learning rate and weight decay, so it trains as it would alone. Only random numbers that are drawn within the step
(crops, mixup, paths) differ: there is one stream for all networks, instead of one for each.
"""

import time
import traceback
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

import effdeg_lab.engine.loop as looping
from effdeg_lab.core.runs import CannotStackError, Job, StoppedError
from effdeg_lab.data import load_shared as load
from effdeg_lab.engine.classify import check_network, finish, make_network, make_task, summarize
from effdeg_lab.engine.loop import Loop
from effdeg_lab.engine.regularizers import make_regularizer
from effdeg_lab.engine.settings import Training
from effdeg_lab.engine.step import CapturedStep, Objective, State, Task, autocast, compile_on
from effdeg_lab.engine.streaming import make_examples

# A parameter begins at a multiple of this many numbers, as fast kernels require.
_ALIGNMENT = 64


def train_stacked(jobs: Sequence[Job]) -> None:
    """Carry out or continue runs with the same :meth:`Training.stack_key`, each as if it were alone.

    A run that fails is recorded as failed, and the others continue. If the networks cannot be stacked, this raises
    :class:`CannotStackError`.
    """
    first = _get_settings(jobs[0])
    make_regularizer(first)  # a bad one is reported before any data are read
    data = load(first.data, jobs[0].data, first.pixels)
    examples, fingerprint = make_examples(data, first, jobs[0].device), data.fingerprint()
    members = []
    for job in jobs:
        settings = _get_settings(job)
        model = make_network(settings, examples, job.device, job.data)
        check_network(model, first, examples)
        members.append(Member(make_task(settings, examples, model), job, (settings.lr, settings.weight_decay)))

    def end(member: Member) -> None:
        summary = summarize(member, member.task, examples, _get_settings(member.job))
        finish(member, member.task, examples, member.job, summary)

    train_stack(members, fingerprint, end)


class Member(Loop):
    """The run of one network among several: evaluated, saved and finished like any other, but all step together.

    The runs of one group have the same rate and weight decay at every step.
    """

    def __init__(self, task: Task, job: Job, group: Hashable) -> None:
        super().__init__(task, job)
        self.task, self.job, self.group = task, job, group

    @property
    def resumes_at(self) -> int:
        return int(self._checkpoint["step"]) if self._checkpoint else 0

    def join(self, row: "Row") -> None:
        """Become a row of the stack, with the weights of the run."""
        self._step = row
        self._restore()

    def _make_step(self) -> None:
        """Leave it to the stack."""

    def _clock_stopped(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()  # the time of training is counted for all networks at once


def train_stack(members: Sequence[Member], fingerprint: str, end: Callable[[Member], None]) -> None:
    """Train networks together and end the run of each, or raise :class:`CannotStackError` if they cannot be stacked."""
    opened = _each(members, lambda member: member.open(fingerprint, together=len(members), shared=True))
    with looping.tune_kernels(members[0].job.device, benchmark=members[0].task.compile):
        # If the runs were killed while saving, some are ahead of others.
        for step in sorted({member.resumes_at for member in opened}, reverse=True):
            _train([member for member in opened if member.resumes_at == step], end)


def _train(members: list[Member], end: Callable[[Member], None]) -> None:
    """Train networks to the end, from the same step."""
    with _or_alone(members):
        stack = StackedStep([member.task for member in members], [member.group for member in members])
        for penalized in members[0].kinds:
            stack.compile(penalized=penalized)  # needs the GPU only for moments
    with closing(stack), members[0].gpu_lock:
        with _or_alone(members):
            for penalized in members[0].kinds:
                stack.capture(penalized=penalized)
        for number, member in reversed([*enumerate(members)]):  # the random state of the first is the last to be set
            member.join(stack.get_row(number))
        _each(_train_steps(members, stack), end)


@contextmanager
def _or_alone(members: Sequence[Member]) -> Iterator[None]:
    """Raise :class:`CannotStackError` for any error: code that vmap cannot run, or a lack of memory."""
    try:
        yield
    except Exception as error:
        kind = type(members[0].task.model).__name__
        raise CannotStackError(f"{len(members)} networks of kind {kind} cannot be trained together") from error


def _train_steps(members: list[Member], stack: "StackedStep") -> list[Member]:
    first, planned, shapes = members[0], list[Tensor](), list[int | None]()
    task, device = first.task, first.job.device
    step, seconds, penalties = first.step, first.seconds, first.penalized
    alive = _each(members, Member._evaluate)  # runs may have been stopped in an evaluation
    saved = since = time.perf_counter()
    while alive and step < task.steps:
        epoch, number = divmod(step, task.examples // task.batch_size)
        if number == 0:
            stack.penalties.zero_()
            penalties = 0
        if number == 0 or not planned:
            epoch_plan = _plan_epoch(members, epoch)
            planned = [looping.send(each, device) for each in epoch_plan]
            shapes = [task.shape(order.flatten()) if task.shape else None for order in epoch_plan[0]]
        penalized = task.weight(step) > 0
        stack(*(each[number] for each in planned), penalized=penalized, shape=shapes[number])
        step, penalties = step + 1, penalties + penalized
        looks, stops = step in task.evaluation_steps, alive[0].job.asked_to_stop()
        risks = time.perf_counter() - saved > looping.SECONDS_AT_RISK
        if not (looks or stops or risks):
            continue
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds += time.perf_counter() - since
        for member in alive:
            member.step, member.seconds, member.penalized = step, seconds, penalties
        if looks:
            alive = _each(alive, Member._evaluate)
        if stops or risks:
            for member in alive:
                member.save()
            saved = time.perf_counter()
        if stops:
            raise StoppedError
        since = time.perf_counter()
    return alive


def _plan_epoch(members: Sequence[Member], epoch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the indices, rates and penalty weights of an epoch, for each step and network."""
    task = members[0].task
    count = task.examples // task.batch_size
    orders = [member.shuffle(epoch)[: count * task.batch_size].view(count, -1) for member in members]
    steps = range(epoch * count, (epoch + 1) * count)
    rates = torch.tensor([[member.task.rate(step) for member in members] for step in steps], dtype=torch.float64)
    weights = torch.tensor([[member.task.weight(step) for member in members] for step in steps])
    return torch.stack(orders, dim=1), rates, weights


def _each(members: Sequence[Member], act: Callable[[Member], None]) -> list[Member]:
    """Do something for every network; return those for which it succeeded. The runs of the others have failed.

    If one is stopped, which saves it, all are stopped.
    """
    done = []
    for member in members:
        try:
            act(member)
            done.append(member)
        except StoppedError:
            for other in members:
                if other is not member and other.job.claimed:  # neither finished nor failed
                    other.save()
            raise
        except Exception:
            member.job.fail(traceback.format_exc())
    return done


def _get_settings(job: Job) -> Training:
    assert isinstance(job.settings, Training)
    return job.settings


class StackedStep:
    """A training step of several tasks that differ only in first weights, rates, weight decays and penalty weights.

    The parameters of each network become a row of one matrix. Networks of one group have the same rate and weight
    decay, and are stepped by one kernel.
    """

    def __init__(self, tasks: Sequence[Task], groups: Sequence[Hashable]) -> None:
        self._task, self._networks = tasks[0], [task.model for task in tasks]
        if self._task.regularizer.wrap is not None:
            raise ValueError(f"{self._task.regularizer.name} steps with an optimizer of its own: train it alone.")
        if self._task.decays is not None:
            raise ValueError("only some parameters decay, which a stack cannot do: train it alone.")
        self._device = device = next(self._task.model.parameters()).device
        self._on_gpu = device.type == "cuda"
        self._shapes = {name: each.shape for name, each in self._task.model.named_parameters()}
        rows = [nn.Parameter(self._flatten([*network.parameters()], start=0).detach()) for network in self._networks]
        matrix = torch.stack([row.detach() for row in rows])
        self._gradient = torch.zeros_like(matrix)
        for row, own, gradient in zip(rows, matrix, self._gradient, strict=True):
            row.data, row.grad = own, gradient
        self._parameters = {name: part.detach().requires_grad_() for name, part in self._split(matrix).items()}
        self._buffers = {
            name: torch.stack([network.get_buffer(name) for network in self._networks])
            for name, _ in self._task.model.named_buffers()
        }
        for number, network in enumerate(self._networks):  # networks live in the stack, where evaluations find them
            for name, parameter in network.named_parameters():
                parameter.data = self._parameters[name].detach()[number]
            for name, buffer in network.named_buffers():
                buffer.data = self._buffers[name][number]
        # Captured steps read these from their memory, so they are written to, never replaced.
        self._indices = torch.arange(self._task.batch_size, device=device).repeat(len(tasks), 1)
        self._rates, self._weights, self.penalties = torch.zeros(3, len(tasks), device=device)
        self._rows, self._leaders = rows, [groups.index(group) for group in dict.fromkeys(groups)]
        self._optimizer = self._make_optimizer(tasks, groups)
        self._losses = {penalized: self._make_losses(penalized) for penalized in (False, True)}
        self._steps: dict[tuple[bool, int | None], Callable[[], None]] = {}

    def compile(self, *, penalized: bool) -> None:
        """Run the step of each shape, which compiles it and makes the optimizer's state. Changes the networks."""
        with warnings.catch_warnings():
            # Advice to compute in TF32, and other asides of the compiler.
            warnings.filterwarnings("ignore", module="torch._inductor")
            for shape in self._task.shapes or (None,):
                self._run(penalized, shape)
        if self._on_gpu:
            torch.cuda.empty_cache()  # other runs need it while this one waits for its turn

    def capture(self, *, penalized: bool) -> None:
        """Capture the step of each shape on a GPU. Changes the networks: restore them after."""
        for shape in self._task.shapes or (None,):
            run = partial(self._run, penalized, shape)
            self._steps[penalized, shape] = CapturedStep(self._task.model, run) if self._on_gpu else run

    def __call__(
        self, indices: Tensor, rates: Tensor, weights: Tensor, *, penalized: bool, shape: int | None = None
    ) -> None:
        """Train each network on the examples with its indices, networks × batch, with its rate and penalty weight."""
        self._indices.copy_(indices)
        self._rates.copy_(rates)
        self._weights.copy_(weights)
        if not self._on_gpu:
            for group, leader in zip(self._optimizer.param_groups, self._leaders, strict=True):
                group["lr"] = float(rates[leader])
        self._steps[penalized, shape]()

    def get_row(self, number: int) -> "Row":
        """Return one of the networks, as its run saves and restores it. Steps must have been prepared."""
        own = self._optimizer.state[self._rows[number]]
        state = {
            name: self._split(value) if value.dim() else dict.fromkeys(self._shapes, value)
            for name, value in own.items()
        }
        return Row(self._networks[number], self.penalties[number], state)

    def close(self) -> None:
        """Free the graphs, which hold on to this object and to the memory that they work in."""
        self._steps.clear()

    def _make_optimizer(self, tasks: Sequence[Task], groups: Sequence[Hashable]) -> torch.optim.Optimizer:
        task = self._task
        options: State = {"fused": self._on_gpu or task.fused_on_cpu}
        if self._on_gpu and issubclass(task.optimizer, torch.optim.AdamW):
            options["capturable"] = True
        made: list[State] = []
        for leader in self._leaders:
            rows = [row for row, group in zip(self._rows, groups, strict=True) if group == groups[leader]]
            rate = self._rates[leader] if self._on_gpu else 0.0
            made.append({"params": rows, "lr": rate, **tasks[leader].options})
        return task.optimizer(made, **options)

    def _run(self, penalized: bool, shape: int | None) -> None:
        task, indices = self._task, self._indices.flatten()
        given = task.batch(indices) if shape is None else task.batch(indices, shape)
        x, y = (each.view(*self._indices.shape, *each.shape[1:]) for each in given)
        losses, penalties = self._losses[penalized](self._parameters, self._buffers, x, y, self._weights)
        gradients = torch.autograd.grad(losses.sum(), [*self._parameters.values()], materialize_grads=True)
        with torch.no_grad():
            self._flatten(gradients, start=1, out=self._gradient)
            if task.clip is not None:  # as torch does it, but each network by itself
                norms = torch.linalg.vector_norm(self._gradient, dim=1, keepdim=True)
                self._gradient *= (task.clip / (norms + 1e-6)).clamp(max=1.0)
            self.penalties += penalties
        self._optimizer.step()

    def _make_losses(self, penalized: bool) -> Callable[..., tuple[Tensor, Tensor]]:
        objective = Objective(self._task.model, self._task, penalized=penalized)

        def loss(parameters: State, buffers: State, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            own = {f"model.{name}": value for name, value in (parameters | buffers).items()}
            x, y = self._task.regularizer.batch(x, y)
            with autocast(self._device, self._task.precision):
                return functional_call(objective, own, (x, y, weight), tie_weights=False)

        return compile_on(self._device, vmap(loss, randomness="different"), enabled=self._task.compile)

    def _flatten(self, parts: Sequence[Tensor], *, start: int, out: Tensor | None = None) -> Tensor:
        """Join the parameters of a network or, with networks in the first dimension, of all, into one dimension."""
        pieces = []
        for part in parts:
            flat = part.flatten(start)
            pieces += [flat, flat.new_zeros((*flat.shape[:-1], -flat.shape[-1] % _ALIGNMENT))]
        return torch.cat(pieces, dim=-1, out=out)

    def _split(self, joined: Tensor) -> dict[str, Tensor]:
        """Undo :meth:`_flatten`, without a copy."""
        parts, first = {}, 0
        for name, shape in self._shapes.items():
            parts[name] = joined[..., first : first + shape.numel()].view(*joined.shape[:-1], *shape)
            first += -(-shape.numel() // _ALIGNMENT) * _ALIGNMENT
        return parts


class Row:
    """A network of a stack, in the form in which a step saves and restores it, so that its run may go on alone."""

    def __init__(self, network: nn.Module, penalties: Tensor, optimizer: dict[str, dict[str, Tensor]]) -> None:
        self._network, self.penalties, self._optimizer = network, penalties, optimizer
        self._names = [name for name, _ in network.named_parameters()]

    def state(self) -> State:
        """Return copies of everything that training changes, as torch saves all of the memory of a view."""
        model = {name: value.clone() for name, value in self._network.state_dict().items()}
        optimizer = {
            place: {key: values[name].clone() for key, values in self._optimizer.items()}
            for place, name in enumerate(self._names)
        }
        return {"model": model, "optimizer": optimizer, "penalties": self.penalties.clone()}

    def restore(self, state: State) -> None:
        """Put a state into the stack; an empty optimizer state resets the optimizer."""
        self._network.load_state_dict(state["model"])
        self.penalties.copy_(state["penalties"])
        for place, name in enumerate(self._names):
            for key, values in self._optimizer.items():
                kept = state["optimizer"].get(place, {}).get(key)
                values[name].zero_() if kept is None else values[name].copy_(kept)
