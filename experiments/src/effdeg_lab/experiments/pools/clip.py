"""The pool of the paper's Figures 3 and 8: CLIP fine-tuned on ImageNet by random search, published as model soups.

The checkpoints and both files about them are those of Wortsman et al., 2022, "Model soups": ``model_0.pt`` to
``model_71.pt``, ``hparam_info.json`` and ``individual_model_results.jsonl``, all in one folder.
"""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import effdeg
from effdeg.io import write_atomically
from effdeg.pools import Ranking, read_table
from effdeg_lab.data.imagenet import find_splits
from effdeg_lab.data.images import CLIP_SCALE, Crop, Images, StoredImages
from effdeg_lab.data.sources import explain_errors
from effdeg_lab.experiments.pools.study import REFERENCE, list_measures, rank_within
from effdeg_lab.models.pretrained import ImageClassifier, load_clip, rename_openai

FIGURES = {"with mixup": 3, "without mixup": 8}
NOTE = (
    "The effective degree (@: principal components), confidence, entropy, nuclear norm and disagreement (with all "
    "other models) use validation images."
)
HYPERPARAMETERS = ("lr", "wd", "epochs", "smoothing", "mix", "aug")
PROXIES = (
    *(f"sharpness@{rho:g}" for rho in (0.01, 0.05, 0.1)),
    *(f"adaptive_sharpness@{rho:g}" for rho in (0.01, 0.05, 0.1, 0.5, 1.0)),
    *("parameter_norm", "confidence", "entropy", "nuclear_norm"),
)
COMPONENTS = (1, 3, 10)
_HELD_OUT = "imagenet_98_idxs.npy"


def measure_clip_pool(
    out: Path, checkpoints: Path, clip: Path, data: Path, *, train_images: int = 50_000, **options: Any
) -> list[dict[str, Any]]:
    """Measure the checkpoints that a table lacks, one at a time, and write the table with what was published on them.

    The effective degree is measured on ImageNet's validation images, sharpness on 2,048 training images. Test accuracy
    is the published one. Training accuracy is measured on ``train_images`` random training images; if the folder of
    checkpoints has ``imagenet_98_idxs.npy`` of model soups, none of them were held out. ``model_0``, the common start,
    is left out. Rows of deleted checkpoints are kept, but not returned. ``options`` are those of
    :func:`effdeg.measure_pool`.
    """
    known = read_soups(checkpoints)
    files = {name: checkpoints / f"{name}.pt" for name in known if (checkpoints / f"{name}.pt").is_file()}
    if not files:
        raise FileNotFoundError(f"{checkpoints} holds no checkpoints of model soups: expected model_1.pt and others.")
    model = _make_model(clip, next(iter(files.values())))
    encoder: Any = model.encoder
    crop = Crop(encoder.model.config.image_size)
    train, test = find_splits(data)()
    if {*train.labels.tolist()} != {*range(1000)} or {*test.labels.tolist()} - {*range(1000)}:
        raise ValueError(f"{data} does not have the 1,000 classes of ImageNet, which the checkpoints tell apart.")
    rows = effdeg.measure_pool(
        model,
        files,
        _Normalized(Images(test, crop, "imagenet")),
        train=_Normalized(*draw_training_images(train, crop, train_images, checkpoints / _HELD_OUT)),
        proxies=PROXIES,
        components=COMPONENTS,
        out=out,
        **options,
    )
    measured = {row["model"]: row for row in rows}
    with out.open(encoding="utf-8", newline="") as stream:  # it also has the rows of deleted checkpoints
        every = {row["model"]: measured.get(row["model"], row) for row in csv.DictReader(stream)}
    joined = {name: row | known.get(name, {}) for name, row in every.items()}
    for row in joined.values():
        row["gap"] = float(row["train_accuracy"]) - float(row["test_accuracy"])
    write_atomically(out, pd.DataFrame(joined.values()).to_csv(index=False).encode())
    return [joined[name] for name in measured]


def read_soups(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what was published on each checkpoint but the first: hyperparameters, recipe and test accuracy."""
    settings, results = folder / "hparam_info.json", folder / "individual_model_results.jsonl"
    for file in (settings, results):
        if not file.is_file():
            raise FileNotFoundError(f"{file} was not found: it is in the repository mlfoundations/model-soups.")
    with explain_errors(settings, "the hyperparameters of model soups"):
        info: Mapping[str, Mapping[str, Any]] = json.loads(settings.read_text(encoding="utf-8"))
        tuned = {name: {key: own[key] for key in HYPERPARAMETERS} for name, own in info.items() if "info" not in own}
    with explain_errors(results, "the results of model soups"):
        lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines() if line.strip()]
        accuracies = {line["model_name"]: float(line["ImageNet"]) for line in lines}
    if missing := tuned.keys() - accuracies.keys():
        raise ValueError(f"{results} has no accuracy of {', '.join(sorted(missing))}.")
    return {
        name: {
            "model": name,
            **own,
            "recipe": "with mixup" if own["mix"] else "without mixup",
            "test_accuracy": accuracies[name],
        }
        for name, own in tuned.items()
    }


def draw_training_images(train: StoredImages, crop: Crop, count: int, held_out: Path) -> tuple[Images, Tensor]:
    """Draw training images, always the same ones, and return them with their classes.

    ``held_out`` is a file of model soups: 1 for each image that was not trained on, in the order of file names.
    """
    places = np.arange(len(train))
    if held_out.is_file():
        with explain_errors(held_out, "the images that model soups held out"):
            marks = np.load(held_out)
            if marks.shape != (len(train),):
                raise ValueError(f"it has {marks.size:,} entries, and there are {len(train):,} training images.")
        places = places[marks == 0]
    chosen = train[np.sort(np.random.default_rng(0).permutation(places)[:count])]
    return Images(chosen, crop, "imagenet"), torch.from_numpy(chosen.labels)


def _make_model(clip: Path, checkpoint: Path) -> ImageClassifier:
    """Make the classifier, which takes state dicts under the names of model soups."""
    with explain_errors(checkpoint, "a checkpoint of model soups"):
        head = rename_openai(torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True))["head.weight"]
    model = load_clip(clip, head)
    model.register_load_state_dict_pre_hook(_rename)  # type: ignore[no-untyped-call]
    return model


def _rename(_module: nn.Module, state: dict[str, Tensor], *_: Any) -> None:
    renamed = rename_openai(state)
    state.clear()
    state.update(renamed)


class _Normalized(Dataset[Any]):
    """Images as CLIP takes them, with their classes if these are given."""

    def __init__(self, images: Images, labels: Tensor | None = None) -> None:
        self._images, self._labels = images, labels
        self._mean, self._std = (torch.tensor(each).view(-1, 1, 1) for each in CLIP_SCALE)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Any:
        image = (self._images[index].float() / 255 - self._mean) / self._std
        return image if self._labels is None else (image, self._labels[index])


def rank_clip_pool(table: Path) -> Ranking:
    """Rank the measures of a table that :func:`measure_clip_pool` wrote, within the recipes with and without mixup."""
    rows = read_table(table)
    if not {*rows.get("recipe", [None])} <= FIGURES.keys():  # what was published is added at the end
        raise ValueError(
            f"{table} is not a finished table of model soups: rows have no recipe, with mixup or without. If the "
            "command that measured it was interrupted, run it again with --checkpoints to continue."
        )
    models = [{str(name): value for name, value in row.items()} for row in rows.to_dict("records")]
    return rank_within(models, [*list_measures(models, (*HYPERPARAMETERS, "sha256")), REFERENCE], ["recipe"])
