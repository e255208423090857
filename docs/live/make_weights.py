"""Train the three networks of the live picture and write them, with the digits it shows, to weights.js.

    python docs/live/make_weights.py

It takes about a minute on a CPU, and writes the same file each time on one machine. The networks differ in their loss
alone: cross-entropy, that of mixup, or cross-entropy and the penalty. Widths, steps and the penalty's settings were
chosen for a clear picture, with the held-out digits in view; the picture shows no accuracies.
"""

import base64
import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import effdeg
from effdeg.baselines import mixup
from effdeg.demo import POOL, Digits, load_digits
from effdeg.functional import chebyshev_nodes, effective_degree, fit

FILE = Path(__file__).with_name("weights.js")
PREFIX, SUFFIX = "// Written by make_weights.py.\nwindow.effdegLive = ", ";\n"
NODES, DEGREE = 200, 40  # of the fits in the page: the defaults of effdeg.measure
WIDTH, STEPS, BATCH, LEARNING_RATE, WEIGHT = 96, 1500, 64, 3e-3, 60.0
SHOWN = 2  # digits of each class
PATHS = 400  # that the mean effective degree is measured on
NETWORKS = {"plain": "Plain", "mixup": "Mixup", "ed": "ED penalty"}


def make_network() -> nn.Sequential:
    """Make a network from 64 pixels to 10 logits, with weights from torch's global generator."""
    return nn.Sequential(nn.Linear(64, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 10))


def train(method: str, digits: Digits, steps: int = STEPS) -> nn.Sequential:
    """Train a network in one of the three ways."""
    torch.manual_seed(0)
    model = make_network()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    penalty = effdeg.Penalty(degree=7, nodes=10, pairs=1.0, anchor="labels")
    weight = effdeg.SineRamp(WEIGHT, steps=steps // 3)
    for step in range(steps):
        rows = torch.randint(len(digits.labels), (BATCH,))
        x, y = digits.labeled[rows], digits.labels[rows]
        if method == "ed":
            logits, degree = penalty(model, x, y)
            loss = cross_entropy(logits, y) + weight(step) * degree
        else:
            x, y = mixup(x, y, classes=10) if method == "mixup" else (x, y)
            loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model


def encode(model: nn.Sequential) -> list[dict[str, str]]:
    """Round each weight to one byte, in steps that each row of a matrix has to itself, and write all in base64."""
    layers = []
    for layer in model[::2]:
        weight, bias = layer.weight.detach(), layer.bias.detach()
        step = weight.abs().amax(1) / 127
        whole = (weight / step[:, None]).round().to(torch.int8)
        layers.append({"weight": _to_base64(whole), "step": _to_base64(step), "bias": _to_base64(bias)})
    return layers


def decode(layers: list[dict[str, str]]) -> nn.Sequential:
    """Return the network that the page computes with, in float64."""
    model = make_network().double()
    for layer, stored in zip(model[::2], layers, strict=True):
        step = _from_base64(stored["step"], "<f4")
        whole = _from_base64(stored["weight"], "i1").view(layer.weight.shape)
        layer.weight.data = whole * step[:, None]
        layer.bias.data = _from_base64(stored["bias"], "<f4")
    return model


def read(file: Path = FILE) -> dict[str, Any]:
    """Read the file that this script wrote."""
    return json.loads(file.read_text().removeprefix(PREFIX).removesuffix(SUFFIX))


def pixels(data: dict[str, Any]) -> Tensor:
    """Return the digits in the page, of shape ``(digits, 64)``."""
    return _from_base64(data["digits"], "u1").view(-1, 64) / 16


@torch.no_grad()
def path_degree(model: nn.Module, first: Tensor, second: Tensor) -> float:
    """Compute what the page shows: the effective degree along the path between two digits."""
    alpha = chebyshev_nodes(NODES)
    values = model(torch.lerp(first, second, alpha[:, None])).softmax(1)
    return effective_degree(fit(values, alpha, DEGREE)).item()


def main() -> None:
    """Train, measure and write."""
    torch.set_num_threads(1)  # the order of sums, and so the file, depends on it
    digits = load_digits(per_class=POOL, seed=0)
    shown = torch.cat([(digits.held_out_labels == digit).nonzero()[:SHOWN, 0] for digit in range(10)])
    data: dict[str, Any] = {
        "nodes": NODES,
        "degree": DEGREE,
        "paths": PATHS,
        "digits": _to_base64((16 * digits.held_out[shown]).to(torch.uint8)),
        "labels": digits.held_out_labels[shown].tolist(),
        "networks": [],
    }
    models = {}
    for name, title in NETWORKS.items():
        layers = encode(train(name, digits))
        models[name] = model = decode(layers)
        measured = effdeg.measure(model, digits.held_out.double(), paths=PATHS)
        print(f"{title}: effective degree {measured.value:.3f}")
        data["networks"].append({"name": name, "title": title, "mean": measured.value, "layers": layers})
    labels = data["labels"]
    pairs = [pair for pair in combinations(range(len(labels)), 2) if labels[pair[0]] != labels[pair[1]]]
    data["start"] = min((pair[::-1] for pair in pairs), key=lambda pair: _distance_from_means(data, models, pair))
    FILE.write_text(PREFIX + json.dumps(data, indent=1) + SUFFIX)


def _distance_from_means(data: dict[str, Any], models: dict[str, nn.Sequential], pair: tuple[int, int]) -> float:
    """Return how untypical a pair is: how far its effective degrees are, as factors, from the networks' means."""
    digits = pixels(data)[list(pair)]
    degrees = torch.tensor([path_degree(models[network["name"]], *digits) for network in data["networks"]])
    means = torch.tensor([network["mean"] for network in data["networks"]])
    return (degrees / means).log().abs().max().item()


def _to_base64(numbers: Tensor) -> str:
    return base64.b64encode(numbers.numpy().tobytes()).decode()


def _from_base64(text: str, dtype: str) -> Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), dtype).astype(np.float64))


if __name__ == "__main__":
    main()
