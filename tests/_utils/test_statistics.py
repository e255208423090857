import math

import pytest
import torch
from scipy import stats

from effdeg._utils.statistics import format_estimate, format_interval, interval, mean_and_stderr, student_quantile


@pytest.mark.parametrize("probability", [0.9, 0.975, 0.9995])
@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 10, 99, 100, 101, 399])
def test_student_quantiles(probability, freedom):
    assert student_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-8)


def test_a_mean_and_its_interval():
    sample = torch.tensor([1.0, 2.0, 4.0, 7.0, 5.0, 3.0, 2.0, 8.0, 6.0, 1.0, 4.0], dtype=torch.float64)
    mean, stderr = mean_and_stderr(sample)
    assert (mean, stderr) == pytest.approx((sample.numpy().mean(), stats.sem(sample.numpy())))
    for factor in (1e200, 1e-200):  # whose square leaves the range of float64
        assert mean_and_stderr(factor * sample) == pytest.approx((factor * mean, factor * stderr))
    expected = stats.t.interval(0.9, 10, loc=mean, scale=stderr)
    assert interval(mean, stderr, count=11, level=0.9) == pytest.approx(expected, rel=1e-3)


def test_a_single_draw_has_no_interval():
    mean, stderr = mean_and_stderr(torch.tensor([3.0]))
    assert (mean, stderr) == (3.0, math.inf)
    assert format_estimate(mean, stderr) == format_estimate(mean, None) == "3"
    assert format_interval(*interval(mean, stderr, count=1, level=0.95)) == "none from a single path"
    assert format_estimate(3.14159, 0.0123) == "3.142 ± 0.012"
    assert format_interval(1.23456, 2.0) == "1.235 to 2"
