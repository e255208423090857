"""What large pools need of memory, and what is lost when programs are killed."""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from benchmarks.timing import Record, make_record
from effdeg._utils.files import checksum

KILLS = 10
"""Kills of each program."""
_SWEEP = "digits-methods --method plain --method mixup --seeds 0 --set epochs=5 --no-tune"


def network() -> nn.Module:
    """Return the network of these cases: 10 classes of vectors."""
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def pool_memory() -> Record:
    """Measure a pool of 1,000 checkpoints, against one of 100: peak memory, each in a process of its own."""
    peaks = []
    for count in (100, 1000):
        with tempfile.TemporaryDirectory() as folder:
            _save_checkpoints(Path(folder), count)
            call = f"effdeg.measure_pool(network(), [{folder!r}], torch.randn(200, 64), paths=10, nodes=20, degree=10)"
            peaks.append(_peak(call))
    detail = f"10 classes, 10 paths × 20 nodes; {peaks[0]:.0f} and {peaks[1]:.0f} MiB"
    return make_record("peak memory of a pool of 1,000 / 100 checkpoints", peaks[1] / peaks[0], "≤ 1.1", detail)


def pick_memory() -> Record:
    """Pick among 100 models with 10,000 examples, against 10 models: peak memory, each in a process of its own."""
    peaks = [
        _peak(f"effdeg.pick([network() for _ in range({count})], torch.randn(10_000, 64), examples=10_000)")
        for count in (10, 100)
    ]
    detail = f"10,000 examples, 10 classes; {peaks[0]:.0f} and {peaks[1]:.0f} MiB, models of 0.1 MiB included"
    return make_record("peak memory of pick among 100 / 10 models", peaks[1] / peaks[0], "≤ 1.5", detail)


def random_kills() -> Record:
    """Kill each program at random times and start it again; compare with what it keeps when it is not disturbed."""
    rows = [_disturb(program) for program in _PROGRAMS]
    detail = f"{KILLS} SIGKILLs of each program, at times drawn from its whole duration"
    return {"name": "finished parts that were lost to kills", "detail": detail, "rows": rows}


@dataclass(frozen=True)
class _Program:
    name: str
    arguments: Callable[[Path], list[str]]
    """The command, given the folder that it writes to."""
    finished: Callable[[Path], dict[str, str]]
    """What is kept of its finished parts, by name; without times, which differ between calls."""


def _disturb(program: _Program) -> Record:
    with tempfile.TemporaryDirectory() as shared:
        folder = Path(shared)
        _save_checkpoints(folder / "checkpoints", 12)
        torch.save(torch.randn(400, 64), folder / "data.pt")
        (folder / "campaign.txt").write_text(_SWEEP)
        start = time.perf_counter()
        _run(program, folder / "calm", folder)
        duration = time.perf_counter() - start
        expected = program.finished(folder / "calm")

        kills, lost, rounds = 0, 0, 0
        draw = random.Random(0)
        while kills < KILLS:
            place = folder / f"round-{rounds}"
            kept: dict[str, str] = {}
            while not _run(program, place, folder, seconds=draw.uniform(0, duration) if kills < KILLS else None):
                kills += 1
                now = program.finished(place)
                lost += sum(now.get(name) != content for name, content in kept.items())
                kept = now
            lost += sum(program.finished(place).get(name) != content for name, content in expected.items())
            rounds += 1
    return {"program": program.name, "parts": len(expected), "kills": kills, "rounds": rounds, "lost": lost}


def _run(program: _Program, place: Path, data: Path, seconds: float | None = None) -> bool:
    """Run the program, and kill it and its children after some seconds; return whether it came to its end."""
    place.mkdir(exist_ok=True)
    command = [sys.executable, "-m", *program.arguments(place)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with (place / "output.txt").open("w") as output:
        process = subprocess.Popen(
            command, cwd=data, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return False
    if code:
        raise RuntimeError(f"{program.name} failed after {seconds} s: {(place / 'output.txt').read_text()}")
    return True


def _read_table(place: Path) -> dict[str, str]:
    """Return the rows of a pool by model, without ``disagreement``, which changes as models are added."""
    table = place / "pool.csv"
    if not table.exists():
        return {}
    with table.open(newline="") as file:
        rows = [{key: cell for key, cell in row.items() if key != "disagreement"} for row in csv.DictReader(file)]
    return {row["model"]: json.dumps(row) for row in rows}


def _read_kept(place: Path) -> dict[str, str]:
    return {file.name: checksum(file) for file in (place / "kept").glob("[!.]*")}


def _read_records(place: Path) -> dict[str, str]:
    """Return the accuracies that the lab's records hold of every epoch and run. A torn last line is not finished."""
    parts = {}
    for file in place.rglob("*.jsonl"):
        for number, line in enumerate(file.read_text().rpartition("\n")[0].splitlines()):
            for name, values in json.loads(line).items():
                if name in ("metrics", "summary"):
                    accuracies = {key: value for key, value in values.items() if "accuracy" in key}
                    parts[f"{file.relative_to(place)}:{number}"] = json.dumps(accuracies)
    return parts


def _lab(*arguments: str) -> Callable[[Path], list[str]]:
    return lambda place: ["effdeg_lab", *arguments, "--runs", str(place)]


_PROGRAMS = [
    _Program(
        "effdeg pool",
        lambda place: [
            *("effdeg", "pool", "benchmarks.load:network", "--weights", "checkpoints", "--data", "data.pt"),
            *("--paths", "100", "--nodes", "50", "--out", str(place / "pool.csv")),
        ],
        _read_table,
    ),
    _Program(
        "effdeg pick",
        lambda place: [
            *("effdeg", "pick", "benchmarks.load:network", "--weights", "checkpoints", "--data", "data.pt"),
            *("--keep", str(place / "kept")),
        ],
        _read_kept,
    ),
    _Program("effdeg-lab run", _lab("run", "digits-methods", "--set", "epochs=40", "--device", "cpu"), _read_records),
    _Program("effdeg-lab sweep", _lab("sweep", *_SWEEP.split(), "--device", "cpu"), _read_records),
    _Program("effdeg-lab campaign", _lab("campaign", "campaign.txt", "--device", "cpu"), _read_records),
]
CASES = (pool_memory, pick_memory, random_kills)


def _save_checkpoints(folder: Path, count: int) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(count):
        torch.manual_seed(number)
        torch.save(network().state_dict(), folder / f"{number:04}.pt")


def _peak(call: str) -> float:
    """Return the peak memory in MiB of a process that makes a call.

    All large arrays are mapped on their own: else glibc keeps much of what is freed, three times what is in use.
    """
    imports = "import effdeg, torch\nfrom benchmarks.load import network\nfrom benchmarks.timing import read_peak"
    code = f"{imports}\n{call}\nprint(read_peak() / 2**20)"
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
    command = [sys.executable, "-W", "ignore", "-c", code]
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
