"""When a run is looked at: often while it is young, and evenly after."""

import math


def evaluation_steps(steps: int, evaluations: int) -> list[int]:
    """Choose the steps after which a network is looked at.

    Half of them are spaced evenly in the logarithm of the step, since memorizing takes hundreds of steps and
    generalizing may take hundreds of thousands, and half evenly in the step, so that late transitions are seen as well.

    Args:
        steps: How many steps there are.
        evaluations: How many are wanted.

    Returns:
        The steps, the first and the last among them; fewer than wanted where the two spacings coincide.
    """
    half = max(2, evaluations // 2)
    by_factor = (round(math.exp(math.log(steps) * number / (half - 1))) for number in range(half))
    rest = max(1, evaluations - half)
    evenly = (round(steps * number / rest) for number in range(1, rest + 1))
    return sorted({*by_factor, *evenly} - {0})
