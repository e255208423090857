import pytest
import torch

from effdeg._adapters.labels import IGNORED, as_targets, check_class_ids, check_rows_of_labels


def targets(labels, shape, output="softmax", missing=None, look=True):
    return as_targets(labels, torch.Size(shape), output=output, missing=missing, look=look)


def test_classes_are_last_for_softmax_and_may_be_first_otherwise():
    ids = torch.tensor([[0, 1, 1]])  # one example of three tokens
    assert targets(ids, (3, 2)).tolist() == [[1, 0, 0, 1, 0, 1]]
    assert targets(ids, (2, 3), output="sigmoid").tolist() == [[1, 0, 0, 0, 1, 1]]


@pytest.mark.parametrize(("shape", "output"), [((1, 2), "softmax"), ((2, 1), "sigmoid"), ((1, 1, 2), "softmax")])
def test_a_sequence_may_be_one_token_long(shape, output):
    assert targets(torch.tensor([[0], [1]]), shape, output=output).tolist() == [[1, 0], [0, 1]]


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
        (lambda: check_rows_of_labels([1, 2], 2), r"\(y\) are of type list; a batch of 2.*Write torch.as_tensor\(y\)"),
        (lambda: check_class_ids(torch.tensor([IGNORED]), 2, "2 classes", ignored=False), r"some labels are -100"),
    ],
)
def test_labels_that_do_not_fit_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
