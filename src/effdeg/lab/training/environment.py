"""What a run ran on."""

import platform
from pathlib import Path

import torch

from effdeg._utils.distributed import rank_and_size
from effdeg._version import __version__
from effdeg.lab.training.turns import shares_gpu


def environment(device: torch.device) -> dict[str, str | int]:
    """Describe the machine and the versions, to be kept with the results."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "effdeg": __version__,
        "processes": rank_and_size()[1],
        **({"shared": True} if shares_gpu(device) else {}),
    }


def _processor() -> str:
    known = Path("/proc/cpuinfo")
    lines = known.read_text(errors="replace").splitlines() if known.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"CPU ({names[0] if names else platform.machine()}, {torch.get_num_threads()} threads)"
