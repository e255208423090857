"""Train ViT-Tiny on CIFAR-10 with and without the penalty: does it help, and at what price?

    python -m benchmarks.cifar10 --data DIR            # eight minutes on one H200; kept in results/cifar10

One seed at the settings of the paper but for the learning rate (0.005 there) and the epochs (300 there). The data are
the Hugging Face hub's ``cifar10`` Parquet files.
"""

import argparse
import io
import json
import math
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

import effdeg
from benchmarks.steps import CapturedStep
from benchmarks.timing import device
from benchmarks.vit import ViT

FOLDER = Path(__file__).parent.parent / "results" / "cifar10"
BATCH, RATE, DECAY, WARM_UP, CLIP, WEIGHT = 256, 1e-3, 0.1, 10, 1.0, 7.0
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def main() -> None:
    """Train both ways and keep what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("EFFDEG_DATA"), help="holds cifar10/ with its Parquet files")
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--limit", type=int, help="use only so many images, for a try")
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    if options.data is None:
        parser.error("give --data DIR or set EFFDEG_DATA")
    train, test = (load(Path(options.data) / "cifar10", split, options.limit) for split in ("train", "test"))
    options.out.mkdir(parents=True, exist_ok=True)
    for name, penalty in (("plain", None), ("penalty", effdeg.Penalty.efficient())):
        record = run(name, penalty, train, test, epochs=options.epochs)
        (options.out / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


def load(folder: Path, split: str, limit: int | None) -> tuple[Tensor, Tensor]:
    """Read images as bytes and labels, onto the device."""
    import pyarrow.parquet as pq
    from PIL import Image

    files = sorted(folder.glob(f"{split}-*.parquet"))
    rows = [row for file in files for row in pq.read_table(file).to_pylist()][:limit]
    if not rows:
        raise SystemExit(f"no {split}-*.parquet in {folder}")
    name = "img" if "img" in rows[0] else "image"
    images = np.stack([np.asarray(Image.open(io.BytesIO(row[name]["bytes"]))) for row in rows])
    labels = torch.tensor([row["label"] for row in rows])
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().to(device()), labels.to(device())


def run(
    name: str, penalty: effdeg.Penalty | None, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], *, epochs: int
) -> dict[str, Any]:
    """Train one network."""
    torch.manual_seed(0)
    model = ViT().to(device())
    trainer = Trainer(model, penalty, train)
    per_epoch = len(train[0]) // BATCH
    ramp = effdeg.SineRamp(WEIGHT, steps=epochs * per_epoch // 3)
    curve, start, seconds = [], time.perf_counter(), 0.0
    for epoch in range(epochs):
        order = torch.randperm(len(train[0]), device=device())
        begin = time.perf_counter()
        for number in range(per_epoch):
            step = epoch * per_epoch + number
            trainer.step(
                order[number * BATCH : (number + 1) * BATCH], _rate(step, epochs * per_epoch, per_epoch), ramp(step)
            )
        if device().type == "cuda":
            torch.cuda.synchronize()
        seconds += time.perf_counter() - begin
        if (epoch + 1) % 10 == 0 or epoch + 1 == epochs:
            point = {
                "epoch": epoch + 1,
                "train_accuracy": accuracy(model, train[0][:10_000], train[1][:10_000]),
                "test_accuracy": accuracy(model, *test),
                "penalty": float(trainer.degree),
            }
            curve.append(point)
            Console().print(f"{name}: {point}, {time.perf_counter() - start:.0f} s")
    measured = effdeg.measure(model, _normalized(test[0][:2000]), paths=400, nodes=200, degree=40)
    return {
        "settings": {
            "model": "ViT-Tiny, patch 4, width 192, depth 12, 3 heads",
            "penalty": repr(penalty) if penalty else None,
            "weight": WEIGHT if penalty else None,
            "ramp": "first third" if penalty else None,
            "epochs": epochs,
            "batch": BATCH,
            "optimizer": f"AdamW, lr {RATE}, decay {DECAY}, {WARM_UP} epochs of warm-up, cosine to 0, clip {CLIP}",
            "augmentation": "crop and flip",
            "precision": "bf16 autocast",
            "seed": 0,
        },
        "environment": {
            "command": "python -m benchmarks.cifar10",
            "processor": torch.cuda.get_device_name() if device().type == "cuda" else platform.machine(),
            "torch": torch.__version__,
            "effdeg": effdeg.__version__,
        },
        "curve": curve,
        "test_accuracy": curve[-1]["test_accuracy"],
        "train_accuracy": curve[-1]["train_accuracy"],
        "milliseconds_per_step": 1e3 * seconds / (epochs * per_epoch),
        "effective_degree": {"value": measured.value, "stderr": measured.stderr},
    }


class Trainer:
    """One training step on given examples; on a GPU compiled and captured as a whole."""

    def __init__(self, model: nn.Module, penalty: effdeg.Penalty | None, data: tuple[Tensor, Tensor]) -> None:
        padded, labels = pad(data[0], (4, 4, 4, 4)), data[1]
        on_gpu = device().type == "cuda"
        self.rate, self.weight, self.degree = (torch.zeros((), device=device()) for _ in range(3))
        self.batch = torch.arange(BATCH, device=device())
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=self.rate, weight_decay=DECAY, fused=True, capturable=on_gpu
        )

        def loss_of(batch: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            x, y = _normalized(_augmented(padded, batch)), labels[batch]
            with torch.autocast(device().type, torch.bfloat16, enabled=on_gpu):
                if penalty is None:
                    return cross_entropy(model(x), y), torch.zeros_like(weight)
                logits, degree = penalty(model, x, y)
                return cross_entropy(logits, y) + weight * degree, degree.detach()

        loss_of = torch.compile(loss_of, fullgraph=True, dynamic=False) if on_gpu else loss_of

        def step() -> None:
            model.zero_grad(set_to_none=True)
            loss, degree = loss_of(self.batch, self.weight)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            self.degree.copy_(degree)

        # The rate is still 0, so that the steps that warm up the capture leave the weights as they are.
        self._run: Callable[[], None] = CapturedStep(model, step) if on_gpu else step

    def step(self, batch: Tensor, rate: float, weight: float) -> None:
        """Train on the examples with these indices."""
        self.batch.copy_(batch)
        self.rate.fill_(rate)
        self.weight.fill_(weight)
        self._run()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Count what the model gets right."""
    model.eval()
    right = []
    with torch.autocast(device().type, torch.bfloat16, enabled=device().type == "cuda"):
        for start in range(0, len(labels), 1000):
            part = slice(start, start + 1000)
            right.append(model(_normalized(images[part])).argmax(1) == labels[part])
    model.train()
    return float(torch.cat(right).float().mean())


def _rate(step: int, steps: int, per_epoch: int) -> float:
    warm_up = min(WARM_UP * per_epoch, steps // 10)
    if step < warm_up:
        return RATE * (step + 1) / warm_up
    return RATE * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up))) / 2


def _augmented(padded: Tensor, batch: Tensor) -> Tensor:
    """Crop at random from the padded images and flip half of them."""
    along = torch.arange(32, device=batch.device)
    down, right = torch.randint(0, 9, (2, len(batch), 1), device=batch.device) + along
    flipped = torch.rand(len(batch), 1, device=batch.device) < 0.5
    right = torch.where(flipped, right.flip(1), right)
    channel = torch.arange(3, device=batch.device)[:, None, None]
    return padded[batch[:, None, None, None], channel, down[:, None, :, None], right[:, None, None, :]]


def _normalized(images: Tensor) -> Tensor:
    channels = zip(images.float().unbind(1), MEAN, STD, strict=True)
    return torch.stack([(channel / 255 - mean) / std for channel, mean, std in channels], dim=1)


if __name__ == "__main__":
    main()
