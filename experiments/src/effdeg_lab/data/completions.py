"""Prompts and their completions, from files of one JSON object per line: WebNLG and SCAN."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from effdeg_lab.core.settings import suggest
from effdeg_lab.data.sources import explain_missing, require_folder

SCAN = ("jump", "length", "around-right")
"""The splits of SCAN whose test commands combine known words in new ways, or are longer."""
_ACTIONS = {"TURN_LEFT": "left", "TURN_RIGHT": "right", "JUMP": "jump", "WALK": "walk", "RUN": "run", "LOOK": "look"}
_WEBNLG = "https://github.com/ThiagoCF05/webnlg, v1.6 (as DIR/webnlg/{train,dev,test-seen,test-unseen}.jsonl)"
_SCAN = "https://github.com/brendenlake/SCAN (as DIR/scan/SPLIT-{train,test}.jsonl)"


@dataclass(frozen=True)
class Completions:
    """Prompts, each with one or more completions that would be right."""

    prompts: tuple[str, ...]
    references: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        return len(self.prompts)


Split = Mapping[str, Completions]


def load_completions(name: str, folder: Path | None) -> Split:
    """Load a task from the folder that holds the data sets: ``train``, ``test`` and perhaps ``dev`` and ``unseen``.

    ``webnlg`` has sets of triples and texts that say the same; ``unseen`` are those of categories that are not in
    ``train``. ``scan-jump`` and its relatives have commands and actions, each of which is one short word.
    """
    if name not in TASKS:
        raise ValueError(f"data={name!r} is not a task. {suggest(name, TASKS)}")
    source, files, read = TASKS[name]
    with explain_missing(name, folder, source):
        places = {split: require_folder(name, folder) / file for split, file in files.items()}
        if missing := [file for file in places.values() if not file.is_file()]:
            raise FileNotFoundError(f"{name} was not found: expected {missing[0]}.")
    return {split: _read(file, read) for split, file in places.items()}


def _read(file: Path, read: Callable[[Any], tuple[str, tuple[str, ...]]]) -> Completions:
    prompts, references = list[str](), list[tuple[str, ...]]()
    for number, line in enumerate(file.read_text(encoding="utf-8").rstrip("\n").split("\n"), 1):
        try:
            prompt, completions = read(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file}, line {number}: {type(error).__name__}: {error}.") from error
        if not completions:  # WebNLG has a set of triples without any text
            continue
        if not prompt.strip() or not all(map(str.strip, completions)):
            raise ValueError(f"{file}, line {number}: the prompt or a completion is empty.")
        prompts.append(prompt)
        references.append(completions)
    if not prompts:
        raise ValueError(f"{file} has no examples.")
    return Completions(tuple(prompts), tuple(references))


def _read_webnlg(row: Any) -> tuple[str, tuple[str, ...]]:
    return f"{row['input'].replace('_', ' ')}\ntext:", tuple(f" {text}" for text in row["targets"])


def _read_scan(row: Any) -> tuple[str, tuple[str, ...]]:
    words = [_ACTIONS[action.removeprefix("I_")] for action in row["target"].split()]
    return f"{row['input']}\nactions:", ("".join(f" {word}" for word in words),)


_Task = tuple[str, Mapping[str, str], Callable[[Any], tuple[str, tuple[str, ...]]]]
_SPLITS = {"train": "train", "dev": "dev", "test": "test-seen", "unseen": "test-unseen"}
TASKS: Mapping[str, _Task] = {
    "webnlg": (_WEBNLG, {split: f"webnlg/{file}.jsonl" for split, file in _SPLITS.items()}, _read_webnlg),
    **{f"scan-{kind}": (_SCAN, {s: f"scan/{kind}-{s}.jsonl" for s in ("train", "test")}, _read_scan) for kind in SCAN},
}
"""Where a task is published, its files in the data folder by split, and how a row is read; by the task's name."""
