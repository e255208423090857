"""Picking: scores against loops by hand, bootstrap and labels against their definitions, and what is refused."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, SequentialSampler, SubsetRandomSampler, TensorDataset

import effdeg
from effdeg import changes
from effdeg._utils import memo
from effdeg.pools._choice import PATHS, _find_chances, compare_predictions, estimate_errors
from tests.models import mlp

X = torch.randn(150, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def conv(seed, classes=4):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(216, classes))


@pytest.fixture(scope="module")
def models():
    return {f"m{seed}": conv(seed) for seed in range(4)}


@pytest.fixture(scope="module")
def choice(models):
    return effdeg.pick(models, X, change=changes.mirror)


def classify(model, x):
    with torch.no_grad():
        return model(x).argmax(1)


def test_scores_are_those_of_a_loop(models, choice):
    predicted = {name: classify(model, X) for name, model in models.items()}
    for name, model in models.items():
        changed = (classify(model, X.flip(-1)) != predicted[name]).double().mean().item()
        others = [predicted[other] for other in models if other != name]
        differs = sum((other != predicted[name]).double().mean().item() for other in others) / len(others)
        assert choice.measures[name]["inconsistency"][0] == pytest.approx(changed)
        assert choice.measures[name]["disagreement"][0] == pytest.approx(differs)
        by_chance = 1 - sum(
            (classify(model, X.flip(-1)) == each).double().mean().item()
            * (predicted[name] == each).double().mean().item()
            for each in range(4)
        )
        shuffled = [predicted[name][torch.arange(150).roll(shift)] for shift in range(150)]  # every pair of examples
        with_others = sum((mine != other).double().mean().item() for mine in shuffled for other in others) / 450
        assert choice.scores[name] == pytest.approx((changed / by_chance + differs / with_others) / 2)
    assert choice.ranking == sorted(models, key=lambda name: choice.scores[name])
    assert choice.model is models[choice.best]


def test_measures_are_those_of_the_proxies(models, choice):
    names = ["confidence", "entropy", "nuclear_norm", "mano", "energy", "cot", "inconsistency", "inconsistency_soft"]
    for name, model in models.items():
        expected = effdeg.proxies.evaluate(model, X, names=names, change=changes.mirror)
        for each in names:
            assert choice.measures[name][each][0] == pytest.approx(expected[each].value, abs=1e-6)


def test_measures_along_the_path_are_those_of_its_points(models, choice):
    model = models["m0"]
    with torch.no_grad():
        points = torch.stack([model(X + share * (X.flip(-1) - X)).softmax(1) for share in (0, 1 / 3, 2 / 3, 1)])
    regions = 1 + (points.argmax(-1).diff(dim=0) != 0).sum(0)
    assert choice.measures["m0"]["decision_regions"][0] == pytest.approx(regions.double().mean().item())
    variation = points.diff(dim=0).abs().sum(0).mean().item()
    assert choice.measures["m0"]["total_variation"][0] == pytest.approx(variation, rel=1e-5)
    found = effdeg.measure(model, X, partners=changes.mirror, nodes=4, degree=3, sampling="uniform", output="softmax")
    assert choice.measures["m0"]["effective_degree"][0] == pytest.approx(found.value, rel=0.1)


def test_few_paths_have_points_between_their_ends(models, choice, monkeypatch):
    rows, model = [], conv(0)
    model.register_forward_hook(lambda _, given, __: rows.append(len(given[0])))
    effdeg.pick(models | {"m0": model}, X, change=changes.mirror)
    most = sum(rows)
    rows.clear()
    monkeypatch.setattr("effdeg.pools._choice.PATHS", 80)
    fewer = effdeg.pick(models | {"m0": model}, X, change=changes.mirror)
    assert most - sum(rows) == 2 * (len(X) - 80)
    assert fewer.scores == choice.scores
    for name, (value, _) in choice.measures["m0"].items():
        between = name in ("effective_degree", "effective_degree_normalized", "decision_regions", "total_variation")
        assert (fewer.measures["m0"][name][0] == pytest.approx(value)) is not between
        assert fewer.measures["m0"][name][0] == pytest.approx(value, rel=0.3)


def test_models_that_predict_the_same_count_as_one(models, choice):
    """As a checkpoint does that is also there as the best one."""
    copies = {"copy": models[choice.ranking[1]], "another": models[choice.ranking[1]]}
    found = effdeg.pick(models | copies, X, change=changes.mirror)
    for name, score in choice.scores.items():
        assert found.scores[name] == pytest.approx(score)
    assert found.scores["copy"] == pytest.approx(found.scores[choice.ranking[1]])
    assert found.probabilities["copy"] == pytest.approx(choice.probabilities[choice.ranking[1]] / 3)
    assert found.best == choice.best
    assert any("predict the same for every example, and count as one model" in note for note in found.notes)


def test_what_is_best_most_often_is_chosen_with_labels_too(models):
    for seed in range(4):
        labels = torch.randint(4, (20,), generator=torch.Generator().manual_seed(seed))
        found = effdeg.pick(models, X, change=changes.mirror, labels=labels, seed=seed)
        assert found.probabilities[found.best] > 0.8 * max(found.probabilities.values())


def test_resamples_agree_with_a_loop(models, choice):
    predicted = torch.stack([classify(model, X) for model in models.values()], dim=1)
    copies = torch.stack([classify(model, X.flip(-1)) for model in models.values()], dim=1)
    chances = _find_chances(predicted, copies, 4)
    each = ((predicted != copies) / chances[0] + compare_predictions(predicted) / chances[1]).numpy()
    generator = np.random.default_rng(1)
    won = np.zeros(4)
    for _ in range(2000):
        mean = each[generator.integers(0, len(each), len(each))].mean(0)
        won += (mean == mean.min()) / (mean == mean.min()).sum()
    expected = dict(zip(models, won / 2000, strict=True))
    for name in models:
        assert choice.probabilities[name] == pytest.approx(expected[name], abs=0.06)
    assert sum(choice.probabilities.values()) == pytest.approx(1)
    unclear = [name for name in models if name != choice.best and choice.probabilities[name] > 0.06]
    assert {*unclear} <= {*choice.tied}


def test_two_changes_the_batch_size_and_other_models_do_not_change_a_model(models, choice):
    again = effdeg.pick(models, X, change=changes.mirror, batch_size=7)
    assert again.scores == pytest.approx(choice.scores)
    several = [changes.shift(2), changes.noise(0.5)]
    one, two = (effdeg.pick(some, X, change=several) for some in (models, dict([*models.items()][:2])))
    for name in ("m0", "m1"):
        assert one.measures[name]["inconsistency"] == two.measures[name]["inconsistency"]
    assert one.settings["change"] == "shift(2) or noise(0.5)"


def test_labels_alone_decide_if_there_are_many(models):
    labels = classify(models["m2"], X)
    found = effdeg.pick(models, X, change=changes.mirror, labels=labels)
    assert (found.best, found.measures["m2"]["accuracy"]) == ("m2", (1.0, 0.0))
    assert "The 150 labels alone say m2." in str(found)
    assert found.rows()[0][:2] == ["model", "estimated error"]
    few = effdeg.pick(models, X, change=changes.mirror, labels=labels[:1].tolist(), examples=50)
    assert few.settings == {"change": "mirror", "examples": 50, "labels": 1, "seed": 0}


def test_scores_and_labels_are_combined_by_how_much_is_known():
    scores, errors = np.array([[0.1, 0.2, 0.3]]), np.array([[0.4, 0.1, 0.1]])
    assert estimate_errors(scores, errors, 1e-12) == pytest.approx(errors, abs=1e-6)
    unknown = estimate_errors(scores, errors, 1e6)
    assert unknown == pytest.approx(errors.mean() + scores - scores.mean(), abs=1e-4)
    between = estimate_errors(scores, errors, 0.01)
    assert ((between >= np.minimum(errors, unknown) - 1e-9) & (between <= np.maximum(errors, unknown) + 1e-9)).all()


def test_the_labeled_examples_are_always_used(models):
    labels = classify(models["m0"], X)[:30]
    found = effdeg.pick(models, X, change=changes.mirror, labels=labels, examples=40, seed=5)
    assert found.measures["m0"]["accuracy"][0] == 1.0
    assert found.settings["examples"] == 40


@pytest.mark.parametrize(
    ("x", "said", "change"),
    [
        (X, "images are mirrored and shifted", "mirror + shift(1)"),
        (X[:, :1], "not mirrored", "shift(1)"),
        (X.flatten(1), "noise of", "noise of 0.1 standard deviations of each number"),
    ],
)
def test_the_usual_change_depends_on_the_data(x, said, change):
    def network(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 3))

    found = effdeg.pick([network(0), network(1), network(2)], x)
    assert found.settings["change"] == change
    assert said in found.notes[0]
    assert found.ranking[0] in {"Sequential 1", "Sequential 2", "Sequential 3"}


def test_texts_lose_tokens_at_their_embeddings():
    transformers = pytest.importorskip("transformers")
    settings = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(**settings, intermediate_size=16, num_labels=3)
    torch.manual_seed(0)
    models = [transformers.BertForSequenceClassification(config) for _ in range(3)]
    for model in models:
        model.classifier.weight.data.normal_()
    ids = torch.randint(1, 50, (60, 9))
    data = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    found = effdeg.pick(models, data, seed=3)
    assert found.settings["change"] == "drop_tokens(0.1, 0)"
    dropped = changes.drop_tokens(0.4)
    strong = effdeg.pick(models, data, change=dropped)
    assert strong.measures[strong.best]["inconsistency_soft"] > found.measures[strong.best]["inconsistency_soft"]


class Text(nn.Module):
    def __init__(self, seed, *, masked=True):
        super().__init__()
        torch.manual_seed(seed)
        self.emb, self.head, self.masked = nn.Embedding(30, 8), nn.Linear(8, 3), masked

    def forward(self, input_ids, attention_mask=None):
        seen = (attention_mask if self.masked else input_ids != 0).float()[..., None]
        return self.head((self.emb(input_ids) * seen).sum(1) / seen.sum(1))


def lengthen(ids, mask):
    """Repeat the first token in the place of padding."""
    ids, mask = ids.clone(), mask.clone()
    ids[:, -1], mask[:, -1] = ids[:, 0], 1
    return ids, mask


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(
    "change", [lengthen, lambda ids, mask: (ids * (torch.arange(8) < 4), mask * (torch.arange(8) < 4))]
)
def test_predictions_are_those_of_texts_with_masks_of_their_own(masked, change):
    mask = (torch.arange(8) < 6).long().expand(600, 8)
    ids = torch.randint(1, 30, (600, 8), generator=torch.Generator().manual_seed(0)) * mask
    models = {str(seed): Text(seed, masked=masked) for seed in range(3)}
    given, made = {"input_ids": ids, "attention_mask": mask}, lambda batch: change(*batch.values())
    if masked:
        choice = effdeg.pick(models, given, change=lambda batch: dict(zip(batch, made(batch), strict=True)), at="emb")
    else:
        choice = effdeg.pick(models, ids, change=lambda batch: change(batch, torch.ones_like(batch))[0], at="emb")
    for name, model in models.items():
        with torch.no_grad():
            own, copies = (model(*each).softmax(1) for each in ((ids, mask), made(given)))
        measured = choice.measures[name]
        assert measured["inconsistency"][0] == (own.argmax(1) != copies.argmax(1)).double().mean()
        assert measured["inconsistency_soft"][0] == pytest.approx((own - copies).abs().sum(1).mean().item() / 2)
        assert measured["confidence"][0] == pytest.approx(own.amax(1).mean().item())


def test_masks_at_the_inputs_are_those_of_each_copy():
    class Series(nn.Module):
        def __init__(self, seed):
            super().__init__()
            torch.manual_seed(seed)
            self.head = nn.Linear(4, 3)

        def forward(self, x, mask):
            seen = mask.float()[..., None]
            return self.head((x * seen).sum(1) / seen.sum(1))

    x = torch.randn(60, 8, 4, generator=torch.Generator().manual_seed(0))
    data, cut = {"x": x, "mask": torch.ones(60, 8, dtype=torch.bool)}, torch.arange(8) < 3
    models = {str(seed): Series(seed) for seed in range(3)}
    choice = effdeg.pick(models, data, change=lambda batch: {"x": batch["x"], "mask": batch["mask"] & cut})
    for name, model in models.items():
        own, copies = (model(x, mask).argmax(1) for mask in (data["mask"], data["mask"] & cut))
        assert choice.measures[name]["inconsistency"][0] == (own != copies).double().mean() > 0


def test_a_change_that_fails_is_told_what_it_was_called_on():
    with pytest.raises(TypeError) as raised:
        effdeg.pick([lambda a, b: a + b, lambda a, b: a - b], (X, X), change=lambda pair: pair[0] * 2 + pair)
    assert any("function of change= was called on a batch" in note for note in raised.value.__notes__)


def test_a_single_output_is_one_logit_of_two_classes():
    x = torch.randn(100, 5, generator=torch.Generator().manual_seed(0))
    one = nn.Linear(5, 1)
    labels = (one(x) > 0).float()  # as binary losses take them
    found = effdeg.pick({"one": one, "other": lambda x: -one(x).squeeze(1)}, x, train=(x, labels))
    assert found.measures["one"]["disagreement"][0] == found.measures["one"]["train_accuracy"][0] == 1.0


def test_a_collapsed_model_is_not_chosen(models):
    def constant(x):
        return torch.tensor([9.0, 0, 0, 0]).expand(len(x), 4) + 1e-3 * x.flatten(1)[:, :4]

    def agreeing(share):
        return lambda x: models["m0"](x) + share * models["m1"](x)

    alike = {f"a{share}": agreeing(share) for share in (0, 0.1, 0.2)}
    found = effdeg.pick(alike | {"constant": constant}, X, change=changes.mirror)
    assert found.best != "constant"
    assert any("constant is predicting far fewer classes" in note for note in found.notes)
    assert not any("fall into few classes" in note for note in found.notes)


def test_predictions_of_few_classes_are_noted(models):
    def biased(model):
        return lambda x: model(x) + torch.tensor([9.0, 0, 0, 0])

    found = effdeg.pick({name: biased(model) for name, model in models.items()}, X, change=changes.mirror)
    assert any("fall into few classes, as if there were 1." in note for note in found.notes)
    assert any("predict the same for every example" in note for note in found.notes)


def test_notes_on_training_examples_and_kinds(models):
    labels = classify(models["m0"], X)

    class Sharp(nn.Module):
        def forward(self, x):
            return 100 * models["m0"](x)

    found = effdeg.pick({**models, "sharp": Sharp()}, X, change=changes.mirror, train=(X, labels))
    assert found.measures["m0"]["train_accuracy"] == (1.0, None)
    notes = "\n".join(found.notes)
    assert "m1, m2, m3 are below 97% on the training examples" in notes
    assert "several kinds (Sequential, Sharp)" in notes


def test_nothing_to_tell_models_apart_is_noted(models):
    twins = {"a": models["m0"], "b": conv(0), "c": conv(0)}
    found = effdeg.pick(twins, X[:40], change=lambda x: x)
    assert found.probabilities == pytest.approx(dict.fromkeys(found.ranking, 1 / 3))
    assert len(found.tied) == 2
    assert any("no change altered any prediction" in note for note in found.notes)
    assert any("all models predict the same" in note for note in found.notes)
    assert any("inconsistency alone decides" in note for note in effdeg.pick(dict([*models.items()][:2]), X).notes)


def test_models_that_differ_on_copies_alone_are_told_apart():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    choice = effdeg.pick(
        {"flips": lambda x: x * torch.sign(12 - x.sum(1, True)), "keeps": lambda x: x}, x, change=lambda x: x + 10
    )
    assert choice.best == "keeps"
    assert "all models predict the same for every example: only the inconsistency tells them apart." in choice.notes


@pytest.mark.parametrize("where", ["everywhere", "copies"])
def test_a_model_with_nan_is_left_out(models, where):
    broken = conv(7)
    with torch.no_grad():
        broken[0].weight[0, 0, 0, 0] = math.nan
    change = changes.mirror
    if where == "copies":
        change = lambda x: x + 100  # noqa: E731
        broken = lambda x: models["m0"](x) + torch.where(x[:, :1, 0, 0] > 50, math.nan, 0.0)  # noqa: E731
    found = effdeg.pick({"broken": broken, **models}, X, change=change)
    assert "broken is left out: its outputs are NaN or infinite." in found.notes
    assert found.scores == effdeg.pick(models, X, change=change).scores
    with pytest.raises(ValueError, match="fewer than two models are left"):
        effdeg.pick({"broken": broken, "m0": models["m0"]}, X, change=change)


@pytest.mark.parametrize(("dtype", "offset"), [(torch.float32, 0), (torch.float64, 1)])
def test_small_differences_of_logits_decide_a_class(models, dtype, offset):
    small = {name: lambda x, model=model: 1e-9 * model(x.float()).to(dtype) + offset for name, model in models.items()}
    expected = effdeg.pick(models, X, change=changes.mirror)
    assert effdeg.pick(small, X.to(dtype), change=changes.mirror).scores == pytest.approx(expected.scores)


def test_noise_has_the_scale_of_each_number_over_all_examples_of_sorted_data():
    drawn = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 100.0])
    x = torch.cat([torch.zeros(1000, 2), drawn])
    seen = []

    def record(points):
        seen.append(points)
        return points

    effdeg.pick({"a": record, "b": lambda x: -x}, x)
    ends = [points for points in seen if torch.isin(points[: len(points) // 2], x).all()]  # the examples come first
    examples, copies = (torch.cat(parts) for parts in zip(*(points.chunk(2) for points in ends), strict=True))
    assert len(examples) >= len(x) - PATHS
    assert (copies - examples).std(0) == pytest.approx(0.1 * x.std(0), rel=0.15)


def test_labels_belong_to_the_data_set_of_a_loader(models):
    data = TensorDataset(X, classify(models["m0"], X))
    labels = data.tensors[1][:30]
    choice = effdeg.pick(models, DataLoader(data, batch_size=16, shuffle=True), labels=labels)
    assert choice.measures["m0"]["accuracy"][0] == 1
    drawn = DataLoader(data, batch_size=16, sampler=SubsetRandomSampler(range(50)))
    assert effdeg.pick(models, drawn).settings["examples"] == 50

    class Backwards(SequentialSampler):
        def __iter__(self):
            return reversed(range(len(self.data_source)))

    for loader in (drawn, DataLoader(TensorDataset(X), sampler=Backwards(X))):
        with pytest.raises(ValueError, match="this DataLoader's sampler selects and orders examples"):
            effdeg.pick(models, loader, labels=labels)


def test_what_a_data_set_draws_is_kept(models, tmp_path):
    class Noisy(Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, index):
            return X[index] + torch.randn(3, 8, 8)

    found = [effdeg.pick(models, Noisy(), keep=tmp_path).to_dict() for _ in range(2)]
    assert found[0] == found[1]
    assert len([*tmp_path.iterdir()]) == len(models)


def test_examples_are_read_and_changed_for_the_first_model_only(models, monkeypatch):
    class Counted(Dataset):
        def __len__(self):
            return len(X)

        def __getitem__(self, index):
            calls.append(index)
            return X[index]

    def change(images):
        calls.append("change")
        return changes.mirror(images)

    def count_calls(number):
        calls.clear()
        some = dict([*models.items()][:number])
        scores = effdeg.pick(some, Counted(), change=change, examples=96).scores
        assert scores == effdeg.pick(some, X, change=changes.mirror, examples=96).scores
        return len(calls)

    calls = []
    assert count_calls(4) < count_calls(2) + 20  # each is tried on two examples
    monkeypatch.setattr(memo, "MOST_KEPT", X[:40].nbytes)  # of 96, so that the others are read again
    assert count_calls(4) > count_calls(2) + 100


def test_training_examples_may_be_a_generator(models):
    y = classify(models["m0"], X)
    choice = effdeg.pick(models, X, train=((X[i : i + 50], y[i : i + 50]) for i in (0, 50, 100)))
    assert choice.measures["m0"]["train_accuracy"][0] == 1
    with pytest.raises(RuntimeError) as caught:
        effdeg.pick(models, X, train=(X.flatten(1), y))
    assert "This is about the examples of train=." in caught.value.__notes__


def test_what_was_observed_is_kept(models, tmp_path, monkeypatch):
    settings = {"change": changes.mirror, "keep": tmp_path / "kept"}
    first = effdeg.pick(models, X, **settings)
    assert len([*(tmp_path / "kept").iterdir()]) == 4
    observed = []
    original = effdeg.pools._choice.Observer._observe

    def observe(self, model, update):
        if len(self.indices) > 64:
            observed.append(model)
        return original(self, model, update)

    monkeypatch.setattr("effdeg.pools._choice.Observer._observe", observe)
    assert effdeg.pick(models, X, **settings).to_dict() == first.to_dict()
    assert observed == []
    effdeg.pick({**models, "new": conv(9)}, X, **settings)
    assert len(observed) == 1
    for other in ({"change": lambda x: x.flip(-1) + 1}, {"seed": 1}, {"examples": 100}, {"dtype": torch.float64}):
        observed.clear()
        effdeg.pick(models, X, **settings | other)
        assert len(observed) == 4
    observed.clear()
    effdeg.pick(models, X + 1, **settings)
    assert len(observed) == 4


class Altered(nn.Module):
    """A network whose outputs also depend on a number, tensors and a buffer that are not saved."""

    def __init__(self, seed, number=0.0, buffer=0.0, scale=1.0, cap=0.0):
        super().__init__()
        self.inner, self.number, self.scale, self.cap = conv(seed), number, torch.tensor(scale), torch.tensor(cap)
        self.register_buffer("buffer", torch.tensor([0.0, buffer, 0.0, 0.0]), persistent=False)

    def forward(self, x):
        outputs = self.inner(x) + self.number * torch.tensor([1.0, 0.0, 0.0, 0.0]) + self.buffer
        return (self.scale * outputs).sin().where(x[:, :1, 0, 0] < 1, self.cap)


@pytest.mark.parametrize(
    "other",
    [{}, {"number": 1e-4}, {"buffer": 1e-4}, {"scale": 9.0}, {"cap": [9.0, 0.0, 0.0, 0.0]}],  # a cap of few examples
    ids=["data", "number", "buffer", "scale", "cap"],
)
def test_what_was_kept_is_not_read_for_other_data_or_another_model(other, tmp_path):
    assert bool((X[:2, 0, 0, 0] < 1).all())
    settings = {"change": changes.mirror, "keep": tmp_path}
    effdeg.pick([Altered(seed) for seed in range(2)], X, **settings)
    effdeg.pick([Altered(seed).eval() for seed in range(2)], X, **settings)
    assert len([*tmp_path.iterdir()]) == 2
    models, data = [Altered(seed, **other) for seed in range(2)], X.clone()
    if not other:
        data[-1] = -data[-1]  # of 150
    found = effdeg.pick(models, data, **settings)
    assert found.to_dict() == effdeg.pick(models, data, change=changes.mirror).to_dict()


def test_what_was_kept_is_not_read_for_other_copies_of_a_few_examples(models, tmp_path):
    effdeg.pick(models, X, change=changes.mirror, keep=tmp_path)
    last = X[-1, 0, 0, 0]  # of 150: neither among those that are checked nor those of the first block

    def mirror_but_one(x):
        return torch.where((x[:, 0, 0, 0] == last)[:, None, None, None], -x, x.flip(-1))

    found = effdeg.pick(models, X, change=mirror_but_one, keep=tmp_path)
    assert found.to_dict()["models"] == effdeg.pick(models, X, change=mirror_but_one).to_dict()["models"]


def test_labels_that_say_little_are_noted(models):
    labels = classify(models["m0"], X)
    one_class = (labels == labels[0]).nonzero().flatten()[:5]
    notes = effdeg.pick(models, X[one_class], labels=labels[one_class]).notes
    assert any(note.startswith(f"all 5 labels= are of class {int(labels[0])}") for note in notes)
    shifted = effdeg.pick(dict.fromkeys("ab", models["m0"]), X, labels=(labels + 1) % 4)
    assert any("better than guessing, 1 in 4, on the 150 labels (0% at best)" in note for note in shifted.notes)
    assert not any("labels= are" in note for note in effdeg.pick(models, X, labels=labels).notes)


def test_labels_other_than_those_of_the_data_are_refused(models):
    labels = classify(models["m0"], X)
    data = TensorDataset(X, labels)
    assert effdeg.pick(models, data, labels=labels[:100]).settings["labels"] == 100
    with pytest.raises(ValueError, match=r"from the labels in data= for 1 of 100 examples, first for example 90\."):
        effdeg.pick(models, data, labels=torch.where(torch.arange(100) == 90, (labels[:100] + 1) % 4, labels[:100]))


def test_a_change_that_is_too_strong_is_noted(models):
    strong, weak = (effdeg.pick(models, X, change=change).notes for change in (lambda x: -9 * x, changes.noise(0.01)))
    assert any(note.startswith("the change alters") and "too strong" in note for note in strong)
    assert not any("too strong" in note for note in weak)


def test_damaged_files_are_written_again(models, tmp_path):
    settings = {"change": changes.mirror, "keep": tmp_path}
    first = effdeg.pick(models, X, **settings)
    for file in tmp_path.iterdir():
        file.write_bytes(b"damaged")
    assert effdeg.pick(models, X, **settings).to_dict() == first.to_dict()
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot be made a folder"):
        effdeg.pick(models, X, keep=tmp_path / "file")


def test_results_as_json_frames_and_html(choice):
    read = json.loads(json.dumps(choice.to_dict()))
    assert read["best"] == choice.best
    assert [row["model"] for row in read["models"]] == choice.ranking
    frame = choice.to_frame()
    assert list(frame["model"]) == choice.ranking
    assert frame["inconsistency_stderr"].gt(0).all()
    html = choice._repr_html_()
    assert choice.best in html
    assert "<table" in html
    assert repr(choice).startswith(f"Choice({choice.best} < ")


def test_the_figure_has_a_bar_for_each_model(choice):
    figure = choice.plot(theme="dark")
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == choice.ranking
    assert [bar.get_width() for bar in figure.axes[1].patches] == list(choice.probabilities.values())


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"models": [conv(0)]}, ValueError, "at least two models are needed, not 1"),
        ({"models": conv(0)}, TypeError, "models must be a dict of models by name, or a list"),
        ({"models": {"a": conv(0), "b": conv(1, classes=3)}}, ValueError, "classes: a has 4, b has 3"),
        ({"data": X[:1]}, ValueError, "data= holds 1 examples"),
        ({"data": torch.randn(40, 5, 6)}, TypeError, "no usual change for examples"),
        ({"change": "mirror"}, TypeError, "must be a function of a batch"),
        ({"change": lambda x: x[:, :, ::2]}, ValueError, "the function of change= returned"),
        ({"change": lambda x: x * math.nan}, ValueError, "the function of change= returned NaN"),
        ({"labels": torch.zeros(200, dtype=torch.long)}, ValueError, "labels= are 200, but data= holds 150"),
        ({"labels": torch.full((9,), 4)}, ValueError, "labels= go from 4 to 4, but class ids are 0 to 3, of 4 classes"),
        ({"labels": torch.rand(9)}, ValueError, "labels= must be class ids"),
        ({"labels": ["cat", "dog"]}, ValueError, "labels= must be class ids.*'cat'"),
        ({"train": X}, ValueError, "train= holds no labels"),
        ({"train": (X, torch.full((150,), -100))}, ValueError, "the labels of train= go from -100 to -100"),
        ({"train": (X, torch.rand(150))}, ValueError, "^the labels of train= must be class ids"),
        ({"examples": 1}, ValueError, "examples"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"device": "gpu"}, ValueError, "is not a device"),
        ({"dtype": "float32"}, TypeError, "dtype"),
        ({"models": {"a": lambda x: conv(0)(x).softmax(1), "b": conv(1)}}, ValueError, "probabilities already"),
        ({"models": {"a": lambda x: x, "b": conv(1)}}, ValueError, "one prediction per example"),
    ],
)
def test_bad_input_is_refused(models, given, error, message):
    arguments = {"models": models, "data": X} | given
    with pytest.raises(error, match=message):
        effdeg.pick(**arguments)


def test_an_error_names_the_model(models):
    with pytest.raises(RuntimeError) as caught:
        effdeg.pick({"good": models["m0"], "bad": mlp()}, X)
    assert any("'bad'" in note for note in caught.value.__notes__)


def test_models_that_return_features_first_are_told(models):
    both = {name: lambda x, model=model: (x.flatten(1), model(x)) for name, model in models.items()}
    with pytest.warns(UserWarning, match=r"returned several tensors. \[0\] is used.* let it return that alone"):
        effdeg.pick(both, X)


def test_a_change_that_depends_on_other_examples_is_told(models):
    with pytest.warns(UserWarning, match=r"the function of change= \(<lambda>\) does not change each example"):
        effdeg.pick(models, X, change=lambda x: x.flip(0))


@pytest.mark.parametrize(
    ("inputs", "cause"),
    [
        (X[0], r"a single image\? Write data\[None\]"),
        (X.movedim(1, -1), r"channels come second: data.permute\(0, 3, 1, 2\)"),
        ((255 * X.clamp(0, 1)).byte(), r"convert images to floating point: data.float\(\) / 255"),
        ({"input_ids": torch.ones(9, 4).long(), "labels": torch.ones(9).long()}, "leave out labels"),
    ],
)
def test_what_is_wrong_with_examples_is_named(models, inputs, cause):
    with pytest.raises(TypeError, match=f"no usual change for examples of .*{cause}"):
        effdeg.pick(models, inputs)


def test_values_of_images_that_are_not_normalized_are_noted(models):
    notes = effdeg.pick(models, 255 * X.sigmoid()).notes
    assert any("are they normalized as in training?" in note for note in notes)
