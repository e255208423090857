"""Where data sets and pretrained networks are published, for errors that say what is missing."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HUB = "on the Hugging Face hub"
_CIFAR10 = "https://www.cs.toronto.edu/~kriz/cifar.html (unpacked in DIR), "
_CIFAR10 += f"or uoft-cs/cifar10 {_HUB} (its files in DIR/cifar10)"
_MNIST = f"ylecun/mnist {_HUB} (its files in DIR/mnist)"
_SOURCES = {
    "cifar10": _CIFAR10,
    "cifar10n": f"{_CIFAR10}; people's labels in CIFAR-10_human.pt of https://github.com/UCSC-REAL/cifar-10-100n",
    "mnist": _MNIST,
    "mnist-cifar": f"{_MNIST}, and {_CIFAR10}",
    "tiny-imagenet": f"zh-plus/tiny-imagenet {_HUB} (its files in DIR/tiny-imagenet)",
    "imagenet": f"https://image-net.org, or ILSVRC/imagenet-1k {_HUB} (its files in DIR/imagenet)",
    "pacs": "https://dali-dl.github.io/project_iccv2017.html (folders DOMAIN/CLASS in DIR/pacs)",
    **dict.fromkeys(("rte", "mrpc", "cola"), f"nyu-mll/glue {_HUB} (a folder of DIR/glue for each task)"),
    "deit-tiny": f"timm/deit_tiny_patch16_224.fb_in1k {_HUB} (model.safetensors, to be renamed)",
    "clip-b32": f"openai/clip-vit-base-patch32 {_HUB}",
    "clip-b16": f"openai/clip-vit-base-patch16 {_HUB}",
    "all-MiniLM-L6-v2": f"sentence-transformers/all-MiniLM-L6-v2 {_HUB}",
}


@contextmanager
def explain_missing(name: str, folder: Path | None) -> Iterator[None]:
    """Add to an error that files were not found, or that no folder was given, where they are published."""
    try:
        yield
    except (FileNotFoundError, ValueError) as error:
        if folder is None or isinstance(error, FileNotFoundError):
            error.missing = name  # type: ignore[union-attr]  # for effdeg-lab list
            if source := _SOURCES.get("cifar10n" if name.startswith("cifar10n-") else name):
                error.add_note(f"{name} is published: {source}. Nothing is downloaded for you; DIR is --data.")
            error.add_note("To try the recipe without these files, on tiny made-up ones: --smoke")
        raise
