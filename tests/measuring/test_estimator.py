import contextlib
import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

import effdeg
from effdeg.measuring import _estimator, _tracing
from effdeg.measuring._path_runner import DrawnPaths
from tests.models import mlp
from tests.oracles import reference

FAST = {"paths": 40, "nodes": 12, "degree": 6}


def data(examples=50, size=6, seed=0):
    return torch.randn(examples, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def oracle(model, inputs, measurement, *, function, components=None):
    settings = measurement.settings
    drawn = DrawnPaths.draw(len(inputs), settings)
    degrees = []
    for block in drawn.blocks():
        alphas = drawn.alpha(block).expand(block.stop - block.start, -1).numpy()
        for (first, second), alpha in zip(drawn.pairs[block].tolist(), alphas, strict=True):
            degrees.append(
                reference.effective_degree_of_path(
                    lambda x: function(model(torch.tensor(x)).detach().numpy()),
                    inputs[first].numpy(),
                    inputs[second].numpy(),
                    alpha,
                    degree=settings.degree,
                    basis=settings.basis,
                    components=components,
                    damping=settings.damping,
                )
            )
    return np.array(degrees)


@pytest.mark.parametrize(("output", "components"), [("softmax", None), ("softmax", 2), ("identity", None)])
@pytest.mark.parametrize("sampling", ["cosine", "chebyshev", "uniform"])
@pytest.mark.parametrize("basis", ["chebyshev", "legendre"])
def test_every_path_agrees_with_the_oracle(basis, sampling, output, components):
    model, inputs = mlp().double(), data()
    settings = {"basis": basis, "output": output, "components": components}
    measured = effdeg.measure(model, inputs, sampling=sampling, **settings, **FAST)
    function = reference.softmax if output == "softmax" else (lambda z: z)
    expected = oracle(model, inputs, measured, function=function, components=components)
    np.testing.assert_allclose(measured.per_path.numpy(), expected[:, 0], rtol=1e-7)
    np.testing.assert_allclose(measured.per_path_normalized.numpy(), expected[:, 1], rtol=1e-7)
    assert measured.value == pytest.approx(expected[:, 0].mean())
    assert measured.stderr == pytest.approx(expected[:, 0].std(ddof=1) / math.sqrt(40))
    assert measured.normalized == pytest.approx(expected[:, 1].mean())
    again = effdeg.trace(model, inputs, sampling=sampling, paths=40, nodes=12).fit(degree=6, **settings)
    torch.testing.assert_close(again.per_path, measured.per_path, rtol=1e-12, atol=0)
    torch.testing.assert_close(again.spectrum, measured.spectrum, rtol=1e-12, atol=1e-15)
    assert again.residual == pytest.approx(measured.residual)
    assert again.settings == measured.settings


def test_known_values():
    line = effdeg.measure(lambda x: 3 * x[:, :1], torch.tensor([[0.0], [2.0]]), output="identity", **FAST)
    # Between 0 and 2, 3x = 3 + 3t: the coefficient of T_1 is 3 in size, on every path.
    torch.testing.assert_close(line.per_path, torch.full((40,), 3.0, dtype=torch.float64), rtol=1e-6, atol=0)
    assert line.normalized == pytest.approx(0.5)
    assert line.residual < 1e-10
    assert line.stderr < 1e-6
    torch.testing.assert_close(line.spectrum[:2], torch.tensor([3.0, 3.0], dtype=torch.float64), rtol=1e-6, atol=0)
    parabola = effdeg.measure(lambda x: x**2, torch.tensor([[-1.0], [1.0]]), output="identity", **FAST)
    # x² = (T_0 + T_2) / 2: 2 · 1/2.
    assert parabola.value == pytest.approx(1.0)


def test_a_constant_model_has_degree_zero():
    measured = effdeg.measure(lambda x: torch.ones(len(x), 3), data(), **FAST)
    assert measured.value == pytest.approx(0, abs=1e-7)
    assert measured.residual == pytest.approx(0, abs=1e-6)
    measured = effdeg.measure(lambda x: torch.zeros(len(x), 3), data(), output="identity", tolerance=0.1, **FAST)
    assert (measured.value, measured.normalized, measured.residual, measured.stderr) == (0, 0, 0, 0)


@pytest.mark.parametrize("components", [None, 2])
@pytest.mark.parametrize("scale", [2.0**-700, 2.0**1020])
def test_values_whose_squares_are_no_numbers(scale, components):
    model, inputs = mlp().double(), data()
    settings = {"output": "identity", "components": components, **FAST}
    plain, scaled = (effdeg.measure(lambda x, by=by: model(x) * by, inputs, **settings) for by in (1, scale))
    assert (scaled.value, scaled.stderr) == pytest.approx((plain.value * scale, plain.stderr * scale), rel=1e-9)
    assert (scaled.normalized, scaled.residual) == pytest.approx((plain.normalized, plain.residual), rel=1e-9)
    torch.testing.assert_close(scaled.spectrum / scale, plain.spectrum)
    torch.testing.assert_close(scaled.spectrum_stderr / scale, plain.spectrum_stderr)


def test_residual_tells_when_the_degree_is_too_low():
    def wave(x):
        return torch.sin(12 * x)

    inputs = torch.linspace(-1, 1, 30, dtype=torch.float64)[:, None]
    settings = {"output": "identity", "paths": 100, "nodes": 60}
    low, high = (effdeg.measure(wave, inputs, degree=degree, **settings) for degree in (3, 30))
    assert low.residual > 0.3
    assert "a higher degree= would capture more" in str(low)
    assert high.residual < 1e-6
    assert "note" not in str(high)


def test_seeds():
    model, inputs = mlp().double(), data()
    one, same, other = (effdeg.measure(model, inputs, seed=seed, **FAST) for seed in (3, 3, 4))
    assert torch.equal(one.per_path, same.per_path)
    assert not torch.equal(one.per_path, other.per_path)
    assert not torch.equal(one.pairs, other.pairs)
    assert bool((one.pairs[:, 0] != one.pairs[:, 1]).all())
    # The first paths of a longer run are those of a shorter one.
    longer = effdeg.measure(model, inputs, seed=3, **(FAST | {"paths": 100}))
    torch.testing.assert_close(longer.per_path[:40], one.per_path, rtol=1e-10, atol=0)
    assert torch.equal(longer.pairs[:40], one.pairs)


def test_tolerance_stops_early_and_says_when_it_could_not():
    model, inputs = mlp().double(), data()
    exact = effdeg.measure(model, inputs, paths=1000, nodes=12, degree=6)
    loose = effdeg.measure(model, inputs, paths=1000, nodes=12, degree=6, tolerance=0.05)
    assert loose.stderr <= 0.05 * loose.value
    assert 64 <= len(loose.per_path) < 1000
    assert len(loose.pairs) == len(loose.per_path)
    torch.testing.assert_close(loose.per_path, exact.per_path[: len(loose.per_path)], rtol=1e-10, atol=0)
    short = effdeg.measure(model, inputs, tolerance=1e-6, **FAST)
    assert len(short.per_path) == 40
    assert "40 paths did not reach the tolerance of 1e-06; raise paths=" in str(short)


def test_the_95_percent_interval_covers_the_mean_in_92_to_98_percent_of_trials():
    # Paths are independent: those of one long measurement are 500 measurements of 16 paths each.
    model, inputs = mlp(activation=nn.ReLU), data(60).float()
    whole = effdeg.measure(model, inputs, paths=8_000, nodes=4, degree=3, batch_size=4096)
    trials = [
        dataclasses.replace(whole, per_path=raw, per_path_normalized=normalized)
        for raw, normalized in zip(whole.per_path.split(16), whole.per_path_normalized.split(16), strict=True)
    ]
    for normalized in (False, True):
        truth = whole.estimate(normalized=normalized)[0]
        intervals = [trial.interval(normalized=normalized) for trial in trials]
        assert 0.92 <= sum(low <= truth <= high for low, high in intervals) / len(trials) <= 0.98


def test_out_of_memory_halves_the_batch_and_goes_on():
    batches = []

    def model(x):
        batches.append(len(x))
        if len(x) > 20:
            raise torch.OutOfMemoryError("out of memory")
        return x

    inputs = data()
    expected = effdeg.measure(lambda x: x, inputs, **FAST)
    found = effdeg.measure(model, inputs, batch_size=100, **FAST)
    torch.testing.assert_close(found.per_path, expected.per_path, rtol=1e-10, atol=0)
    tried, halved = batches[:3], batches[3:]
    assert tried == [8, 8, 8]  # the trial of whether rows are independent
    assert max(halved[4:]) <= 20

    def hopeless(x):
        raise torch.OutOfMemoryError("out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        effdeg.measure(hopeless, inputs, **FAST)


class TestHowTheModelIsRun:
    def test_precision(self):
        model = mlp().to(torch.bfloat16)
        exact = effdeg.measure(model, data(), dtype=torch.float64, **FAST)
        expected = effdeg.measure(mlp().to(torch.bfloat16).double(), data(), **FAST)
        torch.testing.assert_close(exact.per_path, expected.per_path)
        assert all(parameter.dtype == torch.bfloat16 for parameter in model.parameters())
        assert exact.settings.dtype == "float64"
        # Its own precision wiggles: half-precision rounding reads as high degrees.
        assert effdeg.measure(model, data(), **FAST).normalized > exact.normalized

    def test_a_precision_that_is_asked_for_is_not_autocast(self):
        expected = effdeg.measure(mlp(), data(), dtype=torch.float32, **FAST)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = effdeg.measure(mlp(), data(), dtype=torch.float32, **FAST)
            own = effdeg.measure(mlp(), data(), **FAST)
        assert torch.equal(inside.per_path, expected.per_path)
        assert not torch.equal(own.per_path, expected.per_path)

    def test_randomness_in_the_model_is_seeded(self):
        def noisy(x):
            return x + torch.randn_like(x)

        with pytest.warns(UserWarning, match="different outputs for the same point"):
            one, other = (effdeg.measure(noisy, data(), **FAST) for _ in range(2))
        assert torch.equal(one.per_path, other.per_path)


@pytest.mark.parametrize(("output", "most", "reason"), [("identity", 3, ""), ("softmax", 2, " that sum to 1")])
def test_there_are_no_more_components_than_outputs(output, most, reason):
    model, inputs = mlp(outputs=3).double(), data()
    all_of_them, ten = (effdeg.measure(model, inputs, components=m, output=output, **FAST) for m in (most, 10))
    assert torch.equal(all_of_them.per_path, ten.per_path)
    assert torch.equal(all_of_them.per_path_normalized, ten.per_path_normalized)
    assert f"first {most} principal components" in str(ten)
    note = f"components=10, but 3 outputs{reason} can have no more than {most}: the value is that of components={most}"
    assert note in str(ten)
    assert "can have no more" not in str(all_of_them)


# On paths where a classifier is sure, some components are smaller than the noise of others, and count after it.
@pytest.mark.parametrize(("scale", "tolerance"), [(1.0, 1e-6), (30.0, 0.02)])
def test_components_that_are_rounding_noise_do_not_count_in_the_normalized_value(scale, tolerance):
    """Four probabilities vary in three directions, and six outputs of two features in two."""
    classifier = nn.Sequential(mlp(), nn.Softmax(-1))
    with torch.no_grad():
        classifier[0][-1].weight.mul_(scale)
    torch.manual_seed(0)
    bottleneck = nn.Sequential(mlp(outputs=2), nn.Linear(2, 6))
    for model, directions, components in ((classifier, 3, 4), (bottleneck, 2, 6)):
        for dtype in (torch.float32, torch.float64):
            few, many = (
                effdeg.measure(model, data(), dtype=dtype, output="identity", components=each, **FAST)
                for each in (directions, components)
            )
            assert many.normalized == pytest.approx(few.normalized, rel=tolerance)
            assert many.value == pytest.approx(few.value * directions / components, rel=1e-6)


class TestProgress:
    def test_it_is_shown_with_the_models_name(self, capsys, monkeypatch):
        effdeg.measure(mlp(), data().float(), progress=True, **FAST)
        assert capsys.readouterr().err == ""  # not a terminal
        monkeypatch.setenv("FORCE_COLOR", "1")  # to rich, a terminal
        monkeypatch.setenv("COLUMNS", "200")
        effdeg.measure(mlp(), data().float(), progress=True, **FAST)
        assert "effective degree of Sequential" in capsys.readouterr().err
        effdeg.measure(mlp(), data().float(), progress="my network", **FAST)
        shown = capsys.readouterr()
        assert "my network" in shown.err
        assert "40/40" in shown.err
        assert "±" in shown.err
        effdeg.trace(mlp(), data().float(), progress=True, paths=40, nodes=12)
        assert "outputs of Sequential" in capsys.readouterr().err

    @pytest.mark.parametrize("call", ["measure", "trace"])
    def test_it_advances_with_every_forward_pass(self, call, monkeypatch):
        seen = []

        @contextlib.contextmanager
        def record(title, total, *, enabled):
            yield lambda done=None, note=None: seen.append(done)

        module = {"measure": _estimator, "trace": _tracing}[call]
        monkeypatch.setattr(module, "progress_bar", record)
        settings = FAST if call == "measure" else {"paths": 40, "nodes": 12}
        getattr(effdeg, call)(mlp(), data().float(), batch_size=24, progress=True, **settings)
        done = [each for each in seen if each is not None]
        assert done == [2.0 * (batch + 1) for batch in range(20)]


@pytest.mark.parametrize("offset", [1e3, 1e9])
def test_an_offset_does_not_change_the_value(offset):
    model = mlp().double()
    plain, moved = (
        effdeg.measure(lambda x, by=by: model(x) + by, data(), output="identity", damping=1e-6, **FAST)
        for by in (0.0, offset)
    )
    torch.testing.assert_close(moved.per_path, plain.per_path, rtol=1e-4, atol=1e-6)
    assert moved.spectrum[0] == pytest.approx(offset, rel=1e-2)
