import math

import pytest

from effdeg.lab.training.schedules import Schedules
from tests.lab.training.runs import small


def schedules(*, weight=0.0, steps=100, **settings):
    return Schedules(small(lr=0.2, **settings), steps=steps, weight=weight)


def test_the_rate_warms_up_and_falls_along_a_cosine_to_zero():
    rate = schedules(warm_up=0.1).rate
    assert [rate(step) for step in range(10)] == pytest.approx([0.02 * (step + 1) for step in range(10)])
    assert rate(10) == 0.2
    assert rate(55) == pytest.approx(0.1)
    assert rate(99) == pytest.approx(0.1 * (1 + math.cos(math.pi * 89 / 90)))


def test_a_warm_up_in_epochs_is_as_long_in_longer_runs():
    for epochs in (4, 8):
        rate = schedules(warm_up_epochs=2.5, epochs=epochs, steps=10 * epochs).rate
        assert [rate(step) for step in (0, 11, 24)] == pytest.approx([0.2 / 25, 0.2 * 12 / 25, 0.2])
        assert rate(25) == 0.2
        assert rate(26) < 0.2


def test_the_rate_falls_in_steps():
    rate = schedules(warm_up=0.0, decay="steps").rate
    assert [rate(step) for step in (0, 49, 50, 74, 75, 99)] == pytest.approx([0.2, 0.2, 0.02, 0.02, 0.002, 0.002])


def test_the_rate_stays():
    assert {schedules(warm_up=0.0, decay="constant").rate(step) for step in range(100)} == {0.2}


def test_the_weight_rises_along_a_sine_and_stays():
    weight = schedules(weight=7.0, ramp=0.3).weight
    assert [weight(step) for step in (0, 14, 29, 30, 99)] == pytest.approx([
        7 * math.sin(math.pi / 60),
        7 * math.sin(math.pi / 4),
        7,
        7,
        7,
    ])
    assert all(weight(step) > 0 for step in range(100))


def test_every_fourth_step_has_four_times_the_weight():
    weights = [schedules(weight=7.0, ramp=0.0, every=4).weight(step) for step in range(8)]
    assert weights == [28, 0, 0, 0, 28, 0, 0, 0]


def test_the_penalty_starts_late():
    weights = [schedules(weight=7.0, ramp=0.5, start=0.6).weight(step) for step in range(100)]
    assert set(weights[:60]) == {0.0}
    assert weights[60] == pytest.approx(7 * math.sin(math.pi / 2 / 20))
    assert weights[79:] == pytest.approx([7.0] * 21)


def test_the_strength_is_what_the_weights_are_on_average():
    schedule = schedules(weight=7.0, ramp=0.0, every=4)
    assert [schedule.strength(step) for step in range(4)] == [7.0] * 4
    assert sum(schedule.weight(step) for step in range(8)) / 8 == 7.0
    assert schedules(weight=7.0, start=0.5).strength(10) == 0.0
