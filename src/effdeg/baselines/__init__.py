"""Other ways to regularize training, to compare the effective degree with, and one interface to all of them.

:func:`mixup` and :func:`embedding_mixup` mix examples, :class:`SAM` and :class:`ASAM` look for flat minima, and
:class:`JacobianPenalty` penalizes the derivatives with respect to the inputs. :func:`method` returns any of them by
name, for one training loop.
"""

from effdeg.baselines._embedding_mixup import embedding_mixup
from effdeg.baselines._jacobian import JacobianPenalty
from effdeg.baselines._methods import Method, method, names
from effdeg.baselines._mixup import mixup
from effdeg.baselines._sam import ASAM, SAM

__all__ = ["ASAM", "SAM", "JacobianPenalty", "Method", "embedding_mixup", "method", "mixup", "names"]
