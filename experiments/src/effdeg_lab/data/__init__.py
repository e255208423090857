"""The lab's data sets, read from common layouts of files."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path

from effdeg.demo import load_digits
from effdeg_lab.core.settings import Settings, suggest
from effdeg_lab.data import cifar10, imagenet, mnist, pacs, tiny_imagenet
from effdeg_lab.data.cifar10 import CIFAR10N
from effdeg_lab.data.imagenet import ImageSet
from effdeg_lab.data.labeled import LAYOUTS, Labeled, find_layout, make_labeled
from effdeg_lab.data.sources import DataSet, Size, explain_missing, require_folder

__all__ = [
    "CIFAR10N",
    "DATA_SETS",
    "MADE_UP",
    "DataSet",
    "ImageSet",
    "Labeled",
    "Size",
    "check",
    "check_all",
    "get_size",
    "load",
    "load_shared",
]

Load = Callable[[], Labeled | ImageSet]


_DIGITS_SIZE = Size(797, 1_000, (64,), 10)
DATA_SETS: dict[str, DataSet] = {
    **cifar10.DATA_SETS,
    **mnist.DATA_SETS,
    **tiny_imagenet.DATA_SETS,
    **pacs.DATA_SETS,
    **imagenet.DATA_SETS,
}
"""The data sets that are read from the data folder, by name."""
MADE_UP = "made-up.txt"
"""A file that marks a data folder as made up, so that its data sets may have any size."""


def load(name: str, folder: Path | None, pixels: int | None = None) -> Labeled | ImageSet:
    """Load a data set from the folder that holds the data sets.

    Its name is ``digits``, which needs no folder; one of :data:`DATA_SETS`, of which the images of ``imagenet`` stay in
    their files; or a file or folder in a known layout, by its path relative to the current folder (if it has a slash or
    a suffix) or to the data folder. All but CIFAR-10 and MNIST, which are already shuffled, come in a fixed random
    order, so that the first and the last examples are a fair sample. Data sets with images of many sizes are decoded to
    ``pixels`` a side; others keep their size.
    """
    return _find_or_explain(name, folder, pixels)()


# Decoding can take longer than a run, and those of a sweep have the same data.
load_shared = lru_cache(maxsize=1)(load)


def get_size(name: str) -> Size | None:
    """Return the size of a published data set, without reading it; None if it is not known."""
    return _DIGITS_SIZE if name == "digits" else DATA_SETS[name].size if name in DATA_SETS else None


def check(name: str, folder: Path | None) -> None:
    """Raise the error of :func:`load` if files of a data set are missing, without reading them."""
    _find_or_explain(name, folder)


def check_all(settings: Iterable[Settings], folder: Path | None) -> None:
    """Raise if a data set that the settings of a run name in a field ``data`` is missing."""
    for name in dict.fromkeys(str(each.data) for each in settings if hasattr(each, "data")):
        check(name, folder)


def _find_or_explain(name: str, folder: Path | None, pixels: int | None = None) -> Load:
    with explain_missing(name, folder, DATA_SETS[name].source if name in DATA_SETS else ""):
        return _find(name, folder, pixels)


def _find(name: str, folder: Path | None, pixels: int | None = None) -> Load:
    if name == "digits":
        return _load_digits
    path, known = Path(name), name in DATA_SETS
    hint = "" if known else f" {suggest(name, ['digits', *DATA_SETS])} Your own data set is {LAYOUTS}."
    if known or not (path.is_absolute() or (("/" in name or path.suffix) and path.exists())):
        folder = require_folder(name, folder, hint)
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder} should hold data={name!r} but is not a folder: give another --data DIR.")
        if known:
            load_all = DATA_SETS[name].find(folder, pixels)
            return lambda: _check_size(name, folder, load_all())
        path = folder / name
    if not path.exists():
        raise FileNotFoundError(f"data={name!r} is not known, and {path} does not exist.{hint}")
    read = find_layout(path)
    return lambda: make_labeled(path, *read()).shuffle()


def _check_size(name: str, folder: Path, data: Labeled | ImageSet) -> Labeled | ImageSet:
    """Return a published data set; raise if it has another size, unless the folder is made up."""
    expected = get_size(name)
    if expected is None or isinstance(data, ImageSet) or (folder / MADE_UP).exists():
        return data
    size = Size(len(data.train_labels), len(data.test_labels), tuple(data.train_inputs.shape[1:]), data.classes)
    if size != expected:
        raise ValueError(
            f"{name} in {folder} has {size}; expected {expected}. Download it again or, if these are other data, "
            "name their file or folder: --set data=PATH."
        )
    return data


def _load_digits() -> Labeled:
    """Load the demonstration's digits, 64 features in [0, 1] each: 797 to train on, 1,000 to test on."""
    digits = load_digits(per_class=797, seed=0)  # more than any class has, so all are labeled
    train, test = (digits.labeled, digits.labels), (digits.held_out, digits.held_out_labels)
    return Labeled(*train, *test, classes=10).shuffle()
