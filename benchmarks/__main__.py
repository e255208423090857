"""Run with ``make bench``: measures every case and keeps the figures in ``results/benchmarks``."""

import json
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import effdeg
from benchmarks.cases import ON_CPU, ON_GPU
from benchmarks.timing import device

FOLDER = Path(__file__).parent.parent / "results" / "benchmarks"


def main() -> None:
    """Run the cases named on the command line, or all, and keep each as soon as it is done."""
    cases = ON_GPU if device().type == "cuda" else ON_CPU
    chosen = [case for case in cases if case.__name__ in sys.argv[1:] or not sys.argv[1:]]
    table = Table("what", "ratio", "aim", "how", title=f"on {_processor()}")
    for case in chosen:
        Console(stderr=True).print(f"[dim]{case.__name__} …[/]")
        record = case()
        _keep(case.__name__, record)
        if "ratio" in record:
            table.add_row(record["name"], f"{record['ratio']:.3g}", record["target"], record["detail"])
        for row in record.get("rows", []):
            Console(width=150).print(row)
    Console(width=150).print(table)


def _keep(name: str, record: dict[str, Any]) -> None:
    """Put a case's record beside those of the same machine and versions; others are dropped."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = FOLDER / f"{'gpu' if device().type == 'cuda' else 'cpu'}.json"
    environment = _environment()
    kept = json.loads(file.read_text()) if file.exists() else {}
    cases = kept["cases"] if kept.get("environment") == environment else {}
    file.write_text(json.dumps({"environment": environment, "cases": {**cases, name: record}}, indent=1) + "\n")


def _environment() -> dict[str, object]:
    return {
        "command": "python -m benchmarks",
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "effdeg": effdeg.__version__,
    }


def _processor() -> str:
    if device().type == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


if __name__ == "__main__":
    main()
