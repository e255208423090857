"""One training loop for every regularizer: the method's name is all that changes.

python examples/baselines.py [METHOD …], such as mixup, sam or mixup+ed; by default all that suit a plain network.
"""

import sys

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from effdeg import baselines
from effdeg.demo import load_digits, network

EPOCHS = 20
SETTINGS = {
    "mixup": {"classes": 10},
    "cutmix": {"classes": 10, "alpha": 0.2},  # little mixing: a large box leaves nothing of a digit of 8 × 8 pixels
    "regmixup": {"classes": 10},
    "manifold-mixup": {"classes": 10, "at": [None, "2", "4"]},
    "ed": {"weight": 7.0},
}
NOT_HERE = ["embedding-mixup", "neftune", "rdrop"]  # for token ids, and for networks with dropout

digits = load_digits(per_class=20, seed=0)


def train(name: str) -> float:
    torch.manual_seed(0)
    settings = {key: value for part in name.split("+") for key, value in SETTINGS.get(part, {}).items()}
    method = baselines.method(name, **settings)
    loader = DataLoader(TensorDataset(digits.labeled, digits.labels), batch_size=64, shuffle=True)
    model = network()
    optimizer = method.optimizer(model, torch.optim.AdamW, lr=3e-3)
    for _ in range(EPOCHS):
        for x, y in loader:
            images, labels = method.batch(x.view(-1, 8, 8), y)  # CutMix cuts a box, so that it needs images
            mixed = images.flatten(1)

            def closure(mixed: Tensor = mixed, labels: Tensor = labels) -> Tensor:
                optimizer.zero_grad()
                loss = method.loss(model, mixed, labels, cross_entropy)
                loss.backward()
                return loss

            optimizer.step(closure)
    return (model(digits.held_out).argmax(1) == digits.held_out_labels).float().mean().item()


for name in sys.argv[1:] or [name for name in baselines.names() if name not in NOT_HERE]:
    print(f"{name:14} held-out accuracy {train(name):.1%}")
