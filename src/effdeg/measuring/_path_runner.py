"""The expensive half of a measurement: running a model along paths, in batches that fit the device."""

import hashlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from effdeg._adapters.arguments import (
    ItemReader,
    check_argument_count,
    name_arguments,
    note_floating_masks,
    note_possible_masks,
)
from effdeg._adapters.examples import (
    Batch,
    DataSet,
    Examples,
    as_examples,
    describe_shapes,
    is_plain_tuple,
    keeps_order,
)
from effdeg._adapters.independence import warn_of_dependent_rows
from effdeg._adapters.inference import (
    Device,
    Model,
    ModelRunner,
    Watch,
    check_runnable,
    hold_models,
    inference,
    seed_everything,
    sum_weights,
)
from effdeg._adapters.layers import as_module, find_language_model, find_new_norms
from effdeg._adapters.partners import Partners, find_dependent_row, name_partners, read_changes
from effdeg._adapters.paths import BLOCK, FIXED, check_integer_masks, draw_nodes, draw_pairs
from effdeg._adapters.prompts import align, check_padding, holds_ids, note_ends, note_padding, run_prompts
from effdeg._adapters.settings import PathSettings
from effdeg._adapters.spaces import Paths, Space, default_layer, run_examples
from effdeg._utils.checks import check_count
from effdeg._utils.device import Batches, send
from effdeg._utils.distributed import broadcast_from_first, check_same_on_ranks, rank_and_size, union_over_ranks
from effdeg._utils.memo import Memo
from effdeg._utils.progress import Update, ignore
from effdeg._utils.tree import Tree, concatenate, named_leaves, named_tensors, take, tensors
from effdeg.measuring._record import PathRecord

Keep = Callable[[Any, int], Tree]
"""Returns what to keep of the model's output for a number of points."""

Reduce = Callable[[Tensor, Tensor], Tensor]
"""Returns a row for each path, of the values along paths and their nodes."""

MOST_KEPT = 2**23
"""Numbers that are kept until they are fitted: those of 4 paths of 200 nodes with 10,000 outputs."""

MOST_LOGITS = 2**23
"""Logits of a batch of a language model, unless a batch size is given: the rest of the model needs less memory."""


@dataclass(frozen=True)
class DrawnPaths:
    """The paths that models are run along: pairs of examples, and nodes between them."""

    settings: PathSettings
    pairs: Tensor
    option: str = "partners"  # what the user calls `settings.partners`
    recorded: bool = True  # with a hash of the examples, which takes time
    copies: Memo | None = None  # of examples, which are the same for several models

    @classmethod
    def draw(cls, examples: int, settings: PathSettings) -> "DrawnPaths":
        """Draw paths between ``examples`` examples."""
        with_itself = settings.partners is not None
        return cls(settings, draw_pairs(examples, settings.paths, seed=settings.seed, with_itself=with_itself))

    def blocks(self) -> list[slice]:
        """Divide the paths into blocks."""
        paths = len(self.pairs)
        return [slice(start, min(start + BLOCK, paths)) for start in range(0, paths, BLOCK)]

    def alpha(self, *blocks: slice) -> Tensor:
        """Return the nodes of the paths of some blocks: one row per path, or a single one for all."""
        settings = self.settings
        drawn = [draw_nodes(settings.sampling, settings.nodes, block, seed=settings.seed) for block in blocks]
        return drawn[0] if settings.sampling in FIXED else torch.cat(drawn)


@dataclass(frozen=True)
class PathBlocks:
    """What was kept of a model's outputs along the paths of some blocks, path after path, node after node."""

    blocks: list[slice]
    alpha: Tensor
    kept: Tree
    ends: tuple[list[Tensor], list[Tensor]]
    reach_examples: bool


class PathRunner:
    """Runs a model along paths between examples, in batches that are halved when memory runs out."""

    def __init__(self, runner: ModelRunner, examples: Examples, drawn: DrawnPaths, batch_size: int | None) -> None:
        self._language = find_language_model(runner.model)
        if self._language is not None:
            runner = runner.adapted(partial(run_prompts, self._language))
        self._runner, self._examples = runner, examples
        self._read_item = ItemReader(runner.model)
        partners = drawn.settings.partners
        self._partners = None if partners is None else Partners(partners, len(examples), self._read_item, drawn.option)
        self._space = Space(runner, drawn.settings.at)
        self._batches = Batches(batch_size, runner.device)
        if batch_size is None and self._language is not None:
            self._batches.size = max(1, min(self._batches.size, MOST_LOGITS // self._language.vocabulary))
        self.drawn = drawn
        self.model = model_name(runner.model)
        self._dtype = ""
        self._hashes: dict[int, str] = {}  # of the examples of each block that this process fetched
        self.notes: list[str] = []  # on the data, known when the first paths were run

    def run(
        self, keep: Keep, watch: Watch | None = None, update: Update = ignore, reduce: Reduce | None = None
    ) -> Iterator[PathBlocks]:
        """Run the model along this process's share of the blocks, and yield what was kept, some blocks at a time.

        ``watch`` is entered around the model in every forward pass of points; ``update`` gets the number of paths done.
        With ``reduce`` only a row for each path is kept, and little more than :data:`MOST_KEPT` numbers until then.
        """
        rank, size = rank_and_size()
        if size > 1:
            self._check_ranks()
        nodes, done = self.drawn.settings.nodes, 0

        def count(returned: Any, points: int) -> Tree:
            nonlocal done
            kept = keep(returned, points)
            done += points
            # The other processes have done about as much.
            update(min(done * size / nodes, len(self.drawn.pairs)))
            return kept

        for blocks, ends in self._fetch_groups(self.drawn.blocks()[rank::size], points=nodes):
            paths = self._space.join(*ends, self._run_in_batches)
            total = sum(block.stop - block.start for block in blocks)
            if blocks[0].start == 0:
                self._add_note(_note_rounded_inputs(*paths.ends()) if self._space.name is None else None)
                # A watch counts the points it sees, among which those of a trial do not belong.
                kept_of_trial, most = keep if watch is None else None, self._batches.next_size(total * nodes)
                self._add_note(self._space.note_bypass(*ends, keep) if watch is None else None)
                seen = _SeenPrecision()
                run = partial(_run_inside, seen, paths.run)
                self._add_note(warn_of_dependent_rows(self._runner, run, kept_of_trial, count=total, most=most))
                self._dtype = str(seen.dtype or self._runner.precision(paths.ends())).removeprefix("torch.")
            alpha = self.drawn.alpha(*blocks)
            kept = self._run(paths, alpha.expand(total, -1), count, watch or nullcontext(), reduce, alpha)
            yield PathBlocks(blocks, alpha, kept, paths.ends(), paths.reach_examples)

    def run_ends(self, keep: Keep, blocks: Sequence[slice]) -> Iterator[tuple[list[slice], Tree]]:
        """Run the model on both ends of the paths of some blocks by themselves; yield what was kept, first ends first.

        At a layer, and where masks are joined, this is not what it returns at the ends of the paths.
        """
        for group, ends in self._fetch_groups([*blocks], points=2):
            both = concatenate([*ends])

            def run_part(part: slice, both: Tree = both) -> Tree:
                return keep(run_examples(self._runner, take(both, part)), part.stop - part.start)

            yield group, self._run_in_batches(run_part, 2 * sum(block.stop - block.start for block in group))

    def record(self, paths: int | None = None) -> PathRecord:
        """Return what a measurement records of the model and its first paths, or all, which must have been run."""
        # The first process has the first paths.
        dtype, notes, at = broadcast_from_first((self._dtype, tuple(self.notes), self._space.name))
        hashes = union_over_ranks(self._hashes)
        used = [hashes[block.start] for block in self.drawn.blocks() if paths is None or block.start < paths]
        settings = self.drawn.settings
        return PathRecord(
            **{**vars(settings), "at": at, "partners": name_partners(settings.partners)},
            examples=len(self._examples),
            dtype=dtype,
            model=self.model,
            fingerprint=hashlib.sha256("".join(used).encode()).hexdigest()[:16],
            new_norms=find_new_norms(self._runner.model),
            notes=notes,
        )

    def _check_ranks(self) -> None:
        """Raise unless all processes share one measurement: of one model, along the same paths."""
        settings = self.drawn.settings
        check_same_on_ranks({
            "settings": repr(replace(settings, at=self._space.name, partners=name_partners(settings.partners))),
            "weights of the model": sum_weights(self._runner.model),
            "numbers of examples": len(self._examples),
            "examples": self._hash_some(),
        })

    def _hash_some(self) -> str | None:
        """Return a hash of the first paths' examples; None if a data set draws from a generator of its own."""
        drawn, hashes = self.drawn.pairs[:BLOCK].flatten().tolist(), set()
        for _ in range(2):
            with seed_everything(self.drawn.settings.seed):
                hashes.add(hash_examples(self._examples.fetch(drawn)))
        return hashes.pop() if len(hashes) == 1 else None

    def _add_note(self, note: str | None) -> None:
        if note is not None and note not in self.notes:
            self.notes.append(note)

    def _fetch_groups(self, blocks: list[slice], *, points: int) -> Iterator[tuple[list[slice], tuple[Tree, Tree]]]:
        """Yield blocks with the ends of their paths, as many as fill a batch with a path's points, but at least one."""
        fetched = ((block, self._fetch(block)) for block in blocks)
        # A loader may pad each block to a length of its own: then they cannot share a batch.
        for _, alike in groupby(fetched, key=lambda each: _describe(each[1])):
            while group := list(islice(alike, max(1, self._batches.size // (BLOCK * points)))):
                yield [block for block, _ in group], concatenate([ends for _, ends in group])

    def _fetch(self, block: slice) -> tuple[Tree, Tree]:
        first, second = (ends.tolist() for ends in self.drawn.pairs[block].unbind(1))
        # Both ends in one batch, so that a loader that pads gives them the same length.
        drawn = [*first, *second] if self._partners is None else first
        item = self._read_item(self._draw_examples(drawn, block))
        ends = item.inputs
        if any(leaf.dim() and len(leaf) != len(drawn) for leaf in tensors(ends)):
            raise ValueError(
                f"the loader returned {describe_shapes(ends)} for {len(drawn)} drawn examples; each needs one row. "
                "Leave examples out of the data set rather than in collate_fn, or pass an iterator, iter(loader)."
            )
        if self._partners is not None:
            seed = self.drawn.settings.seed
            fetch = partial(self._partners.fetch, ends, first, seed=seed, block=block.start)
            copies = self.drawn.copies
            # Models may read other entries of an item as inputs.
            partners = fetch() if copies is None else copies.get((block.start, repr(_describe(ends))), fetch)
            ends = concatenate([ends, partners])
        if self.drawn.recorded:
            self._hashes[block.start] = hash_examples(ends)
        if self._space.name is None:
            self._space = Space(self._runner, default_layer(self._runner.model, ends))
        if block.start == 0:
            self._warn_of_collate(drawn)
            self._add_note(item.note)
            again = item if isinstance(self._examples, Batch) else self._read_item(self._draw_examples(drawn, block))
            if hash_examples(again.inputs) != hash_examples(item.inputs):
                self._add_note(
                    "the data set returns other examples whenever it is read, whatever seed= is, as it draws from a "
                    "random generator of its own: no two models or measurements see the same ones."
                )
            named = ends
            if is_plain_tuple(ends):
                check_argument_count(ends, self._runner.model)
                named = name_arguments(ends, self._runner.model)
            check_integer_masks(named)
            self._add_note(note_possible_masks(ends) if self._space.name is not None else note_floating_masks(named))
        if self._language is not None and holds_ids(ends):
            given, ends = ends, align(ends)
            self._add_note(note_padding(given, self._language.padding))
            if block.start == 0:
                self._add_note(note_ends(ends, self._language.ends))
                check_padding(partial(run_examples, self._runner), ends)
        return take(ends, slice(len(first))), take(ends, slice(len(first), None))

    def _draw_examples(self, drawn: list[int], block: slice) -> Tree:
        """Fetch examples; what a data set draws depends on the seed and the block alone, not on what the model drew."""
        if isinstance(self._examples, Batch):
            return self._examples.fetch(drawn)
        state = np.random.SeedSequence([self.drawn.settings.seed, 1, block.start]).generate_state(1, np.uint64)
        with seed_everything(int(state[0]) >> 1):
            return self._examples.fetch(drawn)

    def _warn_of_collate(self, drawn: list[int]) -> None:
        collate = self._examples.open_collate(drawn) if isinstance(self._examples, DataSet) else None
        if collate is not None and find_dependent_row(lambda rows: collate(rows.tolist()), len(drawn)) is not None:
            warnings.warn(
                "what the loader's collate_fn returns for an example depends on the others of its batch, as with mixup "
                "or statistics over the batch. Paths join what it returns for examples drawn here, in other batches "
                "than the loader's. Pass the Dataset, or a loader without that collate_fn; for the loader's own "
                "batches an iterator, iter(loader).",
                stacklevel=2,
            )

    def _run(self, paths: Paths, alpha: Tensor, keep: Keep, watch: Watch, reduce: Reduce | None, nodes: Tensor) -> Tree:
        rows = torch.arange(len(alpha), device="cpu").repeat_interleave(alpha.shape[1])
        positions = alpha.reshape(-1)
        if self._runner.device is not None and self._runner.device.type == "cuda":
            rows, positions = (send(tensor, self._runner.device) for tensor in (rows, positions))

        def run_part(part: slice) -> Tree:
            with self._runner.watch(watch):
                returned, _ = paths.run(rows[part], positions[part])
            return keep(returned, part.stop - part.start)

        if reduce is None:
            return self._run_in_batches(run_part, len(rows))
        waiting: list[Tensor] = []
        reduced: list[Tensor] = []

        def reduce_whole_paths() -> None:
            values, first = torch.cat(waiting), sum(map(len, reduced))
            waiting[:] = [values]  # still there if memory runs out below
            last = first + len(values) // alpha.shape[1]
            points = (last - first) * alpha.shape[1]
            if points:
                whole = values[:points].view(last - first, -1, *values.shape[1:])
                rows = reduce(whole, nodes if nodes.dim() == 1 else nodes[first:last])
                waiting[:] = [values[points:].clone()]  # a view would keep all of them in memory
                reduced.append(rows)

        def run_and_reduce(part: slice) -> None:
            # Before the batch is run: if memory runs out here, no points are counted twice.
            if sum(values.numel() for values in waiting) > MOST_KEPT:
                reduce_whole_paths()
            waiting.append(run_part(part))

        self._batches.run(run_and_reduce, len(rows))
        reduce_whole_paths()
        return torch.cat(reduced)

    def _run_in_batches(self, run: Callable[[slice], Tree], total: int) -> Tree:
        return concatenate(self._batches.run(run, total))


class _SeenPrecision(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, finds half precision within a model, such as autocast in its own ``forward``."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtype: torch.dtype | None = None

    def __torch_dispatch__(self, operator: Any, _types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        """Carry out an operation, and note the precision of its result."""
        result = operator(*arguments, **(keywords or {}))
        for each in tree_leaves(result):
            if isinstance(each, Tensor) and each.dtype in (torch.float16, torch.bfloat16):
                self.dtype = each.dtype
        return result


def _run_inside(context: Watch, run: Callable[..., Any], *arguments: Any) -> Any:
    with context:
        return run(*arguments)


def _note_rounded_inputs(first: list[Tensor], second: list[Tensor]) -> str | None:
    """Return a note if the rounding of inputs is not small against the distance between them."""
    for one, other in zip(first, second, strict=True):
        size, distance = float(one.abs().max()), float((one - other).abs().max())
        if 0 < distance < 1e4 * torch.finfo(one.dtype).eps * size:
            return (
                f"the inputs (up to {size:.2g}) differ by {distance:.2g} at most, and are rounded to "
                f"{str(one.dtype).removeprefix('torch.')}, which looks complex. Subtract their mean, or use float64 "
                "data and dtype=torch.float64."
            )
    return None


def split_rows(blocks: list[slice]) -> Iterator[tuple[slice, slice]]:
    """Yield each block with the place of its paths among those of all these blocks."""
    start = 0
    for block in blocks:
        stop = start + block.stop - block.start
        yield block, slice(start, stop)
        start = stop


def _describe(examples: Tree) -> list[Any]:
    """Describe all that batches must agree on to be concatenated."""
    return [
        (name, leaf.shape[1:], leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else (name, id(leaf))
        for name, leaf in named_leaves(examples)
    ]


def model_name(model: Model) -> str:
    """Return the name of a model's class, without wrappers, or of its function."""
    if (module := as_module(model)) is not None:
        return str(module.original_name) if isinstance(module, torch.jit.ScriptModule) else type(module).__name__
    while isinstance(model, partial):
        model = model.func
    return str(getattr(model, "__name__", type(model).__name__))


def hash_examples(examples: Tree) -> str:
    """Hash examples as they were given: names, shapes, precision and every bit of every tensor."""
    digest = hashlib.sha256()
    for name, leaf in named_tensors(examples):
        digest.update(f"{name} {tuple(leaf.shape)} {leaf.dtype}".encode())
        digest.update(leaf.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def read_and_draw(inputs: Any, settings: PathSettings) -> tuple[Examples, DrawnPaths]:
    """Read inputs as examples, and draw the paths between them; raise if a second data set has another order."""
    partners = settings.partners
    if partners is not None and not read_changes(partners) and not all(map(keeps_order, (inputs, partners))):
        raise ValueError(
            "partners= are a second data set, whose examples belong to those of the same index, but a DataLoader's "
            "sampler selects and orders examples: give a Dataset, such as torch.utils.data.Subset(loader.dataset, "
            "indices)."
        )
    with seed_everything(settings.seed):  # a loader may draw
        examples = as_examples(inputs)
    return examples, DrawnPaths.draw(len(examples), settings)


@contextmanager
def open_path_runner(
    model: Model,
    inputs: Any,
    settings: PathSettings,
    *,
    batch_size: int | None,
    device: Device,
    dtype: torch.dtype | None,
) -> Iterator[PathRunner]:
    """Check everything, then open the model to be run along paths; afterwards it is as it was."""
    if batch_size is not None:
        check_count("batch_size", batch_size, least=1)
    check_runnable(model, device=device, dtype=dtype)
    examples, drawn = read_and_draw(inputs, settings)
    with (
        hold_models(model, settings.at),  # a function is not known to call the layer
        inference(model, seed=settings.seed, device=device, dtype=dtype) as runner,
    ):
        yield PathRunner(runner, examples, drawn, batch_size)
