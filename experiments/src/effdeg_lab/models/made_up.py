"""Tiny made-up data sets and pretrained networks in the files of the real ones, for smoke tests and for the tests."""

import io
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from effdeg_lab.data import MADE_UP
from effdeg_lab.data.cifar10 import CIFAR10N
from effdeg_lab.data.completions import SCAN
from effdeg_lab.data.pacs import CLASSES as PACS_CLASSES
from effdeg_lab.data.pacs import DOMAINS
from effdeg_lab.data.sentences import LAYOUTS
from effdeg_lab.data.shifts import read_classes
from effdeg_lab.data.sources import Array, Arrays
from effdeg_lab.models import PRETRAINED
from effdeg_lab.models.pretrained import keep_zero_shot_head
from effdeg_lab.models.text import quiet_transformers

_TRAIN, _TEST = 400, 40
_COLORS = ("red", "green", "blue", "black", "white", "brown", "gray", "pink")
_ACTIONS = ("jump", "walk", "run", "look")
_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "dog", "it", "rains", "shines", "."]
Rows = Mapping[str, Sequence[tuple[int, int, bytes]]]
"""The label, the number and the bytes of every image, by split."""


def make_up(names: Iterable[str], folder: Path) -> Path:
    """Make the named data sets and pretrained networks in a folder, unless they are there, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MADE_UP).write_text("Made up by effdeg-lab --smoke: no result on these data means anything.\n")
    for name in dict.fromkeys(names):
        done = folder / f".{name}"
        if name in _MAKERS and not done.exists():
            # Each file appears at once and always with the same content, as another smoke test may be reading it.
            with tempfile.TemporaryDirectory(dir=folder) as temporary:
                _MAKERS[name](Path(temporary))
                for file in [file for file in Path(temporary).rglob("*") if file.is_file()]:
                    target = folder / file.relative_to(temporary)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    if not target.exists():
                        shutil.move(file, target)
            done.touch()
    return folder


def draw(count: int, shape: tuple[int, ...], seed: int, classes: int = 10) -> Arrays:
    """Draw images of noise, and as many labels of each class."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, *shape), dtype=np.uint8), rng.permutation(np.arange(count) % classes)


def encode(image: Array) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(stream, "PNG")
    return stream.getvalue()


def paint(color: Any, size: tuple[int, int] = (4, 4), kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, color).save(stream, kind)
    return stream.getvalue()


def draw_jpeg(label: int, number: int) -> bytes:
    """Draw a JPEG whose color tells its class, one of ten, in one of several sizes, wide and high."""
    rng = np.random.default_rng([label, number])
    size = (40 + 8 * (number % 3), 48 - 6 * (number % 4))
    color = np.array([25 * label, 255 - 25 * label, 128])
    pixels = np.clip(color + rng.normal(0, 20, (*size, 3)), 0, 255).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def write(file: Path, content: bytes) -> None:
    file.parent.mkdir(exist_ok=True, parents=True)
    file.write_bytes(content)


def write_human_arrays(folder: Path, labels: Mapping[str, Array]) -> None:
    folder.mkdir()
    arrays: dict[str, Any] = {name: each.astype(np.uint8) for name, each in labels.items()}
    np.savez(folder / "cifar10n.npz", **arrays)


def write_table(file: Path, images: Mapping[str, bytes], **columns: Sequence[Any]) -> None:
    """Write images by their paths as a table of the Hugging Face hub, with further columns."""
    file.parent.mkdir(parents=True, exist_ok=True)
    cells = [{"bytes": content, "path": path} for path, content in images.items()]
    pq.write_table(pa.table({"image": cells, **columns}), file)


def write_splits(folder: Path, train: Arrays, test: Arrays) -> None:
    for split, (images, labels) in {"train": train, "test": test}.items():
        encoded = {f"{number}.png": encode(image) for number, image in enumerate(images)}
        write_table(folder / f"{split}-0.parquet", encoded, label=labels.tolist())


def write_folders(folder: Path, images: Rows) -> None:
    """Write images into folders of their classes, as ImageNet has them."""
    for split, rows in images.items():
        for label, number, content in rows:
            write(folder / split / f"n{label:08d}" / f"n{label:08d}_{number}.JPEG", content)


def write_tiny_imagenet(folder: Path, rows: Mapping[str, Sequence[tuple[int, int]]]) -> None:
    """Write tables of images, given the label and the number of each, by split."""
    for split, each in rows.items():
        images = {f"{label}-{number}": draw_jpeg(label, 12 * number) for label, number in each}  # all of one size
        write_table(folder / f"{split}-0.parquet", images, label=[label for label, _ in each])


def write_pacs(folder: Path, *, tables: bool, brighter: int = 0, count: int = 3) -> None:
    """Write the domains of PACS: as many photos of each class as ``count``, and more of the other domains."""
    for place, domain in enumerate(DOMAINS):
        rows = [(f"{each}/{n}.png", label) for label, each in enumerate(PACS_CLASSES) for n in range(count + place)]
        images = {path: paint((label, place + brighter, int(path[-5]))) for path, label in rows}
        if tables:
            backwards = {path: images[path] for path, _ in rows[::-1]}
            file = folder / f"{domain}-00000-of-00001.parquet"
            write_table(file, backwards, label=[label for _, label in rows[::-1]])
        else:
            for path, content in images.items():
                write(folder / domain / path, content)


def write_glue(folder: Path, name: str) -> None:
    """Write a task of GLUE that can be learned: do two sentences, or two parts of one, speak of the same animal?"""
    layout, generator = LAYOUTS[name], torch.Generator().manual_seed(0)
    header = layout.header or ("index", *layout.columns)
    *texts, label = layout.columns
    for split, count in (("train", 60), ("dev", 40)):
        lines = [] if layout.header else ["\t".join(header)]
        for number in range(count):
            same, animal, more = torch.randint(0, 2, (3,), generator=generator).tolist()
            first = f"a {_WORDS[6 + animal]} {'. ' * (1 + 24 * more * (number % 5 == 0))}"
            second = f"a {_WORDS[6 + (animal if same else 1 - animal)]} ."
            sentences = [first, second] if len(texts) == 2 else [first + second]
            row = {**dict(zip(texts, sentences, strict=True)), label: layout.labels[1 - same]}
            lines.append("\t".join(row.get(column, str(number)) for column in header))
        write(folder / layout.folder / f"{split}.tsv", ("\n".join(lines) + "\n").encode())


def make_text_model(kind: str = "Bert") -> Any:
    import transformers

    torch.manual_seed(0)
    options = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_labels": 2}
    options |= {"intermediate_size": 32, "max_position_embeddings": 40, "pad_token_id": 1}
    if kind == "DistilBert":
        options |= {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}
    config = getattr(transformers, f"{kind}Config")(**options)
    return getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()


def write_text_model(folder: Path) -> None:
    import transformers

    with quiet_transformers():
        make_text_model().save_pretrained(folder)
    write(folder / "vocab.txt", "\n".join(_WORDS).encode())
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)


def write_language_model(folder: Path) -> None:
    """Write a tiny Llama and its tokenizer, which knows the words of the made-up tasks."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<pad>", "<eos>", "<unk>", "text:", "actions:", *_COLORS, *_ACTIONS, "is", "twice", "and", "."]
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    tokens = {"vocab_size": len(words), "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    config = transformers.LlamaConfig(**sizes, **tokens, max_position_embeddings=64, tie_word_embeddings=True)
    with quiet_transformers():
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
        transformers.LlamaForCausalLM(config).save_pretrained(folder)


def _write_rows(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    write(file, "".join(json.dumps(row) + "\n" for row in rows).encode())


def write_webnlg(folder: Path) -> None:
    """Write sets of triples of two colors, and two texts for each; unseen ones have other colors."""
    pairs = [(one, other) for one in _COLORS for other in _COLORS]
    for split, start, step in (("train", 0, 1), ("dev", 0, 3), ("test-seen", 1, 3), ("test-unseen", 2, 3)):
        rows = []
        for one, other in pairs[start::step]:
            targets = [f"{one} is {other} .", f"{other} and {one} ."]
            rows.append({"input": f"{one} | is | {other}", "targets": targets, "category": split, "triples": 1})
        _write_rows(folder / "webnlg" / f"{split}.jsonl", rows)


def write_scan(folder: Path) -> None:
    """Write commands of one or two words, and their actions; the last ones are to test on."""
    commands = [(one, other) for one in _ACTIONS for other in (*_ACTIONS, "twice")]
    rows = [
        {"input": f"{one} {other}", "target": f"I_{one.upper()} I_{(one if other == 'twice' else other).upper()}"}
        for one, other in commands
    ]
    for split in SCAN:
        _write_rows(folder / "scan" / f"{split}-train.jsonl", rows * 3)
        _write_rows(folder / "scan" / f"{split}-test.jsonl", rows[-8:])


def write_deit(file: Path, depth: int = 2) -> None:
    """Write DeiT-Tiny of random weights and few blocks, with timm's names."""
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {"cls_token": (1, 1, 192), "pos_embed": (1, 197, 192)}
    shapes |= {"patch_embed.proj.weight": (192, 3, 16, 16), "patch_embed.proj.bias": (192,)}
    shapes |= {"head.weight": (1000, 192), "head.bias": (1000,)}
    layers = {"attn.qkv": (576, 192), "attn.proj": (192, 192), "mlp.fc1": (768, 192), "mlp.fc2": (192, 768)}
    for block in range(depth):
        for name, (out, into) in layers.items():
            shapes |= {f"blocks.{block}.{name}.weight": (out, into), f"blocks.{block}.{name}.bias": (out,)}
    for name in ("norm", *(f"blocks.{block}.norm{place}" for block in range(depth) for place in (1, 2))):
        shapes |= {f"{name}.weight": (192,), f"{name}.bias": (192,)}
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: 0.05 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}, file)


def write_clip(folder: Path) -> None:
    """Write a tiny CLIP of random weights, for images of 32 pixels, with a tokenizer of single characters."""
    import transformers

    letters = sorted({*"abcdefghijklmnopqrstuvwxyz0123456789.,'()-"})
    vocabulary = [*letters, *(f"{each}</w>" for each in letters), "<|startoftext|>", "<|endoftext|>"]
    size = len(vocabulary)
    write(folder / "vocab.json", json.dumps({token: place for place, token in enumerate(vocabulary)}).encode())
    write(folder / "merges.txt", b"#version: 0.2\n")
    special = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    special |= {"pad_token": "<|endoftext|>", "tokenizer_class": "CLIPTokenizer"}
    write(folder / "tokenizer_config.json", json.dumps({**special, "model_max_length": 77}).encode())
    sizes = {"intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "projection_dim": 12}
    tokens = {"vocab_size": size, "bos_token_id": size - 2, "eos_token_id": size - 1, "pad_token_id": size - 1}
    config = transformers.CLIPConfig(
        text_config={"hidden_size": 16, "max_position_embeddings": 77, **sizes, **tokens},
        vision_config={"hidden_size": 24, "image_size": 32, "patch_size": 16, **sizes},
        projection_dim=12,
        logit_scale_init_value=math.log(100.0),
    )
    torch.manual_seed(0)
    model = transformers.CLIPModel(config)
    with torch.no_grad():  # drawn so small that all texts would be alike
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(20)
    with quiet_transformers():
        model.save_pretrained(folder)


def _make_cifar10(folder: Path) -> None:
    write_splits(folder / "cifar10", draw(_TRAIN, (3, 32, 32), 0), draw(_TEST, (3, 32, 32), 1))
    paths = [f"{shape}/{shape}1-{texture}2.png" for shape in ("cat", "dog", "car") for texture in ("bird", "boat")]
    write_table(folder / "shapes" / "cue-conflict-0.parquet", {path: paint(place) for place, path in enumerate(paths)})


def _make_cifar10n(folder: Path) -> None:
    _make_cifar10(folder)
    clean, rng = draw(_TRAIN, (3, 32, 32), 0)[1], np.random.default_rng(8)
    wrong = {name.removeprefix("cifar10n-"): rng.random(_TRAIN) < 0.4 for name in CIFAR10N}
    labels = {name: np.where(each, rng.integers(0, 10, _TRAIN), clean) for name, each in wrong.items()}
    write_human_arrays(folder / "cifar10n", {"clean": clean, **labels})


def _make_mnist(folder: Path) -> None:
    # A digit is as bright as it is large: in MNIST-CIFAR, this half is the simple one.
    splits = (draw(_TRAIN, (1, 28, 28), 2), draw(_TEST, (1, 28, 28), 3))
    train, test = (
        (images // 8 + 24 * labels[:, None, None, None].astype(np.uint8), labels) for images, labels in splits
    )
    write_splits(folder / "mnist", train, test)


def _make_mnist_cifar(folder: Path) -> None:
    _make_mnist(folder)
    _make_cifar10(folder)


def _make_tiny_imagenet(folder: Path) -> None:
    rows = {"train": range(40), "val": range(40, 44)}
    splits = {split: [(label, number) for number in numbers for label in range(10)] for split, numbers in rows.items()}
    write_tiny_imagenet(folder / "tiny-imagenet", splits)


def _make_imagenet(folder: Path) -> None:
    """Write an image of each class, as there must be a thousand, of ImageNet and of two of its shifts."""
    jpegs = [draw_jpeg(number % 10, number) for number in range(40)]
    rows = {split: [(label, 0, jpegs[label % 40]) for label in range(1000)] for split in ("train", "val")}
    write_folders(folder / "imagenet", rows)
    for number, each in enumerate(read_classes()):
        for name, is_member in (("imagenet-r", each.in_r), ("imagenet-a", each.in_a)):
            if is_member:
                write(folder / name / each.wnid / "0.jpg", jpegs[number % 40])


_FOREIGN = """import torch


def load(folder):
    torch.manual_seed(len(folder.name))
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 1000)).eval(), {"size": 8}


def picture(image, settings):
    image = image.convert("RGB").resize((settings["size"],) * 2)
    return torch.tensor(list(image.getdata())).view(settings["size"], settings["size"], 3).permute(2, 0, 1) / 255
"""


def _make_foreign(folder: Path) -> None:
    """Write images of a thousand classes, and classifiers with their code."""
    images = {f"{label}.jpg": draw_jpeg(label % 10, label) for label in range(60)}
    write_table(folder / "foreign" / "val-00000-of-00001.parquet", images, label=[*range(60)])
    write(folder / "classifiers" / "classifiers.py", _FOREIGN.encode())
    for name in ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2", "resnet50_keras"):
        write(folder / "classifiers" / name / "settings.json", b"{}")


def _make_clip(folder: Path, name: str) -> None:
    write_clip(folder / PRETRAINED[name].place)
    generator = torch.Generator().manual_seed(0)
    keep_zero_shot_head(folder / PRETRAINED[name].place, 10 * torch.randn(1000, 12, generator=generator))


_MAKERS: Mapping[str, Callable[[Path], None]] = {
    "cifar10": _make_cifar10,
    **dict.fromkeys(CIFAR10N, _make_cifar10n),
    "mnist": _make_mnist,
    "mnist-cifar": _make_mnist_cifar,
    "tiny-imagenet": _make_tiny_imagenet,
    "imagenet": _make_imagenet,
    "foreign": _make_foreign,
    "pacs": lambda folder: write_pacs(folder / "pacs", tables=True, count=12),
    **{name: partial(write_glue, name=name) for name in LAYOUTS},
    "all-MiniLM-L6-v2": lambda folder: write_text_model(folder / "all-MiniLM-L6-v2"),
    "SmolLM2-135M-Instruct": lambda folder: write_language_model(folder / "SmolLM2-135M-Instruct"),
    "webnlg": write_webnlg,
    **{f"scan-{split}": write_scan for split in SCAN},
    "deit-tiny": lambda folder: write_deit(folder / PRETRAINED["deit-tiny"].place),
    **{name: partial(_make_clip, name=name) for name in ("clip-b32", "clip-b16")},
}
"""What makes a data set or a pretrained network in a data folder, by name."""
