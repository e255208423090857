from contextlib import nullcontext

import numpy as np
import pytest
import torch

import effdeg
from effdeg.measuring import _estimator, _path_runner
from tests.oracles.language import run_point
from tests.oracles.reference import damped_fit, effective_degree
from tests.train.test_language import VOCABULARY, language_model, sequences, word_tokenizer

transformers = pytest.importorskip("transformers")
WORDS = [f"w{number}" for number in range(VOCABULARY)]
SETTINGS = {"paths": 6, "nodes": 9, "degree": 4, "sampling": "uniform", "damping": 1e-6}


def prompts(side="left"):
    batch = sequences(side)
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def lists(batch):
    pairs = zip(batch["input_ids"], batch["attention_mask"], strict=True)
    return [ids[mask == 1].tolist() for ids, mask in pairs]


def loop(model, batch, pairs):
    """Measure one path, one point and one output at a time, on prompts that are padded on the left."""
    alpha, degrees = np.linspace(0, 1, 9), []
    ids, masks = batch["input_ids"], batch["attention_mask"]
    for first, second in pairs.tolist():
        mask = torch.maximum(masks[first], masks[second])
        positions = (mask.cumsum(0) - 1).clamp(min=0)[None]
        points = [run_point(model, ids[first], ids[second], mask, a, position_ids=positions) for a in alpha]
        values = np.array([point[-1] for point in points])
        degrees.append(effective_degree(damped_fit(values, alpha, 4, "chebyshev", 1e-6)))
    return degrees


@pytest.mark.parametrize("kind", ["Llama", "GPT2"])
def test_it_is_the_loop_over_paths_and_points(kind):
    model, batch = language_model(kind).eval(), prompts()
    measured = effdeg.measure(model, batch, **SETTINGS)
    assert measured.settings.at == {"Llama": "model.embed_tokens", "GPT2": "transformer.wte"}[kind]
    assert measured.settings.outputs == (VOCABULARY,)
    np.testing.assert_allclose(measured.per_path, loop(model, batch, measured.pairs), rtol=1e-5)


@pytest.mark.parametrize("kind", ["Llama", "GPT2"])
def test_padding_on_either_side_ids_and_lists_of_ids_are_the_same(kind):
    model, left = language_model(kind, pad_token_id=0), prompts()
    ids = lists(left)
    lengths = torch.tensor([len(each) for each in ids])[:, None]
    mask = (torch.arange(11) < lengths).long()  # and more of it
    right = {"input_ids": torch.zeros(6, 11, dtype=torch.long), "attention_mask": mask}
    right["input_ids"][mask == 1] = torch.tensor([token for each in ids for token in each])
    expected = effdeg.measure(model, left, **SETTINGS)
    for given in (right, ids, [torch.tensor(each) for each in ids], {"input_ids": ids}):
        measured = effdeg.measure(model, given, **SETTINGS)
        torch.testing.assert_close(measured.per_path, expected.per_path, rtol=1e-5, atol=1e-8)
    whole = effdeg.measure(model, left["input_ids"], **SETTINGS)
    assert whole.value != pytest.approx(expected.value, rel=1e-5)  # here padding is read
    note = "note: some prompts begin or end with token 0, as if it filled them up, and there is no attention_mask"
    # All begin with padding, of different lengths, as with padding="max_length".
    longer = torch.nn.functional.pad(left["input_ids"], (1, 0))
    for padded in (left["input_ids"], right["input_ids"], {"input_ids": right["input_ids"]}, longer):
        notes = effdeg.measure(model, padded, **SETTINGS).warnings()
        assert [each[: len(note)] for each in notes if "prompts" in each] == [note]
    begin = left["input_ids"][:, -4:].index_fill(1, torch.tensor([0]), 0)
    for whole in (left, left["input_ids"][:, -3:] % (VOCABULARY - 1) + 1, begin):
        assert not any("prompts begin" in each for each in effdeg.measure(model, whole, **SETTINGS).warnings())


@pytest.mark.parametrize("kind", ["GPT2", "Roberta", "Bart"])
def test_padding_changes_nothing_or_is_refused(kind):
    """RoBERTa's positions begin behind the padding token, 1; Bart's decoder takes none."""
    model, ids = language_model(kind).eval(), sequences()["input_ids"][:, :4].clamp(min=2)
    padding = torch.zeros(6, 3, dtype=torch.long)
    padded = {"input_ids": torch.cat([ids, padding], 1), "attention_mask": torch.cat([ids > 0, padding > 0], 1).long()}
    for given in (ids, padded):
        trace = effdeg.trace(model, given, paths=6, nodes=3, sampling="uniform")
        expected = model(input_ids=ids).logits[:, -1].detach()[trace.pairs[:, 0]]
        torch.testing.assert_close(trace.values("identity")[:, -1], expected)
    with nullcontext() if kind != "Bart" else pytest.raises(ValueError, match="padding in front of a prompt changes"):
        effdeg.measure(model, prompts(), **SETTINGS)


def test_prompts_that_have_all_ended_are_noted():
    batch, note = prompts(), "note: all prompts end with token 2, the end of a text"
    ended = [[*ids, 2] for ids in lists(batch)]
    for given, noted in ((ended, True), ([*ended[1:], [1, 3]], False)):
        notes = effdeg.measure(language_model(eos_token_id=2), given, **SETTINGS).warnings()
        assert any(each.startswith(note) for each in notes) is noted


@pytest.mark.parametrize("special", [{"pad_token": "w0"}, {"eos_token": "w0"}])
def test_texts_are_read_by_a_tokenizer_with_or_without_a_token_for_padding(special):
    model, batch = language_model(pad_token_id=0), prompts()
    texts = [" ".join(f"w{token}" for token in ids) for ids in lists(batch)]
    measured = effdeg.measure(model, texts, tokenizer=word_tokenizer(WORDS, unk_token="w0", **special), **SETTINGS)
    expected = effdeg.measure(model, batch, **SETTINGS)
    torch.testing.assert_close(measured.per_path, expected.per_path, rtol=1e-5, atol=1e-8)
    traced = {name: SETTINGS[name] for name in ("paths", "nodes", "sampling")}
    trace = effdeg.trace(model, texts, tokenizer=word_tokenizer(WORDS, unk_token="w0", **special), **traced)
    torch.testing.assert_close(trace.fit(degree=4, damping=1e-6).per_path, measured.per_path)


@pytest.mark.parametrize("texts", [False, True])
def test_several_models_are_compared_on_texts_and_on_lists_of_token_ids(texts):
    models, ids = {"a": language_model(pad_token_id=0), "b": language_model(pad_token_id=1)}, lists(prompts())
    inputs = [" ".join(f"w{token}" for token in each) for each in ids] if texts else ids
    more = {"tokenizer": word_tokenizer(WORDS, unk_token="w0", eos_token="w0")} if texts else {}
    compared = effdeg.compare(models, inputs, **more, **SETTINGS).measurements
    for name, model in models.items():
        expected = effdeg.measure(model, prompts(), **SETTINGS)
        torch.testing.assert_close(compared[name].per_path, expected.per_path, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("inputs", "options", "problem"),
    [
        ({**prompts(), "token_type_ids": prompts()["attention_mask"]}, {}, "inputs also hold token_type_ids"),
        ({**prompts(), "attention_mask": torch.zeros(6, 8).long()}, {}, "a prompt has no tokens"),
        ({**prompts(), "attention_mask": torch.ones(6, 9).long()}, {}, "prompts × tokens is needed"),
        (["a text"], {}, "a list of strings"),
        (prompts(), {"tokenizer": len}, "tokenizer= is for a list of texts"),
    ],
)
def test_what_is_no_prompt_is_refused(inputs, options, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        effdeg.measure(language_model(), inputs, **SETTINGS, **options)


def test_nothing_is_cached_and_only_the_last_positions_logits_are_computed():
    model = language_model()
    seen = []
    model.register_forward_hook(lambda _, __, returned: seen.append(returned))
    effdeg.measure(model, prompts(), **SETTINGS)
    assert all(returned.logits.shape[1] == 1 and returned.past_key_values is None for returned in seen)


def test_embeddings_and_functions_are_measured_as_any_inputs():
    model, batch = language_model(), prompts()
    embedded = {"inputs_embeds": model.get_input_embeddings()(batch["input_ids"]).detach()}
    measured = effdeg.measure(model, {**embedded, "attention_mask": batch["attention_mask"]}, **SETTINGS)
    assert (measured.settings.at, measured.settings.outputs) == (None, (8, VOCABULARY))
    first = effdeg.measure(lambda **given: model(**given).logits[:, 0], batch, at=model.model.embed_tokens, **SETTINGS)
    assert first.settings.outputs == (VOCABULARY,)


def test_values_are_fitted_path_by_path_and_in_parts_with_the_same_result(monkeypatch):
    model, batch = language_model(), prompts()
    whole = effdeg.measure(model, batch, batch_size=7, **SETTINGS)
    monkeypatch.setattr(_path_runner, "MOST_KEPT", 1)
    monkeypatch.setattr(_estimator, "FITTED_AT_ONCE", 100)
    sizes = []
    summarize = _estimator._summarize_outputs
    monkeypatch.setattr(
        _estimator, "_summarize_outputs", lambda values, *rest: sizes.append(values.numel()) or summarize(values, *rest)
    )
    parts = effdeg.measure(model, batch, batch_size=7, **SETTINGS)
    assert max(sizes) <= 2 * 9 * 11  # of no more paths than one batch of points ends, and some of their outputs
    torch.testing.assert_close(parts.per_path, whole.per_path)
    torch.testing.assert_close(parts.per_path_normalized, whole.per_path_normalized)
    torch.testing.assert_close(parts.spectrum, whole.spectrum)
    assert (parts.residual, parts.confidence) == pytest.approx((whole.residual, whole.confidence))


def test_batches_hold_few_logits_unless_their_size_is_given(monkeypatch):
    model, sizes = language_model(), []
    monkeypatch.setattr(_path_runner, "MOST_LOGITS", 5 * VOCABULARY)
    model.register_forward_hook(lambda _, __, returned: sizes.append(len(returned.logits)))
    few = effdeg.measure(model, prompts(), **SETTINGS)
    assert max(sizes[-10:]) <= 5
    many = effdeg.measure(model, prompts(), batch_size=50, **SETTINGS)
    assert sizes[-1] > 5
    torch.testing.assert_close(few.per_path, many.per_path)
