"""Fine-tune a text encoder on a task of GLUE, without and with the penalty. Paths lie at its embeddings.

    pip install -e '.[huggingface]'
    python examples/finetune_text.py --model FOLDER --data GLUE --task rte

FOLDER holds a model and its tokenizer in Hugging Face's format (bert-base-uncased, say), GLUE the folders RTE, MRPC and
CoLA with train.tsv and dev.tsv. Nothing is downloaded. Without a folder, a tiny random BERT reads made-up sentences.
"""

import argparse
import csv
import logging
import random
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

import effdeg
from effdeg.integrations.huggingface import PenaltyTrainer

# The folder of a task, the columns of its sentences and of its label, the labels, and the names of columns where the
# file has none.
TASKS = {
    "rte": ("RTE", ["sentence1", "sentence2"], "label", ["entailment", "not_entailment"], None),
    "mrpc": ("MRPC", ["#1 String", "#2 String"], "Quality", ["0", "1"], None),
    "cola": ("CoLA", ["sentence"], "label", ["0", "1"], ["source", "label", "mark", "sentence"]),
}
KIND, UNKIND, OTHER = map(str.split, ("warm bright calm sweet", "cold dark loud bitter", "day room tea air sea sky"))


def read(file: Path, task: str) -> tuple[list[list[str]], list[int]]:
    """Read the sentences of each example, one column after the other, and the numbers of its label; or exit."""
    _, sentences, label, labels, names = TASKS[task]
    with file.open(encoding="utf-8-sig", newline="") as opened:
        rows = list(csv.DictReader(opened, fieldnames=names, delimiter="\t", quoting=csv.QUOTE_NONE))
    for number, row in enumerate(rows, 1):
        if empty := [column for column in sentences if not (row.get(column) or "").strip()]:
            sys.exit(f"{file}, example {number}: {empty[0]!r} is missing or empty.")
        if row.get(label) not in labels:
            sys.exit(f"{file}, example {number}: {label!r} is {row.get(label)!r}; expected one of {labels}.")
    if len({row[label] for row in rows}) < 2:
        sys.exit(f"{file} has fewer than two labels.")
    return [[row[column] for row in rows] for column in sentences], [labels.index(row[label]) for row in rows]


def make_up(folder: Path) -> None:
    """Write a tiny random BERT, its tokenizer, and sentences: are more of their words kind, or unkind?"""
    words = [*KIND, *UNKIND, *OTHER]
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=16, **special).save_pretrained(folder)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    BertForSequenceClassification(BertConfig(vocab_size=len(vocabulary), **shape)).save_pretrained(folder)
    (folder / "CoLA").mkdir()
    for part, count in (("train", 512), ("dev", 256)):
        lines = []
        for _ in range(count):
            sentence = random.choices(words, k=random.randint(4, 12))
            balance = sum((word in KIND) - (word in UNKIND) for word in sentence)
            lines.append(f"made-up\t{int(balance > 0)}\t\t{' '.join(sentence)}\n")
        (folder / "CoLA" / f"{part}.tsv").write_text("".join(lines))


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", type=Path, help="the folder with the model; by default a tiny one is made up")
parser.add_argument("--data", type=Path, help="the folder with GLUE")
parser.add_argument("--task", choices=TASKS, default="rte")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--steps", type=int, default=-1, help="stop after this many steps")
parser.add_argument("--weight", type=float, default=0.5, help="the weight of the penalty")
given = parser.parse_args()
if (given.model is None) != (given.data is None):
    parser.error("give both --model and --data, or neither.")
logging.basicConfig()
logging.getLogger("effdeg").setLevel(logging.INFO)  # tells at which layer paths lie
set_seed(0)
with tempfile.TemporaryDirectory() as scratch:
    learning_rate = 5e-5
    if given.model is None:
        given.model = given.data = Path(scratch)
        given.task, learning_rate = "cola", 5e-3
        make_up(given.model)
    folder = given.data / TASKS[given.task][0]
    for name, patterns in {
        "config.json": ["config.json"],
        "weights": ["*.safetensors", "pytorch_model*.bin"],
        "tokenizer": ["tokenizer.json", "vocab.*", "*.model"],
    }.items():
        if not any(file for pattern in patterns for file in given.model.glob(pattern)):
            parser.error(f"--model {given.model} holds no {name}: none of {', '.join(patterns)} is there.")
    if missing := [name for name in ("train.tsv", "dev.tsv") if not (folder / name).is_file()]:
        parser.error(f"--data {given.data}: {' and '.join(missing)} must be in {folder}.")
    texts = [read(folder / f"{part}.tsv", given.task) for part in ("train", "dev")]
    tokenizer = AutoTokenizer.from_pretrained(given.model, local_files_only=True)
    if tokenizer.pad_token is None:
        parser.error(f"--model {given.model}: its tokenizer has no pad token, so sentences cannot be put in a batch.")
    parts = []
    for sentences, labels in texts:
        tokens = tokenizer(*sentences, truncation=True, max_length=min(128, tokenizer.model_max_length))
        parts.append([{**{name: tokens[name][i] for name in tokens}, "labels": n} for i, n in enumerate(labels)])
    arguments = TrainingArguments(
        scratch,
        num_train_epochs=given.epochs,
        max_steps=given.steps,
        per_device_train_batch_size=32,
        learning_rate=learning_rate,
        save_strategy="no",
        report_to="none",
        dataloader_pin_memory=False,
    )
    options = {"penalty": effdeg.Penalty.efficient(), "weight": given.weight}
    for method, kind, more in (("plain", Trainer, {}), ("with the penalty", PenaltyTrainer, options)):
        set_seed(0)  # the same head; the Trainer's own seed gives the same order of examples
        model = AutoModelForSequenceClassification.from_pretrained(given.model, num_labels=2, local_files_only=True)
        trainer = kind(
            model,
            arguments,
            train_dataset=parts[0],
            eval_dataset=parts[1],
            data_collator=DataCollatorWithPadding(tokenizer),
            compute_metrics=lambda found: {"accuracy": (found.predictions.argmax(1) == found.label_ids).mean()},
            **more,
        )
        trainer.train()
        print(f"{method}: held-out accuracy {trainer.evaluate()['eval_accuracy']:.1%}")
