import contextlib
import pickle

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import effdeg
from effdeg import Penalty
from tests.models import mlp

lightning = pytest.importorskip("lightning")
from effdeg.integrations.lightning import MeasureCallback, PenaltyCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
X = torch.randn(24, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(4, (24,), generator=torch.Generator().manual_seed(1))


class Classifier(lightning.LightningModule):
    def __init__(self, inner=False, wrapped=False):
        super().__init__()
        self.net, self.inner, self.wrapped = mlp(), inner, wrapped
        self.logged_loss = []

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = (batch["x"], batch["label"]) if isinstance(batch, dict) else batch
        loss = cross_entropy(self.net(x) if self.inner else self(x), y)
        self.logged_loss.append(loss.item())
        return {"loss": loss} if self.wrapped else loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.3)


class Dicts(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return {"x": X[index], "label": Y[index]}


def fit(model, *callbacks, epochs=2, data=None, tmp_path=None, **options):
    torch.manual_seed(5)
    logger = lightning.pytorch.loggers.CSVLogger(tmp_path) if tmp_path else False
    quiet = {"enable_checkpointing": False, "enable_model_summary": False, "enable_progress_bar": False}
    options |= {"max_epochs": epochs, "callbacks": list(callbacks), "logger": logger, "log_every_n_steps": 1}
    trainer = lightning.Trainer(**quiet, **options)
    trainer.fit(model, DataLoader(TensorDataset(X, Y) if data is None else data, batch_size=8))
    return trainer


class Triples(Classifier):
    def training_step(self, batch, batch_idx):
        return super().training_step([batch[0], batch[2]], batch_idx)


def by_hand(penalty, weight, epochs=2, accumulated=1, unlabeled=None, teacher=None):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    torch.manual_seed(5)
    torch.empty((), dtype=torch.int64).random_()  # a DataLoader's base seed
    step = 0
    for epoch in range(epochs):
        if epoch:
            torch.empty((), dtype=torch.int64).random_()
        for number, (x, y) in enumerate(zip(X.split(8), Y.split(8), strict=True)):
            others = None if unlabeled is None else unlabeled.split(8)[number]
            logits, degree = penalty(model, x, y, unlabeled=others, teacher=teacher)
            ((cross_entropy(logits, y) + weight(step) * degree) / accumulated).backward()
            if (number + 1) % accumulated == 0:
                optimizer.step()
                optimizer.zero_grad()
                step += 1
    return model


@pytest.mark.parametrize(("case", "accumulated"), [("self", 1), ("self", 3), ("submodule", 1), ("dict", 3)])
def test_the_callback_does_what_a_loop_does(case, accumulated):
    penalty, weight = Penalty(anchor="labels"), effdeg.SineRamp(2.0, steps=3)
    model = Classifier(inner=case == "submodule", wrapped=case == "dict")
    callback = PenaltyCallback(penalty, weight, model="net" if case == "submodule" else None)
    fit(model, callback, data=Dicts() if case == "dict" else None, accumulate_grad_batches=accumulated)
    expected = by_hand(penalty, weight, accumulated=accumulated)
    for parameter, other in zip(model.net.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(parameter, other)
    assert "training_step" not in model.__dict__
    assert "forward" not in model.__dict__


def test_both_callbacks_log_to_the_configured_logger(tmp_path):
    model = Classifier()
    measure = MeasureCallback(X, every_n_epochs=2, paths=32, nodes=20, degree=8)
    fit(model, PenaltyCallback(Penalty(), effdeg.SineRamp(2.0, steps=4)), measure, epochs=4, tmp_path=tmp_path)
    (file,) = tmp_path.rglob("metrics.csv")
    header, *lines = file.read_text().splitlines()
    rows = [dict(zip(header.split(","), line.split(","), strict=True)) for line in lines]
    weights = [float(row["effective_degree_weight"]) for row in rows if row["effective_degree_weight"]]
    assert weights == pytest.approx([effdeg.SineRamp(2.0, steps=4)(step) for step in range(12)], rel=1e-6)
    penalties = [float(row["effective_degree_penalty"]) for row in rows if row["effective_degree_penalty"]]
    assert len(penalties) == 12
    assert all(value > 0 for value in penalties)
    measured = [(row["epoch"], row["effective_degree"]) for row in rows if row["effective_degree"]]
    assert [epoch for epoch, _ in measured] == ["1", "3"]
    expected = effdeg.measure(model, X, paths=32, nodes=20, degree=8)
    assert float(measured[-1][1]) == pytest.approx(expected.value, rel=1e-5)


@pytest.mark.parametrize("fails", [False, True])
def test_a_training_step_of_the_modules_own_is_put_back(fails):
    """One that somebody put on the object, not on its class."""
    model, steps = Classifier(), []

    def own(batch, batch_idx):
        steps.append(batch_idx)
        if fails:
            raise InterruptedError
        return Classifier.training_step(model, batch, batch_idx)

    model.training_step = own
    callback = PenaltyCallback(Penalty(), 1.0)
    with pytest.raises(InterruptedError) if fails else contextlib.nullcontext():
        fit(model, callback, epochs=1)
    assert steps == ([0] if fails else [0, 1, 2])
    assert model.training_step is own
    fit(Classifier(), callback, epochs=1)
    assert model.training_step is own


def test_a_compiled_module_stays_compiled(without_shape_checks):
    compiled = lightning.pytorch.utilities.compile.from_compiled(torch.compile(Classifier(), backend="eager"))
    step, forward = compiled.training_step, compiled.forward
    trainer = fit(compiled, PenaltyCallback(Penalty(), 1.0), epochs=1, limit_train_batches=1)
    assert trainer.callback_metrics["effective_degree_penalty"] > 0
    assert compiled.training_step is step
    assert compiled.forward is forward


def test_labels_of_larger_batches_must_be_named():
    penalty, data = Penalty(anchor="labels"), TensorDataset(X, torch.rand(24), Y)
    with pytest.raises(ValueError, match=r"a list of 3 entries.*labels=lambda batch: …"):
        fit(Triples(), PenaltyCallback(penalty, 1.0), data=data)
    model = Triples()
    fit(model, PenaltyCallback(penalty, effdeg.SineRamp(2.0, steps=3), labels=lambda batch: batch[2]), data=data)
    expected = by_hand(penalty, effdeg.SineRamp(2.0, steps=3))
    for parameter, other in zip(model.net.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(parameter, other)


def test_unlabeled_examples_and_a_teacher_are_as_in_a_loop():
    penalty, weight = Penalty(anchor="labels"), effdeg.SineRamp(2.0, steps=3)
    model, teacher, unlabeled = Triples(), mlp(seed=1), X.flip(0)
    found = {"labels": lambda batch: batch[2], "unlabeled": lambda batch: batch[1]}
    fit(model, PenaltyCallback(penalty, weight, teacher=teacher, **found), data=TensorDataset(X, unlabeled, Y))
    expected = by_hand(penalty, weight, unlabeled=unlabeled, teacher=teacher)
    for parameter, other in zip(model.net.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(parameter, other)


def test_a_second_penalty_is_refused():
    model = Classifier()
    with pytest.raises(ValueError, match=r"has 2 PenaltyCallbacks.*Keep one"):
        fit(model, PenaltyCallback(Penalty(), 1.0), PenaltyCallback(Penalty(degree=2), 1.0))
    assert "training_step" not in model.__dict__


def test_two_processes_train_as_one():
    """Lightning's own DDP strategy wraps the training step; the callback works inside it."""
    # Forked processes need not import Lightning again, but cannot use a GPU.
    strategy = "ddp_spawn" if torch.cuda.is_available() else "ddp_fork"
    # As spawned processes get them.
    model, callback = pickle.loads(pickle.dumps((Classifier(), PenaltyCallback(Penalty(), 1.0))))
    trainer = fit(model, callback, strategy=strategy, devices=2, accelerator="cpu", epochs=1)
    assert trainer.callback_metrics["effective_degree_penalty"] > 0


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: MeasureCallback(X, every_n_epochs=0), ValueError, "every_n_epochs=0 is too small"),
        (lambda: MeasureCallback(X, path=50), TypeError, "'path' is not a setting of effdeg.measure. Did you mean 'p"),
        (lambda: MeasureCallback(X, device="gpu"), ValueError, "device='gpu' is not a device"),
        (lambda: MeasureCallback(X[:1]), ValueError, "two examples"),
        (lambda: MeasureCallback("x.npy"), TypeError, r"inputs='x.npy' is a path"),
        (lambda: PenaltyCallback("ed", 1.0), TypeError, r"penalty='ed' must be a penalty, such as effdeg.Penalty\("),
        (lambda: PenaltyCallback(Penalty(), "1"), TypeError, r"weight='1' must be a number.* a function of the step"),
        (lambda: PenaltyCallback(Penalty(), 1.0, labels="y"), TypeError, "labels='y' must be a function"),
    ],
)
def test_mistakes_are_found_at_construction(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


def test_mistakes_are_found_when_the_fit_starts():
    for setting in ("model", "at"):
        model = Classifier()
        with pytest.raises(ValueError, match=f"{setting}='nett' is not a layer"):
            fit(model, MeasureCallback(X, **{setting: "nett"}))
        assert model.logged_loss == []
    with pytest.raises(ValueError, match=r"the batch has none: .* a PenaltyCallback labels=lambda batch"):
        fit(Classifier(), PenaltyCallback(Penalty(anchor="labels"), 1.0, labels=lambda batch: None))
    with pytest.raises(TypeError, match=r"weight\(0\)=None must be a number"):
        fit(Classifier(), PenaltyCallback(Penalty(), lambda step: None))


@pytest.mark.parametrize("wrap", [float, torch.Tensor.detach])
def test_a_loss_that_lightning_would_refuse_is_not_hidden_by_the_penalty(wrap):
    class Wrong(Classifier):
        def training_step(self, batch, batch_idx):
            return wrap(super().training_step(batch, batch_idx))

    with pytest.raises(Exception, match=r"must return a Tensor|the 'loss' key|does not require grad"):
        fit(Wrong(), PenaltyCallback(Penalty(), 1.0))


def test_an_iterator_is_read_once_for_all_epochs():
    model, settings = Classifier(), {"paths": 32, "nodes": 20, "degree": 8}
    trainer = fit(model, MeasureCallback(iter(X.split(8)), **settings), epochs=2)
    expected = effdeg.measure(model, X, **settings).value
    assert trainer.callback_metrics["effective_degree"].item() == pytest.approx(expected, rel=1e-5)


def test_what_cannot_work_is_said():
    with pytest.raises(RuntimeError, match=r"was called 0 times.*model='…'"):
        fit(Classifier(inner=True), PenaltyCallback(Penalty(), 1.0))
    with pytest.raises(ValueError, match="'nett' is not a layer"):
        fit(Classifier(), PenaltyCallback(Penalty(), 1.0, model="nett"))
    by_hand_module = Classifier()
    by_hand_module.automatic_optimization = False
    with pytest.raises(ValueError, match="uses manual optimization"):
        fit(by_hand_module, PenaltyCallback(Penalty(), 1.0))
    model = Classifier()
    with pytest.raises(ValueError, match="no labels were found"):
        fit(model, PenaltyCallback(Penalty.efficient(), 1.0), data=TensorDataset(X))
    assert "training_step" not in model.__dict__


class Permuting(Classifier):
    def __init__(self, order):
        super().__init__()
        self.order = order

    def training_step(self, batch, batch_idx):
        x, y = batch
        order = self.order(len(x))
        return cross_entropy(self(x[order]), y[order])


def test_examples_in_another_order_than_the_labels_are_refused():
    with pytest.raises(ValueError, match="in another order than that of the labels"):
        fit(Permuting(torch.randperm), PenaltyCallback(Penalty.efficient(), 1.0))
    fit(Permuting(torch.randperm), PenaltyCallback(Penalty(), 1.0))
    fit(Permuting(torch.arange), PenaltyCallback(Penalty.efficient(), 1.0))


def test_it_is_told_if_the_order_of_examples_is_not_known():
    class Mixing(Classifier):
        def training_step(self, batch, batch_idx):
            x, y = batch
            return cross_entropy(self(0.7 * x + 0.3 * x.flip(0)), y)

    with pytest.warns(UserWarning, match="could not be checked whether they are in the order of their labels"):
        fit(Mixing(), PenaltyCallback(Penalty.efficient(), 1.0))
