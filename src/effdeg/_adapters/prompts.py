"""Prompts of causal language models: read as token ids, aligned at their ends, and run for the next token."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from effdeg._adapters.examples import LABELS, Examples
from effdeg._adapters.frameworks import LanguageModel
from effdeg._adapters.layers import find_language_model
from effdeg._utils.tree import Tree

_KNOWN = {"input_ids", "attention_mask"}
_MOST_CHANGE = 0.1  # of logits by padding: half precision changes them by about a hundredth


def read_prompts(inputs: Any, tokenizer: Any, model: object = None) -> Any:
    """Return texts, or lists of token ids for a causal language model, as padded tensors; anything else as it is."""
    if isinstance(inputs, Examples):  # read before
        return inputs
    if tokenizer is not None:
        if not isinstance(inputs, list | tuple) or not all(isinstance(text, str) for text in inputs):
            raise TypeError(f"tokenizer= is for a list of texts, but inputs are of type {type(inputs).__name__}.")
        tokens = tokenizer(list(inputs))
        if getattr(tokenizer, "pad_token_id", None) is not None:
            return dict(tokenizer.pad(tokens, return_tensors="pt"))
        padding = getattr(tokenizer, "eos_token_id", None)
        return _pad(tokens["input_ids"], tokens.get("attention_mask"), padding or 0)
    language = find_language_model(model) if model is not None else None
    if language is None:
        return inputs
    named = inputs if isinstance(inputs, Mapping) else {"input_ids": inputs}
    ids = named.get("input_ids")

    def is_prompt(entry: Any) -> bool:
        if isinstance(entry, Tensor):
            return entry.dim() == 1 and not entry.is_floating_point()
        return isinstance(entry, list) and all(isinstance(token, int) for token in entry)

    if isinstance(ids, list) and named.keys() <= _KNOWN and ids and all(map(is_prompt, ids)):
        return _pad(ids, named.get("attention_mask"), language.padding)
    return inputs


def _pad(ids: Sequence[Any], masks: Sequence[Any] | None, padding: int) -> dict[str, Tensor]:
    """Return sequences of token ids, padded on the left to one length, and their masks."""
    length = max(map(len, ids))
    padded = torch.full((len(ids), length), padding, dtype=torch.long, device="cpu")
    mask = torch.zeros_like(padded)
    for row, tokens in enumerate(ids):
        if len(tokens):
            padded[row, -len(tokens) :] = torch.as_tensor(tokens)
            mask[row, -len(tokens) :] = 1 if masks is None else torch.as_tensor(masks[row])
    return {"input_ids": padded, "attention_mask": mask}


def holds_ids(inputs: Tree) -> bool:
    """Return whether inputs of a language model are token ids, rather than what was made of them."""
    ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else inputs
    return isinstance(ids, Tensor) and not ids.is_floating_point()


def align(inputs: Tree) -> dict[str, Tensor]:
    """Return token ids and their mask, padded on the left to the longest prompt: all end at the last position."""
    given = inputs if isinstance(inputs, Mapping) else {"input_ids": inputs}
    if more := sorted(given.keys() - _KNOWN - LABELS):
        raise TypeError(
            f"prompts of a language model are input_ids and attention_mask; inputs also hold {', '.join(more)}. Leave "
            "that out, or write a function around the model, with at=…"
        )
    ids = given["input_ids"]
    mask = given.get("attention_mask", torch.ones_like(ids))
    if ids.dim() != 2 or mask.shape != ids.shape:
        raise ValueError(
            f"input_ids have shape {tuple(ids.shape)}, attention_mask {tuple(mask.shape)}; prompts × tokens is needed."
        )
    length = ids.shape[1]
    empty = (mask == 0).all(1).nonzero().flatten().tolist()
    if not length or empty:
        raise ValueError("a prompt has no tokens, or all of them are masked: there is no next token to predict.")
    behind = (mask != 0).long().flip(1).argmax(1)
    places = (torch.arange(length, device=ids.device) - behind[:, None]) % length
    aligned = {"input_ids": ids.gather(1, places), "attention_mask": mask.gather(1, places).long()}
    first = int((aligned["attention_mask"] != 0).any(0).long().argmax())
    return {name: each[:, first:] for name, each in aligned.items()}


def check_padding(run: Callable[[Tree], Tensor], aligned: Mapping[str, Tensor]) -> None:
    """Raise if the padding in front of a prompt, or the numbers of its positions, change what a model returns."""
    seen = aligned["attention_mask"] != 0
    lengths = seen.sum(1).where((seen.long().diff(dim=1) >= 0).all(1), seen.shape[1] + 1)
    if int(lengths.min()) > seen.shape[1]:  # all have gaps
        return
    row = slice(place := int(lengths.argmin()), place + 1)
    alone = {"input_ids": aligned["input_ids"][row, -int(lengths[place]) :]}
    found, expected = (run(each).float() for each in ({name: each[row] for name, each in aligned.items()}, alone))
    scale = float((expected - expected.mean()).norm())
    # Also where padding makes them NaN; where they are so without it, the model is at fault.
    if not float((found - expected).norm()) <= _MOST_CHANGE * scale and math.isfinite(scale):
        raise ValueError(
            "padding in front of a prompt changes the logits of its next token: the model takes no position_ids, or "
            "ignores attention_mask. Give prompts of one length, without padding."
        )


def note_padding(inputs: Tree, padding: int) -> str | None:
    """Return a note on token ids without a mask that seem to be padded: some begin, or end, with the padding token.

    All may begin with a token that is both the first of every text and the padding.
    """
    if isinstance(inputs, Mapping) and "attention_mask" in inputs:
        return None
    is_padding = (inputs["input_ids"] if isinstance(inputs, Mapping) else inputs).eq(padding)
    lengths = is_padding.cumprod(1).sum(1)  # at the beginning
    if not bool(is_padding[:, -1].any()) and int(lengths.max()) <= 1 and int(lengths.min()) == int(lengths.max()):
        return None
    return (
        f"some prompts begin or end with token {padding}, as if it filled them up, and there is no attention_mask: it "
        "is read as text. Give the mask, or the prompts as a list."
    )


def note_ends(aligned: Mapping[str, Tensor], ends: Collection[int]) -> str | None:
    """Return a note if all prompts have ended, so that the next token is one after the end."""
    last = set(aligned["input_ids"][:, -1].tolist())
    if not last <= set(ends):
        return None
    return (
        f"all prompts end with token {min(last)}, the end of a text: what is measured is the token after the end. "
        "Leave that token out (of many tokenizers by add_special_tokens=False or add_eos_token=False)."
    )


def run_prompts(language: LanguageModel, run: Callable[[Tree], Any], inputs: Tree) -> Any:
    """Run a language model on aligned prompts, and return the logits of the next token of each, prompts × tokens."""
    if not holds_ids(inputs):
        return run(inputs)
    more = {**language.options, **language.last_only}
    if language.first_position is not None and "attention_mask" in inputs:
        # Counted from the first token, so that padding changes nothing.
        more["position_ids"] = (inputs["attention_mask"].cumsum(1) - 1).clamp(min=0) + language.first_position
    returned = run({**inputs, **more})
    return (returned.logits if hasattr(returned, "logits") else returned[0])[:, -1]
