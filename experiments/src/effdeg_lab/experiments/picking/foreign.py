"""Classifiers of ImageNet that others trained, observed as a picker would observe them; nothing is trained."""

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from effdeg_lab.core.runs import Job
from effdeg_lab.core.settings import Settings, check_fit, setting, unnamed
from effdeg_lab.data.images import IMAGENET_SCALE, Crop, store_tables
from effdeg_lab.data.sources import explain_missing, find_shards, require_folder
from effdeg_lab.engine.observation import draw, get_change, make_copies, observe
from effdeg_lab.models.pretrained import find_pretrained, load_deit_tiny

_CODE = "classifiers.py"


@dataclass(frozen=True)
class Foreign(Settings):
    """The settings of one run, which observes one classifier."""

    model: str = setting("deit-tiny", "deit-tiny, or a folder of DIR/classifiers")
    # A smoke test has a folder of its own, as other data sets look for val5.
    data: str = setting(
        "val5", "a folder of DIR with val-*.parquet, validation images of ImageNet", smoke=lambda _: "foreign"
    )
    observe: int = unnamed(2000, "images of which predictions are kept", least=2, smoke=8)
    measure_paths: int = unnamed(100, "paths of each kind", least=2, smoke=4)
    measure_nodes: int = unnamed(64, "nodes on each path", smoke=12)

    def check(self) -> None:
        check_fit(self.measure_nodes, 3, prefix="measure_")


def run_foreign(settings: Foreign, job: Job) -> None:
    job.start()
    model, prepare = _load(settings.model, job.data)
    stored = store_tables(_find_images(settings.data, job.data))
    stored = stored[draw(len(stored), settings.observe).numpy()]
    inputs = list[Tensor]()
    for index in range(len(stored)):
        with stored.open(index) as image:
            inputs.append(prepare(image))
    images = torch.stack(inputs).to(job.device)
    observed = observe(
        model.to(job.device),
        images,
        make_copies(images, get_change(images)),
        torch.from_numpy(stored.labels),
        paths=settings.measure_paths,
        nodes=settings.measure_nodes,
    )
    job.finish({"test_accuracy": observed["accuracy"], "observed": {"test": observed}})


def check_foreign(several: Iterable[Foreign], data: Path | None) -> None:
    for name, place in dict.fromkeys((each.model, each.data) for each in several):
        _find(name, data)
        _find_images(place, data)


def _find_images(place: str, data: Path | None) -> list[Path]:
    with explain_missing(place, data):
        return find_shards(require_folder(place, data) / place, "val")


def _find(name: str, data: Path | None) -> Path:
    if name == "deit-tiny":
        return find_pretrained(name, data)
    with explain_missing(name, data):
        folder = require_folder(name, data, what="model") / "classifiers"
        for needed in (folder / _CODE, folder / name):
            if not needed.exists():
                raise FileNotFoundError(
                    f"model={name!r} was not found: expected {folder} with the folder {name} and {_CODE}, which has "
                    "load(folder) and picture(image, settings)."
                )
        return folder / name


def _load(name: str, data: Path | None) -> tuple[nn.Module, Callable[[Any], Tensor]]:
    """Load a classifier, and what turns a picture into its input."""
    place = _find(name, data)
    if name == "deit-tiny":
        crop = Crop(224, short=256)
        mean, std = (torch.tensor(each).view(-1, 1, 1) for each in IMAGENET_SCALE)
        return load_deit_tiny(place), lambda image: (crop(image) / 255 - mean) / std
    spec = importlib.util.spec_from_file_location("classifiers", place.parent / _CODE)
    assert spec is not None
    assert spec.loader is not None
    code = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)
    model, settings = code.load(place)
    return model, lambda image: code.picture(image, settings)
