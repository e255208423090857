"""Interpolated weights, curves that dominate each other, and soups."""

import math
from collections import UserDict

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


def test_weights_are_interpolated_and_integers_kept():
    start, end = make_state(0), make_state(1)
    mixed = interpolate(start, end, 0.3)
    assert mixed["1.num_batches_tracked"] == end["1.num_batches_tracked"] == 2
    for name in start.keys() - {"1.num_batches_tracked"}:
        for got, first, last in zip(mixed[name].flatten(), start[name].flatten(), end[name].flatten(), strict=True):
            assert math.isclose(got.item(), 0.7 * first.item() + 0.3 * last.item(), rel_tol=1e-5, abs_tol=1e-7)


def test_ends_are_exact_and_equal_infinities_stay():
    good, broken = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([math.nan, math.inf])}
    assert torch.equal(interpolate(broken, good, 1)["w"], good["w"])
    assert torch.equal(interpolate(good, broken, 0)["w"], good["w"])
    mask = {"mask": torch.full((2, 2), -math.inf).triu(1)}
    assert torch.equal(interpolate(mask, mask, 0.5)["mask"], mask["mask"])


def test_half_precision_is_interpolated_in_float32():
    start, end = ({"w": torch.tensor([value], dtype=torch.bfloat16)} for value in (1.0, 1.0078125))
    mixed = interpolate(start, end, 0.5)["w"]
    assert (mixed.dtype, mixed.item()) == (torch.float32, 1.00390625)  # not a bfloat16
    assert interpolate(start, {"w": end["w"].double()}, 0.5)["w"].dtype == torch.float64


def test_a_curve_may_end_in_the_weights_of_the_model_that_is_tested():
    model = nn.Linear(1, 1, bias=False)
    start, live = {"weight": torch.tensor([[1.0]])}, model.state_dict()

    def evaluate(state):
        model.load_state_dict(state)
        return {"w": model.weight.item()}

    for ends, values in (((start, live), (1.0, 3.0)), ((live, start), (3.0, 1.0))):
        nn.init.constant_(model.weight, 3.0)
        curve = measure_curve(*ends, evaluate)
        assert [row["alpha"] for row in curve] == list(ALPHAS)
        assert [row["w"] for row in curve] == pytest.approx([values[0] + (values[1] - values[0]) * a for a in ALPHAS])


def test_a_curve_dominates_where_it_covers_what_a_dense_search_finds():
    draw = torch.Generator().manual_seed(0)
    for _ in range(300):
        curve = torch.rand(3, 2, generator=draw, dtype=torch.float64)
        x, y = torch.rand(2, generator=draw, dtype=torch.float64)
        share = torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None]
        dense = torch.cat([(1 - share) * curve[place] + share * curve[place + 1] for place in range(2)])
        covered = bool(((dense[:, 0] >= x) & (dense[:, 1] >= y)).any())
        # A point that is not covered keeps the curve from dominating; (-1, -1) never does.
        assert dominates(curve.tolist(), [(x.item(), y.item()), (-1.0, -1.0)]) == covered
    low = [(50.0, 40.0), (60.0, 45.0), (65.0, 42.0)]
    higher, crossing = [(x + 0.3, y + 0.3) for x, y in low], [(50.0, 40.0), (62.0, 44.0), (64.0, 43.0)]
    assert dominates(higher, low)
    assert not any((dominates(low, low), dominates(low, higher), dominates(low, crossing), dominates(crossing, low)))
    assert dominates(higher, low, margin=0.2)
    assert not dominates(higher, low, margin=0.4)
    for bad in ([], [(1.0, math.nan)], [(1, 2, 3)], 1.0):
        with pytest.raises(ValueError, match=r"at least one point \(x, y\), all finite, such as .* given "):
            dominates(low, bad)
    with pytest.raises(ValueError, match="margin=-1"):
        dominates(low, low, margin=-1)


def test_a_uniform_soup_is_the_mean():
    states = [make_state(seed) for seed in range(4)]
    for given in (iter(states), states, dict(enumerate(states))):
        soup = uniform_soup(given)
        assert soup.pop("1.num_batches_tracked") == 4
        for name in soup:
            torch.testing.assert_close(soup[name], torch.stack([state[name] for state in states]).mean(0))


def test_a_greedy_soup_takes_what_helps():
    weights = {"a": 5.0, "b": 1.0, "far": 11.0, "c": 2.6, "again": 2.6}
    states = {name: {"w": torch.tensor(value)} for name, value in weights.items()}
    # The best is c; with its copy, a, b or far, whose means are 2.6, 3.8, 1.8 and 6.8, it is no closer to 3.
    assert greedy_soup(states, lambda state: -abs(state["w"].item() - 3)).names == ("c",)
    soup = greedy_soup(states, lambda state: -abs(state["w"].item() - 3.5))
    assert (soup.names, soup.score, soup.state["w"].item()) == (("c", "a"), pytest.approx(-0.3), pytest.approx(3.8))
    assert list(soup.scores) == list(weights)


def test_a_greedy_soup_loads_states_one_at_a_time_or_copies_them():
    class Loaded(UserDict):
        def __getitem__(self, name):
            return {"weight": torch.tensor([[self.data[name]]])}

    def score(state):
        model.load_state_dict(state)
        return model.weight.item()

    model = nn.Linear(1, 1, bias=False)
    assert greedy_soup(Loaded(one=1.0, two=2.0), score).names == ("two",)
    nn.init.constant_(model.weight, 3.0)
    states = {"low": {"weight": torch.tensor([[1.0]])}, "live": model.state_dict()}
    assert greedy_soup(states, score).scores == {"low": 1.0, "live": 3.0}


STATE = {"w": torch.ones(2)}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: interpolate(STATE, {"v": torch.ones(2)}, 0.5), "v is only in the second; w is only in the first"),
        (lambda: interpolate(STATE, {"w": torch.ones(3)}, 0.5), r"w has the shapes \(2,\) and \(3,\)"),
        (lambda: interpolate(STATE, {"w": torch.ones(2).long()}, 0.5), r"w is torch\.float32 and torch\.int64"),
        (lambda: interpolate({"model": STATE}, STATE, 0.5), "model is of type dict, not a tensor: give the state dict"),
        (lambda: interpolate(STATE, nn.Linear(1, 1), 0.5), "expected a state dict.*not a Linear"),
        (lambda: interpolate(STATE, STATE, math.nan), "from 0, the start, to 1"),
        (lambda: measure_curve(STATE, STATE, lambda _: 0.5), "evaluate must return a dict.*not a float"),
        (lambda: uniform_soup([]), "at least one state dict"),
        (lambda: greedy_soup({}, len), "at least one state dict"),
        (lambda: uniform_soup([STATE, {"w": STATE["w"]}]), "state 1 and state 2 share the memory of w"),
        (lambda: greedy_soup({"a": STATE, "b": STATE}, len), "a and b share the memory of w"),
        (lambda: uniform_soup({"bad": {"w": torch.tensor(math.nan)}}), "bad has NaN in w"),
        (lambda: greedy_soup([STATE], len), "states must be a dict of state dicts by name, not a list"),
        (lambda: greedy_soup({"a": STATE}, lambda _: math.nan), "the score of a is not a number"),
        (lambda: greedy_soup({"a": STATE}, lambda _: {}), "score must return a number; it returned {}"),
    ],
)
def test_what_is_wrong_is_named(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()
