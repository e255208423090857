"""A whole step, optimizer included, captured in one CUDA graph: nothing in the penalty waits for the GPU.

The batch, the learning rate and the step number live in tensors that the graph reads and writes.

    python examples/cuda_graph.py
"""

import torch
from torch.nn.functional import cross_entropy

import effdeg
from effdeg.demo import load_digits, network

STEPS = 200

if not torch.cuda.is_available():
    raise SystemExit("this example needs a CUDA GPU")

torch.manual_seed(0)
digits = load_digits(per_class=20, seed=0)
x, y = digits.labeled.cuda(), digits.labels.cuda()
model = network().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3, device="cuda"), capturable=True)
penalty = effdeg.Penalty(anchor="labels")
ramp = effdeg.SineRamp(7.0, steps=STEPS // 3)
step = torch.zeros((), device="cuda")


def train() -> None:
    optimizer.zero_grad(set_to_none=True)
    logits, degree = penalty(model, x, y)
    loss = cross_entropy(logits, y) + ramp(step) * degree
    loss.backward()
    optimizer.step()
    step.add_(1)


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        train()
torch.cuda.current_stream().wait_stream(side)

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    train()
for _ in range(STEPS):
    graph.replay()

accuracy = (model(digits.held_out.cuda()).argmax(1).cpu() == digits.held_out_labels).float().mean()
print(f"held-out accuracy {accuracy:.1%}")
