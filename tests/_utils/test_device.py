import pytest
import torch

from effdeg._utils.device import Batches, is_traced, receive, send


@pytest.mark.parametrize(("total", "size", "expected"), [(0, 4, []), (4, 4, [4]), (5, 4, [3, 2]), (32, 10, [8] * 4)])
def test_batches_are_even(total, size, expected):
    parts = Batches(size, None).run(lambda part: part, total)
    assert [part.stop - part.start for part in parts] == expected
    assert [index for part in parts for index in range(part.start, part.stop)] == list(range(total))


def test_batches_are_halved_when_memory_runs_out():
    tried = []

    def run(part):
        tried.append(part.stop - part.start)
        if tried[-1] > 3:
            raise torch.OutOfMemoryError("out of memory")
        return tried[-1]

    batches = Batches(12, torch.device("cpu"))
    assert (batches.run(run, 12), tried) == ([3, 3, 3, 3], [12, 6, 3, 3, 3, 3])
    assert batches.size == 3  # later runs begin with what fits


@pytest.mark.parametrize("device", ["cpu", *["cuda"] * torch.cuda.is_available()])
def test_a_tensor_there_and_back(device):
    tensor = torch.randn(5, 3)
    sent = send(tensor, torch.device(device))
    assert sent.device.type == device
    later = receive(sent)
    if device == "cuda":
        sent.zero_()  # the copy was started before
    assert torch.equal(later(), tensor)
    assert send(tensor, None) is tensor


def test_tensors_that_stand_for_others():
    def double_if_traced(x):
        return x * (2 if is_traced() else 1)

    ones = torch.ones(3)
    assert double_if_traced(ones).tolist() == [1, 1, 1]
    for transform in (torch.func.vmap, lambda function: torch.compile(function, backend="eager")):
        assert transform(double_if_traced)(ones).tolist() == [2, 2, 2]
    assert not is_traced()
