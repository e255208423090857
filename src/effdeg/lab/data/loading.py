"""Data sets by name."""

from collections.abc import Callable
from pathlib import Path

from effdeg._utils.checks import suggest
from effdeg.lab.data.cifar10 import load_cifar10
from effdeg.lab.data.digits import load_digits
from effdeg.lab.data.labelled import Labelled
from effdeg.lab.data.layouts import LAYOUTS, load_path
from effdeg.lab.data.mnist import load_mnist
from effdeg.lab.data.mnist_cifar import load_mnist_cifar

_IN_FOLDER: dict[str, Callable[[Path], Labelled]] = {
    "cifar10": load_cifar10,
    "mnist": load_mnist,
    "mnist-cifar": load_mnist_cifar,
}


def load(name: str, folder: Path | None) -> Labelled:
    """Load a data set.

    Args:
        name: ``digits``, which needs no folder; ``cifar10``, ``mnist`` or ``mnist-cifar``, which is made of both; or a
            file or folder in a known layout, by its path from where one stands (if it has a slash or a suffix) or
            within the data folder.
        folder: The folder that holds the data sets.

    Returns:
        The data set. What is neither ``cifar10`` nor ``mnist``, which are shuffled already, comes in a random order
        that is always the same, so that the first and the last examples are a fair sample.
    """
    if name == "digits":
        return load_digits()
    if name in _IN_FOLDER:
        return _IN_FOLDER[name](_existing(folder, name))
    path = Path(name)
    if not path.is_absolute() and not (("/" in name or path.suffix) and path.exists()):
        path = _existing(folder, name) / name
    if not path.exists():
        raise FileNotFoundError(f"data={name!r} is not known, and {path} does not exist. {_known(name)}")
    return load_path(path)


def _existing(folder: Path | None, name: str) -> Path:
    if folder is None:
        hint = "" if name in _IN_FOLDER else f" {_known(name)}"
        raise ValueError(f"data={name!r} needs the folder that holds it: give --data DIR or set EFFDEG_DATA.{hint}")
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}, which should hold data={name!r}, is not a folder: give another --data DIR.")
    return folder


def _known(name: str) -> str:
    return f"{suggest(name, ['digits', *_IN_FOLDER])} A data set of your own is {LAYOUTS}."
