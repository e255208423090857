import math

import numpy as np
import pytest
import torch

import effdeg
from effdeg.train._schedules import as_schedule


def test_schedules():
    ramp = effdeg.SineRamp(7.0, steps=100)
    assert ramp(0) == 0
    assert ramp(50) == pytest.approx(7 * 0.5**0.5)
    assert ramp(100) == ramp(1000) == 7.0
    assert effdeg.SineRamp(7.0, steps=0)(0) == 7.0
    assert effdeg.Constant(2.0)(123) == 2.0
    assert repr(ramp) == "SineRamp(weight=7.0, steps=100)"
    for step in (0, 30, 100, 500):
        for schedule in (ramp, effdeg.SineRamp(3.0, steps=0)):
            torch.testing.assert_close(schedule(torch.tensor(step)), torch.tensor(schedule(step)))


@pytest.mark.parametrize("make", [effdeg.Constant, lambda weight: effdeg.SineRamp(weight, steps=10), as_schedule])
@pytest.mark.parametrize(
    ("weight", "kind"),
    [
        *((weight, ValueError) for weight in (math.nan, math.inf, -1.0)),
        *((weight, TypeError) for weight in ("7", None, True, torch.tensor(7.0), effdeg.SineRamp)),
    ],
)
def test_weights_that_are_none_are_refused(make, weight, kind):
    varying = "One that changes during training is a function of the step" if make is as_schedule else ""
    with pytest.raises(kind, match=r"weight=.* must be .*zero or positive.*how much the penalty counts") as raised:
        make(weight)
    assert varying in str(raised.value)
    assert "Method.loss" not in str(raised.value)


@pytest.mark.parametrize(("steps", "kind"), [(-1, ValueError), *((n, TypeError) for n in (100 / 3, math.nan, True))])
def test_steps_that_are_no_count_are_refused(steps, kind):
    with pytest.raises(kind, match=r"steps=.* at least 0"):
        effdeg.SineRamp(1.0, steps=steps)


def test_a_number_is_a_constant_weight():
    assert as_schedule(0) == effdeg.Constant(0)
    assert as_schedule(np.float32(0.5))(3) == 0.5
    ramp = effdeg.SineRamp(7, steps=np.int64(100))
    assert as_schedule(ramp) is ramp
