"""Interpolated weights, curves that dominate each other, and soups."""

import math
from collections import UserDict

import numpy as np
import pytest
import torch
from torch import nn

from effdeg_lab.engine.interpolation import ALPHAS, dominates, greedy_soup, interpolate, measure_curve, uniform_soup


def make_state(seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        for _ in range(seed + 1):
            model(torch.randn(8, 3))
        return model.state_dict()


def assert_states_close(found, expected):
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, msg=name)


def test_weights_are_interpolated_and_integers_kept():
    start, end = make_state(0), make_state(1)
    mixed = interpolate(start, end, 0.3)
    assert mixed["1.num_batches_tracked"] == end["1.num_batches_tracked"] == 2
    for name in start.keys() - {"1.num_batches_tracked"}:
        for got, first, last in zip(mixed[name].flatten(), start[name].flatten(), end[name].flatten(), strict=True):
            assert math.isclose(got.item(), 0.7 * first.item() + 0.3 * last.item(), rel_tol=1e-5, abs_tol=1e-7)


def test_the_ends_are_exact_and_no_memory_is_shared():
    start, end = make_state(0), make_state(1)
    for alpha, expected in ((0.0, start | {"1.num_batches_tracked": end["1.num_batches_tracked"]}), (1.0, end)):
        mixed = interpolate(start, end, alpha)
        assert all(torch.equal(mixed[name], expected[name]) for name in expected)
        before = {name: tensor.clone() for name, tensor in expected.items()}
        for tensor in mixed.values():
            tensor.zero_()
        assert all(torch.equal(before[name], expected[name]) for name in expected)


def test_equal_infinities_stay_as_they_are():
    mask = {"mask": torch.full((2, 2), -math.inf).triu(1)}
    for alpha in (0.0, 0.5, 1.0):
        assert torch.equal(interpolate(mask, mask, alpha)["mask"], mask["mask"])
    assert torch.equal(uniform_soup([mask, {"mask": mask["mask"].clone()}])["mask"], mask["mask"])


def test_an_end_with_nan_does_not_spoil_the_other():
    good, broken = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([math.nan, math.inf])}
    assert torch.equal(interpolate(broken, good, 1)["w"], good["w"])
    assert torch.equal(interpolate(good, broken, 0)["w"], good["w"])


def test_half_precision_is_interpolated_in_float32():
    start, end = (
        {"w": torch.tensor([1.0], dtype=torch.bfloat16)},
        {"w": torch.tensor([1.0078125], dtype=torch.bfloat16)},
    )
    mixed = interpolate(start, end, 0.5)["w"]
    assert mixed.dtype == torch.float32
    assert mixed.item() == 1.00390625  # not a bfloat16
    assert interpolate(start, {"w": end["w"].double()}, 0.5)["w"].dtype == torch.float64


def test_state_dicts_of_different_models_are_refused_by_name():
    start, end = make_state(0), make_state(1)
    with pytest.raises(ValueError, match=r"0\.bias is only in the first; extra is only in the second\."):
        interpolate(start, {"extra": torch.zeros(1)} | {name: end[name] for name in end if name != "0.bias"}, 0.5)
    with pytest.raises(ValueError, match=r"0\.weight has the shapes \(4, 3\) and \(3, 4\)"):
        interpolate(start, end | {"0.weight": end["0.weight"].T}, 0.5)
    with pytest.raises(ValueError, match=r"0\.weight is torch\.float32 and torch\.int64"):
        interpolate(start, end | {"0.weight": end["0.weight"].long()}, 0.5)
    for pair in (({"model": start, "epoch": 1}, end), (start, {"model": end, "epoch": 1})):
        with pytest.raises(ValueError, match="model is of type OrderedDict, not a tensor: give the state dict, not"):
            interpolate(*pair, 0.5)
    with pytest.raises(ValueError, match="and 4 more"):
        interpolate(start, {}, 0.5)
    with pytest.raises(TypeError, match=r"expected a state dict, model\.state_dict\(\), not a Linear"):
        interpolate(start, nn.Linear(1, 1), 0.5)
    for alpha in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="from 0, the start, to 1"):
            interpolate(start, end, alpha)


def test_a_curve_has_a_row_for_each_alpha():
    start, end = {"w": torch.tensor(2.0)}, {"w": torch.tensor(4.0)}
    curve = measure_curve(start, end, lambda state: {"w": state["w"].item()})
    assert tuple(row["alpha"] for row in curve) == ALPHAS == (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    assert [row["w"] for row in curve] == pytest.approx([2 + 2 * alpha for alpha in ALPHAS])


def test_a_curve_may_end_in_the_weights_of_the_model_that_is_tested():
    model = nn.Linear(1, 1, bias=False)
    start, live = {"weight": torch.tensor([[1.0]])}, model.state_dict()

    def evaluate(state):
        model.load_state_dict(state)
        return {"w": model.weight.item()}

    for ends, values in (((start, live), (1.0, 3.0)), ((live, start), (3.0, 1.0))):
        nn.init.constant_(model.weight, 3.0)
        curve = measure_curve(*ends, evaluate)
        assert [row["w"] for row in curve] == pytest.approx([values[0] + (values[1] - values[0]) * a for a in ALPHAS])
    with pytest.raises(TypeError, match=r"evaluate must return a dict, such as \{'test': 0\.9\}, not a float"):
        measure_curve(start, start, lambda _: 0.5)


LOW = [(50.0, 40.0), (60.0, 45.0), (65.0, 42.0)]


def shift(points, by, up):
    return [(x + by, y + up) for x, y in points]


@pytest.mark.parametrize(
    ("curve", "other", "expected"),
    [
        (shift(LOW, 1, 1), LOW, "first"),
        (LOW, LOW, "neither"),
        ([LOW[0], (61.0, 46.0), (66.0, 43.0)], LOW, "first"),  # both start at one model
        (LOW, [LOW[0], (62.0, 44.0), (64.0, 43.0)], "neither"),  # they cross
        (shift(LOW, 2, -2), LOW, "neither"),  # further to the right but lower
        ([(55.0, 44.0), (66.0, 44.0)], [(60.0, 44.0)], "first"),  # between two points of the first
        ([(40.0, 50.0), (70.0, 41.0)], [(69.0, 41.2)], "first"),
        ([(40.0, 50.0), (70.0, 41.0)], [(69.0, 41.4)], "neither"),  # just above the line between them
        ([(60.0, 46.0)], LOW, "neither"),  # the end of the other lies further to the right
        ([(65.0, 45.0)], LOW, "first"),
        ([(0.0, 10.0), (2.0, 2.0), (10.0, 0.0)], [(4.0, 4.0)], "neither"),  # the last point is not joined to the first
    ],
)
def test_one_curve_dominates_or_neither(curve, other, expected):
    found = {(True, False): "first", (False, True): "second", (False, False): "neither"}
    assert found[dominates(curve, other), dominates(other, curve)] == expected
    assert found[dominates(other, curve), dominates(curve, other)] == {"first": "second"}.get(expected, expected)


def test_a_segment_covers_what_a_dense_search_finds():
    draw = torch.Generator().manual_seed(0)
    for _ in range(300):
        curve = torch.rand(3, 2, generator=draw, dtype=torch.float64)
        x, y = torch.rand(2, generator=draw, dtype=torch.float64)
        share = torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None]
        dense = torch.cat([(1 - share) * curve[place] + share * curve[place + 1] for place in range(2)])
        covered = bool(((dense[:, 0] >= x) & (dense[:, 1] >= y)).any())
        # A point that is not covered keeps the curve from dominating; (-1, -1) never does.
        assert dominates(curve.tolist(), [(x.item(), y.item()), (-1.0, -1.0)]) == covered


def test_differences_within_the_margin_count_as_none():
    assert not dominates(shift(LOW, 0.1, 0.1), LOW, margin=0.2)
    assert dominates(shift(LOW, 0.3, 0.3), LOW, margin=0.2)
    worse_somewhere = [*shift(LOW[:2], 3, 3), (64.9, 41.9)]
    assert dominates(worse_somewhere, LOW, margin=0.2)
    with pytest.raises(ValueError, match="margin=-1"):
        dominates(LOW, LOW, margin=-1)


@pytest.mark.parametrize("kind", [np.array, torch.tensor, iter], ids=["array", "tensor", "generator"])
def test_curves_may_be_arrays_tensors_and_generators(kind):
    assert dominates(kind(shift(LOW, 1, 1)), kind(LOW))


@pytest.mark.parametrize(
    "bad", [[], [(1.0, math.nan)], [(1, 2, 3)], [{"alpha": 0.0, "test": 1.0}], [1.0, 2.0], np.ones((2, 3)), 1.0]
)
def test_other_things_than_points_are_refused(bad):
    with pytest.raises(ValueError, match=r"at least one point \(x, y\), all finite, such as .* given "):
        dominates(LOW, bad)


def test_a_uniform_soup_is_the_mean():
    states = [make_state(seed) for seed in range(4)]
    soup = uniform_soup(iter(states))
    for name in soup:
        if name == "1.num_batches_tracked":
            assert soup[name] == 4
        else:
            torch.testing.assert_close(soup[name], torch.stack([state[name] for state in states]).mean(0))
    assert_states_close(uniform_soup(states[:1]), states[0])
    assert_states_close(uniform_soup(dict(zip("abcd", states, strict=True))), soup)
    with pytest.raises(ValueError, match="at least one state dict"):
        uniform_soup([])
    with pytest.raises(ValueError, match="not state dicts of one model"):
        uniform_soup([states[0], {}])


def test_a_greedy_soup_takes_what_helps():
    weights = {"a": 5.0, "b": 1.0, "far": 11.0, "c": 2.6}
    states = {name: {"w": torch.tensor(value)} for name, value in weights.items()}
    soup = greedy_soup(states, lambda state: -abs(state["w"].item() - 3))
    # The best is c; with a the mean is 3.8, further off; with b 1.8, further off; with far 6.8.
    assert (soup.names, soup.score) == (("c",), pytest.approx(-0.4))
    soup = greedy_soup(states, lambda state: -abs(state["w"].item() - 3.5))
    # c (2.6), then a: 3.8; then b: 2.87; not far.
    assert soup.names == ("c", "a")
    assert soup.score == pytest.approx(-0.3)
    assert soup.state["w"].item() == pytest.approx(3.8)
    assert list(soup.scores) == list(weights)


def test_a_duplicate_does_not_join_a_greedy_soup():
    states = {name: {"w": torch.tensor(2.0)} for name in ("model", "again")}
    assert greedy_soup(states, lambda state: state["w"].item()).names == ("model",)


def test_a_greedy_soup_of_models_that_all_help_is_the_uniform_one():
    states = {str(seed): make_state(seed) for seed in range(4)}
    seen = []

    def score(state):
        seen.append(state)
        return len(seen)  # whatever comes later is better

    soup = greedy_soup(states, score)
    assert soup.names == ("3", "2", "1", "0")
    assert_states_close(soup.state, uniform_soup(states[name] for name in soup.names))
    with pytest.raises(ValueError, match="at least one state dict"):
        greedy_soup({}, score)
    with pytest.raises(ValueError, match="the score of 1 is not a number"):
        greedy_soup(states, lambda state: math.nan if state["1.num_batches_tracked"] == 2 else 0.0)
    with pytest.raises(TypeError, match=r"score must return a number; it returned \{'test': 0\.5\}"):
        greedy_soup(states, lambda _: {"test": 0.5})
    with pytest.raises(TypeError, match="states must be a dict of state dicts by name, not a list"):
        greedy_soup(list(states.values()), score)
    with pytest.raises(TypeError, match=r"expected a state dict, model\.state_dict\(\), not a Linear"):
        greedy_soup({"a": nn.Linear(1, 1)}, score)


def test_a_greedy_soup_may_hold_the_weights_of_the_model_that_is_tested():
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 3.0)
    states = {"low": {"weight": torch.tensor([[1.0]])}, "live": model.state_dict()}

    def score(state):
        model.load_state_dict(state)
        return model.weight.item()

    assert greedy_soup(states, score).scores == {"low": 1.0, "live": 3.0}


def test_states_that_share_memory_are_refused_in_soups():
    model = nn.Linear(2, 2)
    saved = [model.state_dict() for _ in range(2)]
    said = r"state 1 and state 2 share the memory of weight, so it is the same in both\. Copy .*\.clone\(\)"
    for states in (saved, tuple(saved)):
        with pytest.raises(ValueError, match=said):
            uniform_soup(states)
    for make in (uniform_soup, lambda states: greedy_soup(states, lambda _: 0.0)):
        with pytest.raises(ValueError, match="a and b share the memory of weight"):
            make(dict(zip("ab", saved, strict=True)))
    stacked = torch.arange(4.0)  # parts of one tensor are different weights
    assert uniform_soup({"w": part} for part in stacked)["w"] == uniform_soup([{"w": part} for part in stacked])["w"]


def test_states_with_nan_are_refused_in_soups_by_name():
    states = {"good": {"w": torch.ones(2)}, "bad": {"w": torch.tensor([1.0, math.nan])}}
    for make in (uniform_soup, lambda states: greedy_soup(states, lambda _: 0.0)):
        with pytest.raises(ValueError, match="bad has NaN in w, and so would the soup: leave it out"):
            make(states)
    with pytest.raises(ValueError, match="state 2 has NaN in w"):
        uniform_soup(iter(states.values()))


def test_a_greedy_soup_can_load_states_one_at_a_time():
    class Loaded(UserDict):
        def __getitem__(self, name):
            loaded.append(name)
            return {"w": torch.tensor([self.data[name]])}

    loaded = []
    soup = greedy_soup(Loaded(one=1.0, two=2.0), lambda state: state["w"].item())
    assert (soup.names, loaded) == (("two",), ["one", "two", "two", "one"])
