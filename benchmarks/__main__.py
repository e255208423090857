"""Run with ``make bench``: measures every case and keeps the figures in ``results/benchmarks``."""

import argparse
import json
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import effdeg
from benchmarks.cases import ON_CPU, ON_GPU
from benchmarks.timing import device
from effdeg.io import write_json

FOLDER = Path(__file__).parent.parent / "results" / "benchmarks"


def main() -> None:
    """Run the cases named on the command line, or all; keep each record as soon as it is measured."""
    kind = device().type
    cases = {case.__name__: case for case in (ON_GPU if kind == "cuda" else ON_CPU)}
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    parser.add_argument("case", nargs="*", help=f"on this machine ({kind}): {', '.join(cases)}; by default all")
    text = "of imagenet_throughput; the rows of others are kept"
    parser.add_argument("--variants", nargs="+", default=[], help=text)
    names, variants = (given := parser.parse_args()).case, given.variants
    if unknown := [name for name in names if name not in cases]:
        parser.error(f"{', '.join(unknown)}: not a case on this machine ({kind}), which has {', '.join(cases)}.")
    table = Table("what", "ratio", "aim", "how", title=f"on {_processor()}")
    for name in names or cases:
        Console(stderr=True).print(f"[dim]{name} …[/]")
        found = cases[name](variants) if variants and name == "imagenet_throughput" else cases[name]()
        for record in found if isinstance(found, Iterator) else [found]:
            _keep(name, record, join=record is not found)
            if "ratio" in record:
                table.add_row(record["name"], f"{record['ratio']:.3g}", record["target"], record["detail"])
            for row in record.get("rows", []):
                Console(width=150).print(row)
    Console(width=150).print(table)


def _keep(name: str, record: dict[str, Any], *, join: bool) -> None:
    """Add a case's record to those of the same machine and versions of what effdeg needs; others are dropped.

    Rows are joined with those of the same case: a variant's and method's new row replaces the old one.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = FOLDER / f"{'gpu' if device().type == 'cuda' else 'cpu'}.json"
    environment = _environment()
    kept = json.loads(file.read_text()) if file.exists() else {}
    cases = kept["cases"] if kept.get("environment") == environment else {}
    if join and name in cases:
        rows = {(row["variant"], row["method"]): row for row in [*cases[name]["rows"], *record["rows"]]}
        record = record | {"rows": list(rows.values())}
    record = record | {"effdeg": effdeg.__version__}
    write_json(file, {"environment": environment, "cases": {**cases, name: record}})


def _environment() -> dict[str, object]:
    return {
        "command": "python -m benchmarks",
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def _processor() -> str:
    if device().type == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


if __name__ == "__main__":
    main()
