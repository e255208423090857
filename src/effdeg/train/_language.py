"""Causal language models: the values of a path at each labeled position, over the tokens that matter there."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from effdeg._adapters.frameworks import LanguageModel
from effdeg._adapters.labels import IGNORED, check_class_ids
from effdeg._adapters.layers import find_language_model
from effdeg._adapters.outputs import pick_tensor
from effdeg._utils.device import is_readable
from effdeg._utils.shapes import Float, Int
from effdeg.train._anchors import OWN
from effdeg.train._batch import TrainingBatch
from effdeg.train._points import Points
from effdeg.train._settings import PenaltySettings

_AT_ONCE = 2**22  # logits, which bounds the memory of the steps that need them in float32


def as_language_model(batch: TrainingBatch, model: object, settings: PenaltySettings) -> LanguageModel | None:
    """Return what must be known about a causal language model that is given token ids; None for anything else."""
    ids, labels = _find(batch, "input_ids", "[0]"), batch.labels
    tokens = isinstance(ids, Tensor) and ids.dim() == 2 and not ids.is_floating_point()
    # Soft labels have the shape of the outputs, and are treated like those of any other model.
    soft = labels is not None and not (isinstance(labels, Tensor) and not labels.is_floating_point())
    return find_language_model(model) if tokens and not soft and settings.output == "softmax" else None


@dataclass(frozen=True, eq=False)
class Sequences:
    """The sequences of a batch: which positions are no padding, and the label of each position's next token."""

    visible: Tensor  # examples × positions
    targets: Tensor | None  # the same, or None if there are no labels at all

    @classmethod
    def of(cls, batch: TrainingBatch, *, look: bool) -> "Sequences":
        """Read the sequences of a batch of token ids; with ``look``, which waits for a GPU, check their positions."""
        ids, mask, labels = _find(batch, "input_ids", "[0]"), _find(batch, "attention_mask"), batch.labels
        if isinstance(mask, Tensor) and mask.shape != ids.shape:
            raise ValueError(
                f"attention_mask of shape {tuple(mask.shape)} does not say which of the {tuple(ids.shape)} tokens are "
                "padding: paths need one number per token. Packed sequences have no paths between them; pad instead."
            )
        if labels is not None and labels.shape[1:] != ids.shape[1:]:
            raise ValueError(
                f"labels of shape {tuple(labels.shape)} do not match token ids of shape {tuple(ids.shape)}: each "
                f"token has one label, {IGNORED} if it is none, as Hugging Face's collators give them."
            )
        _check_positions(_find(batch, "position_ids"), look=look)
        targets = None
        if labels is not None:
            targets = torch.full(ids.shape, IGNORED, dtype=torch.long, device=labels.device)
            targets[: len(labels), :-1] = labels[:, 1:]
        return cls(torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool(), targets)

    def values(
        self, returned: Any, points: Points, settings: PenaltySettings, *, ends: Any, look: bool
    ) -> tuple[Float[Tensor, "positions nodes bins"], Float[Tensor, "positions nodes"]]:
        """Return the values along paths, one row for each position that counts, and the nodes there.

        A position counts if neither of a path's two sequences is padding there, and one of them has a label for the
        next token (or there are no labels). The values are probabilities: of ``top`` tokens, the labels and the most
        likely ones along the path, and of all others together. With ``look`` the labels are checked.
        """
        logits = self._find_logits(returned, points.total)
        if look and self.targets is not None:
            check_class_ids(self.targets, logits.shape[-1], f"a vocabulary of {logits.shape[-1]} tokens")
        pairs = points.pairs.to(logits.device)
        path, place, targets = self._find_positions(pairs, points.batch)
        examples = pairs[path]
        inner = len(points) // len(pairs)
        rows = points.total - len(points) + path[:, None] * inner + torch.arange(inner, device=path.device)
        tokens = _choose_tokens(logits, torch.cat([examples, rows], dim=1), place, targets, settings.top)
        along = top_probabilities(logits, rows, place, tokens)
        if inner < points.alpha.shape[1]:
            outer = self._find_ends(logits, points, settings, ends, examples, place, targets, tokens)
            along = torch.cat([outer[:, 1:], along, outer[:, :1]], dim=1)
        return along, points.alpha.to(path.device)[path]

    def _find_logits(self, returned: Any, rows: int) -> Tensor:
        logits = pick_tensor(returned, rows)
        if logits.dim() != 3 or logits.shape[:2] != (rows, self.visible.shape[1]):
            raise ValueError(
                f"the model returned {tuple(logits.shape)} for {rows} sequences of {self.visible.shape[1]} tokens; the "
                "penalty needs the logits of every position. Leave out logits_to_keep, virtual tokens (prompt tuning) "
                "and kernels that compute the loss without logits."
            )
        return logits

    def _find_positions(self, pairs: Tensor, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the path and the place of each position that counts, and the labels of both ends there."""
        counted = self.visible.to(pairs.device)[pairs].all(1)
        targets = torch.full((*pairs.shape, counted.shape[1]), IGNORED, device=pairs.device)
        if self.targets is not None:
            targets = self.targets.to(pairs.device)[pairs]
            # Of the examples that were given without labels, all positions count.
            counted &= (targets != IGNORED).any(1) | (pairs[:, :1] >= batch)
        path, place = counted.nonzero(as_tuple=True)
        if not len(path):
            reason = "where one sequence has a label, the other is padding"
            advice = "Use larger batches, batches of similar lengths, or padding on the left"
            if self.targets is not None and not bool((targets != IGNORED).any()):
                reason, advice = f"these sequences have no label but {IGNORED}", "Check the labels"
            warnings.warn(f"no position of these paths counts: {reason}. The penalty is 0. {advice}.", stacklevel=2)
        return path, place, targets.mT[path, place]

    def _find_ends(
        self,
        logits: Tensor,
        points: Points,
        settings: PenaltySettings,
        returned: Any,
        examples: Int[Tensor, "positions 2"],
        place: Tensor,
        targets: Int[Tensor, "positions 2"],
        tokens: Int[Tensor, "positions tokens"],
    ) -> Float[Tensor, "positions 2 bins"]:
        """Return the values at the outer nodes, the first example's first."""
        anchored = settings.anchor == "labels"
        bins = tokens.shape[1] + (tokens.shape[1] < logits.shape[-1])
        dtype = torch.promote_types(logits.dtype, torch.float32)
        hot = (tokens[:, None] == targets[..., None]).to(dtype)
        outer = torch.nn.functional.pad(hot, (0, bins - tokens.shape[1]))
        missing = (targets == IGNORED).any(1) if anchored else torch.ones_like(place, dtype=torch.bool)
        taught = torch.zeros_like(missing)
        sources = [(missing, logits if settings.anchor is None else logits.detach(), 0)]
        if returned is not OWN:
            asked = points.unlabeled + (0 if anchored else points.batch)
            taught = (examples[:, 0] >= points.batch) if anchored else missing
            teacher = self._find_logits(returned, asked).detach().to(logits.device)
            sources = [(missing & ~taught, *sources[0][1:]), (taught, teacher, points.batch + points.unlabeled - asked)]
        for chosen, source, skipped in sources:
            own = top_probabilities(source, examples[chosen] - skipped, place[chosen], tokens[chosen])
            if anchored:
                own = torch.where((targets[chosen] == IGNORED)[..., None], own, outer[chosen])
            outer = outer.index_put((chosen,), own.to(dtype))
        return outer


def _find(batch: TrainingBatch, *names: str) -> Any:
    """Return the argument of this name, or of the next of them, in the call of a model; None if there is none."""
    arguments, keywords = batch.inputs
    given = {**arguments, **keywords}
    for name in names:  # rather than next(…), which torch.compile of torch 2.6 cannot trace
        if given.get(name) is not None:
            return given[name]
    return None


def _check_positions(positions: Any, *, look: bool) -> None:
    """Raise if sequences are packed, or their positions differ: a point has only one position for each token."""
    if not isinstance(positions, Tensor) or not look or not is_readable(positions):
        return
    rows = positions.reshape(-1, positions.shape[-1])
    if not bool((rows.diff() > 0).all() and (rows == rows[:1]).all()):
        raise ValueError(
            "position_ids start again within a row, as in packed sequences (packing=True, padding_free=True), or "
            "differ from row to row. Paths need one sequence per row, at the same positions: pad the sequences, and "
            "leave position_ids out."
        )


def _parts(logits: Tensor, rows: Int[Tensor, "positions points"]) -> Iterator[slice]:
    """Divide positions so that the logits of each part are few."""
    step = max(1, _AT_ONCE // max(1, rows.shape[1] * logits.shape[-1]))
    return (slice(start, start + step) for start in range(0, len(rows), step))


@torch.no_grad()
def _choose_tokens(logits: Tensor, rows: Tensor, place: Tensor, targets: Tensor, top: int) -> Tensor:
    """Return the tokens of each position whose probabilities are fitted: the labels, then the most likely ones."""
    count = min(top, logits.shape[-1])
    chosen = []
    for part in _parts(logits, rows):
        given = logits[rows[part], place[part, None]]
        likely = given.to(torch.promote_types(given.dtype, torch.float32)).softmax(-1).mean(1)
        labels = targets[part]
        # Above all probabilities; a label that does not exist raises that of the other end, or nothing.
        likely.scatter_add_(1, labels.clamp(min=0), (labels != IGNORED).to(likely.dtype) * 2)
        chosen.append(likely.topk(count, dim=1).indices)
    return torch.cat(chosen) if chosen else rows.new_zeros(0, count)


def top_probabilities(
    logits: Float[Tensor, "rows length vocabulary"],
    rows: Int[Tensor, "positions points"],
    place: Int[Tensor, " positions"],
    tokens: Int[Tensor, "positions tokens"],
) -> Float[Tensor, "positions points bins"]:
    """Return the probabilities of some tokens at some positions, and that of all other tokens together as the last."""
    # For the gradient neither the probabilities of the whole vocabulary nor logits in float32 are kept.
    values: Tensor = _TopProbabilities.apply(logits, rows, place, tokens)  # type: ignore[no-untyped-call]
    return values


class _TopProbabilities(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, rows: Tensor, place: Tensor, tokens: Tensor) -> Tensor:
        count = tokens.shape[1]
        dtype = torch.promote_types(logits.dtype, torch.float32)
        probabilities = torch.empty(*rows.shape, count, dtype=dtype, device=logits.device)
        for part in _parts(logits, rows):
            given = logits[rows[part], place[part, None]].to(dtype)
            picked = given.gather(2, tokens[part, None].expand(-1, rows.shape[1], -1))
            probabilities[part] = (picked - given.logsumexp(-1, keepdim=True)).exp()
        ctx.save_for_backward(logits, rows, place, tokens, probabilities)
        if count == logits.shape[-1]:
            return probabilities.clone()
        return torch.cat([probabilities, (1 - probabilities.sum(-1, keepdim=True)).clamp(min=0)], dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """With p = softmax(z) and the rest 1 − Σ p_k: dz = Σ_k g_k p_k (e_k − p), where g_k is that of p_k − rest."""
        logits, rows, place, tokens, probabilities = ctx.saved_tensors
        count = tokens.shape[1]
        weights = (grad[..., :count] - (grad[..., count:] if grad.shape[-1] > count else 0)) * probabilities
        result = torch.zeros_like(logits)
        for part in _parts(logits, rows):
            given = logits[rows[part], place[part, None]].to(probabilities.dtype)
            some = weights[part]
            change = given.softmax(-1).mul_(-some.sum(-1, keepdim=True))
            change.scatter_add_(2, tokens[part, None].expand(-1, rows.shape[1], -1), some)
            where = rows[part], place[part, None].expand(-1, rows.shape[1])
            # An example may be at the ends of several paths.
            result.index_put_(where, change.to(result.dtype), accumulate=True)
        return result, None, None, None
