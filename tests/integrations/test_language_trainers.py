import copy

import pytest
import torch

import effdeg
from effdeg import Penalty
from tests import batches
from tests.train.test_language import language_model, sequences, word_tokenizer

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from effdeg.integrations.huggingface import MeasureCallback, PenaltyTrainer, with_penalty  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def arguments_for(tmp_path, kind=None, **options):
    given = {"max_steps": 2, "per_device_train_batch_size": 6, "learning_rate": 0.1, "logging_steps": 1}
    quiet = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True}
    kind = kind or transformers.TrainingArguments
    return kind(str(tmp_path), **{**given, **quiet, "dataloader_pin_memory": False, **options})


def logged(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def test_a_class_of_trainers_is_made_once_and_the_penalty_trainer_is_one():
    assert PenaltyTrainer is with_penalty(transformers.Trainer)
    made = with_penalty(transformers.Seq2SeqTrainer)
    assert made is with_penalty(transformers.Seq2SeqTrainer) is with_penalty(made)
    assert issubclass(made, transformers.Seq2SeqTrainer)
    assert made.__name__ == "PenaltySeq2SeqTrainer"
    for wrong in (transformers.TrainingArguments, "Trainer"):
        with pytest.raises(TypeError, match="needs a class"):
            with_penalty(wrong)


class Doubling(transformers.Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **rest):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **rest)
        return (2 * loss, outputs) if return_outputs else 2 * loss


@pytest.mark.parametrize("kind", [transformers.Seq2SeqTrainer, Doubling])
def test_any_trainer_adds_the_penalty_and_reports_its_own_loss(tmp_path, kind):
    batch = sequences("left")
    own = transformers.Seq2SeqTrainingArguments if kind is transformers.Seq2SeqTrainer else None
    losses = []
    for given in ({}, {"penalty": Penalty(anchor="labels"), "weight": 0.0}, {"penalty": Penalty(), "weight": 5.0}):
        trained = with_penalty(kind) if given else kind
        model, dataset = language_model().float(), batches.split(batch)
        trainer = trained(model, arguments_for(tmp_path, own), train_dataset=dataset, **given)
        trainer.train()
        losses.append(logged(trainer, "loss"))
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert losses[2][0] == pytest.approx(losses[0][0], rel=1e-3)  # the task's own
    assert losses[2][1] != pytest.approx(losses[0][1], rel=1e-5)
    assert logged(trainer, "effective_degree_penalty")[0] > 0


def adapters(model):
    peft = pytest.importorskip("peft", reason="needs peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return peft.get_peft_model(model, config)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_adapters_are_trained_and_nothing_else(tmp_path, checkpointed):
    model = language_model().float()
    before = copy.deepcopy(model.state_dict())
    adapted = adapters(model)
    arguments = arguments_for(tmp_path, gradient_checkpointing=checkpointed)
    penalty = Penalty(anchor="labels")
    trainer = PenaltyTrainer(adapted, arguments, train_dataset=batches.split(sequences()), penalty=penalty, weight=1.0)
    trainer.train()
    after = adapted.unload().state_dict()
    for name, weight in before.items():
        torch.testing.assert_close(after[name], weight, msg=name)
    assert logged(trainer, "effective_degree_penalty")[1] != logged(trainer, "effective_degree_penalty")[0]


def test_an_adapted_model_has_the_penalty_of_the_model_itself():
    model, batch, penalty = language_model(), sequences(), Penalty(anchor="labels")
    degrees = []
    for each in (model, adapters(copy.deepcopy(model))):  # new adapters add zero
        torch.manual_seed(0)
        degrees.append(penalty(each, batch)[1])
    torch.testing.assert_close(*degrees)


def tokenizer():
    words = ["<pad>", "<eos>", "<unk>", *"abcdefghijklmnopqrstuvwxyz"]
    return word_tokenizer(words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


class TestTRL:
    @pytest.fixture(autouse=True)
    def needs_trl(self):
        self.trl = pytest.importorskip("trl", reason="needs trl")
        self.datasets = pytest.importorskip("datasets", reason="needs datasets")

    def train(self, tmp_path, kind, model=None, given=None, **options):
        texts = [{"prompt": "a b c", "completion": " d e"}, {"prompt": "f", "completion": " g h i j"}] * 4
        config = arguments_for(tmp_path, self.trl.SFTConfig, bf16=False, max_length=16, seed=1, **options)
        dataset = self.datasets.Dataset.from_list(texts)
        model = model or language_model(pad_token_id=0, eos_token_id=1).float()
        trainer = kind(model, args=config, train_dataset=dataset, processing_class=tokenizer(), **(given or {}))
        trainer.train()
        return trainer

    def test_the_loss_and_the_metrics_are_those_without_the_penalty(self, tmp_path):
        plain = self.train(tmp_path, self.trl.SFTTrainer)
        kind = with_penalty(self.trl.SFTTrainer)
        weightless = self.train(tmp_path, kind, given={"penalty": Penalty(anchor="labels"), "weight": 0.0})
        for name in ("loss", "entropy", "mean_token_accuracy", "grad_norm"):
            assert logged(weightless, name) == pytest.approx(logged(plain, name), rel=1e-3), name
        assert logged(weightless, "effective_degree_penalty")[0] > 0

    @pytest.mark.parametrize("options", [{}, {"gradient_checkpointing": True}, {"gradient_accumulation_steps": 2}])
    def test_with_a_weight_other_weights_are_learned(self, tmp_path, options):
        kind = with_penalty(self.trl.SFTTrainer)
        penalty = {"penalty": Penalty(anchor="labels"), "weight": 10.0}
        losses = [
            logged(self.train(tmp_path, kind, given={**penalty, **weight}, **options), "loss")
            for weight in ({}, {"weight": 0.0})
        ]
        assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-3)
        assert losses[0][1] != pytest.approx(losses[1][1], rel=1e-4)

    def test_with_adapters(self, tmp_path):
        model = adapters(language_model(pad_token_id=0, eos_token_id=1).float())
        kind, given = with_penalty(self.trl.SFTTrainer), {"penalty": Penalty(anchor="labels"), "weight": 1.0}
        trainer = self.train(tmp_path, kind, model, given)
        assert logged(trainer, "effective_degree_penalty")[0] > 0

    @pytest.mark.parametrize("option", ["packing", "padding_free"])
    def test_packing_is_refused_before_the_model_is_loaded(self, tmp_path, option):
        config = arguments_for(tmp_path, self.trl.SFTConfig, bf16=False, **{option: True})
        with pytest.raises(ValueError, match=f"{option}=True puts several sequences into one row"):
            with_penalty(self.trl.SFTTrainer)("no model", args=config, penalty=Penalty(), weight=1.0)


def test_texts_are_measured_after_each_epoch(tmp_path):
    model, dataset = language_model().float(), batches.split(sequences())
    trainer = transformers.Trainer(model, arguments_for(tmp_path), train_dataset=dataset)
    texts = ["a b c", "d e", "f g h i"]
    trainer.add_callback(
        MeasureCallback(trainer, texts, tokenizer=tokenizer(), paths=4, nodes=8, degree=4, sampling="uniform")
    )
    trainer.train()
    assert len(logged(trainer, "effective_degree")) == 2


def test_a_model_that_was_adapted_is_measured():
    model, batch = adapters(language_model()), sequences()
    batch.pop("labels")
    measured = effdeg.measure(model, batch, paths=4, nodes=8, degree=4)
    assert measured.settings.at == "base_model.model.model.embed_tokens"


def test_gradient_checkpointing_and_accumulation_change_nothing(tmp_path):
    batch, trained = sequences(), []
    # Pairs are drawn from the same generator, of a batch each.
    for options in ({}, {"gradient_checkpointing": True}):
        model = language_model().float()
        penalty = Penalty(anchor="labels", generator=torch.Generator().manual_seed(0))
        options = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2, **options}
        arguments = arguments_for(tmp_path, **options)
        PenaltyTrainer(model, arguments, train_dataset=batches.split(batch), penalty=penalty, weight=1.0).train()
        trained.append(model)
    for one, other in zip(*(model.parameters() for model in trained), strict=True):
        torch.testing.assert_close(one, other)
