"""Scale one layer of a ReLU network up and the next down: the function stays the same. Which measures notice?

python docs/rescaling.py        # writes results/rescaling.json; a minute on two cores
"""

import copy
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from effdeg import proxies
from effdeg.demo import load_digits
from effdeg.io import write_json

RECORD = Path(__file__).parent.parent / "results" / "rescaling.json"
SCALES = [2.0**power for power in range(-4, 5)]
NAMES = [
    *("effective_degree", "effective_degree_normalized", "total_variation", "path_norm", "jacobian_norm"),
    *("adaptive_sharpness@0.5", "sharpness@0.05", "average_sharpness", "hessian_trace"),
    *("parameter_norm", "frobenius_sum", "spectral_sum", "frobenius_product", "spectral_product"),
]


def main() -> None:
    """Train a network, rescale it in all ways, and keep what every proxy says."""
    torch.manual_seed(0)
    digits = load_digits(per_class=20, seed=0)
    model = nn.Sequential(nn.Linear(64, 128, bias=False), nn.ReLU(), nn.Linear(128, 10, bias=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(300):
        optimizer.zero_grad()
        cross_entropy(model(digits.labeled), digits.labels).backward()
        optimizer.step()
    rows = []
    for scale in SCALES:
        other = copy.deepcopy(model)
        with torch.no_grad():
            other[0].weight.mul_(scale)
            other[2].weight.div_(scale)
        data = (digits.labeled, digits.labels)
        table = proxies.evaluate(
            other, data, cross_entropy, names=NAMES, dtype=torch.float64, paths=200, nodes=50, degree=20
        )
        rows.append({"scale": scale, **table.row()})
        print(f"scale {scale:g}")
    write_json(RECORD, {"command": "python docs/rescaling.py", "torch": torch.__version__, "rows": rows})


if __name__ == "__main__":
    main()
