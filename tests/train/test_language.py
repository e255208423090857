import pytest
import torch

from effdeg import Penalty
from effdeg.functional import effective_degree, fit
from effdeg.train import _language, _settings
from effdeg.train._language import top_probabilities
from tests.oracles.language import penalty_of_sequences

transformers = pytest.importorskip("transformers")
VOCABULARY = 30
SHAPES = {
    "Llama": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32},
    "Mixtral": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
    "Roberta": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "is_decoder": True},
    "Bart": {"d_model": 16, "decoder_layers": 1, "decoder_attention_heads": 2, "is_encoder_decoder": False},
    "GPT2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16},
}


def language_model(kind="Llama", **changes):
    # Far from linear, and without dropout.
    quiet = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0} if kind == "GPT2" else {}
    shape = {"vocab_size": VOCABULARY, "initializer_range": 0.5, **SHAPES[kind], **quiet}
    config = getattr(transformers, f"{kind}Config")(**{**shape, **changes})
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).double()


def sequences(side="right", examples=6, length=8):
    """Return sequences of different lengths, whose first two tokens are a prompt without labels."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, VOCABULARY, (examples, length), generator=generator)
    lengths = torch.randint(4, length + 1, (examples, 1), generator=generator)
    places = torch.arange(length) if side == "right" else torch.arange(length).flip(0)
    mask = (places < lengths).long()
    start = 0 if side == "right" else length - lengths
    ids = torch.where(mask == 1, ids, 0)
    labels = torch.where((mask == 1) & (torch.arange(length) >= start + 2), ids, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def word_tokenizer(words, **special):
    from tokenizers import Tokenizer, models, pre_tokenizers

    numbered = {word: number for number, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(numbered, unk_token=special["unk_token"]))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special)


PAIRS = torch.tensor([[0, 1], [2, 3], [4, 5], [1, 4]])


@pytest.fixture(autouse=True)
def fixed_pairs(monkeypatch):
    monkeypatch.setattr(_settings, "draw_pairs_of_batch", lambda *_, **__: PAIRS)


FIXED = {"nodes": 5, "degree": 3, "sampling": "uniform", "damping": 1e-3}
ALPHA = torch.linspace(0, 1, 5, dtype=torch.float64)


@pytest.mark.parametrize("anchor", ["labels", "self"])
@pytest.mark.parametrize(("kind", "side", "top"), [("Llama", "left", 5), ("GPT2", "right", 64)])
def test_it_is_the_loop_over_paths_and_positions(kind, side, top, anchor, monkeypatch):
    monkeypatch.setattr(_language, "_AT_ONCE", 200)  # several parts
    model, batch = language_model(kind), sequences(side)
    outputs, degree = Penalty(anchor=anchor, top=top, **FIXED)(model, batch)
    alone = model(**batch)
    torch.testing.assert_close(outputs.logits, alone.logits)
    torch.testing.assert_close(outputs.loss, alone.loss)
    settings = {"anchor": anchor, "top": top, "degree": 3, "damping": 1e-3}
    expected = penalty_of_sequences(model, batch, PAIRS.tolist(), ALPHA.numpy(), **settings)
    assert degree.item() == pytest.approx(expected, rel=1e-9)


def test_a_loss_of_routers_is_refused():
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "num_key_value_heads": 2}
    model, batch = language_model("Mixtral", output_router_logits=True, **experts).float(), sequences()
    for given in (batch, {name: batch[name] for name in ("input_ids", "attention_mask")}):
        with pytest.raises(ValueError, match=r"computes a loss of its routers.*Set output_router_logits=False"):
            Penalty(anchor=None, **FIXED)(model, given)
    outputs, _ = Penalty(anchor="self", **FIXED)(model, batch, output_router_logits=False)
    torch.testing.assert_close(outputs.loss, model(**batch, output_router_logits=False).loss)


def test_without_anchors_the_model_runs_at_all_nodes():
    model, batch = language_model(), sequences()
    alpha = torch.tensor([0.1, 0.3, 0.6, 0.9], dtype=torch.float64)
    penalty = Penalty(top=5, damping=1e-3)
    settings = penalty.settings
    object.__setattr__(settings, "draw_alpha", lambda pairs, device: alpha.to(device).expand(pairs, -1))
    settings = {"anchor": None, "top": 5, "degree": 3, "damping": 1e-3}
    expected = penalty_of_sequences(model, batch, PAIRS.tolist(), alpha.numpy(), **settings)
    assert penalty(model, batch)[1].item() == pytest.approx(expected, rel=1e-9)


def test_gradients_are_those_of_the_whole_softmax(monkeypatch):
    """With all tokens the penalty is that of differentiable operations on the probabilities of the vocabulary."""
    monkeypatch.setattr(_language, "_AT_ONCE", 200)
    model, batch = language_model(), sequences()
    penalty = Penalty(anchor="self", top=VOCABULARY, **FIXED)
    penalty(model, batch)[1].backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    mask, labels = batch["attention_mask"], batch["labels"]
    embedded = model.get_input_embeddings()(batch["input_ids"])
    own = model(inputs_embeds=embedded, attention_mask=mask).logits.softmax(-1).detach()
    first, second = PAIRS.unbind(1)
    joined = torch.maximum(mask[first], mask[second])
    inner = [
        model(inputs_embeds=a * embedded[first] + (1 - a) * embedded[second], attention_mask=joined).logits.softmax(-1)
        for a in ALPHA[1:-1]
    ]
    values = torch.stack([own[second], *inner, own[first]], dim=2)
    has = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100) != -100
    counted = (mask[first] * mask[second] == 1) & (has[first] | has[second])
    degrees = effective_degree(fit(values[counted], ALPHA, 3, damping=1e-3))
    degrees.mean().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, msg=name)


def test_probabilities_of_some_tokens_have_the_right_gradient():
    torch.manual_seed(0)
    logits = torch.randn(3, 4, 7, dtype=torch.float64, requires_grad=True)
    rows, place = torch.tensor([[0, 2], [1, 1], [0, 2]]), torch.tensor([1, 3, 1])  # some logits are used twice
    tokens = torch.tensor([[0, 6], [2, 3], [5, 1]])
    values = top_probabilities(logits, rows, place, tokens)
    whole = logits.softmax(-1)[rows, place[:, None]]
    picked = whole.gather(2, tokens[:, None].expand(-1, 2, -1))
    torch.testing.assert_close(values, torch.cat([picked, 1 - picked.sum(-1, keepdim=True)], dim=-1))
    assert torch.autograd.gradcheck(lambda z: top_probabilities(z, rows, place, tokens), (logits,))


def test_nothing_of_the_size_of_the_logits_is_kept_for_the_gradient():
    logits = torch.randn(4, 3, 1000, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        top_probabilities(logits, torch.arange(4)[:, None], torch.ones(4).long(), torch.arange(8).view(4, 2))
    assert all(each.numel() < 100 for each in kept if each.data_ptr() != logits.data_ptr())


def test_labels_can_be_given_apart_and_change_the_value_only_by_their_own_positions():
    model, batch = language_model(), sequences()
    labels = batch.pop("labels")
    penalty = Penalty(anchor="labels", **FIXED)
    together = penalty(model, {**batch, "labels": labels})[1]
    outputs, apart = penalty(model, batch, labels)
    torch.testing.assert_close(apart, together)
    assert outputs.loss is None
    assert "past_key_values" not in outputs
    assert penalty(model, batch["input_ids"], labels)[1].isfinite()
    everywhere = Penalty(anchor="self", **FIXED)(model, batch)[1]
    assert everywhere.item() != pytest.approx(Penalty(anchor="self", **FIXED)(model, batch, labels)[1].item())


@pytest.mark.parametrize("anchor", ["labels", "self"])
def test_a_teacher_gives_the_ends_of_unlabeled_sequences(anchor):
    model, batch = language_model(), sequences()
    unlabeled = {name: leaf.flip(0) for name, leaf in batch.items() if name != "labels"}
    torch.manual_seed(0)
    penalty = Penalty(anchor=anchor, **FIXED)
    values = {}
    for name, teacher in {"none": None, "itself": model, "another": language_model(initializer_range=0.1)}.items():
        outputs, values[name] = penalty(model, batch, unlabeled=unlabeled, teacher=teacher)
        torch.testing.assert_close(outputs.loss, model(**batch).loss)
    torch.testing.assert_close(values["itself"], values["none"])
    assert values["another"].item() != pytest.approx(values["none"].item(), rel=1e-3)


@pytest.mark.parametrize(
    ("hidden", "reason"),
    [(False, "these sequences have no label but -100. .* Check the labels"), (True, "is padding.* Use larger batches")],
)
def test_paths_without_a_common_labeled_position_count_nothing_and_warn(hidden, reason):
    model, batch = language_model(), sequences(side="right", length=8)
    batch["labels"] = torch.full_like(batch["labels"], -100)
    if hidden:
        batch["attention_mask"][:, 0], batch["labels"][:, 1] = 0, 1
    with pytest.warns(UserWarning, match=f"no position of these paths counts: .*{reason}"):
        _, degree = Penalty(anchor="labels", **FIXED)(model, batch)
    assert degree.item() == 0
    degree.backward()


def packed(batch):
    return {**batch, "position_ids": torch.tensor([0, 1, 2, 0, 1, 2, 3, 4]).expand(6, -1)}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (packed, "packed sequences"),
        (lambda batch: {**batch, "position_ids": torch.arange(8) + torch.arange(6)[:, None]}, "differ from row to row"),
        (lambda batch: {**batch, "attention_mask": torch.ones(6, 1, 8, 8)}, "one number per token"),
        (lambda batch: {**batch, "logits_to_keep": 1, "labels": None}, "the logits of every position"),
    ],
)
def test_what_has_no_paths_between_sequences_is_refused(change, problem):
    with pytest.raises(ValueError, match=problem):
        Penalty(anchor="self", **FIXED)(language_model(), change(sequences()))


def test_labels_outside_of_the_vocabulary_or_of_another_shape_are_refused():
    model, batch = language_model(), sequences()
    labels = batch.pop("labels")
    with pytest.raises(ValueError, match="a vocabulary of 30 tokens"):
        Penalty(anchor="labels", **FIXED)(model, batch, labels + 7)
    with pytest.raises(ValueError, match="do not match token ids"):
        Penalty(anchor="labels", **FIXED)(model, batch, labels[:, :-1])
    with pytest.raises(ValueError, match="top=1"):
        Penalty(top=1)
    with pytest.raises(ValueError, match="the label of the next position"):
        Penalty(anchor="labels", output=lambda returned: returned.logits.softmax(-1))(model, batch, labels)


def test_bfloat16_agrees_with_float32():
    model, batch = language_model(), sequences()
    penalty = Penalty(anchor="labels", **FIXED)
    degrees = [penalty(model.to(dtype), batch)[1] for dtype in (torch.float32, torch.bfloat16)]
    assert degrees[1].dtype == torch.float32
    assert degrees[1].item() == pytest.approx(degrees[0].item(), rel=0.05)
