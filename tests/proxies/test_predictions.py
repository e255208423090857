"""What predictions say without labels: closed forms, loops over examples, and scipy's linear programs."""

import math

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import effdeg
from effdeg import changes, proxies
from tests.batches import X, Y, tokens
from tests.models import Counted, Tokens, mlp

READ = nn.Identity()  # the examples are the logits
OF_ONE_MODEL = {name: getattr(proxies, name) for name in ("confidence", "entropy", "nuclear_norm", "energy", "cot")}
ALL = [*OF_ONE_MODEL, "mano", "inconsistency", "inconsistency_soft", "disagreement", "thresholded_confidence"]


def softmax(logits):
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def draw_logits(examples, classes=5, seed=0, scale=2.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(examples, classes, generator=generator, dtype=torch.float64)


def predict_slowly(labeled, labels, unlabeled):
    scores = [[sum(q * math.log(q) for q in p) for p in softmax(each.numpy())] for each in (labeled, unlabeled)]
    errors = sum(int(row.argmax()) != int(label) for row, label in zip(labeled, labels, strict=True))
    thresholds = sorted(scores[0])
    threshold = next((t for t in thresholds if sum(s < t for s in scores[0]) == errors), math.inf)
    return np.mean([s >= threshold for s in scores[1]])


class TestOneModel:
    @pytest.mark.parametrize(("examples", "classes"), [(40, 5), (3, 8)])
    def test_against_numpy(self, examples, classes):
        logits = draw_logits(examples, classes)
        p = softmax(logits.numpy())
        assert proxies.confidence(READ, logits).value == pytest.approx(p.max(1).mean(), rel=1e-12)
        assert proxies.entropy(READ, logits).value == pytest.approx(-(p * np.log(p)).sum(1).mean(), rel=1e-12)
        singular = np.linalg.svd(p, compute_uv=False).sum()
        expected = singular / math.sqrt(min(examples, classes) * examples)
        assert proxies.nuclear_norm(READ, logits).value == pytest.approx(expected, rel=1e-12)

    def test_one_logit_is_that_of_two_classes(self):
        logit = draw_logits(30, 1)
        both = torch.cat([torch.zeros_like(logit), logit], dim=1)
        for proxy in OF_ONE_MODEL.values():
            expected = proxy(READ, both).value
            assert proxy(READ, logit).value == pytest.approx(expected, rel=1e-12)
            assert proxy(lambda x: x[:, 0], logit).value == pytest.approx(expected, rel=1e-12)
        p = 1 / (1 + np.exp(-logit.numpy()))
        assert proxies.confidence(READ, logit).value == pytest.approx(np.maximum(p, 1 - p).mean(), rel=1e-12)

    def test_logits_that_overflow_an_exponential(self):
        logits = torch.tensor([[1e4, 0.0, -1e4], [-1e30, 0.0, 0.0]])
        assert proxies.confidence(READ, logits).value == pytest.approx(0.75)
        assert proxies.entropy(READ, logits).value == pytest.approx(math.log(2) / 2)

    def test_error_bars_are_over_examples(self):
        logits = draw_logits(50)
        largest = softmax(logits.numpy()).max(1)
        assert proxies.confidence(READ, logits).stderr == pytest.approx(largest.std(ddof=1) / 50**0.5)
        assert proxies.entropy(READ, logits).stderr > 0

    @pytest.mark.parametrize("proxy", OF_ONE_MODEL.values())
    def test_what_is_no_prediction(self, proxy):
        with pytest.raises(proxies.NotApplicable, match="one prediction per example is needed; the outputs have shape"):
            proxy(lambda x: x.view(12, 2, 3), X)
        with pytest.raises(proxies.NotApplicable, match="probabilities already"):
            proxy(lambda x: x.softmax(1), X)
        with pytest.raises(ValueError, match="NaN or infinite at example"):
            proxy(lambda x: x * torch.nan, X)
        with pytest.raises(proxies.NotApplicable, match="labels are not 0 and 1"):
            proxy(lambda x: x[:, :1], (X, X[:, 1:2]))
        assert proxy(lambda x: x[:, :1], (X, (X[:, 1:2] > 0).double())).value > 0


class TestMano:
    @pytest.mark.parametrize(("scale", "expected"), [(2.0, "taylor"), (30.0, "softmax")])
    def test_against_loops(self, scale, expected):
        logits = draw_logits(40, scale=scale)
        certain = -np.mean([math.log(p) for row in softmax(logits.numpy()) for p in row]) > 5
        total = 0.0
        for row in logits.tolist():
            powers = [math.exp(q - max(row)) if certain else 1 + q + q**2 / 2 for q in row]
            if not certain:
                powers = [each - min(powers) for each in powers]
            total += sum((each / sum(powers)) ** 4 for each in powers)
        found = proxies.mano(READ, logits)
        assert found.value == pytest.approx((total / (40 * 5)) ** 0.25, rel=1e-12)
        assert found.settings == {"normalization": expected, "examples": 40}

    def test_certain_predictions_have_the_largest_norm(self):
        assert proxies.mano(READ, 200 * torch.eye(4).double()).value == pytest.approx((1 / 4) ** 0.25)
        assert proxies.mano(READ, torch.zeros(9, 4)).value == 0

    def test_squares_that_overflow(self):
        with pytest.raises(proxies.NotApplicable, match="squares of the logits are too large"):
            proxies.mano(READ, 1e200 * torch.ones(5, 4, dtype=torch.float64))

    @pytest.mark.parametrize("classes", [1, 2])
    def test_two_classes_are_refused(self, classes):
        with pytest.raises(proxies.NotApplicable, match="at least three classes"):
            proxies.mano(READ, draw_logits(30, classes))


class TestEnergy:
    def test_against_loops(self):
        logits = draw_logits(40)
        energies = [-math.log(sum(math.exp(q) for q in row)) for row in logits.tolist()]
        total = sum(math.exp(each) for each in energies)
        expected = -np.mean([math.log(math.exp(each) / total) for each in energies])
        assert proxies.energy(READ, logits).value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_log_probabilities_are_no_logits_where_the_size_of_logits_counts(dtype):
    logits = draw_logits(40)
    known = logits.log_softmax(1).to(dtype).float()
    for proxy in (proxies.mano, proxies.energy):
        with pytest.raises(proxies.NotApplicable, match="outputs are log-probabilities"):
            proxy(READ, known)
    for proxy in (proxies.confidence, proxies.entropy, proxies.nuclear_norm, proxies.cot):
        assert proxy(READ, known).value == pytest.approx(proxy(READ, logits).value, rel=1e-3)
    certain = 30 * logits  # here MaNo is that of the probabilities
    assert proxies.mano(READ, certain.log_softmax(1)).value == pytest.approx(proxies.mano(READ, certain).value)
    choice = effdeg.pick([lambda x: x.log_softmax(1), READ], logits, change=changes.noise(0.1))
    measures = [choice.measures[name] for name in sorted(choice.measures)]
    assert ["energy" in each for each in measures] == [False, True]


class TestCot:
    def test_against_an_assignment_to_balanced_classes(self):
        logits = draw_logits(30, 3) + torch.tensor([2.0, 0.0, 0.0])
        costs = np.repeat(1 - softmax(logits.numpy()), 10, axis=1)
        expected = costs[scipy.optimize.linear_sum_assignment(costs)].mean()
        assert proxies.cot(READ, logits).value == pytest.approx(expected, rel=1e-12)


class TestInconsistency:
    def test_against_a_loop(self):
        model = mlp().double()
        differs, distance = [], []
        for x in X:
            p, q = (softmax(model(each[None]).detach().numpy())[0] for each in (x, x.flip(0)))
            differs.append(p.argmax() != q.argmax())
            distance.append(sum(abs(p - q)) / 2)
        hard = proxies.inconsistency(model, X, lambda x: x.flip(1))
        soft = proxies.inconsistency(model, X, lambda x: x.flip(1), soft=True)
        assert 0 < np.mean(differs) < 1
        assert (hard.value, soft.value) == pytest.approx((np.mean(differs), np.mean(distance)), rel=1e-9)
        for found, values in ((hard, differs), (soft, distance)):
            assert found.stderr == pytest.approx(np.std(values, ddof=1) / 12**0.5)
        assert (hard.name, soft.name) == ("inconsistency", "inconsistency_soft")

    def test_one_of_several_is_drawn_for_each_example(self):
        logits = torch.tensor([[5.0, 0.0, 0.0]]).repeat(400, 1)
        several = [lambda x: x, lambda x: x.roll(1, 1)]
        found = proxies.inconsistency(READ, logits, several)
        assert 0.4 < found.value < 0.6
        assert found.settings["change"] == "<lambda> or <lambda>"

    def test_tokens(self):
        model, batch = Tokens().double(), tokens(examples=40)
        found = proxies.inconsistency(model, batch, changes.drop_tokens(0.5, 3), soft=True)
        assert found.value > 0.01
        # Nothing to drop: the first token of each stays.
        assert proxies.inconsistency(model, tokens(examples=5, length=3), changes.drop_tokens(0.1)).value == 0

    def test_a_mask_that_hides_by_infinity(self):
        batch = tokens()
        added = torch.zeros(10, 7).masked_fill(batch["attention_mask"] == 0, -torch.inf)
        model = Tokens()

        def run(input_ids, attention_mask):
            return model(input_ids, (attention_mask == 0).long())

        def change(batch):
            return batch | {"input_ids": batch["input_ids"].flip(1)}

        found = proxies.inconsistency(run, batch | {"attention_mask": added}, change, soft=True)
        assert found.value == pytest.approx(proxies.inconsistency(model, batch, change, soft=True).value)
        assert found.value > 0

    def test_the_data_are_left_alone(self):
        kept = X.clone()
        proxies.inconsistency(mlp().double(), X, lambda x: x.mul_(2))
        assert torch.equal(X, kept)

    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            (None, proxies.NotApplicable, "needs change=, a function of a batch"),
            (X, TypeError, "change= is torch.float64 of shape .* a function of a batch was expected"),
            ("mirror", TypeError, "change= is a str"),
            (lambda x: x[:, :3], ValueError, "function of change= returned .* a batch of the same shape and type"),
            (lambda x: x * torch.nan, ValueError, "function of change= returned NaN"),
            (changes.mirror, TypeError, "one floating-point tensor of images"),
        ],
    )
    def test_changes_that_are_wrong_are_found_before_the_model_runs(self, change, error, message):
        model = Counted(mlp().double())
        with pytest.raises(error, match=message):
            proxies.inconsistency(model, X, change)
        with pytest.raises(error, match=message):
            proxies.evaluate(model, X, names=["confidence", "inconsistency"], change=change)
        assert model.rows == 0


class TestDisagreement:
    def test_by_hand(self):
        classes = [torch.tensor(each) for each in ([0, 1, 2, 0, 1], [0, 1, 2, 2, 2], [1, 1, 2, 0, 0])]
        logits = [nn.functional.one_hot(each, 3) * 2.0 for each in classes]
        model, *others = [lambda x, each=each: each[x[:, 0].long()] for each in logits]
        x = torch.arange(5.0)[:, None]
        assert proxies.disagreement(model, x, others[:1]).value == pytest.approx(2 / 5)
        found = proxies.disagreement(model, x, others)
        # Of two others, by example: 1/2, 0, 0, 1/2, 1.
        assert found.value == pytest.approx(2 / 5)
        assert found.stderr == pytest.approx(np.std([0.5, 0, 0, 0.5, 1], ddof=1) / 5**0.5)
        assert found.settings == {"examples": 5, "others": 2}

    def test_every_model_is_left_as_it_came_and_runs_with_the_options(self):
        class Noted(nn.Module):
            """Notes what it is run with, and predicts at random in training mode."""

            def __init__(self):
                super().__init__()
                self.inner = nn.Sequential(nn.Dropout(0.9), mlp())
                self.seen = []

            def forward(self, x):
                self.seen.append((len(x), x.dtype))
                return self.inner(x)

        model, other = Noted(), Noted()
        found = proxies.disagreement(model, X, [other], batch_size=4, dtype=torch.float64, examples=8)
        assert found.value == 0
        assert model.seen == other.seen == [(4, torch.float64)] * (3 + 2)  # a trial of whether rows are independent
        assert other.training
        assert next(other.parameters()).dtype == torch.float32

    def test_two_classes_by_one_logit_or_by_two(self):
        x = draw_logits(40, 1)
        assert proxies.disagreement(READ, x, [lambda x: torch.cat([-x, x], 1)]).value == 0
        assert proxies.disagreement(READ, x, [lambda x: -x[:, 0]]).value == 1

    @pytest.mark.parametrize(
        ("others", "error", "message"),
        [
            (None, proxies.NotApplicable, "needs others="),
            ([], ValueError, "is empty"),
            (mlp(), TypeError, "others= is a Sequential; a list of models was expected"),
            ([mlp().state_dict()], TypeError, "a list of models was expected"),
            ([mlp(outputs=3)], ValueError, r"others\[0\] predicts one of 3 classes and the model one of 4"),
        ],
    )
    def test_others_that_are_wrong(self, others, error, message):
        with pytest.raises(error, match=message):
            proxies.disagreement(mlp(), X, others)
        with pytest.raises(error, match=message):
            proxies.evaluate(mlp(), X, names=["disagreement"], others=others)

    def test_a_model_is_not_compared_with_itself(self):
        model = mlp()
        with pytest.raises(ValueError, match="always agrees with itself"):
            proxies.disagreement(model, X, [mlp(seed=1), model])


class TestThresholdedConfidence:
    @pytest.mark.parametrize("seed", range(2))
    def test_against_every_threshold(self, seed):
        labeled, unlabeled = draw_logits(30, seed=seed), draw_logits(45, seed=100 + seed, scale=1.5)
        labels = torch.where(torch.arange(30) % 3 > 0, labeled.argmax(1), 0)
        found = proxies.thresholded_confidence(READ, unlabeled, (labeled, labels))
        assert found.value == pytest.approx(predict_slowly(labeled, labels, unlabeled))
        assert found.settings["labeled accuracy"] == pytest.approx(float((labeled.argmax(1) == labels).double().mean()))

    @pytest.mark.parametrize("errors", [0, 7, 20])
    def test_on_the_labeled_examples_it_is_their_accuracy(self, errors):
        logits = draw_logits(20)
        labels = torch.where(torch.arange(20) < errors, logits.argmin(1), logits.argmax(1))
        found = proxies.thresholded_confidence(READ, logits, (logits, labels))
        assert found.value == pytest.approx(1 - errors / 20)

    @pytest.mark.parametrize(("errors", "expected"), [(1, 1.0), (4, 0.4), (6, 0.4), (9, 0.0)])
    def test_equal_scores_are_counted_as_near_as_they_can_be(self, errors, expected):
        logits = torch.tensor([[1.0, 0.0]] * 6 + [[3.0, 0.0]] * 4)
        labels = (torch.arange(10) < errors).long()
        assert proxies.thresholded_confidence(READ, logits, (logits, labels)).value == pytest.approx(expected)

    def test_the_error_bar_is_the_spread_of_the_prediction(self):
        generator = torch.Generator().manual_seed(0)

        def draw(count):
            logits = torch.randn(count, 2, generator=generator, dtype=torch.float64) * 2
            drawn = torch.rand(count, generator=generator, dtype=torch.float64)
            return logits, (drawn > logits.softmax(1)[:, 0]).long()

        found = [proxies.thresholded_confidence(READ, draw(150)[0], draw(100)) for _ in range(100)]
        spread = float(np.std([each.value for each in found]))
        stderr = float(np.mean([each.stderr for each in found]))
        assert stderr == pytest.approx(spread, rel=0.25)
        # On average it is the accuracy where both kinds of examples are drawn alike.
        logits, labels = draw(200_000)
        accuracy = float((logits.argmax(1) == labels).double().mean())
        assert np.mean([each.value for each in found]) == pytest.approx(accuracy, abs=4 * spread / 100**0.5)

    def test_labels_of_a_binary_classifier_are_also_floats(self):
        logit = draw_logits(30, 1)
        labels = (logit + draw_logits(30, 1, seed=1) > 0).double()
        both = torch.cat([torch.zeros_like(logit), logit], 1)
        expected = proxies.thresholded_confidence(READ, both[:9], (both, labels[:, 0].long())).value
        for each in (labels, labels[:, 0], labels > 0, labels.long(), labels[:, 0].tolist()):
            assert proxies.thresholded_confidence(READ, logit[:9], (logit, each)).value == expected

    def test_the_labeled_examples_are_read_from_anything_and_all_of_them(self):
        model, unlabeled = mlp().double(), draw_logits(30, 6)
        expected = proxies.thresholded_confidence(model, unlabeled, (X, Y), examples=8)
        assert (expected.settings["labeled"], expected.settings["examples"]) == (12, 8)
        loader = DataLoader(TensorDataset(X, Y), batch_size=5)
        for each in (loader, TensorDataset(X, Y), iter(list(loader))):
            found = proxies.thresholded_confidence(model, unlabeled, each, examples=8, batch_size=3)
            assert found.value == expected.value

    @pytest.mark.parametrize(
        ("labeled", "error", "message"),
        [
            (None, proxies.NotApplicable, "needs labeled="),
            (X, ValueError, "have no labels"),
            ((X, X), ValueError, r"must be class ids, .* torch.float64 of shape \(12, 6\)"),
            ((X, Y + 1), ValueError, "go from 1 to 4, but class ids are 0 to 3"),
        ],
    )
    def test_labeled_examples_that_are_wrong(self, labeled, error, message):
        with pytest.raises(error, match=message):
            proxies.thresholded_confidence(mlp().double(), X, labeled)
        with pytest.raises(error, match=message):
            proxies.evaluate(mlp().double(), X, names=["thresholded_confidence"], labeled=labeled)


class TestTogether:
    def test_all_share_one_pass_and_are_the_functions(self):
        model, other = Counted(mlp().double()), Counted(mlp(seed=1).double())
        labeled = X.flip(0)[:5] / 2, Y[:5]
        table = proxies.evaluate(model, X, names=ALL, others=[other], labeled=labeled, change=torch.neg)
        trial = 3 * 8  # of whether rows are independent
        assert model.rows == 2 * (len(X) + trial) + 5 + 3 * 5
        assert other.rows == len(X) + trial
        for name, proxy in OF_ONE_MODEL.items():
            assert table[name] == proxy(model, X)
        assert table["mano"] == proxies.mano(model, X)
        assert table["inconsistency"] == proxies.inconsistency(model, X, torch.neg)
        assert table["inconsistency_soft"] == proxies.inconsistency(model, X, torch.neg, soft=True)
        assert table["disagreement"] == proxies.disagreement(model, X, [other])
        assert table["thresholded_confidence"] == proxies.thresholded_confidence(model, X, labeled)

    def test_margins_and_sharpness_share_it_too(self):
        model = Counted(mlp().double())
        proxies.evaluate(model, (X, Y), names=["margin@10", *OF_ONE_MODEL])
        assert model.rows == len(X) + 3 * 8  # and a trial of whether rows are independent
        model.rows = 0
        proxies.evaluate(model, (X, Y), cross_entropy, names=["sharpness@0.05"])
        alone, model.rows = model.rows, 0
        proxies.evaluate(model, (X, Y), cross_entropy, names=["sharpness@0.05", *OF_ONE_MODEL])
        assert model.rows == alone


@pytest.mark.parametrize("outputs", [1, 4])
def test_probabilities_of_sigmoid_are_refused(outputs):
    torch.manual_seed(0)
    net, x = torch.nn.Linear(5, outputs), 9 * torch.randn(200, 5)
    for name in ("confidence", "entropy", "energy"):
        with pytest.raises(effdeg.proxies.NotApplicable, match="as probabilities are"):
            effdeg.proxies.evaluate(lambda x: net(x).sigmoid(), x, names=[name])
    with pytest.raises(ValueError, match="as probabilities are"):
        effdeg.pick([lambda x: net(x).sigmoid(), net], x)


def test_a_single_output_between_0_and_1_is_told():
    x = torch.rand(200, 1) / 2 + 0.2
    with pytest.warns(UserWarning, match=r"from 0\.2 to 0\.7, as probabilities are; they are taken for logits"):
        effdeg.proxies.confidence(torch.nn.Identity(), x)


@pytest.mark.parametrize("name", ["nuclear_norm", "mano", "energy", "cot"])
@pytest.mark.parametrize("scale", [1.0, 20.0])  # MaNo's normalization depends on it
def test_standard_errors_are_those_of_the_bootstrap(name, scale):
    random = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(300, 5, generator=random).double() * torch.rand(300, 1, generator=random)
    score = getattr(proxies, name)
    drawn = [score(nn.Identity(), logits[torch.randint(300, (300,), generator=random)]).value for _ in range(300)]
    assert score(nn.Identity(), logits).stderr == pytest.approx(float(np.std(drawn)), rel=0.2)
