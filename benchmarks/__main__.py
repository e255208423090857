"""Run with ``make bench``: measures every case and keeps the figures in ``results/benchmarks``."""

import json
import platform
import sys
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import effdeg
from benchmarks.cases import ON_CPU, ON_GPU
from benchmarks.timing import device

FOLDER = Path(__file__).parent.parent / "results" / "benchmarks"


def main() -> None:
    """Run the cases named on the command line, or all."""
    cases = ON_GPU if device().type == "cuda" else ON_CPU
    chosen = [case for case in cases if case.__name__ in sys.argv[1:] or not sys.argv[1:]]
    table = Table("what", "ratio", "aim", "how", title=f"on {_processor()}")
    records = {}
    for case in chosen:
        Console(stderr=True).print(f"[dim]{case.__name__} …[/]")
        records[case.__name__] = record = case()
        if "ratio" in record:
            table.add_row(record["name"], f"{record['ratio']:.3g}", record["target"], record["detail"])
    Console(width=150).print(table)
    if chosen == cases:
        FOLDER.mkdir(parents=True, exist_ok=True)
        file = FOLDER / f"{'gpu' if device().type == 'cuda' else 'cpu'}.json"
        file.write_text(json.dumps({"environment": _environment(), "cases": records}, indent=1) + "\n")
        Console().print(f"kept in {file.relative_to(FOLDER.parent.parent)}")


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
