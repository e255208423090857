"""Other ways to regularize training, to compare the effective degree with, and one interface to all of them.

:func:`mixup`, :func:`cutmix`, :func:`embedding_mixup` and :func:`manifold_mixup` mix examples, :class:`RegMixup` trains
on the examples as well, and :class:`ICT` mixes examples without labels. :class:`Consistency`, :class:`UDA` and
:class:`FixMatch` compare these with their changed copies. :class:`SAM` and :class:`ASAM` look for flat
minima. :class:`JacobianPenalty` penalizes the derivatives with respect to the inputs, :class:`RDrop` how outputs depend
on dropout, and :class:`R3F` how they depend on noise; :class:`NEFTune` adds noise to embeddings. :func:`method` returns
any of them by name, for one training loop, except for those that need examples without labels.
"""

from effdeg.baselines._consistency import ICT, UDA, Consistency, FixMatch
from effdeg.baselines._cutmix import cutmix
from effdeg.baselines._jacobian import JacobianPenalty
from effdeg.baselines._manifold_mixup import embedding_mixup, manifold_mixup
from effdeg.baselines._methods import Method, method, names
from effdeg.baselines._mixup import mixup
from effdeg.baselines._neftune import NEFTune
from effdeg.baselines._r3f import R3F
from effdeg.baselines._rdrop import RDrop
from effdeg.baselines._regmixup import RegMixup
from effdeg.baselines._sam import ASAM, SAM

__all__ = [
    "ASAM",
    "ICT",
    "R3F",
    "SAM",
    "UDA",
    "Consistency",
    "FixMatch",
    "JacobianPenalty",
    "Method",
    "NEFTune",
    "RDrop",
    "RegMixup",
    "cutmix",
    "embedding_mixup",
    "manifold_mixup",
    "method",
    "mixup",
    "names",
]
