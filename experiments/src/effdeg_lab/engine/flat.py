"""The parameters of a model in a few flat tensors: one cast to bf16 in a step, one gradient to clip, one to step with.

A step on separate parameters casts each of them to bf16 and its gradient back, which for a small transformer is a
hundred kernels that take longer to start than to run.
"""

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

# Kernels read 16 bytes at once if these begin at a multiple of 16 bytes, 8 numbers in bf16.
_ALIGNMENT = 8

OptimizerState = dict[int, dict[str, Any]]
Decays = Callable[[nn.Module, str], bool]
"""Takes a model and the name of a parameter; returns whether weight decay acts on it."""


@dataclass(frozen=True, eq=False)
class _Member:
    """A parameter of the model that lives in a flat one."""

    index: int  # among all parameters of the model
    names: tuple[str, ...]  # several if layers share it
    shape: torch.Size


@dataclass(frozen=True, eq=False)
class _Segment:
    """Parameters of one kind in one flat tensor, a leaf that is trained in their place."""

    flat: nn.Parameter
    half: bool
    decayed: bool
    members: list[_Member]

    def split(self, values: Tensor) -> list[Tensor]:
        parts = torch.split(values, [member.shape.numel() for member in self.members])
        return [part.view(member.shape) for member, part in zip(self.members, parts, strict=True)]

    def join(self, values: Iterable[Tensor]) -> Tensor:
        return torch.cat([each.reshape(-1) for each in values])


class FlatParameters:
    """Flat tensors that take the place of some of a model's parameters in training.

    The model's own parameters become views of them, so whatever reads or writes the model sees the same numbers.
    Gradients, however, reach only the flat tensors, and only if the model is called with :meth:`unflatten`.

    Args:
        model: The model, on its device.
        trained: The parameters to join. Leave out those that get no gradient: they must not decay.
        half: Hand out the weights of linear and convolutional layers in bf16, as autocast would cast them. Autocast
            casts their biases itself; kernels that need no autocast read these in full precision.
        decays: Which parameters decay, if not all: these and the others are in separate flat tensors.
    """

    def __init__(
        self, model: nn.Module, trained: Iterable[nn.Parameter], *, half: bool, decays: Decays | None = None
    ) -> None:
        names: dict[nn.Parameter, list[str]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            names.setdefault(parameter, []).append(name)
        kinds: dict[tuple[bool, bool, bool, torch.dtype], list[tuple[_Member, nn.Parameter]]] = {}
        chosen = set(trained)
        for index, parameter in enumerate(model.parameters()):
            if parameter not in chosen:
                continue
            given = names[parameter]
            cast = half and all(is_matrix(model, name) for name in given)
            decayed = decays is None or decays(model, given[0])
            member = _Member(index, tuple(given), parameter.shape)
            # ASAM treats parameters by whether their name contains "weight".
            kind = cast, "weight" in given[0], decayed, parameter.dtype
            kinds.setdefault(kind, []).append((member, parameter))
        self._segments: dict[str, _Segment] = {}
        for (cast, weights, decayed, dtype), found in kinds.items():
            # Those of odd sizes come last, so that all others are aligned.
            found.sort(key=lambda each: each[1].numel() % _ALIGNMENT > 0)
            members = [member for member, _ in found]
            flat = torch.cat([parameter.detach().reshape(-1) for _, parameter in found])
            segment = _Segment(nn.Parameter(flat), cast, decayed, members)
            for (_, parameter), part in zip(found, segment.split(flat), strict=True):
                parameter.data = part
            name = f"{'weights' if weights else 'others'} in {dtype}".replace("torch.", "")
            name += (" as bfloat16" if cast else "") + ("" if decayed else ", not decayed")
            self._segments[name] = segment

    def named(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, segment.flat) for name, segment in self._segments.items()]

    def decays(self, name: str) -> bool:
        return self._segments[name].decayed

    def unflatten(self) -> dict[str, Tensor]:
        """Return the parameters by name, through which gradients flow to the flat tensors: for ``functional_call``."""
        found = {}
        for segment in self._segments.values():
            parts = segment.split(segment.flat.to(torch.bfloat16) if segment.half else segment.flat)
            for member, part in zip(segment.members, parts, strict=True):
                found.update(dict.fromkeys(member.names, part))
        return found

    def split_state(self, state: OptimizerState) -> OptimizerState:
        """Return the state of an optimizer of the flat tensors as that of an optimizer of the model's parameters."""
        found: OptimizerState = {}
        for number, segment in enumerate(self._segments.values()):
            for name, value in state.get(number, {}).items():
                # Each has its own copy of the shared number of steps: optimizers count up in place.
                shared = (deepcopy(value) for _ in segment.members)
                parts = segment.split(value) if _is_split(name, value) else shared
                for member, part in zip(segment.members, parts, strict=True):
                    found.setdefault(member.index, {})[name] = part
        return found

    def join_state(self, state: OptimizerState) -> OptimizerState:
        """Return what :meth:`split_state` was given; the state may come from a run on separate parameters."""
        found: OptimizerState = {}
        for number, segment in enumerate(self._segments.values()):
            states = [state[member.index] for member in segment.members if member.index in state]
            for name, value in states[0].items() if states else ():
                joined = segment.join([each[name] for each in states]) if _is_split(name, value) else value
                found.setdefault(number, {})[name] = joined
        return found


def _is_split(name: str, value: Any) -> bool:
    return isinstance(value, Tensor) and name != "step"


def is_matrix(model: nn.Module, name: str) -> bool:
    """Return whether a parameter is the weight of a matrix product or a convolution: big_vision decays no others."""
    owner, _, own = name.rpartition(".")
    return own == "weight" and isinstance(model.get_submodule(owner), nn.Linear | _ConvNd)
