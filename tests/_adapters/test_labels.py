import pytest
import torch

from effdeg._adapters.labels import (
    IGNORED,
    as_targets,
    check_class_ids,
    check_rows_of_labels,
    check_soft_labels,
    one_hot,
)


def targets(labels, shape, output="softmax", missing=None, look=True):
    return as_targets(labels, torch.Size(shape), output=output, missing=missing, look=look)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_class_ids_become_one_hot(dtype, shape):
    found = targets(torch.tensor([0, 2], dtype=dtype).view(shape), (3,))
    assert found.tolist() == [[1, 0, 0], [0, 0, 1]]


def test_classes_are_last_for_softmax_and_may_be_first_otherwise():
    ids = torch.tensor([[0, 1, 1]])  # one example of three tokens
    assert targets(ids, (3, 2)).tolist() == [[1, 0, 0, 1, 0, 1]]
    assert targets(ids, (2, 3), output="sigmoid").tolist() == [[1, 0, 0, 0, 1, 1]]


def test_targets_of_the_outputs_shape_stay():
    soft = torch.tensor([[0.25, 0.75]])
    assert torch.equal(targets(soft, (2,)), soft)
    assert targets(torch.tensor([[3], [4]]), (), output="identity").tolist() == [[3.0], [4.0]]


def test_missing_labels_are_filled():
    ids, missing = torch.tensor([1, IGNORED]), torch.tensor([[0.5, 0.5], [0.4, 0.6]])
    torch.testing.assert_close(targets(ids, (2,), missing=missing), torch.tensor([[0.0, 1.0], [0.4, 0.6]]))
    # Without looking at values an id that is no class counts as missing, and without a filling it is no number.
    assert targets(torch.tensor([1, 7]), (2,), look=False)[1].isnan().all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: targets(torch.tensor([3]), (3,)), r"labels from 3 to 3 do not match 3 classes among the outputs"),
        (lambda: targets(torch.rand(1, 4), (3,)), r"labels of shape \(1, 4\) .* do not match outputs of shape \(3,\)"),
        (lambda: targets(torch.tensor([0]), (3,), "identity"), r"class ids, but output='identity' .*output='softmax'"),
        (lambda: targets(torch.zeros(1, 3).long(), (2, 3)), r"may have their classes in another one"),
        (lambda: targets(torch.zeros(1, 2).long(), (2, 2), "sigmoid"), r"may have their classes in the first or in"),
        (
            lambda: check_rows_of_labels([1, 2], 2),
            r"the labels \(y\) are of type list; a batch of 2.*Write torch.as_tensor\(y\)",
        ),
        (
            lambda: check_rows_of_labels(torch.zeros(3), 2),
            r"are of shape \(3,\); a batch of 2 .* needs a tensor of 2 r",
        ),
        (lambda: check_class_ids(torch.tensor([IGNORED]), 2, "2 classes", ignored=False), r"some labels are -100"),
        (lambda: check_soft_labels(torch.tensor([[torch.nan, 1.0]]), "softmax"), r"hold NaN or infinite numbers"),
        (lambda: check_soft_labels(torch.tensor([[0.5, 0.7]]), "softmax"), r"sum to 1.2 to 1.2 over the classes"),
        (lambda: check_soft_labels(torch.tensor([[1.5]]), "sigmoid"), r"output='sigmoid' fits probabilities"),
    ],
)
def test_labels_that_do_not_fit_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_one_hot_has_no_flag_for_what_is_no_class():
    assert one_hot(torch.tensor([1, -100, 5]), 2).tolist() == [[False, True], [False, False], [False, False]]
