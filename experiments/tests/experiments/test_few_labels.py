import copy

import pytest
import torch
from engine_runs import assert_same_end, break_off, carry_out, make_picture_examples, make_pictures, small
from torch.nn.functional import cross_entropy, one_hot, softmax

import effdeg
from effdeg.baselines import UDA, Consistency, FixMatch, mixup
from effdeg.changes import compose, mirror, shift
from effdeg_lab.data import load
from effdeg_lab.engine.classify import make_network, make_task
from effdeg_lab.engine.examples import DeviceExamples
from effdeg_lab.engine.regularizers import LossOnPoints, make_regularizer
from effdeg_lab.engine.step import Step

CPU = torch.device("cpu")
FEW = {"limit": None, "labeled": 40, "batch": 20, "epochs": 2}


def make_examples(**changes):
    return DeviceExamples(load("digits", None), small(**{**FEW, **changes}), CPU)


def test_the_labeled_are_as_many_of_each_class_and_follow_from_the_seed():
    one, same, other = (make_examples(seed=seed).train for seed in (0, 0, 1))
    assert one.labels.bincount().tolist() == [4] * 10
    assert torch.equal(one.inputs, same.inputs)
    assert not torch.equal(one.inputs, other.inputs)


def test_unlabeled_examples_come_from_the_whole_training_set_and_not_from_what_is_held_out():
    data = load("digits", None)
    examples = make_examples(regularizer="ed", unlabeled_batch=30, held_out=100)
    torch.manual_seed(0)
    seen = torch.cat([examples.batch(torch.arange(20))[2] for _ in range(200)])
    places = {tuple(row.tolist()): place for place, row in enumerate(data.train_inputs)}
    found = {places[tuple(row.tolist())] for row in seen}
    assert max(found) < examples.count == len(data.train_labels) - 100
    assert len(found) > 0.95 * examples.count


@pytest.mark.parametrize(
    "changes",
    [
        {"regularizer": "ict", "weight": 3.0, "unlabeled_batch": 30},
        {"regularizer": "mixup+ict", "weight": 3.0, "unlabeled_batch": 30},
        {"regularizer": "ed", "weight": 3.0, "unlabeled_batch": 30},
        {"regularizer": "ed", "weight": 3.0, "anchor": "self", "degree_weights": "curvature"},
        {"regularizer": "ed-copies", "weight": 3.0, "unlabeled_batch": 30},
        {"regularizer": "ed-copies+ed", "weight": 3.0, "unlabeled_batch": 30},
        {"regularizer": "ed+consistency", "weight": 3.0, "second_weight": 2.0, "unlabeled_batch": 30},
    ],
)
def test_a_step_with_a_teacher_is_the_literal_one(changes):
    settings = small(**{**FEW, "teacher": 0.5, "optimizer": "sgd", "weight_decay": 0.0, **changes})
    copied = {"ed-copies", "consistency"} & {*settings.regularizer.split("+")}
    examples = DeviceExamples(make_pictures() if copied else load("digits", None), settings, CPU)
    model = make_network(settings, examples, CPU)
    literal, average = copy.deepcopy(model), copy.deepcopy(model).eval()
    optimizer = torch.optim.SGD(literal.parameters(), lr=0.1, momentum=0.9)
    task = make_task(settings, examples, model)
    step = Step(task, size=20)
    step.capture(penalized=True)
    indices = torch.arange(20)
    torch.manual_seed(7)
    for _ in range(3):
        step(indices, rate=0.1, weight=3.0)
    torch.manual_seed(7)
    weights = (0, 0, 2, 3) if "degree_weights" in changes else "degree"
    penalty = effdeg.Penalty(anchor=settings.anchor, weights=weights)
    several = [compose(mirror, shift(4)), shift(4)]
    to_copies = effdeg.Penalty(anchor=settings.anchor, weights=weights, partners=several)
    for number in range(1, 4):
        x, y, *unlabeled = examples.batch(indices)
        if "mixup" in settings.regularizer:
            x, y = mixup(x, y, classes=examples.classes)
        if "ict" in settings.regularizer:
            method = make_regularizer(settings, examples, average)
            outputs, value = method.penalty(literal, x, unlabeled=unlabeled[0])
        else:
            given = {"unlabeled": unlabeled[0]} if unlabeled else {}
            first = to_copies if "copies" in settings.regularizer else penalty
            outputs, value = first(literal, x, y, teacher=average, **given)
            if settings.regularizer == "ed-copies+ed":
                value = value + penalty(literal, x, y, teacher=average, **given)[1]
            if settings.regularizer == "ed+consistency":
                value = value + 2.0 * Consistency(several, teacher=average)(literal, x, **given)[1]
        literal.zero_grad()
        (cross_entropy(outputs, y) + 3.0 * value).backward()
        torch.nn.utils.clip_grad_norm_(literal.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for parameter, mean in zip(literal.parameters(), average.parameters(), strict=True):
                mean.copy_(parameter if number == 1 else 0.5 * mean + 0.5 * parameter)
    for found, expected in zip(model.parameters(), literal.parameters(), strict=True):
        torch.testing.assert_close(found, expected)
    for found, expected in zip(task.teacher.model.parameters(), average.parameters(), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("regularizer", ["fixmatch", "uda", "consistency", "ed-copies"])
def test_a_step_on_changed_images_is_the_literal_one(regularizer):
    changes = {"augment": "crop-flip", "regularizer": regularizer, "weight": 2.0}
    settings = small(**changes, limit=None, unlabeled_batch=16)
    examples = make_picture_examples(**changes, unlabeled_batch=16)
    model = make_network(settings, examples, CPU)
    with torch.no_grad():
        [*model.parameters()][-2].mul_(30)  # so that predictions are certain
    literal = copy.deepcopy(model)
    step = Step(make_task(settings, examples, model), size=20)
    step.capture(penalized=True)
    torch.manual_seed(7)
    step(torch.arange(20), rate=0.1, weight=2.0)
    weak = [compose(mirror, shift(4)), shift(4)]
    penalty = {
        "fixmatch": FixMatch(examples.strengthen, threshold=0.95),
        "uda": UDA(examples.strengthen, temperature=0.4, threshold=0.8),
        "consistency": Consistency(weak),
        "ed-copies": effdeg.Penalty(anchor="labels", partners=weak),
    }[regularizer]
    torch.manual_seed(7)
    x, y, unlabeled = examples.batch(torch.arange(20))
    outputs, value = penalty(literal, x, y, unlabeled=unlabeled)
    assert float(value.detach()) > 0
    torch.testing.assert_close(step.loss, cross_entropy(outputs, y) + 2.0 * value)


def test_a_run_with_a_teacher_resumes_where_it_was(tmp_path):
    settings = small(**{**FEW, "epochs": 1}, regularizer="ed", unlabeled_batch=20, teacher=0.9, weight=3.0)
    whole = carry_out(tmp_path / "whole", settings)
    with break_off(step=20):
        carry_out(tmp_path / "broken", settings)
    assert_same_end(whole, carry_out(tmp_path / "broken", settings))


def test_the_loss_on_points_is_mixup_with_its_effective_degree():
    torch.manual_seed(0)
    model, x, y = torch.nn.Linear(6, 3), torch.rand(8, 6), torch.randint(3, (8,))
    penalty = effdeg.Penalty(anchor="labels", nodes=3, degree=2, pairs=1.0, damping=0.0)
    torch.manual_seed(1)
    outputs, degree, labels = LossOnPoints(penalty, 3, boxes=False)(model, x, y)
    torch.manual_seed(1)
    points = penalty.points(x, y)
    assert outputs.shape == (8, 3)
    total = 0.0
    for row, ((first, second), (_, alpha, _)) in enumerate(zip(points.pairs, points.alpha, strict=True)):
        one, other = one_hot(y, 3)[first].float(), one_hot(y, 3)[second].float()
        torch.testing.assert_close(outputs[row], model(alpha * x[first] + (1 - alpha) * x[second]))
        target = alpha * one + (1 - alpha) * other
        torch.testing.assert_close(labels[row], target)
        away = (softmax(outputs[row], 0) - target).abs() / (1 - (2 * alpha - 1) ** 2)
        total += float(((one - other).abs() / 2 + away).mean().detach())
    assert float(degree.detach()) == pytest.approx(total / 8, abs=1e-5)


def test_the_loss_on_boxes_has_as_much_of_each_image_as_of_its_label():
    torch.manual_seed(0)
    x, y = torch.arange(1.0, 9.0).view(8, 1, 1, 1).expand(8, 3, 16, 16), torch.arange(8) % 4
    seen = []
    penalty = effdeg.Penalty(anchor="labels", nodes=4, degree=3, pairs=0.5)

    def model(images):
        seen.append(images)
        return images.mean((2, 3)).new_zeros(len(images), 4, requires_grad=True)

    _, _, labels = LossOnPoints(penalty, 4, boxes=True)(model, x, y)
    (images,) = seen
    assert images.shape == (8, 3, 16, 16)
    for image, label in zip(images, labels, strict=True):
        shares = torch.zeros(4)
        for value in image[0].flatten():
            shares[y[int(value) - 1]] += 1 / 256
        torch.testing.assert_close(shares, label)
