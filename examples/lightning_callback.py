"""PyTorch Lightning: an ordinary module, and two callbacks.

pip install -e '.[lightning]'
python examples/lightning_callback.py
"""

import lightning
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import effdeg
from effdeg.demo import load_digits, network
from effdeg.integrations.lightning import MeasureCallback, PenaltyCallback

EPOCHS = 60


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return cross_entropy(self(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


lightning.seed_everything(0, verbose=False)
digits = load_digits(per_class=20, seed=0)
loader = DataLoader(TensorDataset(digits.labeled, digits.labels), batch_size=64, shuffle=True)
model = Classifier()
trainer = lightning.Trainer(
    max_epochs=EPOCHS,
    callbacks=[
        PenaltyCallback(effdeg.Penalty(anchor="labels"), effdeg.SineRamp(7.0, steps=EPOCHS * len(loader) // 3)),
        MeasureCallback(digits.pool, every_n_epochs=20, paths=64, nodes=40, degree=15),
    ],
    logger=False,
    enable_checkpointing=False,
    enable_model_summary=False,
    enable_progress_bar=False,
)
trainer.fit(model, loader)

accuracy = (model(digits.held_out).argmax(1) == digits.held_out_labels).float().mean()
print({name: round(float(value), 3) for name, value in trainer.callback_metrics.items()})
print(f"held-out accuracy {accuracy:.1%}")
