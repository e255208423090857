"""DDP or FSDP2 on several processes: each process computes the penalty of its share of the batch.

torchrun --nproc_per_node 2 examples/distributed.py ddp
torchrun --nproc_per_node 2 examples/distributed.py fsdp
"""

import gc
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import effdeg
from effdeg.demo import load_digits, network

STEPS = 60

if "RANK" not in os.environ:
    raise SystemExit("usage: torchrun --nproc_per_node 2 examples/distributed.py ddp")
dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank, size = dist.get_rank(), dist.get_world_size()
device = f"cuda:{rank}" if torch.cuda.is_available() else "cpu"
digits = load_digits(per_class=20, seed=0)
x, y = digits.labeled[rank::size].to(device), digits.labels[rank::size].to(device)

torch.manual_seed(0)
model: nn.Module = network().to(device)
if sys.argv[1:] == ["fsdp"]:
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
else:
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
penalty = effdeg.Penalty(anchor="labels")
weight = effdeg.SineRamp(7.0, steps=STEPS // 3)

torch.manual_seed(1 + rank)  # other paths in every process
for step in range(STEPS):
    logits, degree = penalty(model, x, y)
    loss = cross_entropy(logits, y) + weight(step) * degree
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

correct = model(digits.held_out.to(device)).argmax(1).cpu() == digits.held_out_labels
if rank == 0:
    print(f"held-out accuracy {correct.float().mean():.1%}")
# If DDP outlived the group, gloo could hang: its threads would wait for Python, and Python for them.
del model
gc.collect()
dist.barrier()
dist.destroy_process_group()
