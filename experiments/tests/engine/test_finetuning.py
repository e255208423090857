from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_runs import assert_same_end, break_off, carry_out, make_pictures, small, stop_in
from PIL import Image
from pretrained_toys import make_encoder, make_shifted, tune
from torch.nn.functional import one_hot

from effdeg_lab.core.runs import StoppedError
from effdeg_lab.data import load
from effdeg_lab.data.images import CLIP_SCALE, IMAGENET_SCALE
from effdeg_lab.engine import Training, classify, finetuning, train
from effdeg_lab.engine.classify import make_network
from effdeg_lab.engine.examples import DeviceExamples, resize
from effdeg_lab.engine.finetuning import fit_logistic
from effdeg_lab.engine.interpolation import interpolate

CPU = torch.device("cpu")


@pytest.fixture
def pictures(monkeypatch):
    given = make_shifted(corrupted=True)
    monkeypatch.setattr(classify, "load", lambda *_: given)
    return given


@pytest.mark.parametrize(("before", "after"), [((20, 14), 8), ((8, 8), 21), ((6, 12), 9)])
def test_images_are_resized_as_pillow_does(before, after):
    images = torch.rand(2, 3, *before)
    found = resize(images, after)
    assert found.shape == (2, 3, after, after)
    for image, each in zip(images.flatten(0, 1), found.flatten(0, 1), strict=True):
        expected = np.asarray(Image.fromarray(image.numpy()).resize((after, after), Image.Resampling.BILINEAR))
        np.testing.assert_allclose(each.numpy(), expected, atol=1e-5)
    assert resize(images, None) is images


def test_a_pretrained_network_is_given_the_images_it_knows():
    data = make_pictures()
    scales = {"deit-tiny": IMAGENET_SCALE, "clip-b32": CLIP_SCALE, "clip-b16": CLIP_SCALE}
    for model, (mean, std) in scales.items():
        examples = DeviceExamples(data, Training(model=model, start_from="probe", pixels=10, batch=20), CPU)
        assert examples.shape == (3, 10, 10)
        pixels = resize(data.test_inputs[:2].double() / 255, 10)
        expected = (pixels - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
        torch.testing.assert_close(examples.normalize(data.test_inputs[:2]), expected.float())
    plain = DeviceExamples(data, small(pixels=10, batch=20), CPU)
    expected = (resize(data.test_inputs[:2].float() / 255, 10) - 0.4) / 0.2
    torch.testing.assert_close(plain.normalize(data.test_inputs[:2]), expected)
    batch, _ = plain.batch(torch.tensor([3, 5]))
    assert batch.shape == (2, 3, 10, 10)


def draw_features(count=90, width=5):
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 3
    return torch.randn(count, width, generator=draw) + 0.7 * one_hot(labels, width), labels


def test_the_probe_is_where_the_gradient_vanishes():
    features, labels = draw_features()
    weight, bias = fit_logistic(features.double(), labels, 3, decay=0.01)
    error = (features.double() @ weight.T + bias).softmax(1) - one_hot(labels, 3)
    gradient = error.T @ features.double() / 90 + 0.01 * weight
    torch.testing.assert_close(gradient, torch.zeros(3, 5).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(error.mean(0) + 0.01 * bias, torch.zeros(3).double(), atol=1e-6, rtol=0)
    # Strong convexity bounds the distance to the minimum: a hundred times the gradient, at most.
    again = fit_logistic(features, labels, 3, decay=0.01)
    assert again[0].dtype == torch.float32
    torch.testing.assert_close(again, (weight.float(), bias.float()))


def test_a_probe_of_infinite_features_is_refused_and_one_that_does_not_converge_says_so(monkeypatch):
    features, labels = draw_features()
    with pytest.raises(ValueError, match="the features are not all finite"):
        fit_logistic(features / 0, labels, 3, decay=1.0)
    monkeypatch.setattr(finetuning, "_STEPS", 1)
    monkeypatch.setattr(finetuning, "_ROUNDS", 1)
    with pytest.warns(RuntimeWarning, match=r"not converged: a derivative of its loss is still 0\.\d+"):
        fit_logistic(features, labels, 3, decay=0.01)


def test_the_head_is_fitted_to_images_as_they_are_evaluated():
    settings = tune(augment="crop-flip")
    examples = DeviceExamples(make_pictures(), settings, CPU)
    model = make_network(settings, examples, CPU)
    untouched = make_encoder(2)
    with torch.no_grad():
        features = untouched.encode(examples.normalize(examples.train.inputs))
    weight, bias = fit_logistic(features, examples.train.labels, 2, decay=1 / 60)
    torch.testing.assert_close((model.head.weight.data, model.head.bias.data), (weight, bias))
    assert torch.equal(model.encoder[1].weight, untouched.encoder[1].weight)
    other = make_network(replace(settings, seed=1), examples, CPU)
    assert torch.equal(other.head.weight, model.head.weight)  # no random number decides
    heads = [make_network(tune(start_from="pretrained", seed=seed), examples, CPU).head.weight for seed in (0, 1)]
    assert not torch.equal(*heads)


def count_right(weights, images, labels):
    x = (resize(images.float() / 255, 8) - 0.4) / 0.2
    hidden = torch.tanh(x.flatten(1) @ weights["encoder.1.weight"].T + weights["encoder.1.bias"])
    logits = hidden @ weights["head.weight"].T + weights["head.bias"]
    return float((logits.argmax(1) == labels).double().mean())


@pytest.mark.parametrize("start_from", ["pretrained", "probe"])
def test_the_summary_has_all_shifts_and_the_weights_in_between(tmp_path, pictures, monkeypatch, start_from):
    settings = tune(start_from=start_from, lr=0.02)
    done = carry_out(tmp_path, settings)
    kinds = {name: [each] for name, each in pictures.shifted.items()}
    kinds["corruptions"] = list(pictures.corrupted.images.values())

    def score(weights):
        found = {k: sum(count_right(weights, *each) for each in v) / len(v) for k, v in kinds.items()}
        test = count_right(weights, pictures.test_inputs, pictures.test_labels)
        return {"test_accuracy": test, "shifted_accuracy": sum(found.values()) / 3, **found}

    def flatten(entry):
        return {key: entry[key] for key in ("test_accuracy", "shifted_accuracy")} | entry["shifted"]

    start = make_network(settings, DeviceExamples(pictures, settings, CPU), CPU).state_dict()
    assert flatten(done.summary) == pytest.approx(score(done.weights))
    entries = done.summary["interpolated"]
    assert [entry["alpha"] for entry in entries] == [step / 10 for step in range(11)]
    for entry in entries:
        assert flatten(entry) == pytest.approx(score(interpolate(start, done.weights, entry["alpha"])))
    assert len({entry["shifted_accuracy"] for entry in entries}) > 1  # or else nothing was compared
    counts = {"test": 50, "upside down": 40, "dark": 40, "corruptions": 80}
    assert done.summary["interpolated_images"] == counts
    monkeypatch.setattr("effdeg_lab.engine.finetuning.ALONG", 16)
    assert carry_out(tmp_path / "few", settings).summary["interpolated_images"] == dict.fromkeys(counts, 16)


def test_held_out_images_are_all_that_tuning_sees(tmp_path, pictures):
    found = carry_out(tmp_path, tune(held_out=100)).summary
    assert {"shifted", "shifted_accuracy", "interpolated", "corrupted"}.isdisjoint(found)
    scratch = carry_out(tmp_path, small(limit=60, augment="none")).summary
    assert "interpolated" not in scratch
    assert scratch["shifted"].keys() == {"upside down", "dark"}  # corruptions have a place of their own


def test_a_broken_off_run_ends_as_an_unbroken_one(tmp_path, pictures):
    settings = tune(regularizer="ed", weight=2.0, components=2, ramp=0.0)
    with break_off(4):
        carry_out(tmp_path / "broken", settings, train)
    with stop_in(classify, "measure_interpolated", look=10) as asked, pytest.raises(StoppedError):
        carry_out(tmp_path / "broken", settings, asked_to_stop=asked)
    assert_same_end(carry_out(tmp_path / "broken", settings), carry_out(tmp_path / "whole", settings))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "deit-tiny", "start_from": "scratch"}, "model=deit-tiny is pretrained: set start_from=pretrained"),
        ({"model": "resnet9"}, "start_from=probe needs a pretrained network; model=resnet9 is not one: use deit-tin"),
        ({"pixels": 0}, "pixels=0 is out of range"),
        ({"smoothing": 1.5}, "smoothing=1.5 is out of range"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        tune(**changes)


def test_what_cannot_be_fine_tuned_is_refused(tmp_path, pictures):
    with pytest.raises(TypeError, match=r"start_from=probe needs an ImageClassifier; model=.* is ResNet9"):
        carry_out(tmp_path, tune(model="effdeg_lab.models:ResNet9"))
    with pytest.raises(ValueError, match="model='deit-tiny' needs the folder that holds it"):
        carry_out(tmp_path, tune(model="deit-tiny"))
    with pytest.raises(ValueError, match="pixels=8 is for images; digits has features"):
        DeviceExamples(load("digits", None), small(pixels=8), CPU)
