"""Hugging Face: a BERT on sentences, with paths at the embeddings and the masks of both endpoints joined.

The sentences are made up, so that nothing is downloaded: which of two kinds of words does a sentence hold more of?

    pip install -e '.[huggingface]'
    python examples/huggingface_trainer.py
"""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments, set_seed

import effdeg
from effdeg.integrations.huggingface import MeasureCallback, PenaltyTrainer


class Sentences(Dataset):
    """Sentences of 4 to 12 words; their label is the kind of the majority."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        words = torch.randint(2, 100, (count, 12), generator=generator)
        lengths = torch.randint(4, 13, (count, 1), generator=generator)
        self.mask = (torch.arange(12) < lengths).long()
        self.words = words * self.mask
        self.labels = ((words % 2 * 2 - 1) * self.mask).sum(1).gt(0).long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.words[index], "attention_mask": self.mask[index], "labels": self.labels[index]}


set_seed(0)
train, held_out = Sentences(512, seed=0), Sentences(512, seed=1)
shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
model = BertForSequenceClassification(BertConfig(vocab_size=100, num_labels=2, **shape))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        num_train_epochs=6,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        logging_steps=32,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = PenaltyTrainer(
        model,
        arguments,
        train_dataset=train,
        penalty=effdeg.Penalty(anchor="labels"),  # for token ids at the embeddings
        weight=0.5,
    )
    tokens = {"input_ids": held_out.words, "attention_mask": held_out.mask}
    trainer.add_callback(MeasureCallback(trainer, tokens, every_n_epochs=3, paths=32, nodes=30, degree=10))
    trainer.train()

with torch.no_grad():
    correct = model.eval()(**{name: given.to(model.device) for name, given in tokens.items()}).logits.argmax(1).cpu()
print(f"held-out accuracy {(correct == held_out.labels).float().mean():.1%}")
