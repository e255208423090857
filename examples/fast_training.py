"""ViT-Tiny on CIFAR-10 with the penalty, as fast as a GPU goes: a whole step is one replay of a CUDA graph.

The images stay on the GPU, the loss is compiled, the transformer's blocks are a few kernels, and its parameters are
views of three flat tensors, so that a step casts, clips and updates these. On a CPU it tries this on a tiny network.

    python examples/fast_training.py --data DIR  # the folder with CIFAR-10; without it, images are made up
"""

import argparse
import math
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import effdeg
from effdeg_lab.data import Labeled, load
from effdeg_lab.engine import Training
from effdeg_lab.engine.examples import DeviceExamples
from effdeg_lab.engine.flat import FlatParameters
from effdeg_lab.models import ViT

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=lambda folder: load("cifar10", Path(folder)))
parser.add_argument("--epochs", type=int, default=30)
given = parser.parse_args()
torch.manual_seed(0)
on_gpu = torch.cuda.is_available()
device, batch, size = ("cuda", 256, {}) if on_gpu else ("cpu", 50, {"width": 32, "depth": 1, "heads": 1})
y = torch.randint(10, (51_000 if on_gpu else 1_500,))
x = torch.randint(100, (len(y), 3, 32, 32), dtype=torch.uint8) + 15 * y.byte().view(-1, 1, 1, 1)
data = given.data or Labeled(x[1000:], y[1000:], x[:1000], y[:1000], classes=10, mean=(0.4,) * 3, std=(0.2,) * 3)
examples = DeviceExamples(data, Training(batch=batch), torch.device(device))  # crops and flips images
model = ViT(pool="mean", **size).to(device)
model.fuse()
flat = FlatParameters(model, model.parameters(), half=on_gpu)  # hands out the matrices in bf16
steps = given.epochs * (per_epoch := len(examples.train) // batch)
penalty, ramp = effdeg.Penalty.efficient(), effdeg.SineRamp(7.0, steps=steps // 3)
# What changes from step to step; a graph reads it from its place.
chosen, rate, weight = torch.arange(batch, device=device), *torch.zeros(2, device=device)
optimizer = torch.optim.AdamW(flat.named(), lr=rate, weight_decay=0.1, fused=True, capturable=on_gpu)
make_batch = torch.compile(examples.batch, fullgraph=True, dynamic=False, disable=not on_gpu)


@torch.compile(fullgraph=True, dynamic=False, disable=not on_gpu)
def compute_loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    with torch.autocast(device, torch.bfloat16, enabled=on_gpu):
        logits, degree = penalty(lambda x: torch.func.functional_call(model, parameters, x), x, y)
        return nn.functional.cross_entropy(logits, y) + weight * degree


def train() -> None:
    optimizer.zero_grad()
    compute_loss(flat.unflatten(), *make_batch(chosen), weight).backward()
    nn.utils.clip_grad_norm_([each for _, each in flat.named()], 1.0)
    optimizer.step()


if on_gpu:
    with torch.cuda.stream(torch.cuda.Stream()):  # compiles; at a rate of 0 the parameters stay as they are
        torch.cuda.synchronize()
        for _ in range(3):
            train()
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
        train()
    train = graph.replay
start = time.perf_counter()
for step in range(steps):
    if step % per_epoch == 0:
        order = torch.randperm(len(examples.train), device=device).split(batch)
    chosen.copy_(order[step % per_epoch])
    rate.fill_(1e-3 * min(30 * (step + 1) / steps, (1 + math.cos(math.pi * step / steps)) / 2))
    weight.fill_(ramp(step + 1))
    train()
rate.item()  # waits for the GPU
seconds = time.perf_counter() - start
with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=on_gpu):
    accuracy = (model.eval()(examples.normalize(examples.test.inputs)).argmax(1) == examples.test.labels).float().mean()
print(f"{1e3 * seconds / steps:.3f} ms per step, {seconds / given.epochs:.3f} s per epoch, accuracy {accuracy:.1%}")
