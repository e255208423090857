"""What else regularizes training: mixup, sharpness-aware minimization, Jacobian regularization, each correct."""

from effdeg.rivals.embedding_mixup import embedding_mixup
from effdeg.rivals.jacobian import JacobianPenalty
from effdeg.rivals.methods import Method, method, names
from effdeg.rivals.mixup import mixup
from effdeg.rivals.sam import ASAM, SAM

__all__ = ["ASAM", "SAM", "JacobianPenalty", "Method", "embedding_mixup", "method", "mixup", "names"]
