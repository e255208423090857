import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

from effdeg import Penalty, changes
from tests.batches import X, Y, same_draw, tokens
from tests.models import Tokens, TwoInputs, mlp, with_batchnorm
from tests.train.test_loops import assert_same_compiled

U = torch.randn(10, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def turn(x):
    """Change examples in a way that can be repeated by hand."""
    return 0.5 - x.flip(-1)


class Recorder:
    def __init__(self, change):
        self.change, self.given, self.returned = change, [], []

    def __call__(self, x):
        self.given.append(x)
        self.returned.append(self.change(x))
        return self.returned[-1]


def degree_by_hand(along, alpha, *, damping, weights):
    """Return Σₖ wₖ |cₖ| of the values of one path, by the normal equations; values are a list of vectors."""
    degree = len(weights) - 1
    basis = np.polynomial.chebyshev.chebvander(2 * alpha.numpy() - 1, degree)
    values = torch.stack(along).detach().numpy()
    coefficients = np.linalg.solve(basis.T @ basis + damping * np.eye(degree + 1), basis.T @ values)
    return float((np.abs(coefficients) * np.asarray(weights)[:, None]).sum(0).mean())


def penalty_by_hand(penalty, points, run, value_at_ends, examples, copies):
    """Loop over paths: ``value_at_ends`` of an example, or None where the model itself is run."""
    settings, total = penalty.settings, 0.0
    weights = range(settings.degree + 1) if settings.weights == "degree" else settings.weights
    for (index, same), alpha, other in zip(points.pairs, points.alpha, copies, strict=True):
        assert index == same
        along = [run((a * examples[index] + (1 - a) * other)[None]).softmax(-1)[0] for a in alpha]
        if (end := value_at_ends(int(index))) is not None:
            along[0] = along[-1] = end
        total += degree_by_hand(along, alpha, damping=settings.damping, weights=weights)
    return total / len(points.pairs)


@pytest.mark.parametrize("sampling", ["cosine", "chebyshev", "uniform"])
@pytest.mark.parametrize("anchor", [None, "labels", "self"])
def test_paths_lead_to_copies_and_both_ends_have_the_value_of_the_example(sampling, anchor):
    if (sampling, anchor) == ("chebyshev", "self"):
        pytest.skip("refused with any partners")
    model, penalty = mlp().double(), Penalty(partners=turn, sampling=sampling, anchor=anchor, pairs=0.75)
    points = same_draw(penalty, X, Y)
    outputs, degree = penalty(model, X, Y)
    torch.testing.assert_close(outputs, model(X))
    ends = {
        None: lambda _: None,
        "labels": lambda index: one_hot(Y, 4)[index].double(),
        "self": lambda index: model(X)[index].softmax(-1),
    }[anchor]
    copies = turn(X)[points.pairs[:, 0]]
    assert len(points.pairs) == 9
    assert float(degree.detach()) == pytest.approx(penalty_by_hand(penalty, points, model, ends, X, copies), rel=1e-9)


@pytest.mark.parametrize("teacher", [None, mlp(seed=1).double()])
def test_unlabeled_examples_have_copies_too_and_the_target_of_the_unchanged_example(teacher):
    model, penalty = mlp().double(), Penalty(partners=turn, anchor="labels", weights=(0, 0, 2, 3))
    points = same_draw(penalty, X, Y, unlabeled=U)
    _, degree = penalty(model, X, Y, unlabeled=U, teacher=teacher)
    examples, target = torch.cat([X, U]), (teacher or model)(U).softmax(-1)

    def ends(index):
        return one_hot(Y, 4)[index].double() if index < 12 else target[index - 12]

    assert points.pairs[:6].max() < 12 <= points.pairs[6:].min()
    copies = turn(examples)[points.pairs[:, 0]]
    expected = penalty_by_hand(penalty, points, model, ends, examples, copies)
    assert float(degree.detach()) == pytest.approx(expected, rel=1e-9)
    halves = penalty.degree(model(points.append_to(X)), points, **({} if teacher is None else {"ends": teacher(U)}))
    torch.testing.assert_close(degree, halves)


def test_own_targets_carry_no_gradient():
    model, penalty = mlp().double(), Penalty(partners=turn, anchor="self")
    points = same_draw(penalty, X)
    _, degree = penalty(model, X)
    fixed = copy.deepcopy(model)
    by_teacher = penalty.degree(model(points.inputs), points, ends=fixed(X).detach())
    torch.testing.assert_close(*(torch.autograd.grad(each, list(model.parameters())) for each in (degree, by_teacher)))


def test_every_example_has_a_path_before_one_has_two():
    for pairs, counts in ((1.0, [1] * 12), (24, [2] * 12)):
        points = Penalty(partners=turn, pairs=pairs).points(X)
        assert points.pairs[:, 0].bincount().tolist() == counts
    torch.manual_seed(0)
    drawn = torch.stack([Penalty(partners=turn).points(X).pairs[:, 0].bincount(minlength=12) for _ in range(150)])
    assert drawn.max() == 1
    assert (drawn.double().mean(0) - 0.5).abs().max() < 5 * 0.5 / 150**0.5


def test_one_of_several_changes_is_drawn_for_each_path():
    torch.manual_seed(0)
    several = [lambda x: x + 1, lambda x: x.add_(10), lambda x: x + 100]
    points = Penalty(partners=several, sampling="uniform", pairs=3000).points(X)
    added = (points.inputs.view(3000, 4, 6)[:, 0] - X[points.pairs[:, 0]]).mean(1)
    shares = [float((added - each).abs().lt(1e-9).double().mean()) for each in (1, 10, 100)]
    assert sum(shares) == pytest.approx(1)
    assert all(abs(share - 1 / 3) < 5 * (2 / 9 / 3000) ** 0.5 for share in shares)
    torch.testing.assert_close(points.inputs.view(3000, 4, 6)[:, -1], X[points.pairs[:, 0]])  # not changed in place


def test_the_generator_of_the_penalty_draws_the_changes():
    values = []
    for seed, state in ((0, 1), (0, 2), (3, 1)):
        torch.manual_seed(state)
        generator = torch.Generator().manual_seed(seed)
        several = [changes.noise(0.3), changes.noise(0.6)]
        values.append(Penalty(partners=several, generator=generator).points(X).inputs)
    assert torch.equal(values[0], values[1])
    assert not torch.equal(values[0], values[2])


@pytest.mark.parametrize("anchor", [None, "labels"])
def test_token_ids_with_paths_at_the_embeddings(anchor):
    model, batch, labels = Tokens().double(), tokens(), torch.arange(10) % 3
    change = Recorder(changes.drop_tokens(0.4, 29))
    penalty = Penalty(at="embed", partners=change, anchor=anchor)
    points = same_draw(penalty, batch, labels)
    outputs, degree = penalty(model, batch, labels)
    torch.testing.assert_close(outputs["logits"], model(**batch)["logits"])
    dropped, total = change.returned[0]["input_ids"], 0.0
    assert (dropped == 29).any()
    for row, ((index, _), alpha) in enumerate(zip(points.pairs, points.alpha, strict=True)):
        first, second = model.embed(batch["input_ids"][index]), model.embed(dropped[row])
        along = []
        for a in alpha:
            hidden = torch.tanh(model.mix(a * first + (1 - a) * second))[batch["attention_mask"][index] > 0]
            along.append(model.head(hidden.mean(0)).softmax(-1))
        if anchor is not None:
            along[0] = along[-1] = one_hot(labels, 3)[index].double()
        total += degree_by_hand(along, alpha, damping=penalty.settings.damping, weights=range(4))
    assert float(degree.detach()) == pytest.approx(total / len(points.pairs), rel=1e-6)


def test_features_of_copies_in_a_forward_pass_of_ones_own():
    model, penalty = mlp().double(), Penalty(at="0", partners=turn, anchor="self")
    points = same_draw(penalty, X)
    _, expected = penalty(model, X)
    hidden = model[0](points.append_to(X))
    joined = torch.cat([hidden[: points.examples], points.interpolate(hidden)])
    torch.testing.assert_close(penalty.degree(model[2](model[1](joined)), points), expected)
    with pytest.raises(ValueError, match=r"for all 24 rows of points.append_to"):
        points.interpolate(model[0](X))


@pytest.mark.parametrize("at", [None, "2"])
def test_frozen_batchnorm_sees_the_batch_alone(at):
    model, other = with_batchnorm().double(), with_batchnorm().double()
    Penalty(partners=turn, at=at, batchnorm="frozen")(model, X)
    other(X)
    for one, expected in zip(model.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(one, expected)


def test_a_change_gets_the_batch_as_it_is_given_without_labels():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.Linear(6, 4)

        def forward(self, x, scale=1.0, extra=None):
            return self.part(x * scale) + (0 if extra is None else extra)

    forms = {
        "tensor": lambda penalty, change: penalty(Named(), X.float(), scale=torch.ones(6)),
        "tuple": lambda penalty, change: penalty(TwoInputs(), (X[:, :3].float(), X[:, 3:].float())),
        "mapping": lambda penalty, change: penalty(Named(), {"x": X.float(), "scale": 2.0}, Y),
        "both": lambda penalty, change: penalty(Named(), X.float(), extra=X[:, :4].float()),
        "points": lambda penalty, change: penalty.points({"x": X, "labels": Y}),
    }
    seen = {}
    for name, call in forms.items():
        change = Recorder(lambda x: x)
        call(Penalty(partners=change), change)
        given = change.given[0]
        seen[name] = list(given) if isinstance(given, dict) else type(given)
    expected = {"tensor": torch.Tensor, "tuple": tuple, "mapping": ["x"], "both": ["[0]", "extra"], "points": ["x"]}
    assert seen == expected


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_step_is_the_same_step(without_shape_checks):
    several = [changes.shift(2), changes.noise(0.1)]
    model = nn.Sequential(nn.Flatten(), mlp(inputs=3 * 4 * 4).double())
    penalty, images = Penalty(partners=several, anchor="labels"), torch.rand(16, 3, 4, 4, dtype=torch.float64)
    teacher = copy.deepcopy(model)

    def degree_of(x, y, u):
        return penalty(model, x, y, unlabeled=u, teacher=teacher)[1]

    assert_same_compiled(degree_of, model, [(images[:4], Y[:4], images[4:])])


@pytest.mark.parametrize(
    ("partners", "error", "message"),
    [(X, TypeError, "not a Tensor. A second data set is for effdeg.measure"), ([turn, X], TypeError, "not a list")],
)
def test_partners_that_are_no_functions_are_refused_when_the_penalty_is_made(partners, error, message):
    with pytest.raises(error, match=message):
        Penalty(partners=partners)


@pytest.mark.parametrize("change", [lambda x: x[:, :5], lambda x: x[:-1], lambda x: x.float(), lambda x: None])
def test_changes_of_shape_or_type_are_refused(change):
    with pytest.raises(ValueError, match=r"the function of partners= returned .* same shape and type was expected"):
        Penalty(partners=change)(mlp().double(), X)
    with pytest.raises(ValueError, match="the function of partners= returned"):
        Penalty(partners=[turn, change])(mlp().double(), X)


@pytest.mark.parametrize(("key", "noted"), [("shared", True), ("typo", False)])
def test_a_change_that_reads_what_has_no_rows_is_told_what_it_gets(key, noted):
    penalty = Penalty(partners=lambda batch: {"x": batch["x"] + batch[key]})
    with pytest.raises(KeyError, match=key) as caught:
        penalty(lambda x, shared: x + shared, {"x": X, "shared": X[0]})
    notes = getattr(caught.value, "__notes__", [""])
    assert ("gets 'x': the entries of the batch with one row per example" in notes[0]) == noted


def test_given_pairs_contradict_partners():
    with pytest.raises(ValueError, match="pairs were given, but Penalty"):
        Penalty(partners=turn).points(X, pairs=torch.tensor([[0, 1]]))


def test_nan_from_partners_is_an_error_that_names_them():
    penalty, model = Penalty(partners=lambda x: x.log()), mlp().double()
    with pytest.raises(ValueError, match="the function of partners= returned NaN or infinite numbers"):
        penalty(model, X)
    factor = [1.0]
    penalty = Penalty(partners=lambda x: x * factor[0])
    penalty(model, X)
    factor[0] = torch.nan
    with pytest.raises(ValueError, match="the function of partners= returned NaN"):
        penalty(model, X)


def test_partners_that_depend_on_other_examples_are_told():
    model, state = mlp().double(), torch.get_rng_state()
    with pytest.warns(UserWarning, match=r"the function of partners= \(<lambda>\) does not change each example"):
        Penalty(partners=[turn, lambda x: x.roll(1, 0)])(model, X)
    torch.set_rng_state(state)
    kept = [Penalty(partners=changes.noise(0.1)).points(X).inputs for _ in range(2)]
    torch.set_rng_state(state)
    with pytest.warns(UserWarning, match="depends on the others"):
        Penalty(partners=lambda x: x.flip(0)).points(X)
    torch.set_rng_state(state)
    assert all(torch.equal(each, Penalty(partners=changes.noise(0.1)).points(X).inputs) for each in kept)
