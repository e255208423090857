"""ViT-Tiny on CIFAR-10 with the penalty, as fast as a GPU goes: a whole step is one replay of a CUDA graph.

The images stay on the GPU and are cropped there, the loss is compiled, and the parameters live in two flat tensors, so
that a step casts, clips and updates two tensors instead of 150. On a CPU a tiny network is trained, to try it.

    python examples/fast_training.py --data DIR  # the folder with CIFAR-10; without it, images are made up
"""

import argparse
import math
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

import effdeg
from effdeg_lab.data import Labelled, load
from effdeg_lab.engine import Training
from effdeg_lab.engine.examples import DeviceExamples
from effdeg_lab.models import ViT

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=Path)
parser.add_argument("--epochs", type=int, default=30)
given = parser.parse_args()

torch.manual_seed(0)
on_gpu = torch.cuda.is_available()
device, dtype, batch = ("cuda", torch.bfloat16, 256) if on_gpu else ("cpu", torch.float32, 50)
if given.data:
    data = load("cifar10", given.data)
else:  # the higher the class, the brighter the image
    y = torch.randint(10, (51_000 if on_gpu else 1_500,))
    x = torch.randint(100, (len(y), 3, 32, 32), dtype=torch.uint8) + 15 * y.byte().view(-1, 1, 1, 1)
    data = Labelled(x[1000:], y[1000:], x[:1000], y[:1000], classes=10, mean=(0.4,) * 3, std=(0.2,) * 3)
examples = DeviceExamples(data, Training(batch=batch), torch.device(device))  # crops and flips them
model = (ViT() if on_gpu else ViT(width=32, depth=1, heads=1)).to(device)
per_epoch = len(examples.train) // batch
steps = given.epochs * per_epoch
penalty, ramp = effdeg.Penalty.efficient(), effdeg.SineRamp(7.0, steps=steps // 3)


def split(flat: Tensor, parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    parts = flat.split([each.numel() for each in parameters.values()])
    return {name: part.view_as(each) for (name, each), part in zip(parameters.items(), parts, strict=True)}


# Matrices, which products take in bf16, and all other parameters. The model's own become views of the flat ones.
named = dict(model.named_parameters())
kinds = [{name: each for name, each in named.items() if (each.dim() == 2) is matrix} for matrix in (True, False)]
flat = [nn.Parameter(torch.cat([each.detach().flatten() for each in kind.values()])) for kind in kinds]
for values, kind in zip(flat, kinds, strict=True):
    for name, part in split(values.detach(), kind).items():
        kind[name].data = part

# What changes from step to step; a graph reads it from its place.
chosen, rate, weight = torch.arange(batch, device=device), *(torch.zeros((), device=device) for _ in range(2))
optimizer = torch.optim.AdamW(flat, lr=rate, weight_decay=0.1, fused=True, capturable=on_gpu)
make_batch = torch.compile(examples.batch, fullgraph=True, dynamic=False, disable=not on_gpu)


@torch.compile(fullgraph=True, dynamic=False, disable=not on_gpu)
def compute_loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    with torch.autocast(device, dtype, enabled=on_gpu):
        logits, degree = penalty(lambda x: functional_call(model, parameters, x), x, y)
        return cross_entropy(logits, y) + weight * degree


def train() -> None:
    optimizer.zero_grad()
    parameters = split(flat[0].to(dtype), kinds[0]) | split(flat[1], kinds[1])
    compute_loss(parameters, *make_batch(chosen), weight).backward()
    nn.utils.clip_grad_norm_(flat, 1.0)
    optimizer.step()


replay = train
if on_gpu:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compiles; at a rate of 0 the parameters stay as they are
        for _ in range(3):
            train()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        train()
    replay = graph.replay

start = time.perf_counter()
for step in range(steps):
    if step % per_epoch == 0:
        order = torch.randperm(len(examples.train), device=device)[: per_epoch * batch].view(per_epoch, batch)
    chosen.copy_(order[step % per_epoch])
    rate.fill_(1e-3 * min(30 * (step + 1) / steps, (1 + math.cos(math.pi * step / steps)) / 2))
    weight.fill_(ramp(step + 1))
    replay()
rate.item()  # waits for the GPU
seconds = time.perf_counter() - start
with torch.no_grad(), torch.autocast(device, dtype, enabled=on_gpu):
    outputs = torch.cat([model.eval()(examples.normalize(x)) for x in examples.test.inputs.split(1000)])
accuracy = (outputs.argmax(1) == examples.test.labels).float().mean()
print(f"{1e3 * seconds / steps:.3f} ms per step, {seconds / given.epochs:.3f} s per epoch, accuracy {accuracy:.1%}")
