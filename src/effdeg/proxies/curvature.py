"""The curvature of the loss: the largest eigenvalue and the trace of its Hessian, by curvlinops."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from effdeg._checks import check_count
from effdeg.double_backward import double_differentiable
from effdeg.inference import Model
from effdeg.io.optional import require
from effdeg.proxies.result import Result
from effdeg.proxies.study import Loss, Running, Study, opened
from effdeg.statistics import mean_and_stderr


def hessian_eigenvalue(
    model: Model | Study, data: Any, loss: Loss | None, *, tolerance: float = 1e-3, **running: Unpack[Running]
) -> Result:
    """Find the largest eigenvalue of the Hessian of the mean loss. Needs ``effdeg[curvature]``.

    SciPy's Lanczos solver finds it from Hessian-vector products of curvlinops, each a few passes over the data: take a
    part of a large data set, ``examples=1000``.

    Args:
        model: An ``nn.Module``.
        data: Labelled examples.
        loss: The mean loss of a batch, from outputs and labels.
        tolerance: How far the eigenvalue may be off, relatively.
        **running: How the model is run, see :class:`effdeg.proxies.Running`.

    Returns:
        The eigenvalue. Its standard error says how much the curvature along the eigenvector varies between parts of the
        data; None if there is one batch only.
    """
    if not tolerance > 0:
        raise ValueError(f"tolerance={tolerance!r} must be positive, such as 1e-3.")
    with _hessian(model, data, loss, running) as (study, curvature):
        eigsh = require("scipy.sparse.linalg", extra="curvature", purpose="the Hessian").eigsh
        operator = curvature.operator(curvature.batches())
        start = torch.randn(operator.shape[0], generator=torch.Generator().manual_seed(study.seed)).double().numpy()
        values, vectors = eigsh(operator.to_scipy(), k=1, which="LA", tol=tolerance, v0=start)
        vector = torch.from_numpy(vectors[:, 0]).to(operator.device, operator.dtype)
        along = torch.stack([
            vector @ (curvature.operator([batch]) @ vector) for batch in curvature.batches(at_least=2)
        ])
        stderr = mean_and_stderr(along)[1] if len(along) > 1 else None
        return Result("hessian_eigenvalue", float(values[0]), stderr, {"tolerance": tolerance, "examples": study.count})


def hessian_trace(
    model: Model | Study, data: Any, loss: Loss | None, *, samples: int = 10, **running: Unpack[Running]
) -> Result:
    """Estimate the trace of the Hessian of the mean loss, by Hutchinson's method. Needs ``effdeg[curvature]``.

    Args:
        model: An ``nn.Module``.
        data: Labelled examples.
        loss: The mean loss of a batch, from outputs and labels.
        samples: How many random vectors, each a Hessian-vector product.
        **running: How the model is run, see :class:`effdeg.proxies.Running`.

    Returns:
        The mean over the vectors and its standard error.
    """
    check_count("samples", samples, least=2)
    with _hessian(model, data, loss, running) as (study, curvature):
        operator = curvature.operator(curvature.batches())
        draws = torch.stack([curvature.library.hutchinson_trace(operator, num_matvecs=1) for _ in range(samples)])
        value, stderr = mean_and_stderr(draws)
        return Result("hessian_trace", value, stderr, {"samples": samples, "examples": study.count})


@contextmanager
def _hessian(model: Model | Study, data: Any, loss: Loss | None, running: Any) -> Iterator[tuple[Study, "_Curvature"]]:
    with opened(model, data, loss, **running) as study:
        study.check_loss()
        with warnings.catch_warnings(), double_differentiable(study.module):
            # What torch and curvlinops' dependencies say of themselves when they are first used.
            warnings.simplefilter("ignore", DeprecationWarning)
            yield study, _Curvature(study)


class _Curvature:
    """The Hessian of a study's loss as curvlinops sees it: a model that turns numbers of examples into their loss."""

    def __init__(self, study: Study) -> None:
        self.library: ModuleType = require("curvlinops", extra="curvature", purpose="the Hessian")
        self._study, self._model = study, _Losses(study)

    def batches(self, *, at_least: int = 1) -> list[tuple[Tensor, Tensor]]:
        size = min(self._study.batches.size, -(-self._study.count // at_least))
        return [(numbers, numbers) for numbers in torch.split(torch.arange(self._study.count), size)]

    def operator(self, batches: list[tuple[Tensor, Tensor]]) -> Any:
        return self.library.HessianLinearOperator(
            self._model,
            _Same(),
            list(self._model.parameters()),
            batches,
            check_deterministic=False,
            num_data=sum(len(numbers) for numbers, _ in batches),
        )


class _Losses(nn.Module):
    """Turns the numbers of some examples into their mean loss."""

    def __init__(self, study: Study) -> None:
        super().__init__()
        # Not as an attribute that a module would look into.
        self._loss_of = study.loss_of
        self._names = list(study.weights)
        self.weights = nn.ParameterList(nn.Parameter(weight) for weight in study.weights.values())

    def forward(self, numbers: Tensor) -> Tensor:
        return self._loss_of(numbers, dict(zip(self._names, self.weights, strict=True)))


class _Same(nn.Module):
    reduction = "mean"

    def forward(self, loss: Tensor, _: Tensor) -> Tensor:
        return loss
