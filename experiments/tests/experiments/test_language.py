import json

import pytest
import torch

import effdeg
from effdeg.baselines import NEFTune
from effdeg_lab.core.recipe import find_recipe
from effdeg_lab.data.completions import Completions, load_completions
from effdeg_lab.experiments import language
from effdeg_lab.models.made_up import make_up
from effdeg_lab.models.text import load_tokenizer

pytest.importorskip("transformers")
MODEL = "SmolLM2-135M-Instruct"
SETTINGS = language.Completing(longest_prompt=6, longest=5, batch=8, tests=20, top=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_up(["webnlg", "scan-jump", MODEL], tmp_path_factory.mktemp("data"))


@pytest.fixture
def model(folder):
    torch.manual_seed(0)
    found = language.load_model(folder / MODEL, SETTINGS)
    with torch.no_grad():  # drawn so small that all outputs would be alike
        for parameter in found.parameters():
            if parameter.dim() == 2:
                parameter.mul_(10)
    return found


@pytest.fixture
def batch(folder):
    texts = Completions(
        ("red | is | blue text:", "text:", "black | is text:", "pink text:"),
        ((" red is blue .",), (" blue and green . pink is .",), (" black .",), (" pink and pink .",)),
    )
    return language.tokenize(load_tokenizer(folder / MODEL), texts, SETTINGS)


def test_prompts_end_and_completions_begin_at_one_position(folder, batch):
    words = load_tokenizer(folder / MODEL).convert_ids_to_tokens
    ids, mask = batch.tokens.unbind(1)
    assert words(ids[1].tolist()) == ["<pad>"] * 5 + ["text:", "blue", "and", "green", "."]
    assert words(ids[2].tolist()) == ["<pad>"] * 2 + ["black", "<unk>", "is", "text:", "black", ".", "<eos>", "<pad>"]
    assert mask.sum(1).tolist() == [10, 5, 7, 6]
    assert words(batch.targets[1].tolist()) == ["blue", "and", "green", ".", "pink"]  # cut off
    assert batch.targets[2].tolist() == [*batch.tokens[2, 0, 6:9].tolist(), language.IGNORED, language.IGNORED]
    assert batch.prompts(2).shape == (2, 2, 6)


def test_a_prompt_that_is_too_long_keeps_its_first_token_and_its_end(folder):
    texts = Completions(("red red green green blue blue black text:",), ((" red",),))
    found = language.tokenize(load_tokenizer(folder / MODEL), texts, SETTINGS).tokens[0, 0, :6]
    words = load_tokenizer(folder / MODEL).convert_ids_to_tokens(found.tolist())
    assert words == ["red", "green", "blue", "blue", "black", "text:"]


def test_every_reference_is_a_sequence_and_every_prompt_is_completed_once(folder):
    splits, _ = language.load_sequences(folder, SETTINGS)
    test = splits["test"]
    assert len(test.tokens) == 2 * len(test.texts.prompts)
    assert torch.equal(test.prompts(), test.tokens[::2, :, :6])


def test_held_out_prompts_are_dev_ones_or_not_trained_on(folder):
    webnlg, scan = (load_completions(name, folder) for name in ("webnlg", "scan-jump"))
    held_out = SETTINGS.change({"held_out": 5})
    assert {*language.choose_splits(webnlg, held_out)["test"].prompts} <= {*webnlg["dev"].prompts}
    found = language.choose_splits(scan, held_out)
    assert (len(found["test"]), len(found["train"])) == (5, len(scan["train"]) - 5)
    with pytest.raises(ValueError, match=r"data=scan-jump|data=webnlg: 60 prompts do not fill a batch of 100"):
        language.choose_splits(scan, SETTINGS.change({"batch": 100, "data": "scan-jump"}))


def test_logits_are_those_of_the_model_without_padding(model, batch):
    found = model.eval()(batch.tokens)
    for row, (ids, mask) in enumerate(batch.tokens):
        alone = model.model(ids[mask.bool()][None]).logits[0]
        known = int((batch.targets[row] != language.IGNORED).sum())
        last = len(alone) if mask[-1] else len(alone) - 1  # nothing follows the end of a text
        assert torch.allclose(found[row, :known], alone[last - known : last], atol=1e-5)


@pytest.mark.parametrize("anchor", ["labels", "self"])
def test_the_penalty_is_the_librarys(model, batch, anchor):
    settings = SETTINGS.change({"regularizer": "ed", "anchor": anchor})
    own = language.TokenPenalty(settings)
    torch.manual_seed(1)
    logits, degree = own(model.encode, model.embed(batch.tokens), batch.targets)
    degree.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    ids, mask = batch.tokens.unbind(1)
    labels = torch.cat([torch.full((len(ids), 6), language.IGNORED), batch.targets], dim=1)[:, :-1]
    labels[mask == 0] = language.IGNORED
    # The last target of a completion that was cut off has no position of its own there.
    given = {
        "input_ids": torch.cat([ids, torch.zeros_like(ids[:, :1])], 1),
        "attention_mask": torch.cat([mask, torch.zeros_like(mask[:, :1])], 1),
        "labels": torch.cat([labels, batch.targets[:, -1:]], 1),
    }
    torch.manual_seed(1)
    _, expected = effdeg.Penalty(nodes=4, degree=3, pairs=0.5, anchor=anchor, top=8)(model.model, given)
    expected.backward()
    assert degree.item() == pytest.approx(expected.item(), rel=1e-5)
    assert degree.item() > 1e-3
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.allclose(parameter.grad, gradient, atol=1e-6)
    assert torch.allclose(logits, model(batch.tokens), atol=1e-5)


def test_mixup_has_the_loss_of_both_labels(model, batch):
    torch.manual_seed(3)
    logits, value = language.Mixup(1.0)(model.encode, model.embed(batch.tokens), batch.targets)
    torch.manual_seed(3)
    (hidden, mask), shares = effdeg.baselines.mixup(model.embed(batch.tokens), torch.eye(4), alpha=1.0)
    assert torch.allclose(logits, model.encode(hidden, mask), atol=1e-6)
    share = shares.diagonal().min()
    partners = [
        int(row.nonzero()[row.nonzero().flatten() != place][0]) if row[place] < 1 else place
        for place, row in enumerate(shares)
    ]
    expected = share * language.compute_loss(logits, batch.targets) + (1 - share) * language.compute_loss(
        logits, batch.targets[partners]
    )
    assert torch.allclose(language.compute_loss(logits, batch.targets) + value, expected, atol=1e-6)
    assert 0 < share < 1


def test_noise_is_that_of_neftune(model, batch):
    ids, mask = batch.tokens.unbind(1)
    torch.manual_seed(5)
    logits, _ = language.Noise(5.0)(model.encode, model.embed(batch.tokens), batch.targets)
    torch.manual_seed(5)
    expected, _ = NEFTune(5.0)(model.model, {"input_ids": ids, "attention_mask": mask})
    for row, known in enumerate((batch.targets != language.IGNORED).sum(1)):
        assert torch.allclose(logits[row, :known], expected.logits[row, 5 : 5 + known], atol=1e-5)


def test_lora_starts_as_the_model_and_trains_its_matrices_alone(folder, batch):
    plain, lora = (language.load_model(folder / MODEL, SETTINGS.change({"rank": rank})) for rank in (0, 2))
    assert torch.equal(plain(batch.tokens), lora(batch.tokens))
    trained = {name.split(".")[-2] for name, each in lora.named_parameters() if each.requires_grad}
    assert trained == {"down", "up"}
    assert sum(isinstance(each, language.LoRA) for each in lora.modules()) == 14  # seven in each of two blocks


def test_only_r_drop_adds_dropout(folder, batch):
    dropped = language.load_model(folder / MODEL, SETTINGS.change({"regularizer": "rdrop"})).train()
    assert not torch.equal(dropped(batch.tokens), dropped(batch.tokens))
    plain = language.load_model(folder / MODEL, SETTINGS)
    assert not any(isinstance(each, torch.nn.Dropout) for each in plain.modules())


def test_the_loss_is_per_token(model, batch):
    logits = model.eval()(batch.tokens).log_softmax(-1)
    known = batch.targets != language.IGNORED
    expected = -logits.gather(2, batch.targets.clamp(min=0)[..., None])[..., 0][known].mean().item()
    assert language.measure_loss(model, batch, SETTINGS) == pytest.approx(expected, rel=1e-5)


def test_completions_are_scored_by_whole_texts(folder, batch, model):
    tokenizer = load_tokenizer(folder / MODEL)

    class Knows(torch.nn.Module):
        def generate(self, input_ids, **_):
            known = torch.where(batch.targets == language.IGNORED, tokenizer.pad_token_id, batch.targets)
            known = known[: len(input_ids)].clone()
            known[3, 0] = tokenizer.convert_tokens_to_ids("red")
            return torch.cat([input_ids, known], dim=1)

    knows = language.Completer(Knows(), 5)
    knows.scale = torch.nn.Parameter(torch.ones(()))
    found = language.score(knows, tokenizer, batch, "test", SETTINGS.change({"data": "scan-jump"}))
    assert found == {"test_exact": 0.5}  # one was cut off, one has a wrong word


def test_bleu_counts_every_reference():
    pytest.importorskip("sacrebleu")
    texts = ["the red cat sat on the mat .", "a dog runs home today ."]
    assert language.compute_bleu(texts, [["other words here", texts[0]], [texts[1]]]) == pytest.approx(100)


def test_missing_files_say_where_they_are_published(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"webnlg was not found: expected .*webnlg/train.jsonl") as error:
        load_completions("webnlg", tmp_path)
    assert "https://github.com/ThiagoCF05/webnlg" in " ".join(error.value.__notes__)
    with pytest.raises(ValueError, match=r"'scan-jmp' is not a task\. Did you mean 'scan-jump'"):
        load_completions("scan-jmp", tmp_path)
    (tmp_path / "scan").mkdir()
    for part in ("train", "test"):
        (tmp_path / "scan" / f"jump-{part}.jsonl").write_text(json.dumps({"input": "hop", "target": "I_HOP"}) + "\n")
    with pytest.raises(ValueError, match=r"jump-train.jsonl, line 1: KeyError: 'HOP'"):
        load_completions("scan-jump", tmp_path)


def test_r_drop_and_ed_take_half_the_steps_of_the_others():
    recipe = find_recipe("language-webnlg")
    steps = {each.name: recipe.resolve(each).steps for each in recipe.methods}
    whole, half = ("plain", "neftune", "mixup"), ("plain-half", "rdrop", "ed", "ed-self")
    assert steps == dict.fromkeys(whole, 400) | dict.fromkeys(half, 200)


def test_a_prompt_without_completions_is_left_out(tmp_path):
    (tmp_path / "webnlg").mkdir()
    rows = [{"input": "a", "targets": ["b"]}, {"input": "c", "targets": []}]
    for split in ("train", "dev", "test-seen", "test-unseen"):
        (tmp_path / "webnlg" / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert load_completions("webnlg", tmp_path)["dev"] == Completions(("a\ntext:",), ((" b",),))
