import dataclasses
import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, TensorDataset

import effdeg
from tests.models import Counted, mlp

FAST = {"paths": 60, "nodes": 12, "degree": 6}
X = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))


class Scaled(nn.Module):
    """A model whose logits are multiplied: sharper probabilities, a more complex function."""

    def __init__(self, scale):
        super().__init__()
        self.model, self.scale = mlp(), scale

    def forward(self, x):
        return self.model(x) * self.scale


def test_differences_are_paired():
    models = {"sharp": Scaled(8.0), "plain": Scaled(1.0), "sharper": Scaled(8.5)}
    comparison = effdeg.compare(models, X, **FAST)
    assert comparison.ranking == ["plain", "sharp", "sharper"]
    by_pair = {(d.simpler, d.other): d for d in comparison.differences()}
    difference = by_pair["sharp", "sharper"]
    sample = comparison.measurements["sharper"].per_path - comparison.measurements["sharp"].per_path
    assert difference.value == pytest.approx(float(sample.mean()))
    assert difference.stderr == pytest.approx(float(sample.std()) / math.sqrt(60))
    # On the same paths even a small difference shows, though the two intervals overlap almost wholly.
    assert difference.significant
    sharp, sharper = (comparison.measurements[name].interval() for name in ("sharp", "sharper"))
    assert sharp[1] > sharper[0]
    assert "The simplest is plain, significantly so" in str(comparison)
    record = comparison.to_dict()
    assert (record["ranking"], len(record["differences"])) == (comparison.ranking, 3)


def test_a_model_that_cannot_be_measured_is_named():
    def broken(x):
        return mlp()(x) * torch.where(x[:, :1] > 0, torch.nan, 1)

    with pytest.raises(ValueError, match="outputs are NaN or infinite") as error:
        effdeg.compare({"good": mlp(), "bad": broken}, X, **FAST)
    assert error.value.__notes__ == ["This was found while measuring 'bad'."]


@pytest.mark.filterwarnings("ignore:.*different outputs for the same point")
def test_false_alarms_are_rare():
    """Three models that differ by noise in their outputs alone: all intervals hold together in 95% of comparisons."""
    # Paths are independent: those of one long comparison are 50 comparisons of 60 paths each.
    generator = torch.Generator().manual_seed(0)
    models = {str(i): lambda x: x + torch.randn(x.shape, generator=generator) for i in range(3)}
    whole = effdeg.compare(models, X, output="identity", **FAST | {"paths": 3000}).measurements
    alarms = 0
    for part in torch.arange(3000).split(60):
        measured = {name: dataclasses.replace(each, per_path=each.per_path[part]) for name, each in whole.items()}
        alarms += any(difference.significant for difference in effdeg.compare(measured).differences())
    assert alarms <= 7


def test_an_iterable_is_read_once():
    comparison = effdeg.compare({"a": mlp(seed=0), "b": mlp(seed=1)}, (part for part in X.split(7)), **FAST)
    expected = effdeg.compare({"a": mlp(seed=0), "b": mlp(seed=1)}, X, **FAST)
    assert str(comparison) == str(expected)


def test_normalized():
    comparison = effdeg.compare({"a": Scaled(1.0), "b": Scaled(9.0)}, X, output="identity", normalized=True, **FAST)
    assert comparison.differences()[0].value == pytest.approx(0, abs=1e-5)  # scaling the logits changes nothing


@pytest.mark.parametrize(("outputs", "limit"), [(2, 0.55), (4, 0.3), (100, 0.015)])
def test_a_model_that_says_nothing_is_noted(outputs, limit):
    def confident(confidence):
        logits = torch.zeros(outputs)
        logits[0] = math.log(confidence * (outputs - 1) / (1 - confidence))
        return lambda x: logits + 0.01 * x[:, :1] * torch.arange(outputs) / outputs

    found = effdeg.compare({"silent": confident(limit - 0.005), "sure": confident(limit + 0.005)}, X, **FAST)
    assert found.measurements["sure"].confidence == pytest.approx(limit + 0.005, rel=0.01)
    (note,) = (note for note in found.warnings() if "nearly uniform" in note)
    assert note.startswith(f"note on silent: predictions are nearly uniform, each of {outputs} classes")
    assert "nearly uniform" not in str(effdeg.compare({"a": mlp(), "b": mlp(seed=1)}, X, output="identity", **FAST))


def test_models_of_a_list_are_named_by_their_classes():
    found = effdeg.compare([Scaled(1.0), mlp(), Scaled(8.0), mlp(seed=1).forward], X, **FAST)
    names = {"Scaled 1": Scaled(1.0), "Sequential 1": mlp(), "Scaled 2": Scaled(8.0), "Sequential 2": mlp(seed=1)}
    assert str(found) == str(effdeg.compare(names, X, **FAST))


def test_measurements_are_compared_as_they_are():
    measured = [effdeg.measure(model, X, **FAST) for model in (Scaled(8.0), mlp())]
    found = effdeg.compare(measured)
    assert found.ranking == ["Sequential", "Scaled"]
    assert found.measurements["Scaled"] is measured[0]
    expected = effdeg.compare({"Scaled": Scaled(8.0), "Sequential": mlp()}, X, **FAST)
    assert found.differences() == expected.differences()
    with pytest.raises(TypeError, match="'Scaled' is a measurement, and others are models: measure all or none"):
        effdeg.compare([measured[0], mlp()], X)
    for more in ({"inputs": X}, {"paths": 3}, {"proxies": "confidence"}):
        with pytest.raises(TypeError, match="give no inputs, proxies or settings"):
            effdeg.compare(measured, **more)
    with pytest.raises(TypeError, match="inputs are missing"):
        effdeg.compare([mlp(), mlp(seed=1)])


def test_a_difference_of_rounding_is_negligible_however_certain():
    near, far = (lambda x, scale=scale: mlp()(x) * scale for scale in (1 + 1e-5, 1.01))
    found = effdeg.compare({"a": mlp(), "near": near, "far": far}, X, **FAST)
    differences = {each.other: each for each in found.differences() if each.simpler == "a"}
    assert differences["near"].interval[0] > 0
    assert (differences["near"].negligible, differences["near"].significant) == (True, False)
    assert (differences["far"].negligible, differences["far"].significant) == (False, True)
    assert "a is as simple as near: the difference is negligible" in str(found)
    assert [row[3] for row in found.rows()] == ["significant", "", "negligible", "yes"]
    assert [each["negligible"] for each in found.to_dict()["differences"]] == [True, False, False]


def test_proxies_are_those_of_each_model_alone():
    models, labels = {"plain": mlp(), "sharp": Scaled(8.0)}, torch.arange(30) % 4
    names = ["confidence", "disagreement", "margin@10", "sharpness@0.05"]
    data = TensorDataset(X, labels)
    found = effdeg.compare(models, data, proxies=names, proxy_examples=20, **FAST)
    assert str(found.differences()) == str(effdeg.compare(models, X, **FAST).differences())
    for name, other in (("plain", "sharp"), ("sharp", "plain")):
        settings = {"others": [models[other]], "names": names, "examples": 20, **FAST}
        expected = effdeg.proxies.evaluate(models[name], (X, labels), cross_entropy, **settings)
        assert found.proxies[name].row() == pytest.approx(expected.row())
        assert found.to_dict()["proxies"][name]["confidence"]["value"] == expected["confidence"].value
        assert expected["margin@10"].estimate in str(found)
    assert found.rows()[0][4:] == names


def test_a_tuple_holds_arguments_for_proxies_too():
    models = {"a": lambda x, y: x + y, "b": lambda x, y: x - y}
    found = effdeg.compare(models, (X, X.flip(0)), proxies="confidence", **FAST)
    expected = effdeg.proxies.confidence(lambda z: z, X + X.flip(0)).value
    assert found.proxies["a"]["confidence"].value == pytest.approx(expected)


@pytest.mark.parametrize(
    ("inputs", "proxy", "message"),
    [
        (X, "margin@10", r"needs labels, and the inputs hold none: .*TensorDataset\(images, labels"),
        (TensorDataset(X), "margin@10", "needs labels, and the inputs hold none"),
        (X, "margins", "Did you mean 'margin"),
        (X, "distance", "proxies='distance' needs reference=…, which a comparison does not have"),
    ],
)
def test_proxies_that_cannot_be_evaluated_are_refused_before_any_work(inputs, proxy, message):
    counting = Counted(mlp())
    with pytest.raises(ValueError, match=message):
        effdeg.compare({"a": counting, "b": mlp()}, inputs, proxies=[proxy], **FAST)
    assert counting.rows == 0


def test_a_frame_has_a_row_per_model():
    found = effdeg.compare({"<a>": mlp(), "b": Scaled(8.0)}, X, proxies=["confidence"], **FAST)
    frame = found.to_frame().set_index("model")
    assert (list(frame.index), list(frame)[-2:]) == (found.ranking, ["significant", "confidence"])
    assert list(frame.loc["b", ["low", "high"]]) == list(found.measurements["b"].interval())
    difference = found.differences()[0]
    assert (frame.loc["b", "above_simplest"], frame.loc["b", "significant"]) == (difference.value, True)
    assert frame.loc["b", "confidence"] == found.proxies["b"]["confidence"].value
    shown = found._repr_html_()
    assert "The simplest is &lt;a&gt;, significantly so" in shown
    assert "<a>" not in shown
    assert shown.count("<tr>") == 3


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (mlp(outputs=5), r"differ in shape of the outputs of one example: \(4,\) and \(5,\)"),
        (mlp().to(torch.bfloat16), r"precision: float32 and bfloat16 \(.* pass dtype=torch.float32"),
        (lambda x: mlp()(x).half(), r"precision: float32 and float16"),
    ],
)
def test_models_that_cannot_be_compared_are_found_on_their_first_path(other, message):
    counting = Counted(mlp())
    with pytest.raises(ValueError, match=message):
        effdeg.compare({"a": counting, "b": other}, X, **FAST)
    # One path, and three times the few rows that show whether rows depend on each other.
    assert counting.rows <= FAST["nodes"] + 3 * 8 < FAST["paths"] * FAST["nodes"]


def test_full_and_double_precision_and_numbers_of_either_shape_can_be_compared():
    found = effdeg.compare({"one": mlp(), "other": mlp().double()}, X, **FAST)
    assert found.differences()[0].value == pytest.approx(0, abs=1e-6)
    numbers = {"()": lambda x: x[:, 0], "(1,)": lambda x: x[:, :1]}
    assert effdeg.compare(numbers, X, output="identity", **FAST).differences()[0].value == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": (X - X.mean(0)) / X.std(0)}, r"differ in examples \(by their fingerprint\): \w{16} and \w{16}\. "),
        ({"inputs": X[:20]}, r"differ in examples: 30 and 20\. "),
        ({"at": "0"}, r"differ in at: None and 0"),
        ({"seed": 1}, r"differ in seed: 0 and 1\. Measure"),
        ({"degree": 5, "nodes": 11}, r"differ in nodes: 12 and 11; degree: 6 and 5\. "),
        ({"output": "identity"}, r"differ in output: softmax and identity\. "),
        ({"tolerance": 0.5, "paths": 100}, r"differ in paths: 60 and 100\. "),
    ],
)
def test_what_differs_is_named(change, message):
    one = effdeg.measure(mlp(), X, **FAST)
    other = effdeg.measure(mlp(), **{"inputs": X, **FAST, **change})
    with pytest.raises(ValueError, match=f"'a' and 'b' cannot be compared. They {message}"):
        effdeg.compare({"a": one, "b": other})


def test_examples_that_differ_on_later_paths_are_found():
    class Drawn(Dataset):
        drawn = 0

        def __len__(self):
            return 30

        def __getitem__(self, index):
            Drawn.drawn += 1
            return X[index] + (Drawn.drawn > 300)

    with pytest.raises(ValueError, match=r"differ in examples \(by their fingerprint\)"):
        effdeg.compare({"a": mlp(), "b": mlp(seed=1)}, Drawn(), **FAST | {"paths": 100})


def test_measurements_that_stopped_at_their_tolerance_must_have_run_the_same_paths():
    settings = {"paths": 500, "nodes": 12, "degree": 6}
    stopped, whole = (effdeg.measure(mlp(), X, tolerance=tolerance, **settings) for tolerance in (0.5, None))
    with pytest.raises(ValueError, match="paths that were run: 64 and 500"):
        effdeg.compare({"a": stopped, "b": whole})


def test_every_note_is_passed_on_with_the_names_it_is_about():
    def wave(frequency):
        return lambda x: torch.sin(frequency * x)

    models = {"calm": lambda x: 0.1 * x, "wild": wave(30.0), "wilder": wave(60.0)}
    comparison = effdeg.compare(models, X, output="identity", **FAST)
    for name, measured in comparison.measurements.items():
        for note in measured.warnings():
            assert note.replace("note:", f"note on {name}:") in comparison.warnings()
    assert len([note for note in comparison.warnings() if note.startswith("note on wild:")]) == 2
    assert not any("calm" in note for note in comparison.warnings())
    assert str(comparison).endswith("\n".join(comparison.warnings()))
    assert comparison.to_dict()["notes"] == comparison.warnings()


def test_a_single_path_has_no_intervals():
    text = str(effdeg.compare({"a": mlp(seed=0), "b": mlp(seed=1)}, X, paths=1, nodes=12, degree=6))
    assert "(none from a single path)" in text
    assert "not distinguishable" in text
    assert "inf" not in text


def test_every_bar_is_named_and_numbered(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich take it for a terminal
    models = {"plain": mlp(seed=0), "[odd]": mlp(seed=1)}
    effdeg.compare(models, X, **FAST)
    assert capsys.readouterr() == ("", "")
    effdeg.compare(models, X, progress=True, **FAST)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "plain (1/2)" in shown.err
    assert "[odd] (2/2)" in shown.err


@pytest.mark.parametrize(
    ("models", "settings", "error", "message"),
    [
        (mlp(), {}, TypeError, "models must be a dict of models by name, or a list, not a Sequential"),
        ({1: mlp(), 2: mlp()}, {}, TypeError, "models must have strings as names, such as '1' instead of 1"),
        ({"a": mlp()}, {}, ValueError, "at least two models are needed, not 1"),
        ({"a": mlp(), "b": mlp()}, {"tolerance": 0.1}, ValueError, "tolerance= would give each model"),
    ],
)
def test_bad_input(models, settings, error, message):
    with pytest.raises(error, match=message):
        effdeg.compare(models, X, **settings)


def first(returned):
    return returned[:, :1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda returned: returned[:, :1], lambda returned: returned[:, 1:2]),
        (partial(torch.select, dim=1, index=0), partial(torch.select, dim=1, index=1)),
        (nn.Linear(4, 1), nn.Linear(4, 1)),
        (first, lambda returned: returned[:, :1]),
    ],
    ids=["lambdas", "partial", "modules", "name and lambda"],
)
def test_different_functions_are_different_outputs(one, other):
    def measure(output):
        return effdeg.measure(mlp(), X, output=output, **FAST)

    with pytest.raises(ValueError, match=r"They differ in output: .* and .*define it once"):
        effdeg.compare({"a": measure(one), "b": measure(other)})
    for same in (one, other):
        assert effdeg.compare({"a": measure(same), "b": measure(same)}).ranking == ["a", "b"]
    assert effdeg.compare({"a": mlp(), "b": mlp()}, X, output=one, **FAST).ranking == ["a", "b"]
    assert measure(first).settings.output.startswith("first ")


def test_a_method_is_known_by_its_object():
    one, other = nn.Linear(4, 1), nn.Linear(4, 1)
    mine, again, others = (effdeg.measure(mlp(), X, output=each.forward, **FAST) for each in (one, one, other))
    assert effdeg.compare({"a": mine, "b": again}).ranking == ["a", "b"]
    with pytest.raises(ValueError, match="They differ in output"):
        effdeg.compare({"a": mine, "b": others})
    assert effdeg.measure(mlp(), X, output=torch.sigmoid, **FAST).settings.output == "sigmoid"
