"""All proxies by name, and many of them in one go."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Unpack

from effdeg._models.inference import Model
from effdeg._utils.checks import suggest
from effdeg._utils.progress import progress_bar
from effdeg.proxies._along_paths import decision_regions, effective_degree, linear_regions, total_variation
from effdeg.proxies._curvature import hessian_eigenvalue, hessian_trace
from effdeg.proxies._jacobian import jacobian_norm
from effdeg.proxies._margins import PERCENTILES, check_percentile, margin, mixup_margin
from effdeg.proxies._norms import (
    check_reference,
    distance,
    frobenius_product,
    frobenius_sum,
    parameter_norm,
    spectral_product,
    spectral_sum,
)
from effdeg.proxies._path_norm import path_norm
from effdeg.proxies._result import Result, Table
from effdeg.proxies._sharpness import ADAPTIVE_RADII, RADII, average_sharpness, check_radius, sharpness
from effdeg.proxies._study import Loss, NotApplicable, Running, Study, opened, proxy

Proxy = Callable[[Study], Result]
Need = Literal["weights", "labels", "loss", "reference"]


@dataclass(frozen=True)
class Entry:
    """A proxy, or a family of them that differ in a number, which follows their name: ``sharpness@0.05``.

    Attributes:
        make: Gives the proxy for a number.
        needs: What it cannot do without.
        listed: The numbers that :func:`names` lists; none if the proxy has no number.
        default: The number when none is given.
        check: Says what is wrong with a number.
    """

    make: Callable[[float], Proxy]
    needs: frozenset[Need] = frozenset()
    listed: Sequence[float] = ()
    default: float = 0.0
    check: Callable[[float], None] = lambda number: None  # noqa: ARG005


def _one(proxy: Proxy, *needs: Need) -> Entry:
    return Entry(lambda _: proxy, frozenset(needs))


_WITH_LOSS: frozenset[Need] = frozenset({"weights", "labels", "loss"})
_PROXIES: dict[str, Entry] = {
    "effective_degree": _one(effective_degree),
    "effective_degree_normalized": _one(partial(effective_degree, normalized=True)),
    "sharpness": Entry(
        lambda rho: lambda study: sharpness(study, None, None, rho=rho), _WITH_LOSS, RADII, 0.05, check_radius
    ),
    "adaptive_sharpness": Entry(
        lambda rho: lambda study: sharpness(study, None, None, rho=rho, adaptive=True),
        _WITH_LOSS,
        ADAPTIVE_RADII,
        0.05,
        check_radius,
    ),
    "average_sharpness": Entry(
        lambda sigma: lambda study: average_sharpness(study, None, None, sigma=sigma),
        _WITH_LOSS,
        (0.01,),
        0.01,
        check_radius,
    ),
    "parameter_norm": _one(parameter_norm, "weights"),
    "distance": _one(lambda study: distance(study, study.reference), "weights", "reference"),
    "frobenius_product": _one(frobenius_product, "weights"),
    "frobenius_sum": _one(frobenius_sum, "weights"),
    "spectral_product": _one(spectral_product, "weights"),
    "spectral_sum": _one(spectral_sum, "weights"),
    "path_norm": _one(path_norm, "weights"),
    "margin": Entry(
        lambda percentile: partial(margin, percentile=percentile),
        frozenset({"labels"}),
        PERCENTILES,
        10,
        check_percentile,
    ),
    "spectral_margin": Entry(
        lambda percentile: partial(margin, percentile=percentile, spectral=True),
        frozenset({"labels", "weights"}),
        PERCENTILES,
        10,
        check_percentile,
    ),
    "mixup_margin": _one(mixup_margin, "labels"),
    "jacobian_norm": _one(jacobian_norm),
    "decision_regions": _one(decision_regions),
    "linear_regions": _one(linear_regions),
    "total_variation": _one(total_variation),
    "hessian_eigenvalue": Entry(lambda _: lambda study: hessian_eigenvalue(study, None, None), _WITH_LOSS),
    "hessian_trace": Entry(lambda _: lambda study: hessian_trace(study, None, None), _WITH_LOSS),
}


def names() -> list[str]:
    """List the names of all proxies; those with a number at the radii of the paper and at the usual percentiles."""
    listed = []
    for name, entry in _PROXIES.items():
        listed += [f"{name}@{number:g}" for number in entry.listed] or [name]
    return listed


def check_names(names: Iterable[str]) -> None:
    """Raise unless all of these are proxies."""
    for name in names:
        _find(name)


@proxy
def evaluate(
    model: Model,
    data: Any,
    loss: Loss | None = None,
    *,
    names: Iterable[str] | None = None,
    reference: object = None,
    progress: bool = False,
    **running: Unpack[Running],
) -> Table:
    """Evaluate many proxies for one model, sharing passes over the data where they can.

    All radii of one-step sharpness share one gradient, which also gives the outputs for margins; the effective degree,
    regions and total variation share their paths; everything spectral shares its norms.

    Args:
        model: The model. It comes back exactly as it was: weights, buffers, gradients, mode, random state.
        data: Labelled examples: a tuple ``(inputs, labels)``, a ``Dataset``, a ``DataLoader``, an iterator of batches,
            or a mapping with ``labels``. Proxies that need no labels also take examples without. To
            :func:`effdeg.measure`, which takes no labels, a tuple holds the arguments of the model; here these are
            ``((first, second), labels)``.
        loss: The mean loss of a batch, from outputs and labels.
        names: Which proxies, of :func:`names`, such as ``["effective_degree", "sharpness@0.05"]``; other numbers than
            those listed may follow ``@``. By default all, less those that do not apply to this model and these data
            (:class:`NotApplicable`), which the table names with the reason.
        reference: The model that training began with, or its state dict, for ``distance``.
        progress: Show a progress bar.
        **running: How the model is run, see :class:`effdeg.proxies.Running`.

    Returns:
        The results by name.
    """
    wanted = [names] if isinstance(names, str) else _listed() if names is None else list(names)
    chosen = {name: _find(name) for name in wanted}
    needs = {need for name in wanted for need in _PROXIES[name.partition("@")[0]].needs}
    results: dict[str, Result] = {}
    skipped: dict[str, str] = {}
    with (
        opened(model, data, loss, reference=reference, **running) as study,
        progress_bar("proxies", len(chosen), enabled=progress) as update,
    ):
        _check(study, needs if names is not None else set())
        study.count_activations = "linear_regions" in chosen
        for number, (name, measure) in enumerate(chosen.items()):
            update(number, name)
            try:
                results[name] = replace(measure(study), name=name)
            except NotApplicable as error:
                if names is not None:
                    raise
                skipped[name] = str(error)
        update(len(chosen))
    return Table(results, skipped)


_listed = names  # which the argument of evaluate hides


def _find(name: str) -> Proxy:
    if not isinstance(name, str):
        raise TypeError(f"names hold {name!r}; names such as 'sharpness@0.05' were expected.")
    family, at, number = name.partition("@")
    entry = _PROXIES.get(family)
    if entry is None or (at and not entry.listed):
        raise ValueError(f"{name!r} is not a known proxy. {suggest(name, [*names(), *_PROXIES])}")
    try:
        value = float(number) if at else entry.default
    except ValueError:
        raise ValueError(f"{name!r}: a number was expected behind the @, as in {family}@{entry.default:g}.") from None
    entry.check(value)
    return entry.make(value)


def _check(study: Study, needs: set[Need]) -> None:
    """Raise on what would make proxies fail, before the first of them begins."""
    if needs & {"weights", "reference"}:
        study.check_weights()
    if "labels" in needs:
        study.check_data(labels=True)
    if "loss" in needs:
        study.check_loss()
    if study.reference is not None or "reference" in needs:
        check_reference(study.module, study.reference)
    study.check_labels()
