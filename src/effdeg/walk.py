"""The expensive half: run a model along paths, block by block, in batches that fit the device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from effdeg._checks import check_choice, check_count
from effdeg._transfer import send
from effdeg.distributed import rank_and_size
from effdeg.examples import Examples, as_examples
from effdeg.inference import Model, Subject, inference, precision_name
from effdeg.layers import Layer
from effdeg.paths import Sampling, blocks, draw_nodes, draw_pairs
from effdeg.spaces import InputPaths, InputSpace, LayerPaths, LayerSpace, open_space
from effdeg.tree import Tree, concatenate, take

Keep = Callable[[Any, int], Tree]
"""What to keep of what the model returned for so many points."""


@dataclass(frozen=True)
class Route:
    """Which paths a model is run along; the same for every model that gets the same route."""

    pairs: Tensor
    nodes: int
    sampling: Sampling
    seed: int

    @classmethod
    def draw(cls, examples: int, *, paths: int, nodes: int, sampling: Sampling, seed: int) -> "Route":
        """Draw paths between so many examples."""
        nodes = check_count("nodes", nodes, least=1)
        seed = check_count("seed", seed, least=0)
        check_choice("sampling", sampling, get_args(Sampling))
        return cls(draw_pairs(examples, paths, seed=seed), nodes, sampling, seed)

    def blocks(self) -> list[slice]:
        """Divide the paths into blocks."""
        return list(blocks(len(self.pairs)))

    def alpha(self, block: slice) -> Tensor:
        """Give the nodes of a block's paths: one row per path, or one for all."""
        return draw_nodes(self.sampling, self.nodes, block, seed=self.seed)


@dataclass(frozen=True)
class Stretch:
    """What was kept of a model's outputs along the paths of one block, path after path, node after node."""

    block: slice
    alpha: Tensor
    kept: Tree
    ends: tuple[list[Tensor], list[Tensor]]

    def by_path(self) -> Tensor:
        """Arrange what was kept, if that is one row of numbers per point, into paths × nodes × outputs."""
        values: Tensor = self.kept.reshape(self.block.stop - self.block.start, self.alpha.shape[-1], -1)
        return values


class Walk:
    """A model on its way along paths between examples, in batches that are halved when memory runs out."""

    def __init__(
        self, subject: Subject, space: InputSpace | LayerSpace, examples: Examples, route: Route, batch_size: int | None
    ) -> None:
        self._subject, self._space, self._examples = subject, space, examples
        on_gpu = subject.device is not None and subject.device.type != "cpu"
        self._batch_size = batch_size or (1024 if on_gpu else 256)
        self.route = route
        self.examples = len(examples)
        self.at = space.name
        self.dtype = precision_name(subject.dtype)

    def run(self, keep: Keep) -> Iterator[Stretch]:
        """Run the model along the paths of those blocks that are this process's share."""
        rank, size = rank_and_size()
        for block in self.route.blocks()[rank::size]:
            paths = self._join(block)
            alpha = self.route.alpha(block)
            kept = self._run(paths.run, alpha.expand(block.stop - block.start, -1), keep)
            yield Stretch(block, alpha, kept, paths.ends())

    def _join(self, block: slice) -> InputPaths | LayerPaths:
        # Both ends in one batch, so that a loader that pads pads them to one length.
        first, second = self.route.pairs[block].unbind(1)
        ends = self._examples.fetch([*first.tolist(), *second.tolist()])
        return self._space.join(take(ends, slice(len(first))), take(ends, slice(len(first), None)), self._batched)

    def _run(self, run: Callable[[Tensor, Tensor], Any], alpha: Tensor, keep: Keep) -> Tree:
        rows = torch.arange(len(alpha)).repeat_interleave(alpha.shape[1])
        positions = alpha.reshape(-1)
        if self._subject.device is not None and self._subject.device.type == "cuda":
            rows, positions = (send(tensor, self._subject.device) for tensor in (rows, positions))
        return self._batched(lambda part: keep(run(rows[part], positions[part]), part.stop - part.start), len(rows))

    def _batched(self, run: Callable[[slice], Tree], total: int) -> Tree:
        """Run something on parts of a whole and join what it gives; parts are halved when memory runs out."""
        kept: list[Tree] = []
        done = 0
        while done < total:
            # Even batches: 3,200 points at a batch size of 1,024 run as four times 800, not three times 1,024 and 128.
            batches = -(-(total - done) // self._batch_size)
            part = slice(done, done + -(-(total - done) // batches))
            try:
                kept.append(run(part))
                done = part.stop
                continue
            except torch.OutOfMemoryError:
                if self._batch_size == 1:
                    raise
            # Here, where the error no longer holds on to what the failed batch had allocated.
            self._batch_size = max(1, min(self._batch_size, part.stop - part.start) // 2)
            torch.cuda.empty_cache()
        return concatenate(kept)


@contextmanager
def open_walk(
    model: Model,
    inputs: Any,
    *,
    paths: int,
    nodes: int,
    sampling: Sampling,
    at: Layer | None,
    seed: int,
    batch_size: int | None,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> Iterator[Walk]:
    """Check everything, lend the model, and let it be run; afterwards it is as it was."""
    if batch_size is not None:
        check_count("batch_size", batch_size, least=1)
    examples = as_examples(inputs)
    route = Route.draw(len(examples), paths=paths, nodes=nodes, sampling=sampling, seed=seed)
    with inference(model, seed=seed, device=device, dtype=dtype) as subject:
        yield Walk(subject, open_space(subject, at), examples, route, batch_size)
