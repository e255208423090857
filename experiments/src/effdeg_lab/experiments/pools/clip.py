"""The pool of the paper's Figures 3 and 8: CLIP fine-tuned on ImageNet by random search, published as model soups.

The checkpoints and both files about them are those of Wortsman et al., 2022, "Model soups": ``model_0.pt`` to
``model_71.pt``, ``hparam_info.json`` and ``individual_model_results.jsonl``, all in one folder.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import effdeg
from effdeg.io import write_atomically
from effdeg.pools import read_table
from effdeg_lab.data.imagenet import find_splits
from effdeg_lab.data.images import CLIP_SCALE, Crop, Images, StoredImages
from effdeg_lab.data.sources import explain_errors
from effdeg_lab.models.pretrained import ImageClassifier, load_clip, rename_openai

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
) -> pd.DataFrame:
    """Measure the checkpoints that a table lacks, one at a time, and write the table with what was published on them.

    The effective degree is measured on ImageNet's validation images, sharpness on 2,048 training images. Test accuracy
    is the published one. Training accuracy is measured on ``train_images`` random training images; if the folder of
    checkpoints has ``imagenet_98_idxs.npy`` of model soups, none of them were held out. ``model_0``, the common start,
    is left out. ``options`` are those of :func:`effdeg.measure_pool`.
    """
    published = read_soups(checkpoints)
    files = {name: checkpoints / f"{name}.pt" for name in published.index if (checkpoints / f"{name}.pt").is_file()}
    if not files:
        raise FileNotFoundError(f"{checkpoints} holds no checkpoints of model soups: expected model_1.pt and others.")
    model = _make_model(clip, next(iter(files.values())))
    encoder: Any = model.encoder
    crop = Crop(encoder.model.config.image_size)
    train, test = find_splits(data)()
    if {*train.labels.tolist()} != {*range(1000)}:
        raise ValueError(f"{data} does not have the 1,000 classes of ImageNet, which the checkpoints tell apart.")
    effdeg.measure_pool(
        model,
        files,
        _Normalized(Images(test, crop, "imagenet")),
        train=_Normalized(*draw_training_images(train, crop, train_images, checkpoints / _HELD_OUT)),
        proxies=PROXIES,
        components=COMPONENTS,
        out=out,
        **options,
    )
    table = read_table(out).set_index("model")
    table[published.columns] = published.reindex(table.index)
    table["gap"] = table["train_accuracy"] - table["test_accuracy"]
    write_atomically(out, table.to_csv().encode())
    return table


def read_soups(folder: Path) -> pd.DataFrame:
    """Return what was published on each checkpoint but the first: hyperparameters, test accuracy and recipe."""
    with explain_errors(folder, "a folder with both tables of the repository mlfoundations/model-soups"):
        info = json.loads((folder / "hparam_info.json").read_text(encoding="utf-8"))
        lines = (folder / "individual_model_results.jsonl").read_text(encoding="utf-8").splitlines()
        accuracies = {row["model_name"]: float(row["ImageNet"]) for row in map(json.loads, lines)}
        tuned = {name: each for name, each in info.items() if "mix" in each}
        rows = pd.DataFrame.from_dict(tuned, orient="index", columns=[*HYPERPARAMETERS])
        recipes = np.where(rows["mix"] > 0, "with mixup", "without mixup")
        return rows.assign(test_accuracy=[accuracies[name] for name in rows.index], recipe=recipes)


def draw_training_images(train: StoredImages, crop: Crop, count: int, held_out: Path) -> tuple[Images, Tensor]:
    """Draw training images, always the same ones, and return them with their classes.

    ``held_out`` is a file of model soups: 1 for each image that was not trained on, in the order of file names.
    """
    places = np.arange(len(train))
    if held_out.is_file():
        with explain_errors(held_out, "the images that model soups held out"):
            places = places[np.load(held_out) == 0]
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
