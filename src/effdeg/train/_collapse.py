"""Notice that a model has begun to return the same for all examples, which is the simplest it can be."""

import warnings

from torch import Tensor

from effdeg._utils.device import is_readable

_EVERY = 50  # calls from one look to the next: on a GPU each has to be waited for
_CONSTANT = 0.05  # of the largest spread that was seen


class CollapseWatch:
    """Warn, once, when outputs that used to vary from example to example have become constant.

    That is when their spread, maxₒ (maxᵢ vᵢₒ − minᵢ vᵢₒ), is less than a twentieth of the largest one seen so far.
    """

    def __init__(self) -> None:
        self._calls, self._largest, self._warned = 0, 0.0, False

    def look(self, values: Tensor) -> None:
        """Look at the outputs of some examples: every 50 calls, and never in torch.compile, vmap or a capture."""
        if not is_readable(values):
            return
        self._calls += 1
        if self._warned or len(values) < 2 or self._calls % _EVERY != 1:
            return
        seen = values.detach()
        spread = float((seen.amax(0) - seen.amin(0)).max())
        if spread < _CONSTANT * self._largest:
            self._warned = True
            warnings.warn(
                f"the model has collapsed: its outputs on the {len(values)} unlabeled examples differ by at most "
                f"{spread:.2g}, where they differed by {self._largest:.2g} before. A constant has effective degree 0. "
                "Use a smaller weight, a teacher, or weights that begin 0, 0, which do not count "
                "straight lines.",
                RuntimeWarning,
                stacklevel=2,
            )
        self._largest = max(self._largest, spread)
