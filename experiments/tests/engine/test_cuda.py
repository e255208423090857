"""On a GPU: the whole step in one graph trains as the same step does without one, and runs end as on a CPU."""

from statistics import fmean

import pretrained_toys
import pytest
import test_glue
import test_imagenet
import test_streaming
import torch
from engine_runs import assert_close, break_off, carry_out, carry_out_stopped, make_picture_examples, small
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from effdeg_lab.data import load
from effdeg_lab.engine import augment, classify
from effdeg_lab.engine.augment import RESIZED, augment_batch
from effdeg_lab.engine.classify import make_task
from effdeg_lab.engine.examples import DeviceExamples
from effdeg_lab.engine.loop import tune_kernels
from effdeg_lab.engine.stacked import StackedStep
from effdeg_lab.engine.step import CapturedStep, Step
from effdeg_lab.engine.streaming import make_examples
from effdeg_lab.experiments.procgen.ppo import PPO, Learner
from effdeg_lab.models import make_model
from effdeg_lab.models.impala import Agent

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("ignore"),  # of which torch's compiler has many on a GPU
]
GPU = torch.device("cuda", 0)
SETTINGS = {
    "mixup": {"alpha": 0.2},
    "jacobian": {"jacobian_share": 0.5},
    "sam": {"rho": 0.05},
    "asam": {"rho": 0.5},
}


def train_steps(
    settings, *, captured, steps=30, examples=None, rate=0.002, weight=lambda number: 0.01 * (number % 2), **options
):
    torch.manual_seed(0)
    examples = examples or DeviceExamples(load("digits", None), settings, GPU)
    model = make_model("mlp", shape=examples.shape, classes=examples.classes).to(GPU)
    fresh = {name: value.clone() for name, value in model.state_dict().items()}
    step = Step(make_task(settings, examples, model), size=20, **options)
    for penalized in (False, True):
        step.compile(penalized=penalized)
        if captured:
            step.capture(penalized=penalized)
            assert isinstance(step._steps[penalized, None], CapturedStep)
        else:
            step._steps[penalized, None] = lambda penalized=penalized: step._run(penalized, None)
    step.restore({"model": fresh, "optimizer": {}, "penalties": torch.zeros(())})
    torch.manual_seed(1)
    for number in range(steps):
        step(torch.arange(number, number + 20) % 60, rate=rate, weight=weight(number))
    return model.state_dict(), step


def test_gradients_of_attention_are_right_where_all_logits_are_far_below_zero():
    torch.manual_seed(0)
    query, key, value, upstream = torch.randn(4, 2, 6, 64, 64, device=GPU).to(torch.bfloat16)
    query[..., 0], key[..., 0] = 1.0, -120 * 8.0  # logits of about -120

    def differentiate(*given):
        leaves = [each.detach().requires_grad_() for each in given]
        return torch.autograd.grad(scaled_dot_product_attention(*leaves), leaves, upstream.to(given[0].dtype))

    with tune_kernels(GPU):
        found = differentiate(query, key, value)
    with sdpa_kernel(SDPBackend.MATH):
        expected = differentiate(query.double(), key.double(), value.double())
    assert all(bool(each.isfinite().all()) for each in found)
    for one, two in zip(found, expected, strict=True):  # but for the large entries, whose gradients nearly cancel
        torch.testing.assert_close(one[..., 1:].double(), two[..., 1:], rtol=0.05, atol=0.02)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("regularizer", ["plain", "sam", "asam"])
def test_a_captured_step_is_the_step(regularizer, optimizer):
    settings = small(regularizer=regularizer, optimizer=optimizer, **SETTINGS.get(regularizer, {}))
    ours, eager = (train_steps(settings, captured=captured)[0] for captured in (True, False))
    assert_close(ours, eager, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("settings", [{}, {"at": "layers.0"}, {"ends": "random-pixels", "anchor": "none"}])
def test_the_penalty_is_captured_wherever_its_paths_are(settings):
    # The draws of a graph are not those of the same step without it, so only their means are alike.
    settings = small(regularizer="ed", **settings)
    one, two = (float(train_steps(settings, captured=captured, steps=200)[1].penalties) for captured in (True, False))
    assert one == pytest.approx(two, rel=0.1)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("regularizer", ["ed-copies", "ed-copies+ed", "ed+consistency", "consistency", "uda"])
def test_penalties_with_changed_copies_are_captured(regularizer, compiled):
    given = {"regularizer": regularizer, "augment": "crop-flip", "unlabeled_batch": 64, "weight": 1.0}
    settings = small(**given, limit=None, compile=compiled, teacher=0.9 if "+" in regularizer else None)
    given = {"steps": 200, "examples": make_picture_examples("cuda", **given), "rate": 0.0, "weight": float}
    one, two = (float(train_steps(settings, captured=captured, **given)[1].penalties) for captured in (True, False))
    assert one == pytest.approx(two, rel=0.1)
    torch._dynamo.reset()


@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_is_captured_with_its_own_decay_and_with_components(compiled):
    """The components of label-anchored paths, whose eigenvalues no library call may wait for."""
    settings = small(regularizer="ed", components=3, decay_on="matrices", weight_decay=0.3, compile=compiled)
    given = {"steps": 200, "rate": 0.0, "weight": float}
    one, two = (float(train_steps(settings, captured=captured, **given)[1].penalties) for captured in (True, False))
    assert one == pytest.approx(two, rel=0.1)
    plain = small(decay_on="matrices", weight_decay=0.3, compile=compiled)
    ours, eager = (train_steps(plain, captured=captured, weight=lambda _: 0.0)[0] for captured in (True, False))
    assert_close(ours, eager, rtol=1e-3, atol=1e-4)
    torch._dynamo.reset()


@pytest.mark.parametrize("compiled", [False, True])
def test_images_are_augmented_in_a_graph(compiled):
    """Every replay draws anew; images that are left as they were are those of a CPU."""
    torch.manual_seed(0)
    images, indices = torch.randint(256, (64, 3, 32, 32), dtype=torch.uint8, device=GPU), torch.arange(64, device=GPU)
    run = torch.compile(augment_batch, fullgraph=True, dynamic=False) if compiled else augment_batch

    found = torch.empty_like(images)
    replay = CapturedStep(nn.Identity(), lambda: found.copy_(run(images, indices, RESIZED[-1], crop_scale=0.08)))
    seen = []
    for _ in range(3):
        replay()
        seen.append(found.clone())
    assert len({int(each.long().sum()) for each in seen}) == 3
    for name in ("autocontrast", "equalize", "posterize", "color", "contrast", "brightness", "sharpness"):
        operation = getattr(augment, name)
        compiled_one = torch.compile(operation, fullgraph=True) if compiled else operation
        difference = compiled_one(images).cpu().int() - operation(images.cpu()).int()
        assert int(difference.abs().max()) <= 1  # a product and a sum may be rounded once
    torch._dynamo.reset()


def test_replays_draw_anew_and_the_same_after_their_state_is_restored():
    _, step = train_steps(small(regularizer="ed"), captured=True, steps=1)
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


def test_more_runs_in_one_process_than_the_compiler_has_room_for(tmp_path):
    with torch._dynamo.config.patch(recompile_limit=2):
        for seed in range(4):
            done = carry_out(tmp_path, small(seed=seed, epochs=1, compile=True), device=GPU)
            assert done.summary["epochs"] == 1


@pytest.mark.parametrize("regularizer", ["mixup+ed", "sam"])
def test_an_interrupted_run_ends_where_an_uninterrupted_one_does(tmp_path, regularizer):
    settings = small(regularizer=regularizer, epochs=5)
    whole = carry_out(tmp_path / "whole", settings, device=GPU)
    with break_off(8):
        carry_out(tmp_path / "killed", settings, device=GPU)
    carry_out_stopped(tmp_path / "stopped", settings, 10, device=GPU)
    for name in ("killed", "stopped"):
        done = carry_out(tmp_path / name, settings, device=GPU)
        assert_close(whole.weights, done.weights, rtol=1e-4, atol=1e-5)
        assert [entry["epoch"] for entry in done.metrics] == [1, 2, 3, 4, 5]
        penalties = [[entry["penalty"] or 0.0 for entry in each.metrics] for each in (whole, done)]
        assert penalties[0] == pytest.approx(penalties[1], rel=1e-3)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_captured_stack_trains_as_each_network_alone(optimizer, compiled):
    rates = (1e-3, 5e-3, 1e-3)
    several = [small(seed=seed, optimizer=optimizer, compile=compiled) for seed in range(3)]
    examples = DeviceExamples(load("digits", None), several[0], GPU)
    one, two = (
        [make_task(each, examples, classify.make_network(each, examples, GPU)) for each in several] for _ in "ab"
    )
    fresh = [{name: value.clone() for name, value in task.model.state_dict().items()} for task in one]
    stack, orders = StackedStep(one, rates), torch.randint(60, (30, 3, 20), device=GPU)
    stack.compile(penalized=False)
    stack.capture(penalized=False)
    for number, state in enumerate(fresh):
        stack.get_row(number).restore({"model": state, "optimizer": {}, "penalties": torch.zeros(())})
    for indices in orders:
        stack(indices, torch.tensor(rates, device=GPU), torch.zeros(3, device=GPU), penalized=False)
    for number, task in enumerate(two):
        step = Step(task, size=20)
        step._steps[False, None] = lambda step=step: step._run(False, None)  # without a graph
        for indices in orders[:, number]:
            step(indices, rate=rates[number], weight=0.0)
        assert_close(one[number].model.state_dict(), task.model.state_dict(), rtol=1e-3, atol=1e-4)
    stack.close()
    torch._dynamo.reset()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "changes",
    [{}, {"components": 2}, {"components": 2, "anchor": "self", "augment": "resized-crop", "crop_scale": 0.9}],
)
def test_a_gpu_fine_tunes_from_the_probe_as_a_cpu_does(tmp_path, monkeypatch, changes, compiled):
    given = pretrained_toys.make_shifted(corrupted=True)
    monkeypatch.setattr(classify, "load", lambda *_: given)
    # Resized images, smoothed labels and the penalty, all in the captured step; the start is the same on both.
    changes = {"weight": 0.5, "smoothing": 0.1, "compile": compiled, "epochs": 20, "lr": 1e-5, **changes}
    settings = pretrained_toys.tune(regularizer="ed", **changes)
    ours = carry_out(tmp_path / "gpu", settings, device=GPU)
    other = carry_out(tmp_path / "cpu", settings)
    first, same = ours.summary["interpolated"][0], other.summary["interpolated"][0]
    assert first["shifted"] == pytest.approx(same["shifted"], abs=0.03)
    assert len(ours.summary["interpolated"]) == 11
    assert ours.summary["interpolated"][-1]["shifted"] == pytest.approx(ours.summary["shifted"], abs=1e-9)
    # Pairs are drawn anew, a few in each step, so that only the means over many steps are alike.
    one, two = (fmean(entry["penalty"] for entry in each.metrics) for each in (ours, other))
    assert one == pytest.approx(two, rel=0.3)


@pytest.mark.parametrize("regularizer", ["plain", "ed"])
def test_text_encoders_are_stacked(tmp_path, monkeypatch, regularizer):
    data = test_glue.make_data(tmp_path)
    changes = {"regularizer": regularizer, "compile": True}
    test_glue.assert_stacked_as_alone(tmp_path, data, monkeypatch, device="cuda", **changes)


@pytest.mark.parametrize("changes", [{}, {"weight": 0.1}, {"mixreg": 0.2}])
def test_an_update_of_ppo_is_that_on_a_cpu(changes):
    settings = PPO(games=8, rollout=16, minibatches=2, steps=128, pairs=16, precision="float32", **changes)
    torch.manual_seed(0)
    agents = [Agent((16, 16), actions=15).to(device) for device in ("cpu", GPU)]
    agents[1].load_state_dict(agents[0].state_dict())
    learners = [Learner(agent, settings, (16, 16)) for agent in agents]
    given = {
        "frames": torch.randint(256, (16, 8, 16, 16, 3), dtype=torch.uint8),
        "actions": torch.randint(15, (16, 8)),
        "log_probs": torch.full((16, 8), -2.7),
        "rewards": torch.randn(16, 8),
        "values": torch.randn(17, 8),
        "starts": (torch.rand(17, 8) < 0.2).float(),
    }
    for learner in learners:
        learner.prepare()
        for name, value in given.items():
            getattr(learner, name).copy_(value)
        learner.update(settings.weight)
    torch.testing.assert_close(learners[1].advantages.cpu(), learners[0].advantages)
    # The order of examples is another, and so are paths and mixtures: what is logged is close, not equal.
    assert learners[1].logged[1:3].tolist() == pytest.approx(learners[0].logged[1:3].tolist(), rel=0.1)
    actions, (_, chosen, log_probs, _) = learners[1].choose(given["frames"][0, :4].numpy())
    assert actions.tolist() == chosen.tolist()
    assert bool((log_probs < 0).all())


def test_batches_from_files_are_those_of_a_cpu_and_a_run_waits_for_them(tmp_path, monkeypatch):
    monkeypatch.setenv("EFFDEG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("EFFDEG_DECODERS", "2")
    test_streaming.write_folders(tmp_path / "data" / "imagenet", test_streaming.draw_images())
    settings, data = test_streaming.small(), load("imagenet", tmp_path / "data")
    plan = [(epoch, torch.randperm(130)[:40]) for epoch in range(7)]
    ours, expected = (make_examples(data, settings, device).read(plan, 40) for device in (GPU, torch.device("cpu")))
    for (images, labels), (right, right_labels) in zip(ours, expected, strict=True):
        busy = torch.randn(2000, 2000, device=GPU)
        seen = images.clone(), labels.clone()  # queued after work, as a step is, while the next batch is copied
        for _ in range(20):
            busy = busy @ busy.T / busy.norm()
        assert torch.equal(seen[0].cpu(), right)
        assert torch.equal(seen[1].cpu(), right_labels)
    run = carry_out(tmp_path / "runs", settings, device="cuda", data=tmp_path / "data")
    assert 0 <= run.run.summary["waited"] < 1
    assert run.run.summary["images_per_second"] > 0


@pytest.mark.parametrize(
    ("name", "method", "changes"),
    [
        ("imagenet-vit-original", "ed", {}),  # dropout, a class token
        ("imagenet-vit-strong", "ed", {}),
        ("imagenet-vit-strong", "ed", {"compile": False}),
        ("tiny-imagenet-vit-strong", "cutmix", {}),
        ("tiny-imagenet-vit", "mixup", {"compile": False}),
    ],
)
def test_recipes_of_imagenet_are_compiled_and_captured(tmp_path, monkeypatch, name, method, changes):
    monkeypatch.setenv("EFFDEG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("EFFDEG_DECODERS", "2")
    data, settings = test_imagenet.write_data(tmp_path / "data"), test_imagenet.shorten(name, method).change(changes)
    assert settings.precision == "bf16"
    ours, other = (carry_out(tmp_path / device, settings, data=data, device=device) for device in ("cuda", "cpu"))
    assert ours.summary["train_loss"] == pytest.approx(other.summary["train_loss"], rel=0.1)
    assert ours.summary["test_loss"] == pytest.approx(other.summary["test_loss"], rel=0.1)
    if method == "ed":
        assert ours.metrics[-1]["penalty"] == pytest.approx(other.metrics[-1]["penalty"], rel=0.3)
