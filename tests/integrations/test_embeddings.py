"""Token ids without ``at=``: which layer embeds them, in which models, and that paths lie there."""

import re
import warnings

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import effdeg
from effdeg import Penalty
from effdeg._adapters.layers import advice_for_integers, base_model, find_embeddings, find_layer
from effdeg.integrations import _calls
from tests.train.test_parallel import SHARDS_ON_CPU

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from effdeg.integrations.huggingface import PenaltyTrainer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
SHAPE = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
DECODER = {"vocab_size": 30, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
T5 = {"vocab_size": 30, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}


def make(name, **changes):
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    shape = DECODER if name.startswith("GPT2") else T5 if name.startswith("T5") else SHAPE
    config = kind.config_class(**{**shape, "num_labels": 3, "pad_token_id": 0, **changes})
    return kind(config).eval()


def bert(**changes):
    # Far from linear, so that it matters where paths lie.
    return make("BertForSequenceClassification", **{**QUIET, "initializer_range": 0.5, **changes})


def sentences(examples=16, length=7, **more):
    generator = torch.Generator().manual_seed(0)
    return {"input_ids": torch.randint(2, 30, (examples, length), generator=generator), **more}


LABELS = torch.randint(3, (16,), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("name", "changes", "place"),
    [
        ("BertForSequenceClassification", {}, "bert.embeddings"),
        ("RobertaForSequenceClassification", {}, "roberta.embeddings"),
        ("DistilBertForSequenceClassification", {"dim": 16, "n_heads": 2, "hidden_dim": 32}, "distilbert.embeddings"),
        ("ElectraForSequenceClassification", {"embedding_size": 8}, "electra.embeddings"),
        (
            "DebertaV2ForSequenceClassification",
            {"relative_attention": True, "position_buckets": 4, "pos_att_type": ["p2c", "c2p"]},
            "deberta.embeddings",
        ),
        ("BertModel", {}, "embeddings"),
        ("GPT2ForSequenceClassification", {}, "transformer.wte"),
        # Their output layers have the weights of the embedding.
        ("GPT2LMHeadModel", {"tie_word_embeddings": True}, "transformer.wte"),
        ("LlamaForCausalLM", {"tie_word_embeddings": True}, "model.embed_tokens"),
        ("T5ForTokenClassification", {}, "transformer.encoder.embed_tokens"),
    ],
)
def test_at_the_place_that_is_found_all_of_an_example_is_embedded(name, changes, place):
    """The outputs at the two ends of a path are those for its two examples, so nothing of them bypasses the layer."""
    model, inputs = make(name, **changes), sentences()
    if name.startswith(("Bert", "Electra", "Albert")):
        inputs["token_type_ids"] = (torch.arange(7) > torch.arange(16)[:, None] % 7).long()
    if "tie_word_embeddings" in changes:
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    found = find_embeddings(model)
    # Transformers 4 has T5's embedding once, under its first name.
    assert found == place or (name.startswith("T5") and find_layer(model, found).module is model.get_input_embeddings())
    traced = effdeg.trace(model, inputs, paths=10, nodes=2, sampling="uniform")
    assert traced.settings.at == found
    values = traced.values("identity")
    with torch.no_grad():
        returned = model(**inputs)
    expected = returned.logits if "logits" in returned else returned[0]
    # Of a language model that of the next token.
    expected = expected[:, -1] if name in {"GPT2LMHeadModel", "LlamaForCausalLM"} else expected.flatten(1)
    torch.testing.assert_close(values[:, 1], expected[traced.pairs[:, 0]], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(values[:, 0], expected[traced.pairs[:, 1]], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_classifier_that_finds_the_last_token_by_its_id_is_noted_unless_padding_is_in_front(side):
    inputs = sentences()
    inputs["input_ids"][:8, : 3 if side == "left" else None][:, 0 if side == "left" else 4 :] = 0
    inputs["attention_mask"] = (inputs["input_ids"] != 0).long()
    model = make("GPT2ForSequenceClassification", initializer_range=0.5)
    notes = effdeg.measure(model, inputs, paths=16).notes()
    assert any("find by its id: pad on the left" in note for note in notes) == (side == "right")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        penalty = Penalty()
        for _ in range(2):
            penalty(model, inputs)
    assert ["Pad on the left" in str(each.message) for each in caught] == [True] * (side == "right")


class Adapted(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.base_model = nn.ModuleDict({"model": model})

    def get_base_model(self):
        return self.base_model["model"]

    def forward(self, *arguments, **keywords):
        return self.base_model["model"](*arguments, **keywords)


Adapted.__module__ = "peft.peft_model"


def compile_part(model):
    model.bert.embeddings.word_embeddings = torch.compile(model.bert.embeddings.word_embeddings, backend="eager")
    return model


WRAPPERS = {
    "torch.compile": (lambda model: torch.compile(model, backend="eager"), ""),
    "a compiled part": (compile_part, ""),
    "DataParallel": (nn.DataParallel, ""),
    "AveragedModel": (AveragedModel, ""),
    "PEFT": (Adapted, "base_model.model."),
    "DDP of PEFT": (lambda model: DistributedDataParallel(Adapted(model)), "base_model.model."),
    "FSDP1": (lambda model: FullyShardedDataParallel(model, device_id=torch.device("cpu")), ""),
    "FSDP2 of each part": (lambda model: fully_shard(model.bert.embeddings) and fully_shard(model) and model, ""),
}


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("kind", WRAPPERS)
def test_wrappers_do_not_hide_the_embeddings(kind):
    if "FSDP2" in kind and not SHARDS_ON_CPU:
        pytest.skip("fully_shard needs torch 2.8 to run on the CPU")
    wrap, prefix = WRAPPERS[kind]
    inner = bert().train()
    wrapped, expected = wrap(inner), base_model(inner)
    assert find_embeddings(wrapped) == f"{prefix}bert.embeddings"
    assert type(base_model(wrapped)) is type(expected)
    torch.manual_seed(7)
    with _calls.join_calls(wrapped, Penalty(anchor="labels"), LABELS) as degrees:
        outputs = wrapped(**sentences(labels=LABELS))
    plain = bert().train()
    torch.manual_seed(7)
    other, degree = Penalty(anchor="labels", at="bert.embeddings")(plain, sentences(labels=LABELS))
    torch.testing.assert_close(_calls.get_only(degrees, kind), degree)
    torch.testing.assert_close(outputs.loss, other.loss)


@pytest.mark.parametrize("options", [{}, {"modules_to_save": ["word_embeddings"]}, {"modules_to_save": ["embeddings"]}])
def test_a_model_of_peft(options):
    peft = pytest.importorskip("peft")
    targets = ["query"] if options else ["query", "word_embeddings"]
    model = peft.get_peft_model(bert(), peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=targets, **options))
    assert find_embeddings(model) == "base_model.model.bert.embeddings"
    assert "such as at='0.base_model.model.bert.embeddings'." in advice_for_integers(nn.Sequential(model))
    with _calls.join_calls(model, Penalty(anchor="labels"), LABELS) as degrees:
        outputs = model(**sentences(labels=LABELS))
    degrees[0].backward()
    torch.testing.assert_close(outputs.loss, model(**sentences(labels=LABELS)).loss)


def arguments(folder, **options):
    quiet = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True}
    given = {
        "per_device_train_batch_size": 8,
        "dataloader_pin_memory": False,
        "num_train_epochs": 3,
        "logging_steps": 1,
    }
    return transformers.TrainingArguments(folder, **quiet | given | options)


def seeded(**settings):
    return Penalty(anchor="labels", generator=torch.Generator().manual_seed(5), **settings)


def first_degree(model, batch, penalty, folder, **options):
    trainer = PenaltyTrainer(model, arguments(folder), penalty=penalty, weight=1.0, **options)
    trainer.compute_loss(model.train(), dict(batch))
    return trainer._degree


def test_a_layer_that_is_named_comes_before_the_embeddings(tmp_path):
    batch, model = sentences(labels=LABELS), bert()
    for at in (None, "bert.encoder.layer.0"):
        degree = seeded(at=at or "bert.embeddings")(model, batch)[1]
        assert torch.equal(first_degree(model, batch, seeded(at=at), tmp_path), degree)
        assert torch.equal(seeded(at=at)(model, batch)[1], degree)
    inputs = sentences()
    values = [
        effdeg.measure(model, inputs, at=at, paths=4).value for at in (None, "bert.embeddings", "bert.encoder.layer.0")
    ]
    assert values[0] == values[1] != values[2]
    norms = [effdeg.proxies.jacobian_norm(model, inputs, at=at).value for at in (None, "bert.embeddings")]
    assert norms[0] == norms[1]


def test_embeddings_that_are_given_are_joined_themselves(tmp_path):
    embedded = {"inputs_embeds": torch.randn(16, 7, 16), "labels": LABELS}
    model = bert()
    found = first_degree(model, embedded, seeded(), tmp_path)
    torch.testing.assert_close(found, seeded()(model, embedded)[1])
    assert not torch.allclose(found, seeded(at="bert.embeddings")(model, embedded)[1], rtol=1e-3)


class Around(nn.Module):
    def __init__(self):
        super().__init__()
        self.text = bert()

    def forward(self, input_ids, pixels=None):
        return self.text(input_ids)


class Captions(Around):
    def get_input_embeddings(self):
        return self.text.get_input_embeddings()


@pytest.mark.parametrize(
    ("model", "more", "message"),
    [
        (Around(), {}, r"such as at='text\.bert\.embeddings'\."),
        (Captions(), {"pixels": torch.rand(16, 2)}, r"such as at='text\.bert\.embeddings'\."),
        (
            nn.Sequential(nn.ModuleDict({"words": nn.Embedding(30, 4)}), nn.Flatten(), nn.Linear(28, 3)),
            {},
            r"such as at='0\.words'",
        ),
    ],
)
def test_what_has_no_one_place_is_refused_and_the_candidates_are_named(model, more, message, tmp_path):
    batch = sentences(**more)
    with pytest.raises(TypeError, match=message):
        first_degree(model, batch, Penalty(), tmp_path, compute_loss_func=lambda *_, **__: None)
    with pytest.raises(TypeError, match=message):
        effdeg.measure(model, batch, paths=4)


BART = {
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 1),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim"), 16),
}


@pytest.mark.parametrize(
    ("name", "changes"), [("T5ForSequenceClassification", {}), ("BartForSequenceClassification", BART)]
)
def test_the_places_that_are_named_in_an_encoder_and_a_decoder_run(name, changes):
    model, batch = make(name, **changes, eos_token_id=1, decoder_start_token_id=0), sentences()
    batch["input_ids"][:, -1] = 1  # such classifiers read the last token
    with pytest.raises(TypeError, match="for token ids let the path live at a layer") as error:
        effdeg.measure(model, batch, paths=4)
    places = re.findall(r"at='(\S+)'", str(error.value))
    # In transformers 4 T5's encoder and decoder share one layer, where no path can lie.
    assert [place.split(".")[-2] for place in places] == ["encoder", "decoder"] or (
        name.startswith("T5") and not places
    )
    for place in places:
        assert effdeg.measure(model, batch, at=place, paths=4, nodes=12, degree=4).value > 0


def test_a_layer_that_an_encoder_and_a_decoder_share_is_not_named():
    class Half(nn.Module):
        def __init__(self, words):
            super().__init__()
            self.embed_tokens = words

        def get_input_embeddings(self):
            return self.embed_tokens

    class Both(nn.Module):
        def __init__(self, *words):
            super().__init__()
            self.config = transformers.PretrainedConfig(is_encoder_decoder=True)
            self.encoder, self.decoder = (Half(each) for each in words)

    words = nn.Embedding(30, 4)
    assert "such as" not in advice_for_integers(Both(words, words))
    assert "at='encoder.embed_tokens', at='decoder.embed_tokens'." in advice_for_integers(
        Both(words, nn.Embedding(30, 4))
    )


def test_models_without_an_embedding_of_words():
    class Refusing(nn.Linear):
        def get_input_embeddings(self):
            raise NotImplementedError

    image = transformers.ViTConfig(**{**SHAPE, "image_size": 8, "patch_size": 4})
    for model in (torch.tanh, nn.Linear(2, 2), Refusing(2, 2), transformers.ViTForImageClassification(image)):
        assert find_embeddings(model) is None
