"""What else regularizes training: mixup, sharpness-aware minimization, Jacobian regularization, each correct."""

from effdeg.baselines._embedding_mixup import embedding_mixup
from effdeg.baselines._jacobian import JacobianPenalty
from effdeg.baselines._methods import Method, method, names
from effdeg.baselines._mixup import mixup
from effdeg.baselines._sam import ASAM, SAM

__all__ = ["ASAM", "SAM", "JacobianPenalty", "Method", "embedding_mixup", "method", "mixup", "names"]
