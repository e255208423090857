"""Language models: what methods add to a training step, and the memory of a measurement over a large vocabulary."""

import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import effdeg
from benchmarks.timing import Record, device, interleaved, make_record, read_peak
from effdeg import baselines

METHODS = ("plain", "neftune", "rdrop", "ed")
_VOCABULARY = 262_144  # of Gemma 3
_POINTS = 256  # in a batch of the forward pass that a measurement is compared with


def language_steps() -> Record:
    """Time a training step with each method, and its peak memory on a GPU, in units of a plain step."""
    on_gpu = device().type == "cuda"
    batch, length = (32, 128) if on_gpu else (4, 16)
    steps = [_make_step(name, batch, length) for name in METHODS]
    times = interleaved(*steps, repeats=10 if on_gpu else 3)
    rows = [
        {"variant": "language", "method": name, "ratio": time / times[0], "milliseconds": 1e3 * time}
        for name, time in zip(METHODS, times, strict=True)
    ]
    if on_gpu:
        peaks = [_measure_peak(step) for step in steps]
        rows = [row | {"memory": peak / peaks[0], "MiB": peak} for row, peak in zip(rows, peaks, strict=True)]
    shape = "the shape of SmolLM2-135M" if on_gpu else "2 layers × 64"
    detail = f"{shape}, {batch} × {length} tokens of 49,152, half of them labeled; AdamW, eager"
    return {"name": "step of a language model / plain step", "detail": detail, "rows": rows}


def language_memory() -> Record:
    """Measure over 262,144 tokens, against a forward pass of a batch of points: peak memory, each in a process."""
    ours, alone = (_peak(what) for what in ("measure", "forward"))
    detail = f"262,144 tokens, 64 nodes; {ours:.0f} and {alone:.0f} MiB on the {device().type}"
    return make_record("memory of measure / forward pass, large vocabulary", ours / alone, "≤ 1.1", detail)


def make_model(*, vocabulary: int, large: bool) -> Any:
    """Make a Llama of random weights, of the shape of SmolLM2-135M or tiny."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    if large:
        sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
        sizes["num_key_value_heads"] = 3
    torch.manual_seed(0)
    # Dropout is for R-Drop; the others have it, too.
    config = LlamaConfig(vocab_size=vocabulary, tie_word_embeddings=True, attention_dropout=0.1, **sizes)
    return LlamaForCausalLM(config).to(device())


def _make_step(name: str, batch: int, length: int) -> Callable[[], object]:
    model = make_model(vocabulary=49_152, large=device().type == "cuda").train()
    ids = torch.randint(49_152, (batch, length), device=device())
    labels = torch.where(torch.arange(length, device=device()) < length // 2, -100, ids)
    targets = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    penalty, noise, divergence = effdeg.Penalty(anchor="labels"), baselines.NEFTune(), baselines.RDrop()

    def compute() -> Tensor:
        if name == "ed":
            outputs, degree = penalty(model, {**given, "labels": labels})
            return outputs.loss + degree  # type: ignore[no-any-return]
        if name == "rdrop":
            outputs, value, twice = divergence(model, given, targets)
            loss: Tensor = cross_entropy(outputs.logits.flatten(0, 1), twice.flatten()) + 0.5 * value
            return loss
        if name == "neftune":
            return noise(model, {**given, "labels": labels})[0].loss  # type: ignore[no-any-return]
        return model(**given, labels=labels).loss  # type: ignore[no-any-return]

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device().type, torch.bfloat16, enabled=device().type == "cuda"):
            loss = compute()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _measure_peak(step: Callable[[], object]) -> float:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def _peak(what: str) -> float:
    """Return the peak memory, above that of the model, in a process of its own, in MiB: the median of three."""
    code = f"from benchmarks.language import print_peak; print_peak({what!r})"
    options: dict[str, Any] = {"check": True, "capture_output": True, "text": True}
    done = [subprocess.run([sys.executable, "-c", code], **options) for _ in range(3)]
    return statistics.median(float(each.stdout.split()[-1]) for each in done)


@torch.no_grad()
def print_peak(what: str) -> None:
    """Print the peak memory of a measurement or of a forward pass, above that of the model, in MiB."""
    model = make_model(vocabulary=_VOCABULARY, large=False).eval()
    ids = torch.randint(_VOCABULARY, (_POINTS, 8), device=device())
    model(ids[:1])  # loads what the first call needs
    before = read_peak(reset=True)
    if what == "measure":
        effdeg.measure(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, paths=8, nodes=64, degree=20)
    else:
        model(ids, logits_to_keep=1)
    print((read_peak() - before) / 2**20)


CASES = [language_steps, language_memory]
