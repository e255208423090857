"""Sentences and pairs of sentences with their classes: GLUE's tasks, in the layout of GLUE or the Hugging Face hub."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from effdeg_lab.core.settings import suggest
from effdeg_lab.data.sources import HUB, explain_missing, require_folder


@dataclass(frozen=True)
class Sentences:
    first: tuple[str, ...]
    second: tuple[str, ...] | None  # of pairs of sentences
    labels: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class TextTask:
    train: Sentences
    dev: Sentences
    classes: int
    metric: str  # what it is judged by: accuracy or matthews


class _Layout(NamedTuple):
    folder: str
    metric: str
    columns: tuple[str, ...]  # in GLUE's TSV files: the texts, then the label
    header: tuple[str, ...] | None  # of a file that has none
    labels: tuple[str, ...]  # in the order of their ids
    hub_columns: tuple[str, ...]


_PAIR, _ONE = ("sentence1", "sentence2", "label"), ("sentence", "label")
LAYOUTS = {
    "rte": _Layout("RTE", "accuracy", _PAIR, None, ("entailment", "not_entailment"), _PAIR),
    "mrpc": _Layout("MRPC", "accuracy", ("#1 String", "#2 String", "Quality"), None, ("0", "1"), _PAIR),
    "cola": _Layout("CoLA", "matthews", _ONE, ("source", "label", "mark", "sentence"), ("0", "1"), _ONE),
}
"""The layouts of the tasks' files, by name."""


def load_task(name: str, folder: Path | None) -> TextTask:
    """Load a task from the folder that holds the data sets.

    It is looked for in ``glue/RTE`` and ``RTE`` (GLUE's ``train.tsv`` and ``dev.tsv``) and in ``glue/rte`` and ``rte``
    (the hub's ``train-*.parquet`` and ``validation-*.parquet``).
    """
    if name not in LAYOUTS:
        raise ValueError(f"data={name!r} is not a task. {suggest(name, LAYOUTS)}")
    layout = LAYOUTS[name]
    with explain_missing(name, folder, f"nyu-mll/glue {HUB} (a folder of DIR/glue for each task)"):
        train, dev = _read_splits(name, layout, require_folder(name, folder))
    classes = len(layout.labels)
    for split, sentences in (("train", train), ("dev", dev)):
        _check(f"{name}: {split}", sentences, classes)
    return TextTask(train, dev, classes, layout.metric)


def _read_splits(name: str, layout: _Layout, folder: Path) -> tuple[Sentences, Sentences]:
    places = [folder / "glue" / layout.folder, folder / layout.folder, folder / "glue" / name, folder / name]
    for place in places:
        files = [place / "train.tsv", place / "dev.tsv"]
        train, dev = (sorted(place.glob(f"{split}-*.parquet")) for split in ("train", "validation"))
        if all(file.is_file() for file in files):
            return _read_tsv(files[0], layout), _read_tsv(files[1], layout)
        if train and dev:
            return _read_parquet(train, layout), _read_parquet(dev, layout)
    raise FileNotFoundError(
        f"{name} was not found: expected train.tsv and dev.tsv (GLUE's own), or train-*.parquet and "
        f"validation-*.parquet (as on the Hugging Face hub) in {', '.join(map(str, places[:-1]))} or {places[-1]}."
    )


def _read_tsv(file: Path, layout: _Layout) -> Sentences:
    # Quotation marks are part of the sentences, and a byte-order mark is not.
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8: {error}.") from error
    rows = [row for row in csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if row]
    header = list(layout.header) if layout.header else (rows.pop(0) if rows else [])
    if missing := [column for column in layout.columns if column not in header]:
        raise ValueError(f"{file} has no column {missing[0]!r}: its header is {header}.")
    places = [header.index(column) for column in layout.columns]
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise ValueError(f"{file}: row {number} has {len(row)} columns; expected {len(header)}: {header}.")
    *texts, labels = ([row[place] for row in rows] for place in places)
    ids = {label: number for number, label in enumerate(layout.labels)}
    if unknown := sorted({*labels} - {*ids}):
        raise ValueError(f"{file}: the label {unknown[0]!r} is not one of {', '.join(layout.labels)}.")
    return _make(texts, [ids[label] for label in labels])


def _read_parquet(files: Sequence[Path], layout: _Layout) -> Sentences:
    table = pq.read_table(files)
    if missing := [column for column in layout.hub_columns if column not in table.column_names]:
        raise ValueError(f"{files[0]} has no column {missing[0]!r}: it has {', '.join(table.column_names)}.")
    *texts, labels = (table.column(column).to_pylist() for column in layout.hub_columns)
    return _make(texts, labels)


def _make(texts: Sequence[Sequence[str]], labels: Sequence[int]) -> Sentences:
    return Sentences(tuple(texts[0]), tuple(texts[1]) if len(texts) > 1 else None, tuple(labels))


def _check(what: str, sentences: Sentences, classes: int) -> None:
    if not len(sentences):
        raise ValueError(f"{what} has no examples.")
    for column in (sentences.first, sentences.second or sentences.first):
        if empty := [place for place, text in enumerate(column) if not (isinstance(text, str) and text.strip())]:
            raise ValueError(f"{what}: the sentence of example {empty[0]} is empty or not a text.")
    # Numbers such as 1.0 would be targets of a different loss.
    if unknown := [label for label in sentences.labels if type(label) is not int or label not in range(classes)]:
        hint = " The test sets of GLUE have -1, as their labels are hidden." if unknown[0] == -1 else ""
        raise ValueError(f"{what}: the label {unknown[0]!r} is not one of 0 to {classes - 1}.{hint}")
    if len({*sentences.labels}) == 1:
        raise ValueError(f"{what}: all labels are {sentences.labels[0]}; expected examples of {classes} classes.")
