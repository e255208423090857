"""Does the penalty help a causal language model that is fine-tuned on prompts and completions?

WebNLG turns triples into English; its unseen categories are a shift. SCAN turns commands into actions; its splits ask
for new combinations of known words. Methods get equal time: R-Drop and ED run twice as many sequences in a step as the
others, and half as many steps.
Cost on one H200: 10 to 20 s per run (estimated).
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

import effdeg
from effdeg.baselines import Method as Regularizer
from effdeg.baselines import RDrop, mixup
from effdeg.functional import effective_degree, fit
from effdeg_lab.core.recipe import Method, Recipe, Study
from effdeg_lab.core.results import Results
from effdeg_lab.core.runs import Job, Run
from effdeg_lab.core.search import Draws, draw_points
from effdeg_lab.core.settings import check_pairs, setting, unnamed
from effdeg_lab.data.completions import SCAN, Completions, load_completions
from effdeg_lab.engine import Task, open_loop
from effdeg_lab.engine.observation import draw, drop_tokens, make_copies, observe
from effdeg_lab.engine.settings import PenaltySettings
from effdeg_lab.engine.step import evaluating
from effdeg_lab.experiments.glue import find_folder
from effdeg_lab.experiments.picking.study import make_recipe as make_pool
from effdeg_lab.models.text import load_tokenizer, quiet_transformers
from effdeg_lab.show.columns import MethodTable, list_values
from effdeg_lab.show.tables import NOTHING, Table
from effdeg_lab.show.verdicts import Verdict, judge, judge_all

IGNORED = -100  # the label of what is no token of a completion
_CHUNK = 64  # sequences in a batch of an evaluation
_WARM_UP = 0.05  # share of steps in which the rate rises
# Of R-Drop, whose two passes differ by nothing else. These models were trained without: 0.1 doubles their loss.
_DROPOUT = 0.02
_LORA_SCALE = 2.0  # α / rank
# For evaluations, which have many shapes: each would be compiled.
_run_uncompiled = partial(torch.compiler.set_stance, "force_eager")


@dataclass(frozen=True)
class Completing(PenaltySettings):
    data: str = setting("webnlg", "the task: webnlg, scan-jump, scan-length or scan-around-right")
    model: str = setting("SmolLM2-135M-Instruct", "a folder with a Hugging Face model, in the data folder or by path")
    regularizer: Literal["plain", "neftune", "mixup", "rdrop", "ed"] = setting("plain", "how training is regularized")
    rank: int = setting(0, "of LoRA at all linear layers of blocks; 0 trains all weights", least=0)
    steps: int = setting(800, "training steps", scale=True, least=1, smoke=6)
    batch: int = setting(32, "completions per step", least=1, smoke=8)
    limit: int | None = setting(None, "train on this many prompts only", scale=True, least=1, smoke=lambda _: 40)
    held_out: int = setting(0, "dev or training prompts to test on instead of the test set", least=0, smoke=8)
    lr: float = setting(1e-4, "the highest learning rate, from which it falls linearly to 0", above=0)
    weight_decay: float = setting(0.0, "of matrices", least=0)
    longest_prompt: int = setting(112, "tokens of a prompt; longer ones lose their beginning", least=2, smoke=24)
    longest: int = setting(73, "tokens of a completion; longer ones are cut off", least=2, smoke=12)
    weight: float = setting(5.0, "of the penalty (λ)", least=0)
    alpha: float = setting(1.0, "mixup's α", above=0)
    noise: float = setting(5.0, "NEFTune's α", above=0)
    anchor: Literal["labels", "self"] = setting("labels", "the values at the ends of paths")
    top: int = setting(64, "tokens whose probabilities are fitted at a position", least=2, smoke=8)
    precision: Literal["float32", "bf16"] = unnamed("bf16", "of training on a GPU; a CPU computes in float32")
    tests: int = unnamed(500, "prompts of a test set that the loss is computed on", least=1, smoke=12)
    decoded: int = unnamed(300, "of these, prompts that are completed", least=0, smoke=4)
    measure_paths: int = unnamed(32, "paths between prompts of a measurement", least=2, smoke=4)
    observe: int = unnamed(0, "test prompts of which predictions are kept, to choose among models", least=0, smoke=12)

    def check(self) -> None:
        make_regularizer(self)
        if self.regularizer == "ed":
            check_pairs(self.pairs, self.batch)


@dataclass(frozen=True, eq=False)
class Sequences:
    """Token ids of prompts, padded on the left, followed by those of completions, padded on the right."""

    tokens: Tensor  # sequences × 2 × positions: ids and masks, without the last token of the longest completions
    targets: Tensor  # sequences × completion: its tokens, then IGNORED
    texts: Completions  # a prompt has a sequence for each of its references, one after another

    def to(self, device: torch.device) -> "Sequences":
        return replace(self, tokens=self.tokens.to(device), targets=self.targets.to(device))

    def prompts(self, count: int | None = None) -> Tensor:
        lengths = torch.tensor([0, *map(len, self.texts.references)])[:-1]
        return self.tokens[lengths.cumsum(0)[:count], :, : self.tokens.shape[2] - self.targets.shape[1] + 1]


def tokenize(tokenizer: Any, texts: Completions, settings: Completing) -> Sequences:
    """Return a sequence for each completion of each prompt, all of one length: steps are captured."""
    rows = [(prompt, each) for prompt, found in zip(texts.prompts, texts.references, strict=True) for each in found]
    prompts = tokenizer([prompt for prompt, _ in rows])["input_ids"]
    completions = tokenizer([completion for _, completion in rows], add_special_tokens=False)["input_ids"]
    before, after = settings.longest_prompt, settings.longest
    tokens = torch.full((len(rows), 2, before + after), tokenizer.pad_token_id)
    tokens[:, 1] = 0
    targets = torch.full((len(rows), after), IGNORED)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        # The first token may be one that the model needs there.
        start = prompt if len(prompt) <= before else [prompt[0], *prompt[len(prompt) - before + 1 :]]
        end = [*completion, tokenizer.eos_token_id][:after]
        tokens[row, 0, before - len(start) : before + len(end)] = torch.tensor([*start, *end])
        tokens[row, 1, before - len(start) : before + len(end)] = 1
        targets[row, : len(end)] = torch.tensor(end)
    return Sequences(tokens[:, :, :-1], targets, texts)


def load_sequences(data: Path | None, settings: Completing) -> tuple[dict[str, Sequences], str]:
    return _load(data, Completing(**{name: getattr(settings, name) for name in _OF_DATA}))


_OF_DATA = ("data", "model", "batch", "limit", "held_out", "longest_prompt", "longest", "tests")


@lru_cache(maxsize=1)  # the runs of a worker mostly have the same data
def _load(data: Path | None, settings: Completing) -> tuple[dict[str, Sequences], str]:
    splits = choose_splits(load_completions(settings.data, data), settings)
    tokenizer = load_tokenizer(find_folder(settings.model, data))
    fingerprint = hashlib.sha256(repr(sorted(splits.items())).encode()).hexdigest()[:16]
    return {name: tokenize(tokenizer, texts, settings) for name, texts in splits.items()}, fingerprint


def choose_splits(splits: Mapping[str, Completions], settings: Completing) -> dict[str, Completions]:
    """Choose the prompts to train and to test on, the same ones for every seed.

    With ``held_out``, a run is tested on dev prompts or, where there are none, on training prompts.
    """
    train, dev = splits["train"], splits.get("dev")
    reserved = settings.held_out if dev is None else 0
    if len(train) - reserved < settings.batch:
        raise ValueError(f"data={settings.data}: {len(train)} prompts do not fill a batch of {settings.batch}.")
    stop = None if settings.limit is None else reserved + settings.limit
    found = {"train": _take(train, reserved, stop)}
    if settings.held_out:
        return found | {"test": _take(train if dev is None else dev, 0, settings.held_out)}
    return found | {name: _take(splits[name], 0, settings.tests) for name in ("test", "unseen") if name in splits}


def _take(texts: Completions, start: int, stop: int | None) -> Completions:
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0))[start:stop].tolist()
    return Completions(
        tuple(texts.prompts[place] for place in order), tuple(texts.references[place] for place in order)
    )


class Completer(nn.Module):
    """A causal language model in two halves: from tokens to embeddings, and from there to logits of completions."""

    def __init__(self, model: Any, longest: int) -> None:
        super().__init__()
        self.model, self.longest = model, longest

    def embed(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        ids, mask = tokens.unbind(1)
        return self.model.get_input_embeddings()(ids), mask.bool()

    def encode(self, hidden: Tensor, mask: Tensor, *, last: int | None = None) -> Tensor:
        """Return the logits of the next token at the last positions, sequences × positions × vocabulary."""
        length = hidden.shape[1]
        earlier = torch.ones(length, length, dtype=torch.bool, device=hidden.device).tril()
        # Padding sees itself, because attention to nothing is not a number. Positions are relative in these models,
        # so padding on the left changes nothing.
        itself = torch.eye(length, dtype=torch.bool, device=hidden.device)
        seen = (earlier & mask[:, None]) | itself
        kept = {"use_cache": False, "logits_to_keep": self.longest if last is None else last}
        return self.model(inputs_embeds=hidden, attention_mask=seen[:, None], **kept).logits

    def forward(self, tokens: Tensor) -> Tensor:
        return self.encode(*self.embed(tokens))


class LoRA(nn.Module):
    """A linear layer that stays as it is, plus a trained product of two matrices of low rank (Hu et al., 2022)."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + _LORA_SCALE * self.up(self.down(x))


def load_model(folder: Path, settings: Completing) -> Completer:
    """Load a model to be fine-tuned as the settings say; LoRA's matrices are drawn from torch's random stream."""
    from transformers import AutoModelForCausalLM

    with quiet_transformers():
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    if settings.rank:
        model.requires_grad_(False)
    for block in model.get_decoder().layers:
        for name, layer in [*block.named_modules()]:
            if not isinstance(layer, nn.Linear):
                continue
            owner, _, own = name.rpartition(".")
            made: nn.Module = LoRA(layer, settings.rank) if settings.rank else layer
            if settings.regularizer == "rdrop" and own in ("o_proj", "down_proj"):  # the ends of both residual branches
                made = nn.Sequential(made, nn.Dropout(_DROPOUT))
            setattr(block.get_submodule(owner), own, made)
    return Completer(model, settings.longest)


def compute_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED)


Encode = Callable[..., Tensor]
Embedded = tuple[Tensor, Tensor]


class Noise(nn.Module):
    """NEFTune: noise at the embeddings, as a penalty of value 0; :class:`effdeg.baselines.NEFTune` without hooks."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self._alpha = alpha

    def forward(self, run: Encode, x: Embedded, y: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        hidden, mask = x
        size = self._alpha / (mask.sum(1) * hidden.shape[2]).sqrt()
        noise = (2 * torch.rand_like(hidden) - 1) * (mask * size[:, None])[..., None]
        return run(hidden + noise, mask), hidden.new_zeros(())


class Mixup(nn.Module):
    """Mixup at the embeddings; its value turns the loss of a label into that of two."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self._alpha = alpha

    def forward(self, run: Encode, x: Embedded, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of mixed embeddings, and (1 − λ) (loss with the others' labels − loss with the own)."""
        # The labels of examples are their numbers here, so the mixed ones say which were mixed, and how.
        mixed, shares = mixup(x, torch.eye(len(y), device=y.device), alpha=self._alpha)
        own = shares.diagonal().min()
        partners = (shares - shares.diagonal().diag() + 1e-9 * torch.eye(len(y), device=y.device)).argmax(1)
        logits = run(*mixed)
        return logits, (1 - own) * (compute_loss(logits, y[partners]) - compute_loss(logits, y))


class TokenPenalty(nn.Module):
    """The effective degree as :class:`effdeg.Penalty` takes it of a language model, with shapes that never change."""

    def __init__(self, settings: Completing) -> None:
        super().__init__()
        # Where labels are anchored, they are put in below: at a position, a path has its own tokens.
        self.penalty = effdeg.Penalty(**settings.penalty_options | {"anchor": "self"})
        self._anchored, self._top = settings.anchor == "labels", settings.top

    def forward(self, run: Encode, x: Embedded, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of the batch, and the degree: its mean over the positions of paths that count."""
        points, (_, mask) = self.penalty.points(x), x
        logits = run(*points.append_to(x))
        count = len(points.pairs)
        ends = logits[points.pairs.flip(1)].detach()  # the second example of a pair first: α = 0 there
        inner = logits[len(y) :].view(count, -1, *logits.shape[1:])
        along = torch.cat([ends[:, :1], inner, ends[:, 1:]], dim=1).float()  # paths × nodes × positions × vocabulary
        targets = y[points.pairs.flip(1)]
        labeled = targets != IGNORED
        values = self._find_values(along, targets, labeled)
        fitted = self.penalty.settings
        coefficients = fit(values.flatten(2), points.alpha, fitted.degree, damping=fitted.damping)
        by_position = coefficients.view(count, -1, *values.shape[2:]).movedim(2, 1)
        degrees = effective_degree(by_position)  # paths × positions
        visible = mask[:, -y.shape[1] :][points.pairs].all(1)
        counted = (visible & labeled.any(1)).to(degrees.dtype)
        return logits[: len(y)], (degrees * counted).sum() / counted.sum().clamp(min=1)

    def _find_values(self, along: Tensor, targets: Tensor, labeled: Tensor) -> Tensor:
        """Return the probabilities of the labels and the most likely tokens, and of all others together."""
        totals = along.logsumexp(-1, keepdim=True)
        with torch.no_grad():
            likely = (along - totals).exp_().mean(1)
            for end in (0, 1):  # above all probabilities
                likely.scatter_add_(-1, targets[:, end, :, None].clamp(min=0), 2.0 * labeled[:, end, :, None])
            tokens = likely.topk(min(self._top, along.shape[-1])).indices
        values = (along.gather(-1, tokens[:, None].expand(-1, along.shape[1], -1, -1)) - totals).exp()
        values = torch.cat([values, (1 - values.sum(-1, keepdim=True)).clamp(min=0)], dim=-1)
        if not self._anchored:
            return values
        hot = pad((tokens[:, None] == targets[..., None]).to(values.dtype), (0, 1))
        own = torch.stack([values[:, 0], values[:, -1]], dim=1)
        first, last = torch.where(labeled[..., None], hot, own).unbind(1)
        return torch.cat([first[:, None], values[:, 1:-1], last[:, None]], dim=1)


def make_regularizer(settings: Completing) -> Regularizer:
    """Make the regularizer of a run; those that only change the batch are penalties of weight 1."""
    made: dict[str, Callable[[], nn.Module | None]] = {
        "plain": lambda: None,
        "neftune": lambda: Noise(settings.noise),
        "mixup": lambda: Mixup(settings.alpha),
        "rdrop": RDrop,
        "ed": lambda: TokenPenalty(settings),
    }
    weight = settings.weight if settings.regularizer in ("rdrop", "ed") else 1.0
    return Regularizer(settings.regularizer, {}, weight=weight, penalty=made[settings.regularizer]())


def train(settings: Completing, job: Job) -> None:
    folder = find_folder(settings.model, job.data)
    splits, fingerprint = load_sequences(job.data, settings)
    splits = {name: each.to(job.device) for name, each in splits.items()}
    torch.manual_seed(settings.seed)
    model = load_model(folder, settings).to(job.device)
    if job.device.type == "cuda":  # one block, since compiling all of them would take longer than a run
        for block in model.model.get_decoder().layers:
            block.compile(dynamic=False)
    with open_loop(make_task(settings, model, splits), job) as loop:
        loop.start(fingerprint)
        loop.train()
        with _run_uncompiled():
            found = loop.measure(test, model, load_tokenizer(folder), splits, settings)
        times = {"seconds": loop.seconds, "milliseconds_per_step": 1e3 * loop.seconds / settings.steps}
        last = {key: value for key, value in loop.last.items() if key != "step"}
        loop.finish({**last, **found, **times}, keep_weights=False)


def check_language(several: Iterable[Completing], data: Path | None) -> None:
    several = list(several)
    tasks = {name: load_completions(name, data) for name in dict.fromkeys(each.data for each in several)}
    for each in several:
        choose_splits(tasks[each.data], each)
    for name in dict.fromkeys(each.model for each in several):
        load_tokenizer(find_folder(name, data))


def make_task(settings: Completing, model: Completer, splits: Mapping[str, Sequences]) -> Task:
    train, regularizer, steps = splits["train"], make_regularizer(settings), settings.steps
    rise = max(1, round(_WARM_UP * steps))

    def rate(step: int) -> float:
        return settings.lr * ((step + 1) / rise if step < rise else (steps - step) / (steps - rise))

    def evaluate(step: int, penalty: float | None) -> dict[str, Any]:  # noqa: ARG001
        found: dict[str, Any] = {"penalty": penalty}
        for name in splits:
            found[f"{name}_loss"] = measure_loss(model, splits[name], settings)
        # What tuning compares, and pools: the larger, the better.
        return found | {"test_accuracy": math.exp(-found["test_loss"])}

    return Task(
        model=model,
        regularizer=regularizer,
        batch=lambda rows: (train.tokens[rows], train.targets[rows]),
        examples=len(train.tokens),
        batch_size=settings.batch,
        steps=steps,
        optimizer=torch.optim.AdamW,
        options={"weight_decay": settings.weight_decay},
        rate=rate,
        weight=lambda _: 0.0 if regularizer.penalty is None else regularizer.weight,
        evaluation_steps=frozenset([steps]),
        evaluate=evaluate,
        describe=lambda entry: f"loss {entry['test_loss']:.3f}",
        loss=compute_loss,
        clip=1.0,
        precision=settings.precision,
        compile=False,  # blocks are, see train
        frees_gpu=True,
    )


def measure_loss(model: Completer, sequences: Sequences, settings: Completing) -> float:
    """Return the loss per token of completions, at most three for each test prompt that there may be."""
    total, tokens = 0.0, 0
    parts = (torch.split(each[: 3 * settings.tests], _CHUNK) for each in (sequences.tokens, sequences.targets))
    with _run_uncompiled(), evaluating(model, settings.precision):
        for given, targets in zip(*parts, strict=True):
            count = int((targets != IGNORED).sum())
            total += float(compute_loss(model(given), targets)) * count
            tokens += count
    return total / tokens


def test(model: Completer, tokenizer: Any, splits: Mapping[str, Sequences], settings: Completing) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in [name for name in splits if name != "train"]:
        if settings.decoded and not settings.held_out:
            found |= score(model, tokenizer, splits[name], name, settings)
        ids, mask = splits[name].prompts(settings.tests).unbind(1)
        prompts = {"input_ids": ids, "attention_mask": mask}
        with evaluating(model):
            measured = effdeg.measure(model.model, prompts, paths=settings.measure_paths, nodes=32, degree=16)
        found[f"{name}_degree"] = {key: getattr(measured, key) for key in ("value", "stderr", "normalized")}
        if settings.observe:
            loss = measure_loss(model, splits[name], settings)
            observed = observe_prompts(model, splits, name, settings) | {"accuracy": math.exp(-loss)}
            observed["measures"]["prompts_normalized"] = {"value": measured.normalized, "stderr": None}
            found.setdefault("observed", {})[name] = observed
    return found


def score(model: Completer, tokenizer: Any, sequences: Sequences, name: str, settings: Completing) -> dict[str, float]:
    """Complete prompts, each token the most likely one; return the share that is right, and BLEU if it is installed."""
    ids, mask = sequences.prompts(settings.decoded).unbind(1)
    options = {"max_new_tokens": settings.longest, "do_sample": False, "pad_token_id": tokenizer.pad_token_id}
    with evaluating(model, settings.precision):
        made = model.model.generate(input_ids=ids, attention_mask=mask, eos_token_id=tokenizer.eos_token_id, **options)[
            :, ids.shape[1] :
        ]
    texts = [text.strip() for text in tokenizer.batch_decode(made, skip_special_tokens=True)]
    references = [[each.strip() for each in known] for known in sequences.texts.references[: len(texts)]]
    right = [text in known for text, known in zip(texts, references, strict=True)]
    bleu = compute_bleu(texts, references) if settings.data == "webnlg" else None
    return {f"{name}_exact": sum(right) / len(right)} | ({} if bleu is None else {f"{name}_bleu": bleu})


def compute_bleu(texts: Sequence[str], references: Sequence[Sequence[str]]) -> float | None:
    """Return the BLEU of a corpus, by sacrebleu; None if that is not installed."""
    try:
        from sacrebleu.metrics import BLEU
    except ImportError:
        return None
    most = max(map(len, references))
    streams = [[each[place] if place < len(each) else None for each in references] for place in range(most)]
    return float(BLEU().corpus_score(list(texts), streams).score)


class FirstToken(nn.Module):
    """A model as a classifier of prompts: which of the first tokens of training completions comes next?"""

    def __init__(self, model: Completer, tokens: Tensor) -> None:
        super().__init__()
        self.model, self._tokens = model, tokens
        self.embed = model.embed

    def encode(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return self.model.encode(hidden, mask, last=1)[:, -1, self._tokens].float()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.encode(*self.embed(tokens))


def observe_prompts(
    model: Completer, splits: Mapping[str, Sequences], name: str, settings: Completing
) -> dict[str, Any]:
    """Observe a model on prompts and on copies of which a tenth of the tokens is replaced, as ``effdeg.pick`` does."""
    known = torch.unique(splits["train"].targets[:, 0])
    given = splits[name]
    chosen = draw(len(given.texts), settings.observe).to(known.device)
    inputs = given.prompts()[chosen]
    rows = torch.tensor([0, *map(len, given.texts.references)], device=known.device)[:-1].cumsum(0)[chosen]
    hits = given.targets[rows, :1] == known  # a first token that no training completion has is never right
    labels = torch.where(hits.any(1), hits.long().argmax(1), len(known))
    change = partial(drop_tokens, padding=int(model.model.config.pad_token_id or 0))
    with evaluating(model):
        first = FirstToken(model, known).eval()
        copies, paths = make_copies(inputs, change), settings.measure_paths
        return observe(first, inputs, copies, labels, embed=first.embed, paths=paths, nodes=32)


class CompletionStudy(Study):
    """Compares methods by the loss of completions and by what the models write.

    The claim is that ED with label anchors is ahead of plain training with as many steps and with twice as many, with
    95% intervals above zero: by the loss on unseen categories of WebNLG, or by the share of commands of SCAN that are
    answered exactly.
    """

    needs = "test_loss"

    def claim(self, results: Results) -> Verdict:
        return judge_all(self._judge(each, plain) for each in results.split() for plain in ("plain", "plain-half"))

    def _judge(self, results: Results, plain: str) -> Verdict:
        key, sign, what = ("test_exact", 100, "points") if _is_scan(results) else ("unseen_loss", -1, "loss saved")
        found = results.difference(results.find("ed"), results.find(plain), key)
        if found is None:
            return Verdict("not decided")
        interval = None
        if found.interval:
            low, high = sorted(sign * end for end in found.interval)
            interval = (low, high)
        quantity = f"ED against {plain}{', ' if results.point else ''}{results.point}, {what}"
        return judge(quantity, sign * found.value, interval, found.reason, above=0.0)

    def tables(self, results: Results) -> list[Table]:
        return [self._list_scores(each) for each in results.split()]

    def headline(self, run: Run) -> str:
        right = run.value("test_exact")
        exact = "" if math.isnan(right) or run.settings["data"] == "webnlg" else f", {right:.1%} exact"
        return f"loss {run.value('test_loss'):.3f} per token{exact}"

    def _list_scores(self, results: Results) -> Table:
        methods, table = results.methods, MethodTable(results)
        table.add("values", map(list_values, methods))
        # Tuning compares probabilities of tokens, exp(−loss).
        tuned = (each.choice if each.choice and each.choice.changes == each.values_used else None for each in methods)
        table.add("tuning: loss", (f"{-math.log(choice.score):.3f}" if choice else NOTHING for choice in tuned))
        for title, name in (("", "test"),) if _is_scan(results) else (("", "test"), ("unseen: ", "unseen")):
            right = ("exact, %", "test_exact", 100) if _is_scan(results) else (f"{title}BLEU", f"{name}_bleu", 1)
            for head, key, factor, decimals in ((f"{title}loss", f"{name}_loss", 1, 3), (*right, 1)):
                table.add_means(head, key, factor=factor, decimals=decimals)
                table.add_differences(f"{head} against {table.first}", key, factor)
        table.add_means("training loss", "train_loss", factor=1, decimals=3)
        table.add_means("normalized degree", "test_degree.normalized", factor=1)
        table.add("steps", (str(each.runs[0].settings["steps"]) if each.runs else NOTHING for each in methods))
        if any(each.time() is not None for each in methods):
            times = (each.time("milliseconds_per_step") for each in methods)
            table.add("step, ms", (NOTHING if time is None else f"{time:.1f}" for time in times))
        notes = [
            "Loss: per token of completions. ±: standard deviation over seeds. Differences have 95% intervals, paired "
            "by seed; * excludes zero. Degree: of the next token, along paths between test prompts.",
            *results.failures,
        ]
        model = results.scale.get("model", results.changes.get("model", results.recipe.settings.to_dict()["model"]))
        return table.make(f"{results.recipe.title}, {model}: {results.heading}", notes)


def _is_scan(results: Results) -> bool:
    return "scan" in str(results.recipe.settings.to_dict()["data"])


def make_methods(steps: int, rates: tuple[float, float, float]) -> tuple[Method, ...]:
    """List the methods, tuned on a few values of what sets their strength, with steps that take equal time.

    Those that take half the steps have a better learning rate in common with plain training of that length, so it is
    tuned with their weights.
    """
    half = steps // 2
    # ED's degree is a mean over 65 outputs, R-Drop's divergence a sum over the vocabulary.
    degrees: dict[str, Any] = {"weight": (1.0, 5.0), "lr": rates[1:]}
    divergences: dict[str, Any] = {"weight": (0.1, 0.5), "lr": rates[1:]}
    rated: dict[str, Any] = {"lr": rates}
    ed = {"regularizer": "ed", "weight": 5.0, "steps": half}
    return (
        Method("plain", "Plain", {"lr": rates[1], "steps": steps}, tune=rated),
        # Fewer steps are less time to overfit: whether the methods below gain by more than that.
        Method("plain-half", "Plain, half the steps", {"lr": rates[1], "steps": half}, tune=rated),
        _vary("neftune", "NEFTune", "noise", (5.0, 10.0, 15.0), steps),
        _vary("mixup", "Embedding mixup", "alpha", (0.1, 0.4, 1.0), steps),
        Method("rdrop", "R-Drop", {"regularizer": "rdrop", "weight": 0.5, "steps": half}, tune=divergences),
        Method("ed", "ED", ed, tune=degrees),
        Method("ed-self", "ED, self anchors", {**ed, "anchor": "self"}, tune=degrees),
    )


def _vary(regularizer: str, title: str, key: str, values: tuple[float, float, float], steps: int) -> Method:
    settings = {"regularizer": regularizer, key: values[1], "steps": steps}
    return Method(regularizer, title, settings, tune={key: values})


def draw_finetuning(draws: Draws) -> dict[str, Any]:
    rank = draws.choice(0, 4, 16, 64)
    regularizer = draws.choice("plain", "neftune", "mixup", "rdrop", "ed")
    return {
        "regularizer": regularizer,
        "rank": rank,
        "lr": draws.log_uniform(1e-4, 3e-3) if rank else draws.log_uniform(1e-5, 1e-3),
        "steps": draws.choice(50, 100, 200, 400),
        "weight_decay": draws.choice(0.0, 0.1),
        "weight": draws.log_uniform(1.0, 30.0) if regularizer == "ed" else draws.log_uniform(0.1, 3.0),
    }


_SETUP = (
    "AdamW with clipping at 1 and a rate that rises in the first 5% of steps and falls linearly to 0; bfloat16 on a "
    "GPU. R-Drop and ED take half as many steps, as theirs run twice as many sequences; plain training is also run "
    "with half as many. Methods are tuned by the loss of {tuned}: plain training with three learning rates, NEFTune "
    "and mixup with three strengths, R-Drop and ED with two weights and two learning rates. R-Drop adds dropout of "
    "0.02 at the end of each residual branch, without which both passes are the same. Models are roundings of the "
    "published ones to 4 to 8 bits."
)
WEBNLG = Recipe(
    name="language-webnlg",
    title="Fine-tuning a language model on WebNLG",
    paper="not in the paper",
    expects="ED is ahead of plain training, most of all on unseen categories.",
    cost="about 15 s per run on one H200 (estimated)",
    settings=Completing(limit=1000),
    run=train,
    check_data=check_language,
    study=CompletionStudy(),
    methods=make_methods(400, (3e-5, 1e-4, 3e-4)),
    departs=f"1,000 sets of triples with their texts. {_SETUP.format(tuned='500 dev sets')}",
    seeds=(0, 1, 2, 3, 4),
    tuning={"held_out": 500},
)
_LORA = {"rank": 16, "lr": 1e-3}

SCAN_RECIPE = replace(
    WEBNLG,
    name="language-scan",
    title="Fine-tuning a language model on SCAN",
    expects="ED is ahead of plain training where commands combine known words in new ways.",
    cost="about 10 s per run on one H200 (estimated)",
    settings=Completing(data="scan-jump", batch=64, longest_prompt=16, longest=49),
    methods=make_methods(400, (3e-5, 1e-4, 3e-4)),
    departs=f"All training commands of a split. {_SETUP.format(tuned='500 held-out commands of the split jump')}",
    grid={"data": tuple(f"scan-{split}" for split in SCAN)},
)
RECIPES = (
    WEBNLG,
    SCAN_RECIPE,
    replace(
        WEBNLG,
        name="language-webnlg-lora",
        title="Fine-tuning a language model on WebNLG by LoRA",
        settings=WEBNLG.settings.change(_LORA),
        methods=make_methods(400, (3e-4, 1e-3, 3e-3)),
    ),
    replace(
        SCAN_RECIPE,
        name="language-scan-lora",
        title="Fine-tuning a language model on SCAN by LoRA",
        settings=SCAN_RECIPE.settings.change(_LORA),
        methods=make_methods(400, (3e-4, 1e-3, 3e-3)),
    ),
    make_pool(
        "webnlg",
        "several fine-tuned language models without labels, on WebNLG",
        expects="The measure that was chosen on CIFAR-10 orders models by their loss.",
        cost="about 10 s per run on one H200 (estimated)",
        settings=Completing(limit=1000, observe=500, decoded=0, measure_paths=50),
        run=train,
        check_data=check_language,
        departs=(
            "40 fine-tunings of SmolLM2-135M with one seed. Accuracy is the probability of a token of a test "
            "completion, exp(−loss); predictions are of the first token of completions, and copies have a tenth of "
            "their tokens replaced."
        ),
        search=draw_points(draw_finetuning, 40, seed=0),
    ),
)
