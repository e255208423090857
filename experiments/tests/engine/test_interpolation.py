import math

import pytest
import torch
from torch import nn

from effdeg_lab.engine.interpolation import ALPHAS, covers, greedy_soup, interpolate, measure_curve, uniform_soup


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


def test_a_curve_covers_what_a_dense_search_finds():
    draw = torch.Generator().manual_seed(0)
    for _ in range(300):
        curve = torch.rand(3, 2, generator=draw, dtype=torch.float64)
        x, y = torch.rand(2, generator=draw, dtype=torch.float64)
        share = torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None]
        dense = torch.cat([(1 - share) * curve[place] + share * curve[place + 1] for place in range(2)])
        covered = bool(((dense[:, 0] >= x) & (dense[:, 1] >= y)).any())
        assert covers(curve.tolist(), [(x.item(), y.item())]) == covered
    low = [(50.0, 40.0), (60.0, 45.0), (65.0, 42.0)]
    higher = [(x + 0.3, y + 0.3) for x, y in low]
    assert covers(higher, low)
    assert not covers(low, higher)
    assert covers(low, higher, margin=0.4)
    assert not covers(low, higher, margin=0.2)


def test_a_uniform_soup_is_the_mean():
    states = [make_state(seed) for seed in range(4)]
    soup = uniform_soup(iter(states))
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


def test_other_models_are_refused():
    with pytest.raises(ValueError, match="not state dicts of one model: only one of them has v, w"):
        interpolate({"w": torch.ones(2)}, {"v": torch.ones(2)}, 0.5)
