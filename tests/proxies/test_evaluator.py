import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, l1_loss

from effdeg import proxies
from tests.batches import X, Y
from tests.models import mlp


def evaluate(model=None, data=(X, Y), loss=cross_entropy, **settings):
    return proxies.evaluate(model or mlp().double(), data, loss, **settings)


@pytest.mark.parametrize("data", [(X[:0], Y[:0]), []])
def test_empty_data(data):
    with pytest.raises(ValueError, match="empty"):
        evaluate(data=data)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (nn.CrossEntropyLoss(reduction="none"), r"batch of 2 is shape \(2,\); one number was expected.*'mean'"),
        (lambda outputs, labels: 0.5, "is float; one number"),
        ("cross_entropy", "must be a function of outputs and labels"),
    ],
)
def test_a_loss_that_is_no_scalar_is_refused_before_any_work(loss, message):
    with pytest.raises((TypeError, ValueError), match=message):
        evaluate(loss=loss)


@pytest.mark.parametrize("name", ["sharpness@0.05", "parameter_norm", "distance", "path_norm", "hessian_trace"])
def test_a_model_without_parameters(name):
    with pytest.raises(ValueError, match="no parameters"):
        evaluate(nn.Flatten(), names=[name], reference={})


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (mlp(outputs=5), r"'2.weight' of shape \(4, 16\) has shape \(5, 16\)"),
        ({"weight": torch.ones(2)}, r"'0.weight' of shape \(16, 6\) is missing"),
        ("initial.pt", "reference= is a str"),
    ],
)
def test_a_reference_that_is_none(reference, message):
    with pytest.raises((TypeError, ValueError), match=message):
        evaluate(reference=reference)


@pytest.mark.parametrize(
    "settings",
    [{"examples": 0}, {"batch_size": 0}, {"seed": -1}, {"paths": 0}, {"nodes": 3, "degree": 9}, {"at": "nope"}],
)
def test_settings_are_checked(settings):
    with pytest.raises(ValueError, match=f"{next(iter(settings))}="):
        evaluate(names=["effective_degree"], **settings)


def test_labels_and_a_loss_are_asked_for_before_any_work():
    calls = []

    def counted(x):
        calls.append(len(x))
        return x[:, :4]

    for name, data, loss in (
        ("margin@10", X, None),
        ("sharpness@0.05", (X, Y), None),
        ("parameter_norm", X, None),
        ("distance", X, None),
    ):
        with pytest.raises((TypeError, ValueError), match=r"needs|reference="):
            evaluate(counted, data, loss, names=["decision_regions", name])
    assert not calls


def test_an_option_that_is_not_there_is_answered_with_all_that_are():
    with pytest.raises(TypeError, match=r"proxies= is not an option of evaluate\..* Options: names, reference, "):
        evaluate(proxies=["path_norm"])
    with pytest.raises(TypeError, match="Did you mean 'names'"):
        evaluate(namez=["path_norm"])
    with pytest.raises(TypeError, match="Did you mean 'adaptive'"):
        proxies.sharpness(mlp().double(), (X, Y), cross_entropy, adaptiv=True)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (Y.float(), r"labels of torch.float64 and shape \(2,\).*class ids: whole numbers from 0"),
        (torch.where(torch.arange(12) == 7, 4, Y), r"outputs of shape \(2, 4\) and labels.* to 4: Target 4 is out of"),
        (torch.where(torch.arange(12) == 7, -1, Y), r"labels of torch.int64.* from -1 to .*: Target -1 is out of"),
    ],
)
def test_labels_that_the_loss_does_not_take(labels, message):
    model, rows = mlp().double(), []
    model.register_forward_hook(lambda _, given, __: rows.append(len(given[0])))
    for call in (
        lambda: evaluate(model, (X, labels)),
        lambda: evaluate(model, (X, labels), names=["parameter_norm", "sharpness@0.05"]),
        lambda: proxies.sharpness(model, (X, labels), cross_entropy),
        lambda: proxies.hessian_trace(model, (X, labels), cross_entropy),
    ):
        rows.clear()
        with pytest.raises(ValueError, match=message):
            call()
        assert sum(rows) <= 2


@pytest.mark.parametrize(
    ("labels", "loss"),
    [
        (torch.where(torch.arange(12) == 7, -100, Y), cross_entropy),
        (torch.where(torch.arange(12) == 7, 255, Y), nn.CrossEntropyLoss(ignore_index=255)),
        (nn.functional.one_hot(Y, 4).double(), cross_entropy),
        (Y + 7, lambda outputs, labels: nn.functional.mse_loss(outputs.mean(1), labels.double())),
    ],
)
def test_labels_that_the_loss_takes(labels, loss):
    assert proxies.sharpness(mlp().double(), (X, labels), loss).value > 0


def test_two_arguments_of_a_model_are_not_taken_for_inputs_and_labels_without_a_word():
    model, arguments = nn.Bilinear(3, 3, 2).double(), (X[:, :3], X[:, 3:])
    expected = proxies.jacobian_norm(model, (arguments, None)).value
    with pytest.warns(UserWarning, match="the first 2 entries are passed to the model: input1, input2"):
        assert proxies.jacobian_norm(model, arguments).value == expected
    with pytest.raises(TypeError, match="not clear which entries are inputs"):
        proxies.jacobian_norm(lambda *given: model(*given), arguments)
    with pytest.raises(TypeError, match="missing") as caught:
        proxies.jacobian_norm(lambda *given: model(*given), (X[:, :3], Y))
    assert "((first, second), labels)" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("loss", "labels"),
    [
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2, 3, 4]).double()), Y),
        # Classes with the smallest and the largest number weigh the same.
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9, 1, 1]).double()), Y.sort().values),
        (cross_entropy, torch.where(Y == 1, -100, Y)),
    ],
    ids=["class weights", "a weight of a class in between", "ignored labels"],
)
def test_a_loss_that_is_not_the_mean_over_examples(loss, labels):
    message = rf"is not the mean of their losses.*{len(X)} examples.*batches of 5\. Use batch_size={len(X)}"
    with pytest.warns(UserWarning, match=message):
        proxies.sharpness(mlp().double(), (X, labels), loss, batch_size=5)
    proxies.sharpness(mlp().double(), (X, labels), loss, batch_size=len(X))  # warnings are errors
    proxies.sharpness(mlp().double(), (X, Y), cross_entropy, batch_size=5)


def test_token_labels_that_are_padded_and_sorted_by_length():
    x, y = X[:, None].expand(-1, 4, -1), Y[:, None].repeat(1, 4)
    y[:, 1:][torch.arange(12)[:, None] < 4 * torch.arange(1, 4)] = -100
    with pytest.warns(UserWarning, match="is not the mean of their losses"):
        proxies.sharpness(mlp().double(), (x, y), token_loss, batch_size=4)


def token_loss(outputs, labels):
    return cross_entropy(outputs.flatten(0, 1), labels.flatten())


def test_labels_that_are_given_first():
    with pytest.raises(ValueError, match=r"labels have shape \(12, 6\): were labels given first"):
        proxies.sharpness(mlp().double(), (Y, X), cross_entropy)


def test_a_loss_that_is_a_sum():
    with pytest.raises(ValueError, match=r"is the sum of their losses.*reduction='mean'"):
        evaluate(loss=nn.CrossEntropyLoss(reduction="sum"))
    evaluate(loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2, 3, 4]).double()), names=["sharpness@0.05"])


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (lambda outputs, labels: (outputs - labels).square().mean(), X[:, 0]),
        (lambda outputs, labels: nn.functional.softplus(-outputs * (2 * labels - 1)).mean(), Y % 2),
        (lambda outputs, labels: (outputs[:, 0] - labels).abs().mean(), X[:, :1]),
    ],
)
def test_a_loss_that_broadcasts_labels(loss, targets):
    model = nn.Linear(6, 1).double()
    with pytest.raises(ValueError, match=r"mean over all four pairs.*labels of shape \(2,.* are broadcast. Give"):
        proxies.sharpness(model, (X, targets), loss)
    if targets.dim() == 1:
        assert proxies.sharpness(model, (X, targets[:, None]), loss).value > 0


@pytest.mark.parametrize("context", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("name", ["sharpness@0.05", "jacobian_norm", "mixup_margin", "hessian_trace", "path_norm"])
def test_derivatives_where_gradients_are_off(name, context):
    model = mlp(activation=nn.ReLU).double()
    expected = evaluate(model, names=[name]).row()
    with context():
        assert evaluate(model, (X.clone(), Y), names=[name]).row() == expected
        assert not torch.is_grad_enabled()


def test_a_loss_without_a_gradient():
    with pytest.raises(ValueError, match="does not depend on the weights"):
        proxies.sharpness(mlp().double(), (X, Y), lambda outputs, labels: cross_entropy(outputs.detach(), labels))


def test_a_model_in_half_precision_can_be_evaluated_in_float32():
    half = torch.bfloat16
    model, data = mlp(activation=nn.ReLU).to(half), (X.to(half), Y)
    other = mlp(activation=nn.ReLU, seed=1)
    options = {"reference": other, "others": [other], "labeled": data, "paths": 5, "nodes": 20, "degree": 5}
    options["change"] = torch.neg
    found = evaluate(model, data, dtype=torch.float32, **options)
    expected = evaluate(copy.deepcopy(model).float(), data, **options)
    assert not found.skipped
    assert found.row() == pytest.approx(expected.row(), rel=1e-5)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_rounding_in_half_precision_is_warned_of_unless_it_was_asked_for(half):
    model = mlp().to(half)
    with pytest.warns(UserWarning, match=rf"runs in {str(half)[6:]}, whose rounding.*dtype=torch.float32") as caught:
        rounded = proxies.sharpness(model, (X, Y), cross_entropy, rho=1e-4).value
    assert __file__ in [each.filename for each in caught]
    assert proxies.sharpness(model, (X, Y), cross_entropy, rho=1e-4, dtype=half).value == rounded
    exact = proxies.sharpness(model, (X, Y), cross_entropy, rho=1e-4, dtype=torch.float64).value
    assert abs(rounded - exact) > 0.1 * exact
    proxies.parameter_norm(model)
    with pytest.warns(UserWarning, match="runs in bfloat16"), torch.autocast("cpu", torch.bfloat16):
        proxies.confidence(mlp(), X.float())


def test_labels_are_not_rounded_to_half_precision():
    """Float16 ends at 65504."""
    data = X, torch.full((len(X), 1), 1e5)
    assert proxies.sharpness(nn.Linear(6, 1).half(), data, l1_loss, rho=1, dtype=torch.float16).value > 0


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda x: (x, x[:, :4]), r"returned several tensors. \[0\] is used, not \[1\]"),
        (lambda x: x - x.mean(0), "depend on the other examples in its batch"),
        (lambda x: x + torch.randn_like(x), "returns different outputs for the same point"),
    ],
)
def test_outputs_that_are_not_the_models_own_for_each_example_are_told(model, message):
    x, y = torch.randn(30, 6), torch.arange(30) % 4
    with pytest.warns(UserWarning, match=message):
        proxies.confidence(model, x)
    with pytest.warns(UserWarning, match=message):
        proxies.margin(model, (x, y))


def test_complex_weights_are_not_moved():
    class Complex(nn.Linear):
        def forward(self, x):
            return (super().forward(x.to(torch.cfloat))).abs()

    with pytest.raises(proxies.NotApplicable, match="moves weights, and weight is complex"):
        proxies.sharpness(Complex(6, 4, dtype=torch.cfloat), (X.float(), Y), cross_entropy)
