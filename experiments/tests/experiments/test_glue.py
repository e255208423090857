import shutil

import pytest
import torch
from engine_runs import TIMES, break_off, carry_out, make_job
from scipy.stats import t
from test_text import transformers
from toy_results import invent_run

from effdeg import Penalty
from effdeg.integrations.huggingface import PenaltyTrainer
from effdeg_lab.core.recipe import find_recipe
from effdeg_lab.core.results import collect
from effdeg_lab.core.runs import CannotStackError
from effdeg_lab.data.sentences import load_task
from effdeg_lab.engine.loop import Loop
from effdeg_lab.experiments import glue as training
from effdeg_lab.models.made_up import write_glue, write_text_model
from effdeg_lab.models.text import TextClassifier, load_classifier

SMALL = {"model": "tiny", "epochs": 3, "batch": 8, "lr": 5e-3, "precision": "float32", "compile": False}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def make_data(folder):
    """Make a data folder: a tiny BERT, and a task that it can learn."""
    write_text_model(folder / "tiny")
    write_glue(folder, "rte")
    return folder


def small(**changes):
    return training.FineTuning(**{**SMALL, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"regularizer": "mixup", "two_stages": True},
        {"regularizer": "rdrop"},
        {"regularizer": "r3f"},
        {"regularizer": "ed"},
        {"regularizer": "ed", "anchor": "self", "degree_weights": "curvature"},
        {"regularizer": "ed", "place": "sum", "pairs": 1.0},
        {"regularizer": "ed", "point_dropout": False},
        {"regularizer": "ed", "masks": "both", "similar_lengths": True},
    ],
)
def test_every_method_trains_and_is_scored(tmp_path, data, changes):
    found = carry_out(tmp_path, small(**changes), run=training.train, data=data)
    epochs = 6 if changes.get("two_stages") else 3
    assert [entry["epoch"] for entry in found.metrics] == [*range(1, epochs + 1)]
    assert found.summary["score"] == found.summary["test_accuracy"]
    assert found.metrics[-1]["train_loss"] < 1.0
    labels = torch.tensor(load_task("rte", data).dev.labels)
    assert found.summary["dev_majority"] == float(labels.bincount().max()) / len(labels)
    penalties = [entry["penalty"] is not None for entry in found.metrics]
    assert penalties == [bool(changes) and not (changes.get("two_stages") and epoch < 3) for epoch in range(epochs)]


def test_runs_in_turn_end_as_alone_and_do_not_take_each_other_down(tmp_path, data):
    seeds = [small(regularizer="ed", seed=seed, epochs=2) for seed in range(3)]
    alone = [carry_out(tmp_path / "alone", settings, run=training.train, data=data) for settings in seeds]
    with break_off(step=10):
        carry_out(tmp_path / "turns", seeds[2], run=training.train, data=data)
    jobs = [make_job(tmp_path / "turns", settings, data=data) for settings in seeds]
    jobs[1].log = None  # it fails at its first evaluation
    assert len({settings.stack_key() for settings in seeds}) == 1
    training.train_in_turn(jobs)
    found = [job.read() for job in jobs]
    assert "not callable" in found[1].failure
    for number in (0, 2):
        summary = {key: value for key, value in found[number].summary.items() if key not in TIMES}
        assert summary == alone[number].summary


@pytest.mark.parametrize(
    "changes",
    [{}, {"regularizer": "ed"}, {"regularizer": "mixup", "two_stages": True}],
    ids=["plain", "ed", "mixup-later"],
)
def test_runs_are_stacked(tmp_path, data, monkeypatch, changes):
    # Hugging Face looks at whether masks are all ones, which vmap cannot do unless it is traced: see below.
    monkeypatch.setattr(TextClassifier, "encode", lambda self, hidden, _: self.model(inputs_embeds=hidden).logits)
    assert_stacked_as_alone(tmp_path, data, monkeypatch, **changes)


def assert_stacked_as_alone(folder, data, monkeypatch, *, device="cpu", **changes):
    """Only random numbers within the step are others: dropout, mixup, paths."""
    regularizer = changes.get("regularizer", "plain")
    if regularizer != "rdrop":  # of which nothing is left without dropout
        monkeypatch.setattr(training, "load_classifier", load_without_dropout)
    seeds = [small(**changes, seed=seed, epochs=2, batch=20, lr=1e-3) for seed in range(3)]
    jobs = [make_job(folder / "stack", settings, device=device, data=data) for settings in seeds]
    training.train_in_one_step(jobs)
    for job, settings in zip(jobs, seeds, strict=True):
        found, alone = job.read(), carry_out(folder / "alone", settings, run=training.train, device=device, data=data)
        assert found.environment["together"] == 3
        assert [entry["epoch"] for entry in found.metrics] == [entry["epoch"] for entry in alone.metrics]
        # The kernels of a GPU round in another order.
        tolerance = 0.05 if regularizer != "plain" else 1e-4 if device == "cpu" else 1e-2
        assert found.summary["train_loss"] == pytest.approx(alone.summary["train_loss"], rel=tolerance)
        assert found.metrics[-1]["lr"] == alone.metrics[-1]["lr"]


def test_a_stack_cannot_leave_out_parameters_from_decay(tmp_path, data):
    jobs = [make_job(tmp_path, small(weight_decay=0.1, seed=seed), data=data) for seed in range(2)]
    with pytest.raises(CannotStackError) as raised:
        training.train_in_one_step(jobs)
    assert "only some parameters decay" in str(raised.value.__cause__)


def load_without_dropout(*given, **options):
    model = load_classifier(*given, **options)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def make_parts(data, **changes):
    settings = small(**changes)
    texts = training.Texts(settings, training.find_folder("tiny", data), data, torch.device("cpu"))
    torch.manual_seed(0)
    return settings, texts, load_classifier(data / "tiny", classes=2)


def test_lengths_change_nothing(data):
    """A batch cut to the least length that is enough for it has the outputs of the whole one."""
    _, texts, model = make_parts(data, batch=2)  # of two texts, both are often short
    least, whole = texts.shapes
    short = torch.tensor([number for number in range(60) if number % 5][:8])
    assert texts.shape(short) == least < whole
    assert texts.shape(torch.arange(60)) == whole
    one, two = (model.eval()(texts.batch(short, length)[0]) for length in texts.shapes)
    torch.testing.assert_close(one, two)


class InOrder(PenaltyTrainer):
    """Takes the examples in their order, and draws the paths of a step by its number."""

    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def training_step(self, *given, **options):
        torch.manual_seed(self.state.global_step)
        return super().training_step(*given, **options)


def test_a_run_is_that_of_a_trainer_on_the_same_batches(tmp_path, data, monkeypatch):
    """Of Hugging Face's, which finds the embeddings, pads batches and chooses what decays by itself."""
    settings, train_step, orders = small(regularizer="ed", epochs=2, weight_decay=5.0), Loop._train_step, {}

    def draw_by_step(loop):
        torch.manual_seed(loop.step)
        train_step(loop)
        orders[(loop.step - 1) // 7] = loop._order

    monkeypatch.setattr(Loop, "_train_step", draw_by_step)
    monkeypatch.setattr(training, "load_classifier", load_without_dropout)
    found = carry_out(tmp_path / "lab", settings, run=training.train, data=data)

    task, tokenizer = load_task("rte", data), transformers.AutoTokenizer.from_pretrained(data / "tiny")
    parts = []
    for part in (task.train, task.dev):
        rows = zip(part.first, part.second, part.labels, strict=True)
        parts.append([{**tokenizer(one, other), "labels": label} for one, other, label in rows])
    batches = [index for epoch in (0, 1) for index in orders[epoch].tolist()[:56]]  # 4 of the 60 fill no batch
    torch.manual_seed(settings.seed)
    options = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
    model = transformers.AutoModelForSequenceClassification.from_pretrained(data / "tiny", **options)
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "save_strategy": "no", "logging_steps": 7}
    sizes = {"per_device_train_batch_size": 8, "num_train_epochs": 1, "dataloader_pin_memory": False}
    rates = {"learning_rate": settings.lr, "weight_decay": settings.weight_decay}
    arguments = transformers.TrainingArguments(tmp_path, **rates, **sizes, **quiet)
    given = {"train_dataset": [parts[0][index] for index in batches], "eval_dataset": parts[1]}
    given |= {"data_collator": transformers.DataCollatorWithPadding(tokenizer), "weight": settings.weight}
    trainer = InOrder(model, arguments, **given, penalty=Penalty.efficient())
    trainer.train()
    penalties = [entry["effective_degree_penalty"] for entry in trainer.state.log_history if "loss" in entry]
    assert penalties == pytest.approx([entry["penalty"] for entry in found.metrics], rel=1e-4)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(found.summary["dev_loss"], rel=1e-4)


def test_masks_of_both_and_similar_lengths():
    torch.manual_seed(0)
    mask = torch.arange(10)[None, :] < torch.tensor([[3], [9], [5], [10]])
    hidden, labels = torch.randn(4, 10, 6), torch.tensor([0, 1, 0, 1])
    settings = small(regularizer="ed", masks="both", similar_lengths=True, pairs=0.75)
    penalty = training.make_regularizer(settings, classes=2).penalty
    assert isinstance(penalty, training.TextPenalty)
    seen = []

    def run(hidden, mask):
        seen.append(mask)
        return (hidden.mean(1) * mask.sum(1, keepdim=True))[:, :2].requires_grad_()

    penalty(run, (hidden, mask), labels)
    (masks,) = seen
    assert masks.shape == (4 + 3 * 2, 10)
    # 3 next to 5, 5 next to 9, 9 next to 10: positions that both have.
    assert sorted(masks[4:].sum(1).tolist()) == [3, 3, 5, 5, 9, 9]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"masks": "both"}, "are for the paths of regularizer=ed"),
        ({"regularizer": "ed", "similar_lengths": True, "anchor": "self"}, "work only with anchor=labels or none"),
        ({"regularizer": "ed", "nodes": 3}, "nodes"),
        ({"regularizer": "ed", "pairs": 0.001}, "rounds to no path"),
        ({"regularizer": "ed", "batch": 1}, "has only one example"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        small(**changes)


def test_metrics_are_those_of_the_table_of_errors():
    """By the counts of true and false, positive and negative; Matthews' formula in its usual form."""
    torch.manual_seed(0)
    predicted, truth = torch.randint(0, 2, (2, 50))
    tp, fp, fn, tn = (int(((predicted == one) & (truth == two)).sum()) for one, two in ((1, 1), (1, 0), (0, 1), (0, 0)))
    assert training.METRICS["accuracy"](predicted, truth) == pytest.approx((tp + tn) / 50)
    product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    assert training.METRICS["matthews"](predicted, truth) == pytest.approx((tp * tn - fp * fn) / product**0.5)
    assert training.METRICS["matthews"](torch.ones(50, dtype=torch.int64), truth) == 0.0


RECIPE = find_recipe("glue-rte")


def make_run(method, score, *, seed=0, step=2.0):
    summary = {"score": score, "test_accuracy": score, "dev_majority": 0.5}
    summary |= {"milliseconds_per_step": step, "seconds": 100 * step}
    return invent_run(RECIPE, method, summary, seed=seed)


def make_runs(scores, **given):
    return [make_run(name, score, seed=seed, **given) for name in scores for seed, score in enumerate(scores[name])]


def test_scores_with_their_spread_failures_differences_and_costs():
    runs = make_runs({"plain": [0.60, 0.62, 0.50], "mixup": [0.5, 0.5, 0.5]})
    runs += make_runs({"ed": [0.61, 0.64, 0.53]}, step=3.0)
    (table,) = RECIPE.study.tables(collect(RECIPE, runs)[0])
    assert table.title == "RTE, all-MiniLM-L6-v2: accuracy, 10 epochs, seeds 0, 1, 2, Thinking Machine"
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["Plain"] == ("70.28", "57.33 ± 6.43", "1 of 3", "–", "2.0 (1.00×)")
    # Differences of 1, 2 and 3 points: a mean of 2 and a standard error of 1/√3.
    margin = t.ppf(0.975, 2) / 3**0.5
    low, high = 2 - margin, 2 + margin
    assert rows["ED"][2:] == ("0 of 3", f"+2.00 ({low:+.2f} to {high:+.2f})", "3.0 (1.50×)")
    assert rows["Mixup"][2] == "3 of 3"
    assert {table.rows[row][0] for row, column in table.bold if column == 2} == {"ED"}
    assert "3 of the recipe's 25 seeds" in table.notes[0]
    assert "Plain 70.28 ± 1.73, Mixup 70.28 ± 3.07, ED 71.12 ± 1.96" in table.notes[2]
    assert table.notes[-1].startswith("Not run: Mixup in a second stage; R-Drop; ")  # instead of rows of dashes


def test_stacked_runs_have_scores_but_no_times_and_count_as_the_same_machine():
    runs = make_runs({"plain": [0.60, 0.62, 0.64], "ed": [0.61, 0.64, 0.67], "rdrop": [0.8, 0.8]})
    for run in runs[1:3] + runs[3:5] + runs[6:]:  # all but the first of plain, and the last of ED
        run.environment["shared"], run.summary["milliseconds_per_step"] = True, 50.0
    (table,) = RECIPE.study.tables(collect(RECIPE, runs)[0])
    assert table.title.endswith("seeds 0, 1, 2, Thinking Machine")
    assert {row[0]: row[-1] for row in table.rows} == {"Plain": "2.0 (1.00×)", "ED": "2.0 (1.00×)", "R-Drop": "–"}
    for run in runs:
        run.environment["shared"] = True
    (table,) = RECIPE.study.tables(collect(RECIPE, runs)[0])
    assert table.columns == ("", "paper, %", "here, %", "failed", "against Plain")


@pytest.mark.parametrize(
    ("ed", "word"),
    [
        ([0.64, 0.66, 0.68], "holds"),
        ([0.60, 0.66, 0.61], "not decided"),  # ahead of mixup, not of plain
        ([0.54, 0.57, 0.56], "does not hold"),
    ],
)
def test_ed_must_be_ahead_of_all_that_the_paper_reports(ed, word):
    runs = make_runs({"plain": [0.60, 0.62, 0.63], "mixup": [0.55, 0.56, 0.565], "rdrop": [0.7, 0.7, 0.7], "ed": ed})
    verdict = RECIPE.study.claim(collect(RECIPE, runs)[0])
    assert verdict.word == word
    without_mixup = [run for run in runs if run.method != "mixup"]
    assert RECIPE.study.claim(collect(RECIPE, without_mixup)[0]).word in {"not decided", "does not hold"}


def remove_pad_token(data):
    tokenizer = transformers.AutoTokenizer.from_pretrained(data / "tiny")
    tokenizer.pad_token = None
    tokenizer.save_pretrained(data / "tiny")


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        (lambda data: shutil.rmtree(data / "RTE"), {}, "rte was not found"),
        (lambda data: shutil.rmtree(data / "tiny"), {}, "model='tiny' was not found"),
        (remove_pad_token, {}, "no pad token"),
        (lambda data: None, {"limit": 7}, "batch=8 is more than the 7 training examples"),
        (lambda data: None, {"data": "cifar10"}, "data='cifar10' is not a task"),
    ],
)
def test_mistakes_are_reported_before_any_run(tmp_path, change, settings, message):
    change(make_data(tmp_path))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        training.check_texts([small(**settings)], tmp_path)
