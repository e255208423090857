"""Run a model to look at it, and leave it exactly as it came."""

import copy
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from effdeg._adapters.checked import find_parts
from effdeg._adapters.examples import as_arguments
from effdeg._adapters.layers import as_module
from effdeg._utils.checks import pluralize
from effdeg._utils.device import is_traced, send
from effdeg._utils.threads import SharedContext, hold
from effdeg._utils.tree import Tree, map_tensors, tensors

Model = Callable[..., Any]
"""Any callable that takes a batch. The mode, device and precision of an ``nn.Module`` are set and restored."""

Device = torch.device | str | None
"""Where to run a model; None for where it is."""

Watch = AbstractContextManager[object]
"""A context that is entered around every call of a model, such as one that observes its layers."""

PRECISIONS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""The precisions that a model can be run in."""


class ModelRunner:
    """A model that is ready to run: on which device, in which precision, and how it is called."""

    def __init__(self, model: Model, *, device: Device, dtype: torch.dtype | None) -> None:
        # DDP would synchronize buffers at every forward pass, and ranks may run different numbers of them. DataParallel
        # cannot be called with other weights.
        self.model: Model = model.module if isinstance(model, DistributedDataParallel | nn.DataParallel) else model
        own = first_floating(self.model)
        self.device = torch.device(device) if device is not None else (own.device if own is not None else None)
        self.dtype = dtype if dtype is not None else (own.dtype if own is not None else None)
        self._weights = self._convert_weights(device, dtype)
        scripted = any(isinstance(each, torch.jit.ScriptModule) for each in _modules(model))
        if self._weights is not None and isinstance(model, nn.Module) and scripted:
            # TorchScript's weights cannot be replaced in a call: move a copy of the whole model instead.
            with torch.no_grad():
                self.model, self._weights = copy.deepcopy(model).to(device=device, dtype=dtype), None
        self._places = _find_places(self.model)
        self._rescaled = _find_rescaled(self.model)
        self._watch: Watch = nullcontext()
        self._adapt: Callable[[Callable[[Tree], Any], Tree], Any] | None = None

    def adapted(self, adapt: Callable[[Callable[[Tree], Any], Tree], Any]) -> "ModelRunner":
        """Return a runner of the same model that calls it through a function of the call and the inputs."""
        runner = copy.copy(self)
        runner._adapt = adapt
        return runner

    def __call__(self, inputs: Tree, weights: Mapping[str, Tensor] | None = None) -> Any:
        """Call the model on inputs, with ``weights``, if any are given, in place of its own."""
        replaced = {
            place: tensor
            for name, tensor in {**(self._weights or {}), **(weights or {})}.items()
            for place in self._places[name]
        }
        # These are written to by every call: by this one in copies.
        for name, weight in self._rescaled.items():
            replaced |= dict.fromkeys(self._places[name], replaced.get(name, weight).clone())

        def call(inputs: Tree) -> Any:
            arguments, keywords = as_arguments(inputs)
            with self._watch:
                if replaced and isinstance(self.model, nn.Module):
                    # Left to torch, a layer that has two names would keep what it is given here.
                    return functional_call(self.model, replaced, arguments, keywords, tie_weights=False)
                return self.model(*arguments, **keywords)

        return call(inputs) if self._adapt is None else self._adapt(call, inputs)

    @contextmanager
    def watch(self, context: Watch) -> Iterator[None]:
        """Enter a context around every call of the model."""
        self._watch = context
        try:
            yield
        finally:
            self._watch = nullcontext()

    @contextmanager
    def isolate(self) -> Iterator[None]:
        """Run the model with the same random numbers every time, and restore random states and buffers."""
        with _restore_buffers(self.model), seed_everything(0):
            yield

    def precision(self, inputs: Tree = None) -> torch.dtype:
        """Return the precision that outputs are computed in, as far as it is known: for a function that of inputs."""
        kind = self.device.type if self.device is not None else "cpu"
        if torch.is_autocast_enabled(kind):
            return torch.get_autocast_dtype(kind)
        floating = (leaf.dtype for leaf in tensors(inputs) if leaf.is_floating_point())
        return self.dtype or max(floating, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)

    def state(self) -> dict[str, Tensor]:
        """Return all weights and buffers, on the device and in the precision of the run."""
        return _state(self.model) if self._weights is None else self._weights

    def weights(self) -> dict[str, Tensor]:
        """Return the trainable weights, on the device and in the precision of the run; all if every one is frozen."""
        if not isinstance(self.model, nn.Module):
            return {}
        named = {name: each for name, each in self.model.named_parameters() if each.is_floating_point()}
        trainable = [name for name, each in named.items() if each.requires_grad] or list(named)
        weights = self._weights or named
        return {name: weights[name].detach() for name in trainable}

    def place(self, inputs: Tree, *, at_least: torch.dtype | None = None) -> Tree:
        """Move inputs to the model's device, floating ones in its precision or, with ``at_least``, a higher one."""
        dtype = self.dtype
        if dtype is not None and at_least is not None:
            dtype = torch.promote_types(dtype, at_least)

        def move(leaf: Tensor) -> Tensor:
            return send(leaf.to(dtype) if leaf.is_floating_point() and dtype is not None else leaf, self.device)

        return map_tensors(move, inputs)

    def _convert_weights(self, device: Device, dtype: torch.dtype | None) -> dict[str, Tensor] | None:
        """Copy the weights if device or precision changes; calls use the copies, so the model loses no digits."""
        named = _state(self.model)
        copies = {
            name: tensor.detach().to(device=device, dtype=dtype if tensor.is_floating_point() else None)
            for name, tensor in named.items()
        }
        same = all((copies[key].device, copies[key].dtype) == (each.device, each.dtype) for key, each in named.items())
        return None if same else copies


@contextmanager
def inference(model: Model, *, seed: int, device: Device, dtype: torch.dtype | None) -> Iterator[ModelRunner]:
    """Open a model in evaluation mode, without gradients and with seeded randomness; restore everything afterwards.

    Other threads wait until the model is restored.
    """
    check_runnable(model, device=device, dtype=dtype)
    with hold_models(model):
        runner = ModelRunner(model, device=device, dtype=dtype)
        # Where a precision was asked for, an enclosing autocast must not change it.
        kind = runner.device.type if dtype is not None and runner.device is not None else None
        with (
            _evaluation_mode(runner.model),
            _restore_buffers(runner.model),
            _protect_weights(runner.model),
            seed_everything(seed),
            torch.no_grad(),
            torch.autocast(kind, enabled=False) if kind is not None else nullcontext(),
        ):
            yield runner


def hold_models(*models: object) -> AbstractContextManager[None]:
    """Let no other thread use these models, or others that share layers with them, before the block ends."""
    return hold(layer for model in models for layer in _modules(as_module(model)))


def check_runnable(model: object, *, device: object, dtype: object) -> None:
    """Raise unless this is a model, with weights, that can run on this device and in this precision."""
    _check_model(model)
    _check_batch_size(model)
    check_device(device)
    check_precision(dtype)
    # A module from torch.jit.freeze has no mode.
    scripted = [each for each in _modules(model) if isinstance(each, torch.jit.ScriptModule)]
    if dtype is not None and not all(hasattr(each, "training") for each in scripted):
        raise ValueError(
            "dtype= cannot change a module from torch.jit.freeze, whose weights are constants. Pass the module before "
            "it was frozen, or leave dtype= out."
        )
    check_has_values(model, every=device is not None or dtype is not None)
    module = as_module(model)
    if module is not None and any(map(is_lazy, chain(module.parameters(), module.buffers()))):
        raise ValueError(
            f"the model ({type(model).__name__}) has lazy layers, whose weights are made when it first runs. Run it "
            "once before, on a batch of examples: model(x)."
        )
    own = first_floating(model)
    if own is not None and dtype is None and own.dtype.itemsize < 2:
        raise TypeError(
            f"the weights of the model ({type(model).__name__}) are in {own.dtype}, in which torch stores numbers "
            "only. Write dtype=torch.float32."
        )


def check_has_values(model: object, name: str = "model", *, every: bool = False) -> None:
    """Raise if a model's first weight, or any if ``every`` one is needed, is on the meta device."""
    module = None if is_traced() else as_module(model)
    first = first_floating(module)
    if first is not None and (first.is_meta or (every and any(each.is_meta for each in module.parameters()))):  # type: ignore[union-attr]
        raise ValueError(
            f"the weights of the {name} ({type(model).__name__}) are on the meta device, where they have no values. "
            "Load them first: model.to_empty(device='cpu'), then model.load_state_dict(…)."
        )


def _check_model(model: object) -> None:
    if isinstance(model, type):
        raise TypeError(f"model={model.__name__} is a class. Pass an instance of it: {model.__name__}(…).")
    if callable(model):
        return
    if isinstance(model, Mapping):
        advice = "If it is a state dict, build the network and call network.load_state_dict(…), then pass the network"
    elif isinstance(model, str):
        advice = "Names of models are for the command line, effdeg measure; in Python, build or load the model"
    else:
        advice = "Pass an nn.Module or a function"
    given = repr(model) if model is None or isinstance(model, str) else f"of type {type(model).__name__}"
    raise TypeError(f"model is {given}, which cannot be called on a batch. {advice}.")


def _check_batch_size(model: object) -> None:
    """Raise if a model is a program of torch.export that takes batches of one size only."""
    nodes = model.graph.nodes if isinstance(model, torch.fx.GraphModule) else ()
    inputs = tensors([node.meta.get("val") for node in nodes if node.op == "placeholder"])
    fixed = [each.shape[0] for each in inputs if each.dim() and isinstance(each.shape[0], int)]
    if fixed:
        raise ValueError(
            f"the model was exported for batches of exactly {pluralize(fixed[0], 'example')}. Export it for any batch: "
            "torch.export.export(model, (example,), dynamic_shapes=({0: torch.export.Dim('batch')},)), with more than "
            "one example."
        )


def check_device(device: object) -> None:
    """Raise unless this is None or a device that models can run on in this process."""
    if device is None:
        return
    try:
        wanted = torch.device(device)  # type: ignore[call-overload]
    except (RuntimeError, TypeError):
        raise ValueError(f"device={device!r} is not a device. Write 'cpu', 'cuda', 'cuda:0' or 'mps'.") from None
    if wanted.type == "meta":
        raise ValueError(f"device={str(device)!r} has no values to measure. Write 'cpu' or 'cuda'.")
    found = torch.cuda.device_count() if wanted.type == "cuda" else int(torch.backends.mps.is_available())
    if wanted.type in {"cuda", "mps"} and (wanted.index or 0) >= found:
        raise ValueError(
            f"device={str(device)!r} was asked for, but torch finds {found or 'no'} such "
            f"{'device' if found < 2 else 'devices'} on this machine. Leave device= out to use the default."
        )


def check_precision(dtype: object) -> None:
    """Raise unless this is None or a precision that models can be run in."""
    if dtype is not None and dtype not in PRECISIONS:
        name = str(getattr(dtype, "__name__", dtype)).removeprefix("torch.")
        known = getattr(torch, name, None) in PRECISIONS
        advice = f"dtype=torch.{name}" if known else f"one of {', '.join(map(str, PRECISIONS))}"
        raise TypeError(f"dtype={dtype!r} is not a precision that a model can be run in. Write {advice}.")


@contextmanager
def _evaluation_mode(model: Model) -> Iterator[None]:
    modules = _modules(model)
    # A frozen TorchScript module has no mode.
    modes = [getattr(module, "training", False) for module in modules]
    # Its own train() may do more, such as to merge the weights of LoRA.
    changing = [
        (module, [(weight, weight.detach().clone()) for weight in module.parameters(recurse=False)])
        for module, mode in zip(modules, modes, strict=True)
        if mode and not isinstance(module, torch.jit.ScriptModule) and type(module).train is not nn.Module.train
    ]
    try:
        if any(modes) and isinstance(model, nn.Module):
            # A program loaded from torch.export has its mode baked in and refuses to be asked for another.
            with suppress(NotImplementedError):
                model.eval()
        yield
    finally:
        for module, weights in changing:
            module.train()
            for weight, kept in weights:
                weight.data.copy_(kept)  # not only up to rounding
        for module, mode in zip(modules, modes, strict=True):
            if getattr(module, "training", False) != mode:
                module.training = mode


@contextmanager
def _restore_buffers(model: Model) -> Iterator[None]:
    """Restore buffers that a forward pass changes even in evaluation mode."""

    def copy_plain(buffer: Tensor | None) -> Tensor | None:
        # Sparse and meta tensors cannot be compared, and are hardly ever written to.
        plain = buffer is not None and buffer.layout == torch.strided and not buffer.is_meta
        return buffer.clone() if buffer is not None and plain else None

    # By items() and single entries: the buffers of a TorchScript module are not a real dict.
    kept = [
        (owner, [(name, each, copy_plain(each)) for name, each in owner._buffers.items()]) for owner in _modules(model)
    ]
    try:
        yield
    finally:
        for owner, buffers in kept:
            for name in {name for name, _ in owner._buffers.items()} - {name for name, *_ in buffers}:
                del owner._buffers[name]
            for name, buffer, copied in buffers:
                owner._buffers[name] = buffer
                if buffer is None or copied is None:
                    continue
                if buffer.shape != copied.shape:
                    buffer.data = copied
                # Write only what has changed: a pending backward pass would take any write for a change.
                elif not bool(((buffer == copied) | ((buffer != buffer) & (copied != copied))).all()):  # NaN ≠ NaN
                    buffer.data.copy_(copied)  # in place, for its views


@contextmanager
def _protect_weights(model: Model) -> Iterator[None]:
    """Put gradients away, and warn of weights that a forward pass has written to, which are not restored."""
    named = {name: each for name, each in _state(model).items() if isinstance(each, nn.Parameter)}
    gradients, before = [(each, each.grad) for each in named.values()], sum_weights(model)
    for each, gradient in gradients:
        if gradient is not None:  # a model that calls backward() would add to it
            each.grad = None
    try:
        yield
    finally:
        for each, gradient in gradients:
            if each.grad is not gradient:
                each.grad = gradient
        after = sum_weights(model)
        if before != after and before is not None and after is not None:
            written = next(
                (name for name, *sums in zip(named, before, after, strict=False) if sums[0] != sums[1]), "a weight"
            )
            warnings.warn(
                f"the model ({type(model).__name__}) writes to its weights when it runs, also in evaluation mode: "
                f"{written} is not what it was, and results depend on how often the model has run. Pass a copy, "
                "and write to weights in training only.",
                stacklevel=2,
            )


def _find_places(model: object) -> dict[str, list[str]]:
    """Return for each name of a weight or buffer where the tensor is: one name for each layer that holds it."""
    modules = [*model.named_modules(remove_duplicate=False)] if isinstance(model, nn.Module) else []
    places: dict[int, dict[tuple[int, str], str]] = {}  # of a tensor: by the layer, and what it is called there
    tensors_by_name: dict[str, int] = {}
    for prefix, module in modules:
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                full = f"{prefix}.{name}".removeprefix(".")
                tensors_by_name[full] = id(tensor)
                places.setdefault(id(tensor), {}).setdefault((id(module), name), full)
    return {name: [*places[tensor].values()] for name, tensor in tensors_by_name.items()}


def _find_rescaled(model: object) -> dict[str, Tensor]:
    """Return the weights of embeddings with ``max_norm``, which scales down in place the rows that it reads."""
    return {
        f"{name}.weight".removeprefix("."): module.weight.detach()
        for name, module in (model.named_modules() if isinstance(model, nn.Module) else ())
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None
    }


@contextmanager
def seed_everything(seed: int) -> Iterator[None]:
    """Seed every random generator that a model or data set may use, and restore their states."""
    with _STATES_OF_ALL_THREADS, _restore_random_states():
        torch.default_generator.manual_seed(seed)
        if _gpus_in_use():
            torch.cuda.manual_seed_all(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        yield


@contextmanager
def _restore_random_states() -> Iterator[None]:
    kept = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=_gpus_in_use()):
        try:
            yield
        finally:
            random.setstate(kept[0])
            np.random.set_state(kept[1])


# Two threads may not leave in the order in which they came, and the one would restore what the other had seeded.
_STATES_OF_ALL_THREADS = SharedContext(_restore_random_states)


def _gpus_in_use() -> range:
    # Seeding GPUs that are not in use yet would outlast this block: torch does it when they are first used.
    in_use = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return range(torch.cuda.device_count() if in_use else 0)


def _state(model: object) -> dict[str, Tensor]:
    return dict([*model.named_parameters(), *model.named_buffers()]) if isinstance(model, nn.Module) else {}


def _modules(model: object) -> list[nn.Module]:
    return list(model.modules()) if isinstance(model, nn.Module) else []


def sum_weights(model: object) -> list[int] | None:
    """Return a sum of the bits of each weight of a model, or of those that a function uses.

    None if they cannot be compared: sharded, quantized, offloaded or not yet initialized. Without buffers: the running
    statistics of BatchNorm differ between the processes of DDP.
    """
    sums: list[Tensor] = []
    for module in (part for part in find_parts(model) if isinstance(part, nn.Module)):
        if any(hasattr(each, "_fsdp_wrapped_module") for each in module.modules()):
            return None
        for weight in module.parameters():
            if (
                type(weight) is not nn.Parameter
                or type(weight.data) is not Tensor
                or weight.is_meta
                or weight.is_quantized
            ):
                return None
            bits = torch.view_as_real(weight.detach()) if weight.is_complex() else weight.detach()
            if bits.is_floating_point():
                bits = bits.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[bits.itemsize])
            sums.append(bits.sum(dtype=torch.int64))
    return [int(each) for each in sums]


def first_floating(model: object) -> Tensor | None:
    """Return the first weight or buffer of a module in floating point; None if there is none."""
    if not isinstance(model, nn.Module):
        return None
    return next((tensor for tensor in chain(model.parameters(), model.buffers()) if tensor.is_floating_point()), None)
