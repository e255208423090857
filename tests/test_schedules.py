import pytest
import torch

import effdeg


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
    with pytest.raises(ValueError, match="steps=-1"):
        effdeg.SineRamp(1.0, steps=-1)
