import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, l1_loss

import effdeg
from effdeg import Penalty
from effdeg.train._batch import OwnLossError
from tests import batches

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from effdeg.integrations.huggingface import MeasureCallback, PenaltyTrainer  # noqa: E402
from effdeg.train import _settings  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
SHAPE = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def bert(**changes):
    torch.manual_seed(0)
    config = transformers.BertConfig(**{**SHAPE, **QUIET, "num_labels": 3, **changes})
    return transformers.BertForSequenceClassification(config)


def tokens(examples=16, length=7, **labels):
    return {**batches.tokens(examples, length), **labels}


LABELS = torch.randint(3, (16,), generator=torch.Generator().manual_seed(3))


QUIETLY = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True, "logging_steps": 1}
PLAINLY = {"lr_scheduler_type": "constant", "optim": "sgd", "max_grad_norm": 0.0, "dataloader_pin_memory": False}


def trainer_for(
    model,
    batch,
    penalty,
    tmp_path,
    *,
    kind=None,
    weight=1.0,
    batch_size=16,
    accumulated=1,
    steps=1,
    loss=None,
    **options,
):
    sizes = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": accumulated}
    options = {"learning_rate": 0.1, "max_steps": steps, **sizes, **QUIETLY, **PLAINLY, **options}
    arguments = transformers.TrainingArguments(tmp_path, **options)
    given = {} if penalty is None else {"penalty": penalty, "weight": weight}
    kind = kind or (transformers.Trainer if penalty is None else PenaltyTrainer)
    trainer = kind(model, arguments, train_dataset=batches.split(batch), compute_loss_func=loss, **given)
    # In order, so that a large batch and its accumulated parts hold the same examples.
    trainer._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(trainer.train_dataset)
    return trainer


def train(*given, **options):
    trainer = trainer_for(*given, **options)
    trainer.train()
    return trainer


@pytest.fixture
def neighbors(monkeypatch):
    """Pair each example with the next, so that a batch has the pairs of its parts."""

    def draw(examples, pairs, *, device, generator):
        return torch.arange(2 * pairs, device=device).view(-1, 2)

    monkeypatch.setattr(_settings, "draw_pairs_of_batch", draw)


def assert_same_weights(one, other):
    for (name, parameter), expected in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-4, atol=1e-6, msg=name)


FIXED = {"at": "bert.embeddings", "sampling": "chebyshev"}


def test_outputs_of_a_bert_with_labels_are_the_batchs_own_loss_included():
    model, penalty = bert().double(), Penalty(at="bert.embeddings", anchor="labels")
    batch = tokens(labels=LABELS)
    outputs, degree = penalty(model, batch)
    expected = model(**batch)
    assert type(outputs) is type(expected)
    torch.testing.assert_close(outputs.logits, expected.logits)
    torch.testing.assert_close(outputs.loss, expected.loss)
    assert degree > 0
    outputs, _ = penalty(model, tokens(), LABELS, output_hidden_states=True)
    assert outputs.loss is None
    assert [len(hidden) for hidden in outputs.hidden_states] == [16] * 3


def collate(rows):
    return {**transformers.default_data_collator(rows), "unlabeled": UNLABELED}


UNLABELED = {name: leaf[:6].flip(0) for name, leaf in batches.tokens(16, 7).items()}
SEMI_SUPERVISED = {"unlabeled": UNLABELED, "teacher": bert(num_hidden_layers=1).eval()}


@pytest.mark.parametrize(
    ("penalty", "given", "kind"),
    [
        pytest.param(Penalty(**FIXED), {}, None, id="no anchors"),
        pytest.param(Penalty(anchor="labels", **FIXED), {}, None, id="labels"),
        pytest.param(
            Penalty(anchor="labels", at="bert.embeddings", sampling="uniform"),
            SEMI_SUPERVISED,
            partial(PenaltyTrainer, data_collator=collate, teacher=SEMI_SUPERVISED["teacher"]),
            id="unlabeled examples and a teacher",
        ),
    ],
)
def test_the_trainer_does_what_a_step_by_hand_does(penalty, given, kind, tmp_path, neighbors):
    trained, by_hand = bert(), bert()
    trainer = train(trained, tokens(labels=LABELS), penalty, tmp_path, weight=2.0, kind=kind)
    outputs, degree = penalty(by_hand, tokens(), LABELS, **given)
    task = cross_entropy(outputs.logits, LABELS)
    (task + 2.0 * degree).backward()
    torch.optim.SGD(by_hand.parameters(), lr=0.1).step()
    assert_same_weights(trained, by_hand)
    logged = trainer.state.log_history[0]
    assert logged["loss"] == pytest.approx(task.item(), rel=1e-3)
    assert logged["effective_degree_penalty"] == pytest.approx(degree.item(), rel=1e-3)
    assert logged["effective_degree_weight"] == 2.0


def test_unlabeled_examples_are_no_argument_of_the_model(tmp_path):
    model, seen = bert(), []
    model.register_forward_pre_hook(lambda _, __, keywords: seen.append({*keywords}), with_kwargs=True)
    kind = partial(PenaltyTrainer, data_collator=collate)
    trainer = train(model, tokens(labels=LABELS), Penalty(at="bert.embeddings"), tmp_path, kind=kind)
    trainer.evaluate(batches.split(tokens(labels=LABELS)))
    assert len(seen) > 1
    assert not any("unlabeled" in names for names in seen)


@pytest.mark.parametrize("kind", ["classes", "several labels"])
def test_accumulated_batches_train_as_one(kind, tmp_path, neighbors):
    labels, changes, output = {
        "classes": (LABELS, {}, "softmax"),
        "several labels": (torch.rand(16, 3).round(), {"problem_type": "multi_label_classification"}, "sigmoid"),
    }[kind]
    penalty = Penalty(anchor="labels", output=output, **FIXED)
    models = []
    for batch_size, accumulated in ((16, 1), (4, 4)):
        model = bert(**changes)
        train(model, tokens(labels=labels), penalty, tmp_path, batch_size=batch_size, accumulated=accumulated)
        models.append(model)
    assert_same_weights(models[1], models[0])


def deberta(**changes):
    torch.manual_seed(0)
    config = transformers.DebertaV2Config(**{**SHAPE, **QUIET, "num_labels": 3, "pooler_dropout": 0.0, **changes})
    return transformers.DebertaV2ForSequenceClassification(config)


INTEGERS = pytest.mark.skipif(
    torch.__version__.startswith("2.6"), reason="the squared error of torch 2.6 has no gradient for integers"
)
FLOATS = torch.randn(16, generator=torch.Generator().manual_seed(4))
HOTS = torch.rand(16, 3, generator=torch.Generator().manual_seed(5)).round()


@pytest.mark.parametrize(
    ("make", "labels", "changes"),
    [
        pytest.param(bert, FLOATS, {"num_labels": 1}, id="regression"),
        pytest.param(bert, LABELS, {"num_labels": 1}, id="regression-integers", marks=INTEGERS),
        pytest.param(bert, HOTS, {}, id="several-labels"),
        pytest.param(bert, LABELS, {}, id="classes"),
        pytest.param(bert, LABELS, {"return_dict": False, "num_labels": 1}, id="tuples", marks=INTEGERS),
        pytest.param(deberta, FLOATS, {"num_labels": 1}, id="deberta"),
    ],
)
def test_without_weight_the_loss_is_the_models_own(make, labels, changes, tmp_path):
    """Also where it is made of numbers, which the points cannot be left out of."""
    trained, plain = make(**changes), make(**changes)
    at = "deberta.embeddings" if make is deberta else "bert.embeddings"
    penalty = Penalty(at=at, output=lambda returned: returned["logits"] if isinstance(returned, dict) else returned[-1])
    logged = train(trained, tokens(labels=labels), penalty, tmp_path, weight=0.0).state.log_history[0]
    expected = train(plain, tokens(labels=labels), None, tmp_path).state.log_history[0]
    assert logged["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert_same_weights(trained, plain)
    if make is bert:
        assert trained.config.problem_type == plain.config.problem_type is not None


def test_outputs_hold_the_loss_as_the_models_own_do(tmp_path):
    model, batch = bert(num_labels=1), tokens(labels=FLOATS)
    trainer = trainer_for(model, batch, Penalty(output="identity", **FIXED), tmp_path)
    loss, outputs = trainer.compute_loss(model.train(), dict(batch), return_outputs=True)
    expected = model(**batch)
    assert list(outputs) == list(expected) == ["loss", "logits"]
    torch.testing.assert_close(outputs.loss, expected.loss)
    torch.testing.assert_close(loss, expected.loss)


def absolute(outputs, labels, num_items_in_batch=None):
    logits = outputs["logits"] if isinstance(outputs, dict) else outputs
    return l1_loss(logits.squeeze(), labels)


class Own(transformers.BertForSequenceClassification):
    def forward(self, input_ids, attention_mask, labels=None):
        outputs = super().forward(input_ids, attention_mask)
        return {"loss": absolute(outputs, labels), "logits": outputs.logits} if labels is not None else outputs


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.bert = bert(num_labels=1)

    def forward(self, input_ids, attention_mask, labels=None):
        found = {"logits": self.bert(input_ids, attention_mask).logits}
        return found if labels is None else {"loss": absolute(found, labels), **found}


def with_another_loss_function():
    model = bert(num_labels=1)
    model.loss_function = lambda **_: torch.zeros(())
    return model


@pytest.mark.parametrize(
    ("make", "labels"),
    [
        pytest.param(lambda: Own(bert(num_labels=1).config), FLOATS, id="subclass"),
        pytest.param(Plain, FLOATS, id="module"),
        pytest.param(with_another_loss_function, FLOATS, id="loss_function"),
        pytest.param(deberta, HOTS, id="deberta-soft-labels"),
    ],
)
def test_a_loss_of_the_models_own_that_cannot_leave_out_the_points_is_refused(make, labels, tmp_path):
    model = make()
    layer = next(module for name, module in model.named_modules() if name.endswith("embeddings"))
    penalty = Penalty(at=layer, output=lambda returned: returned["logits"])
    with pytest.raises(OwnLossError, match="give compute_loss_func=…"):
        train(model, tokens(labels=labels), penalty, tmp_path)
    if labels is FLOATS:
        trainer = train(model, tokens(labels=labels), penalty, tmp_path, loss=absolute)
        assert trainer.state.log_history[0]["effective_degree_penalty"] > 0


def test_penalties_of_a_whole_run_are_not_kept(tmp_path):
    def kept(trainer):
        lists = {name: value for name, value in vars(trainer).items() if isinstance(value, list)}
        return [name for name, value in lists.items() if any(isinstance(entry, torch.Tensor) for entry in value)]

    torch.manual_seed(7)
    once = train(bert(), tokens(labels=LABELS), Penalty(**FIXED), tmp_path, steps=3, weight=0.0)
    torch.manual_seed(7)
    seldom = train(bert(), tokens(labels=LABELS), Penalty(**FIXED), tmp_path, steps=3, weight=0.0, logging_steps=3)
    each = [entry["effective_degree_penalty"] for entry in once.state.log_history[:3]]
    assert seldom.state.log_history[0]["effective_degree_penalty"] == pytest.approx(sum(each) / 3, rel=1e-4)
    never = train(bert(), tokens(labels=LABELS), Penalty(**FIXED), tmp_path, steps=3, logging_strategy="no")
    assert kept(never) == []


def test_a_loss_function_that_is_given_counts_items_as_ever(tmp_path):
    def given(outputs, labels, num_items_in_batch):
        return cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch

    models = []
    for penalty in (None, Penalty(**FIXED)):
        model = bert()
        options = {"weight": 0.0, "batch_size": 4, "accumulated": 4, "loss": given}
        trainer = train(model, tokens(labels=LABELS), penalty, tmp_path, **options)
        assert trainer.model_accepts_loss_kwargs
        models.append(model)
    assert_same_weights(models[1], models[0])


def llama():
    torch.manual_seed(0)
    shape = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, intermediate_size=32))


def test_a_language_models_loss_is_counted_by_tokens_and_the_penalty_by_batches(tmp_path, neighbors):
    """Here transformers passes num_items_in_batch: the parts' losses are shares of the whole."""

    batch = {"input_ids": tokens()["input_ids"], "labels": tokens()["input_ids"].clone()}
    batch["labels"][[0, 2, 4], 3:] = -100  # the parts hold unequal numbers of tokens; their paths have all positions
    penalty = Penalty(at="model.embed_tokens", sampling="chebyshev")
    large, parts, plain = llama(), llama(), llama()
    train(large, batch, penalty, tmp_path)
    train(parts, batch, penalty, tmp_path, batch_size=4, accumulated=4)
    assert_same_weights(parts, large)
    weightless = llama()
    train(weightless, batch, penalty, tmp_path, batch_size=4, accumulated=4, weight=0.0)
    train(plain, batch, None, tmp_path, batch_size=4, accumulated=4)
    assert_same_weights(weightless, plain)


def test_label_smoothing_and_gradient_checkpointing_go_along(tmp_path, neighbors):
    penalty = Penalty(**FIXED)
    models = []
    for options in ({}, {"gradient_checkpointing": True}):
        model = bert()
        train(model, tokens(labels=LABELS), penalty, tmp_path, label_smoothing_factor=0.1, **options)
        models.append(model)
    assert_same_weights(models[1], models[0])
    unsmoothed = bert()
    train(unsmoothed, tokens(labels=LABELS), penalty, tmp_path)
    assert not torch.allclose(unsmoothed.classifier.weight, models[0].classifier.weight, atol=1e-6)


def test_evaluation_is_without_the_penalty_and_the_callback_logs_the_degree(tmp_path):
    model, batch = bert(), tokens(labels=LABELS)
    arguments = transformers.TrainingArguments(
        tmp_path, num_train_epochs=4, per_device_train_batch_size=8, save_strategy="no", report_to="none",
        disable_tqdm=True, use_cpu=True, eval_strategy="epoch", logging_steps=1, dataloader_pin_memory=False,
    )  # fmt: skip
    seen = []
    penalty = Penalty(at="bert.embeddings")
    penalty.joined = lambda *given, **at: seen.append(model.training) or Penalty.joined(penalty, *given, **at)
    trainer = PenaltyTrainer(
        model, arguments, train_dataset=batches.split(batch), eval_dataset=batches.split(batch), penalty=penalty,
        weight=effdeg.SineRamp(1.0, steps=8),
    )  # fmt: skip
    settings = {"at": "bert.embeddings", "paths": 20, "nodes": 12, "degree": 5}
    trainer.add_callback(MeasureCallback(trainer, tokens(), every_n_epochs=2, **settings))
    trainer.train()
    assert seen == [True] * 8
    history = trainer.state.log_history
    weights = [entry["effective_degree_weight"] for entry in history if "effective_degree_weight" in entry]
    assert weights == pytest.approx([effdeg.SineRamp(1.0, steps=8)(step) for step in range(8)])
    degrees = [(entry["epoch"], entry["effective_degree"]) for entry in history if "effective_degree" in entry]
    assert [epoch for epoch, _ in degrees] == [2, 4]
    assert degrees[-1][1] == pytest.approx(effdeg.measure(copy.deepcopy(model), tokens(), **settings).value, rel=1e-5)
    assert any("eval_loss" in entry for entry in history)


def test_mistakes_are_found_at_construction(tmp_path):
    trainer = PenaltyTrainer(
        bert(), transformers.TrainingArguments(tmp_path, report_to="none", use_cpu=True), penalty=Penalty(), weight=1.0
    )
    for options, kind, message in (
        ({"every_n_epochs": 0}, ValueError, "every_n_epochs=0 is too small"),
        ({"path": 50}, TypeError, "'path' is not a setting of effdeg.measure"),
        ({"at": "bert.embedding"}, ValueError, "'bert.embedding' is not a layer"),
    ):
        with pytest.raises(kind, match=message):
            MeasureCallback(trainer, tokens(), **options)
    with pytest.raises(TypeError, match=r"trainer is of type NoneType; expected the transformers.Trainer"):
        MeasureCallback(None, tokens())
    for options, message in (
        ({"penalty": "ed", "weight": 1.0}, "penalty='ed' must be a penalty"),
        ({"penalty": Penalty(), "weight": "1"}, r"weight='1' must be a number.* a function of the step"),
        ({"penalty": Penalty(), "weight": 1.0, "teacher": "ema"}, "teacher='ema' must be a function"),
    ):
        with pytest.raises(TypeError, match=message):
            PenaltyTrainer(bert(), **options)
