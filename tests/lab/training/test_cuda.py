"""On a GPU: the whole step in one graph trains as the same step does without one, for every method."""

import pytest
import torch

from effdeg.lab import data, models
from effdeg.lab.store import Store
from effdeg.lab.task import Task
from effdeg.lab.training import train
from effdeg.lab.training.capture import CapturedStep
from effdeg.lab.training.examples import DeviceExamples
from effdeg.lab.training.methods import made_method, on_examples
from effdeg.lab.training.step import Step
from tests.lab.training.runs import breaking_off, metrics, small, summary, weights

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
GPU = torch.device("cuda", 0)
METHODS = ["plain", "mixup", "sam", "asam", "jacobian", "ed", "mixup+ed"]
SETTINGS = {
    "mixup": {"alpha": 0.2},
    "jacobian": {"jacobian_share": 0.5},
    "sam": {"rho": 0.05},
    "asam": {"rho": 0.5},
}


def carried_out(folder, settings):
    run = Store(folder).run(settings)
    train(settings, Task(run, None, GPU))
    return run.folder


def trained(settings, *, captured, steps=30):
    torch.manual_seed(0)
    examples = DeviceExamples(data.load("digits", None), settings, GPU)
    model = models.make("mlp", shape=examples.shape, classes=10).to(GPU)
    fresh = {name: value.clone() for name, value in model.state_dict().items()}
    method = on_examples(made_method(settings), settings, examples)
    step = Step(model, method, examples, settings, batch=20)
    for penalized in (False, True):
        if captured:
            step.compile(penalized=penalized)
            step.capture(penalized=penalized)
            assert isinstance(step._steps[penalized], CapturedStep)
        else:
            step._steps[penalized] = lambda penalized=penalized: step._run(penalized)
    step.restore({"model": fresh, "optimizer": {}})
    torch.manual_seed(1)
    for number in range(steps):
        step(torch.arange(number, number + 20) % 60, rate=0.002, weight=0.01 * (number % 2))
    return model, step


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("method", ["plain", "sam", "asam"])
def test_a_captured_step_is_the_step(method, optimizer):
    settings = small(method=method, optimizer=optimizer, **SETTINGS.get(method, {}))
    ours, eager = trained(settings, captured=True)[0], trained(settings, captured=False)[0]
    for one, two in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("settings", [{}, {"at": "layers.0"}, {"ends": "random-pixels", "anchor_labels": False}])
def test_the_penalty_is_captured_wherever_its_paths_are(settings):
    # The draws of a graph are not those of the same step without it, so only their means are alike.
    settings = small(method="ed", **settings)
    sums = [float(trained(settings, captured=captured, steps=200)[1].penalties) for captured in (True, False)]
    assert sums[0] == pytest.approx(sums[1], rel=0.1)


def test_replays_draw_anew_and_the_same_after_their_state_is_put_back():
    _, step = trained(small(method="ed"), captured=True, steps=1)
    states, seen = [], []
    for number in range(6):
        if number < 3:
            states.append(torch.cuda.get_rng_state(GPU))
        else:
            torch.cuda.set_rng_state(states[number - 3], GPU)
        step.penalties.zero_()
        step(torch.arange(20), rate=0.0, weight=1.0)
        seen.append(float(step.penalties))
    assert len(set(seen[:3])) == 3
    assert seen[3:] == pytest.approx(seen[:3], rel=1e-5)


@pytest.mark.parametrize(
    ("method", "compiled"), [*((method, False) for method in METHODS), ("sam", True), ("mixup+ed", True)]
)
@pytest.mark.filterwarnings("ignore")  # of which torch's compiler has many on a GPU
def test_every_method_learns(tmp_path, method, compiled):
    settings = small(
        method=method, epochs=20, evaluate_every=20, limit=400, lr=3e-3, compile=compiled, precision="bf16",
        **SETTINGS.get(method, {}),
    )  # fmt: skip
    found = summary(carried_out(tmp_path, settings))
    assert found["train_accuracy"] > 0.9
    assert found["test_accuracy"] > 0.8


@pytest.mark.parametrize("method", ["mixup+ed", "sam"])
def test_a_run_that_breaks_off_goes_on_where_it_was(tmp_path, method):
    settings = small(method=method, epochs=5)
    whole = carried_out(tmp_path / "whole", settings)
    with breaking_off(2):
        carried_out(tmp_path / "broken", settings)
    broken = carried_out(tmp_path / "broken", settings)
    for one, two in zip(weights(whole).values(), weights(broken).values(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
    assert [line["epoch"] for line in metrics(broken)] == [1, 2, 3, 4, 5]
