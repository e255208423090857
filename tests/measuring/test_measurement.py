import dataclasses
import json
import math
import re
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import effdeg
from tests.models import mlp

X = torch.randn(20, 6)


@pytest.fixture
def measured():
    return effdeg.measure(mlp(), X, paths=50, nodes=12, degree=6, components=2, tolerance=0.5)


def test_batchnorm_that_saw_no_data_is_noted(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Tanh())
    said = "note: no batch has given running statistics to 1 BatchNorm layer (1): the network was not trained"
    new = effdeg.measure(model, X, paths=5, nodes=12, degree=6)
    for each in (new, effdeg.Measurement.load(new.save(tmp_path / "m.json"))):
        assert [note for note in each.warnings() if note.startswith(said)]
    model(X)
    seen = effdeg.trace(model, X, paths=5, nodes=12).fit(degree=6)
    assert not [note for note in seen.warnings() if "BatchNorm" in note]
    assert effdeg.compare({"new": new, "seen": seen})


def test_saving_loses_nothing(measured, tmp_path):
    again = effdeg.Measurement.load(measured.save(tmp_path / "m.json"))
    for field in dataclasses.fields(measured):
        one, other = getattr(measured, field.name), getattr(again, field.name)
        if isinstance(one, torch.Tensor):
            assert torch.equal(one, other)
            assert one.dtype == other.dtype
        else:
            assert one == other
    assert str(again) == str(measured)


def test_files_that_are_not_measurements(measured, tmp_path):
    with pytest.raises(ValueError, match=r"suffix '.pkl'; a measurement is kept in a .json file"):
        measured.save(tmp_path / "m.pkl")
    record = json.loads(measured.save(tmp_path / "new.json").read_text())
    for other in ("{}", "[1, 2]", '{"accuracy": 0.9}', json.dumps(record | {"format": 1})):
        (tmp_path / "m.json").write_text(other)
        with pytest.raises(ValueError, match=r"m.json is not a measurement of format 2, which this version of effdeg"):
            effdeg.Measurement.load(tmp_path / "m.json")
    (tmp_path / "m.json").write_text("{")
    with pytest.raises(ValueError, match=r"m.json is not a measurement that effdeg saved: Expecting"):
        effdeg.Measurement.load(tmp_path / "m.json")
    (tmp_path / "new.json").write_text(json.dumps(record | {"per_path": record["per_path"][1:]}))
    with pytest.raises(ValueError, match=r"changed or damaged: its numbers of paths differ"):
        effdeg.Measurement.load(tmp_path / "new.json")
    del record["per_path"]
    (tmp_path / "new.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"new.json is a measurement that was changed or damaged: 'per_path'"):
        effdeg.Measurement.load(tmp_path / "new.json")
    with pytest.raises(FileNotFoundError):
        effdeg.Measurement.load(tmp_path / "absent.json")


def test_it_is_frozen_and_readable(measured):
    with pytest.raises(dataclasses.FrozenInstanceError):
        measured.residual = 0.0
    text = str(measured)
    assert "effective degree" in text
    assert "Sequential: probabilities (softmax), 4 outputs, first 2 principal components\n" in text
    assert "50 paths × 12 cosine nodes at the inputs, chebyshev degree 6; the fit misses" in text
    assert repr(measured).startswith("Measurement(value=")


def test_what_the_command_line_adds_is_kept_and_shown(measured, tmp_path):
    told = {"data": "x.npy", "weights": "w.pt", "weights_sha256": "ab", "preprocessing": "bytes scaled to [0, 1]"}
    settings = dataclasses.replace(measured.settings, **told)
    again = effdeg.Measurement.load(dataclasses.replace(measured, settings=settings).save(tmp_path / "m.json"))
    assert again.settings == settings
    assert "Sequential with w.pt, on x.npy: probabilities" in str(again)
    assert not settings.differences(measured.settings)


@pytest.mark.parametrize("output", ["identity", "softmax"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_constant_is_called_constant(output, dtype):
    measured = effdeg.measure(lambda x: x.new_full((len(x), 3), -0.3), X.to(dtype), paths=20, output=output)
    assert measured.value < 1e-9
    assert measured.warnings() == ["note: the outputs are constant along the paths, up to rounding."]


@pytest.mark.parametrize("basis", ["chebyshev", "legendre"])
@pytest.mark.parametrize("offset", [1e5, 3e5, 1e6])
def test_what_an_offset_costs_in_float32_is_noted(offset, basis):
    model = mlp()
    nn.init.constant_(model[-1].bias, offset)
    run = partial(effdeg.measure, model, 10 * X, output="identity", paths=50, basis=basis)
    measured, exact = run(), run(dtype=torch.float64)
    error = (measured.value - exact.value) / measured.value
    assert error > 0.01
    notes = "".join(measured.warnings())
    found = re.search(
        r"are rounded to float32, which adds roughly \S+ to the value \((\d+)% of it\). Use dtype=torch.float64", notes
    )
    if found:
        assert error / 2 < int(found[1]) / 100 < 2 * error
    else:
        assert "vary along the paths by no more than their rounding to float32: the value is noise" in notes
        assert error > 0.6
    assert "constant" not in notes
    assert "rounded" not in "".join(exact.warnings())


def test_a_small_variation_on_a_large_offset_is_no_constant():
    inputs = X.double()
    measured = effdeg.measure(lambda x: 1e6 + x, inputs, paths=20, output="identity", tolerance=1e-6)
    assert measured.value == pytest.approx(effdeg.measure(lambda x: x, inputs, paths=20, output="identity").value, 1e-3)
    assert measured.warnings() == ["note: 20 paths did not reach the tolerance of 1e-06; raise paths=."]


def test_one_path_has_no_error_bar(tmp_path):
    single = effdeg.measure(mlp(), X, paths=1, nodes=12, degree=6)
    assert str(single).startswith(f"effective degree  {single.value:.4g}  (95% interval none from a single path)\n")
    assert "inf" not in str(single)
    assert (single.stderr, single.interval()) == (math.inf, (-math.inf, math.inf))
    record = json.loads(single.save(tmp_path / "m.json").read_text())
    assert record["stderr"] is None
    assert "Infinity" not in (tmp_path / "m.json").read_text()
    assert math.isinf(effdeg.Measurement.load(tmp_path / "m.json").spectrum_stderr[0])
    assert effdeg.Measurement.load(tmp_path / "m.json").stderr == math.inf


def test_a_fit_through_every_value_says_that_it_cannot_show_what_it_misses():
    assert "cannot show what it misses" in str(effdeg.measure(mlp(), X, paths=5, nodes=4, degree=3))


@pytest.mark.parametrize("examples", [2, 9, 10])
def test_paths_between_few_examples_are_told(examples):
    measured = effdeg.measure(lambda x: x**2, X[:examples], paths=40, nodes=12, degree=6, output="identity")
    few = [note for note in measured.warnings() if "says nothing about other examples; measure on more." in note]
    assert len(few) == (examples < 10)  # 10 have 45 pairs
    assert all(f"{examples} examples have only {'1 pair ' if examples == 2 else '36 pairs '}" in note for note in few)


def test_half_precision_is_told_where_the_outputs_do_not_show_it():
    model = mlp()

    def measure(inputs, **settings):
        return effdeg.measure(lambda x: model(x.float()), inputs, paths=5, nodes=12, degree=6, **settings)

    half = X.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        measured = [measure(half), measure(X)]
    measured.append(measure(half))
    assert {each.settings.dtype for each in measured} == {"bfloat16"}
    assert all("note: the model runs in bfloat16" in str(each) for each in measured)
    assert measure(half, dtype=torch.float32).settings.dtype == measure(X).settings.dtype == "float32"


def test_what_lies_in_the_upper_half_of_the_degrees_is_told():
    spectrum = torch.tensor([9.0, 4.0, 1.0, 1.0, 0.5], dtype=torch.float64)  # weighed: 0, 4, 2, 3, 2
    measured = effdeg.measure(mlp(), X, paths=5, nodes=12, degree=4)
    measured = dataclasses.replace(measured, spectrum=spectrum, residual=0.0)
    assert measured.upper_half == pytest.approx(5 / 11)
    assert "45% of the value lies in the upper half of the degrees; a higher degree=, with" in str(measured)
    settled = dataclasses.replace(measured, spectrum=torch.tensor([9.0, 4.0, 1.0, 0.1, 0.05], dtype=torch.float64))
    assert settled.upper_half == pytest.approx(0.5 / 6.5)
    assert settled.warnings() == []
    assert json.loads(json.dumps(settled.to_dict()))["upper_half"] == settled.upper_half
    # Odd degrees: of 1, 2 and 3 the upper half is 2 and 3.
    assert dataclasses.replace(measured, spectrum=torch.ones(4, dtype=torch.float64)).upper_half == pytest.approx(5 / 6)
    assert dataclasses.replace(measured, spectrum=torch.zeros(5)).upper_half == 0.0


@pytest.mark.parametrize("above", [True, False])
def test_the_residual_warns_above_its_limit(above):
    measured = effdeg.measure(mlp(), X, paths=5, nodes=12, degree=4)
    residual = effdeg.Measurement.RESIDUAL_LIMIT + (1e-6 if above else -1e-6)
    notes = dataclasses.replace(measured, residual=residual).warnings()
    assert any("the fit misses 5%" in note for note in notes) is above


def test_numbers_from_numpy_are_numbers(tmp_path):
    measured = effdeg.measure(mlp(), X, paths=np.int64(5), nodes=np.int64(8), degree=np.int64(3))
    assert effdeg.Measurement.load(measured.save(tmp_path / "m.json")).settings == measured.settings


def test_a_frame_has_a_row_per_path_and_a_notebook_shows_a_table():
    measured = effdeg.measure(torch.tanh, torch.randn(10, 3), paths=5, nodes=12, degree=6)
    frame = measured.to_frame()
    assert frame[["first", "second"]].to_numpy().tolist() == measured.pairs.tolist()
    assert frame["effective_degree"].mean() == pytest.approx(measured.value)
    assert frame["effective_degree_normalized"].mean() == pytest.approx(measured.normalized)
    named = dataclasses.replace(measured, settings=dataclasses.replace(measured.settings, model="<lambda>"))
    shown = named._repr_html_()
    assert f"{measured.value:.4g} ± {measured.stderr:.2g} (95% interval" in shown
    assert ">&lt;lambda&gt;</td>" in shown
    assert all(note.split(";")[0] in shown for note in measured.warnings())
