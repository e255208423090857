"""Fine-tune a causal language model on prompts and completions, without and with the penalty, and measure both.

    pip install -e '.[huggingface]'
    python examples/finetune_language_model.py --model FOLDER --data FILE.jsonl

FOLDER holds a model and its tokenizer in Hugging Face's format (SmolLM2-135M, say). Each line of FILE is
{"prompt": "…", "completion": "…"}; the last tenth of the lines is held out. The loss counts the completions alone.
Nothing is downloaded. Without a folder, a tiny random Llama learns to repeat made-up words in reverse.
"""

import argparse
import json
import math
import random
import sys
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

import effdeg
from effdeg.integrations.huggingface import with_penalty

IGNORED = -100  # the label of a token that the loss leaves out


def read(file: Path) -> list[tuple[str, str]]:
    """Read prompts and completions; or exit."""
    pairs = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            pair = row["prompt"], row["completion"]
        except (ValueError, KeyError, TypeError):
            sys.exit(f'{file}, line {number}: expected {{"prompt": "…", "completion": "…"}}.')
        if not all(isinstance(text, str) and text for text in pair):
            sys.exit(f"{file}, line {number}: the prompt or the completion is empty or no text.")
        pairs.append(pair)
    if len(pairs) < 20:
        sys.exit(f"{file} has {len(pairs)} lines; at least 20 are needed.")
    return pairs


def make_up(folder: Path) -> None:
    """Write a tiny random Llama, its tokenizer, and sequences of letters to be repeated in reverse."""
    letters = "abcdefgh"
    vocabulary = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", ":", *letters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    tokens = {"vocab_size": len(vocabulary), "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    LlamaForCausalLM(LlamaConfig(**tokens, **shape)).save_pretrained(folder)
    with (folder / "data.jsonl").open("w") as lines:
        for _ in range(1000):
            word = random.choices(letters, k=random.randint(2, 4))
            row = {"prompt": f"{' '.join(word)} :", "completion": f" {' '.join(reversed(word))}"}
            lines.write(json.dumps(row) + "\n")


def tokenize(pairs: list[tuple[str, str]], tokenizer: PreTrainedTokenizerFast, longest: int) -> list[dict]:
    """Return token ids and labels, which are those of the completion and of the end."""
    examples = []
    for prompt, completion in pairs:
        start = tokenizer(prompt)["input_ids"]
        rest = [*tokenizer(completion, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        ids = (start + rest)[:longest]
        examples.append({"input_ids": ids, "labels": ([IGNORED] * len(start) + rest)[:longest]})
    return examples


def collate(rows: list[dict], padding: int) -> dict[str, torch.Tensor]:
    """Pad on the left, so that the ends of completions meet: the penalty counts positions that both texts have."""
    length = max(len(row["input_ids"]) for row in rows)

    def pad(name: str, value: int) -> torch.Tensor:
        return torch.tensor([[value] * (length - len(row[name])) + row[name] for row in rows])

    ids = pad("input_ids", padding)
    mask = torch.tensor([[0] * (length - len(row["labels"])) + [1] * len(row["labels"]) for row in rows])
    return {"input_ids": ids, "attention_mask": mask, "labels": pad("labels", IGNORED)}


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", type=Path, help="the folder with the model; by default a tiny one is made up")
parser.add_argument("--data", type=Path, help="the file with prompts and completions")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--longest", type=int, default=256, help="cut texts at this many tokens")
parser.add_argument("--rate", type=float, default=2e-5, help="the learning rate")
parser.add_argument("--weight", type=float, default=1.0, help="the weight of the penalty")
given = parser.parse_args()
if (given.model is None) != (given.data is None):
    parser.error("give both --model and --data, or neither.")
set_seed(0)
with tempfile.TemporaryDirectory() as scratch:
    if given.model is None:
        given.model, given.data, given.rate = Path(scratch), Path(scratch) / "data.jsonl", 5e-3
        make_up(given.model)
    if not (given.model / "config.json").is_file():
        parser.error(f"--model {given.model} holds no config.json.")
    if not given.data.is_file():
        parser.error(f"--data {given.data} is not a file.")
    pairs = read(given.data)
    tokenizer = AutoTokenizer.from_pretrained(given.model, local_files_only=True)
    padding = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    examples = tokenize(pairs, tokenizer, given.longest)
    held_out = len(examples) // 10
    arguments = TrainingArguments(
        scratch,
        max_steps=given.steps,
        per_device_train_batch_size=given.batch,
        learning_rate=given.rate,
        save_strategy="no",
        report_to="none",
        dataloader_pin_memory=False,
    )
    options = {"penalty": effdeg.Penalty(anchor="labels"), "weight": given.weight}
    # with_penalty also takes trl.SFTTrainer, or your own subclass of Trainer.
    for method, kind, more in (("plain", Trainer, {}), ("with the penalty", with_penalty(Trainer), options)):
        set_seed(0)
        trainer = kind(
            AutoModelForCausalLM.from_pretrained(given.model, local_files_only=True),
            arguments,
            train_dataset=examples[:-held_out],
            eval_dataset=examples[-held_out:],
            data_collator=lambda rows: collate(rows, padding),
            **more,
        )
        trainer.train()
        loss = trainer.evaluate()["eval_loss"]
        prompts = [prompt for prompt, _ in pairs[-held_out:]][:100]
        measured = effdeg.measure(trainer.model, prompts, tokenizer=tokenizer, paths=32, nodes=50, degree=20)
        print(
            f"{method}: held-out loss {loss:.3f} per token (probability {math.exp(-loss):.1%}), effective degree "
            f"after the prompts {measured.value:.2g} (normalized: {measured.normalized:.3g})"
        )
