"""Text classifiers from Hugging Face folders, in two halves: from tokens to embeddings, and from there to logits.

The paths of the penalty, and mixup, then lie at a plain tensor, the output of the first half. That needs no hooks, so a
whole training step can be compiled and captured in a CUDA graph.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from effdeg.io import describe_install
from effdeg_lab.data.sentences import Sentences

Place = Literal["embeddings", "sum"]
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


class TextClassifier(nn.Module):
    """An encoder with a classification head, called with tokens, examples × 3 × length: ids, mask and types.

    Paths lie at the output of the embeddings, after their normalization and dropout, or at the ``sum`` before these.
    """

    def __init__(self, model: nn.Module, *, place: Place = "embeddings") -> None:
        super().__init__()
        base: Any = model.base_model
        if not isinstance(getattr(base, "embeddings", None), nn.Module):
            raise ValueError(
                f"{type(model).__name__} has no module 'embeddings' in its base model: expected one like BERT's."
            )
        self.embeddings, after = base.embeddings, nn.Sequential()
        if place == "sum":
            if not (hasattr(self.embeddings, "LayerNorm") and hasattr(self.embeddings, "dropout")):
                raise ValueError(
                    f"place=sum: the embeddings of {type(model).__name__} do not end in a LayerNorm and dropout. Use "
                    "place=embeddings."
                )
            after = nn.Sequential(self.embeddings.LayerNorm, self.embeddings.dropout)
            self.embeddings.LayerNorm, self.embeddings.dropout = nn.Identity(), nn.Identity()
        # The model then takes what the first half returned as its embeddings.
        base.embeddings = _Given(after)
        self.model = model
        self.train(model.training)

    def embed(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        ids, mask, types = tokens.unbind(1)
        hidden: Tensor = self.embeddings(input_ids=ids, **_types(self.model, types))
        return hidden, mask.bool()

    def encode(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return self.model(inputs_embeds=hidden, attention_mask=mask.long()).logits

    def forward(self, tokens: Tensor) -> Tensor:
        return self.encode(*self.embed(tokens))


class _Given(nn.Module):
    """Replaces the embedding layer of a model that is given embeddings."""

    def __init__(self, after: nn.Module) -> None:
        super().__init__()
        self.after = after

    def forward(self, input_ids: None = None, inputs_embeds: Tensor | None = None, *_: Any, **__: Any) -> Tensor:  # noqa: ARG002
        """Return the embeddings that the model was given, normalized if they are not yet."""
        return self.after(inputs_embeds)


def load_classifier(
    folder: Path, *, classes: int, place: Place = "embeddings", attention: str | None = None
) -> TextClassifier:
    """Load an encoder from a folder, in evaluation mode; nothing is downloaded.

    If it has no head for this many classes, a new one is drawn from torch's random stream. ``attention`` is the
    implementation that Hugging Face should use, such as ``"eager"``, by matrix products.
    """
    check_folder(folder)
    from transformers import AutoModelForSequenceClassification

    with quiet_transformers():  # it would report that the head is new
        model = AutoModelForSequenceClassification.from_pretrained(
            folder,
            num_labels=classes,
            local_files_only=True,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            attn_implementation=attention,
        )
    return _split(model, place)


@torch.no_grad()
def _split(model: nn.Module, place: Place) -> TextClassifier:
    """Split a model into halves; raise if together they differ from it: a model may treat embeddings its own way."""
    tokens = torch.ones(1, 3, 6, dtype=torch.int64)
    tokens[0, 0], tokens[0, 2, :3] = torch.arange(2, 8), 0
    whole = model(input_ids=tokens[:, 0], attention_mask=tokens[:, 1], **_types(model, tokens[:, 2])).logits
    classifier = TextClassifier(model, place=place)
    if not torch.allclose(classifier(tokens), whole, rtol=1e-4, atol=1e-5):
        raise ValueError(f"{type(model).__name__} cannot be run starting from its embeddings, with place={place}.")
    return classifier


def _types(model: nn.Module, types: Tensor) -> dict[str, Tensor]:
    """Return the token types as a keyword for models that have several, and nothing for others."""
    return {"token_type_ids": types} if getattr(model.config, "type_vocab_size", 0) > 1 else {}


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers from printing remarks about the weights that it loads, and a progress bar."""
    from transformers.utils import logging

    before, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()  # it would leave a semaphore behind in the processes of a sweep
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if shown:
            logging.enable_progress_bar()


def check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise FileNotFoundError(f"model={folder} is not a folder: give one with a Hugging Face model, as on the hub.")
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} has no config.json: expected a Hugging Face model, as on the hub.")
    if not any((folder / name).is_file() for name in _WEIGHTS):
        raise FileNotFoundError(f"{folder} has no weights: expected {' or '.join(_WEIGHTS)}.")
    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model")):
        raise FileNotFoundError(f"{folder} has no tokenizer: expected tokenizer.json, or a vocabulary.")


def load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer of a model from its folder; raise if it cannot pad texts to equal lengths."""
    check_folder(folder)
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ImportError(f"text models need transformers: {describe_install('text', 'effdeg-lab')}") from error
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if tokenizer.pad_token_id is None:
        raise ValueError(f"the tokenizer of {folder} has no pad token, which texts of different lengths need.")
    return tokenizer


def tokenize(folder: Path, several: Sequence[Sentences], *, longest: int = 128) -> list[Tensor]:
    """Return the tokens of sentences, examples × 3 × length each: ids, mask and types, truncated at ``longest``.

    All have the length of the longest text among them, rounded up to a multiple of 8.
    """
    tokenizer = load_tokenizer(folder)
    tokenizer.padding_side = "right"
    options = {"truncation": True, "max_length": longest, "return_token_type_ids": True}
    found = [tokenizer(list(each.first), each.second and list(each.second), **options) for each in several]
    length = max(len(ids) for tokens in found for ids in tokens["input_ids"])
    length = min(longest, -(-length // 8) * 8)
    padded = [tokenizer.pad(tokens, "max_length", length, return_tensors="pt") for tokens in found]
    return [torch.stack([each["input_ids"], each["attention_mask"], each["token_type_ids"]], 1) for each in padded]
