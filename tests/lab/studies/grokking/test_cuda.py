"""On a GPU: the whole step, compiled and in one graph, trains as the same step does on a CPU."""

import pytest
import torch

from effdeg.lab.store import Store
from effdeg.lab.studies.grokking import run as running
from effdeg.lab.task import Task
from tests.lab.studies.grokking.runs import breaking_off, carried_out, small
from tests.lab.training.runs import metrics, weights

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("ignore"),  # of which torch's compiler has many on a GPU
]


def on_gpu(folder, settings):
    run = Store(folder).run(settings)
    running.train(settings, Task(run, None, torch.device("cuda", 0)))
    return run.folder


@pytest.mark.parametrize("softmax", ["float32", "float64"])
def test_a_gpu_trains_as_a_cpu_does(tmp_path, softmax):
    settings = small(softmax=softmax, weight_decay=0.5)
    ours, other = on_gpu(tmp_path / "gpu", settings), carried_out(tmp_path / "cpu", settings)
    for name, value in weights(other).items():
        torch.testing.assert_close(weights(ours)[name], value, rtol=1e-2, atol=1e-3)
    for one, two in zip(metrics(ours), metrics(other), strict=True):
        for name in ("train_loss", "validation_loss", "parameter_norm", "sharpness"):
            assert one[name] == pytest.approx(two[name], rel=2e-2)
        degrees = [entry["validation_effective_degree"]["value"] for entry in (one, two)]
        assert degrees[0] == pytest.approx(degrees[1], rel=2e-2)


def test_a_run_that_breaks_off_goes_on_where_it_was(tmp_path):
    settings = small()
    whole = on_gpu(tmp_path / "whole", settings)
    with breaking_off(17):
        on_gpu(tmp_path / "broken", settings)
    broken = on_gpu(tmp_path / "broken", settings)
    for name, value in weights(whole).items():
        torch.testing.assert_close(weights(broken)[name], value, rtol=1e-3, atol=1e-4)
    assert [line["step"] for line in metrics(broken)] == [line["step"] for line in metrics(whole)]
