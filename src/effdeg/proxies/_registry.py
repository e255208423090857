"""All proxies by name, and a table of many of them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Unpack

from effdeg._adapters.inference import Model
from effdeg._utils.checks import suggest
from effdeg._utils.files import replace_nonfinite
from effdeg._utils.progress import progress_bar
from effdeg.proxies._along_paths import COUNTED
from effdeg.proxies._evaluator import Evaluator, Loss, NotApplicable, Result, RunOptions, check_options
from effdeg.proxies._norms import check_reference
from effdeg.proxies._predictions import check_change, check_labeled, check_others
from effdeg.proxies._sharpness import check_radius

Need = Literal["weights", "labels", "loss", "reference", "others", "labeled", "change"]


@dataclass(frozen=True)
class Proxy:
    """A proxy, or several that differ in a number, which follows their name: ``sharpness@0.05``."""

    function: Callable[..., Result]
    needs: tuple[Need, ...] = ()
    number: str = ""  # the argument of the function that the number is given to
    listed: Sequence[float] = ()  # the numbers that names() lists
    check_number: Callable[[str, float], None] = check_radius
    larger_is_better: bool = False


PROXIES: dict[str, Proxy] = {}
"""All proxies by name; ``effdeg.proxies`` enters its own."""


def names() -> list[str]:
    """Return the names of all proxies; those that take a number are listed with the paper's radii or usual percentiles.

    Example:
        >>> import effdeg
        >>> [name for name in effdeg.proxies.names() if "margin" in name]
        ['margin@10', 'margin@50', 'spectral_margin@10', 'spectral_margin@50', 'mixup_margin']
    """
    listed = []
    for name, family in PROXIES.items():
        listed += [f"{name}@{number:g}" for number in family.listed] or [name]
    return listed


def check_names(names: Iterable[str]) -> None:
    """Raise unless these are all names of proxies; numbers other than those in :func:`names` may follow ``@``.

    Raises:
        TypeError: A name is not a string.
        ValueError: A name is unknown, or its number is out of range.

    Example:
        >>> import effdeg
        >>> effdeg.proxies.check_names(["path_norm", "sharpness@0.2"])
        >>> effdeg.proxies.check_names(["pathnorms"])
        Traceback (most recent call last):
        ...
        ValueError: 'pathnorms' is not a known proxy. Did you mean 'path_norm' or 'parameter_norm'?
    """
    for name in names:
        _find(name)


def larger_is_better(name: str) -> bool:
    """Return whether larger values of a proxy are expected to mean better generalization, as for a margin.

    :func:`effdeg.pools.rank` expects measures that rise with the generalization gap: give such a proxy a leading
    minus there. Errors are those of :func:`check_names`.

    Example:
        >>> import effdeg
        >>> names = ["effective_degree", "margin@10", "confidence"]
        >>> [f"-{name}" if effdeg.proxies.larger_is_better(name) else name for name in names]
        ['effective_degree', '-margin@10', '-confidence']
    """
    _find(name)
    return PROXIES[name.partition("@")[0]].larger_is_better


@dataclass(frozen=True, repr=False)
class Table(Mapping[str, Result]):
    """The proxies of one model: a mapping from names to results.

    Attributes:
        results: The results, in the order of the names that were given.
        skipped: Proxies that do not apply to this model, with the reason; none if names were given.

    Example:
        >>> import effdeg
        >>> result = effdeg.proxies.Result("path_norm", 2.5)
        >>> table = effdeg.proxies.Table({"path_norm": result}, {"margin@10": "this proxy needs labels"})
        >>> table.row()
        {'path_norm': 2.5}
        >>> print(table)
        path_norm  2.5
        margin@10  skipped: this proxy needs labels
    """

    results: Mapping[str, Result]
    skipped: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Result:
        if name in self.results:
            return self.results[name]
        if name in self.skipped:
            raise KeyError(f"{name!r} was skipped: {self.skipped[name]}")
        raise KeyError(f"{name!r} is not in this table. {suggest(name, self.results)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def row(self) -> dict[str, float]:
        """Return the values by name: one row of the table that :func:`effdeg.pools.rank` takes."""
        return {name: result.value for name, result in self.results.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the table as dicts, numbers and strings, for JSON: None stands for NaN and infinity."""
        results = {
            name: {"value": result.value, "stderr": result.stderr, "settings": result.settings}
            for name, result in self.results.items()
        }
        return {"results": replace_nonfinite(results), "skipped": dict(self.skipped)}

    def __str__(self) -> str:
        width = max((len(name) for name in (*self.results, *self.skipped)), default=0)
        lines = [f"{name:<{width}}  {result.estimate}" for name, result in self.results.items()]
        lines += [f"{name:<{width}}  skipped: {reason}" for name, reason in self.skipped.items()]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Table({len(self.results)} proxies, {len(self.skipped)} skipped)"


@check_options
def evaluate(
    model: Model,
    data: Any,
    loss: Loss | None = None,
    *,
    names: Iterable[str] | None = None,
    reference: object = None,
    others: Sequence[Model] | None = None,
    labeled: Any = None,
    change: Any = None,
    progress: bool = False,
    **options: Unpack[RunOptions],
) -> Table:
    """Evaluate many proxies for one model, sharing passes over the data where they can.

    All radii of one-step sharpness share one gradient, which also gives the outputs for margins and for everything that
    is computed from predictions; the effective degree and all others along paths share their paths; norms of layers are
    shared, too.

    Args:
        model: The model. Its weights, buffers, gradients and mode are left as they were.
        data: Examples with labels: a tuple ``(inputs, labels)``, a ``Dataset``, a ``DataLoader``, an iterator of
            batches, or a mapping with ``labels``. Proxies that need no labels also take inputs alone. Unlike
            :func:`effdeg.measure`, which needs no labels and takes a tuple as the arguments of the model, a proxy reads
            ``(first, second)`` as inputs and labels: with two arguments, write ``((first, second), labels)``.
        loss: The mean loss of a batch, from outputs and labels.
        names: The proxies to evaluate, such as ``["effective_degree", "sharpness@0.05"]``; numbers other than those in
            :func:`names` may follow ``@``. By default all that apply to this model and these data; the table lists the
            others with the reason (:class:`NotApplicable`).
        reference: The model before training, or its state dict, for ``distance``.
        others: Other models of the same task, such as those of other seeds, for ``disagreement``.
        labeled: Examples with labels that the model was not trained on, for ``thresholded_confidence``.
        change: A function of a batch that should not change predictions, or a list of them, for ``inconsistency``.
        progress: Show a progress bar.

    Raises:
        TypeError: A name is not a string, or ``loss``, ``reference``, ``others`` or ``change`` has the wrong type.
        ValueError: A name is unknown, the data are empty, the loss does not take the labels or is not the mean of a
            batch, ``reference`` or ``others`` do not match the model, ``change`` returns other shapes, or outputs are
            NaN or infinite.
        NotApplicable: One of ``names`` has no value for this model and these data.

    Example:
        >>> import torch, effdeg
        >>> model = torch.nn.Linear(2, 2, bias=False)
        >>> _ = torch.nn.init.eye_(model.weight)
        >>> data = torch.tensor([[2.0, 0.0], [0.0, 4.0]]), torch.tensor([0, 1])
        >>> table = effdeg.proxies.evaluate(model, data, names=["spectral_sum", "margin@50"])
        >>> {name: round(value, 3) for name, value in table.row().items()}
        {'spectral_sum': 1.0, 'margin@50': 3.0}
    """
    wanted = [names] if isinstance(names, str) else None if names is None else list(names)
    check_names(wanted or ())
    given = {"reference": reference, "others": others, "labeled": labeled, "change": change}
    with Evaluator.open(model, data, loss, **given, **options) as evaluator:
        return evaluate_open(evaluator, wanted, progress=progress)


def evaluate_open(evaluator: Evaluator, wanted: Sequence[str] | None, *, progress: bool = False) -> Table:
    """Evaluate proxies; by default all that apply."""
    chosen = {name: _find(name) for name in (names() if wanted is None else wanted)}
    results: dict[str, Result] = {}
    skipped: dict[str, str] = {}
    _check_needs(evaluator, {need for name in wanted or () for need in find_needs(name)})
    evaluator.count_activations = not COUNTED.isdisjoint(chosen)
    with progress_bar("proxies", len(chosen), enabled=progress) as update:
        for number, (name, compute) in enumerate(chosen.items()):
            update(number, name)
            try:
                results[name] = replace(compute(evaluator), name=name)
            except NotApplicable as error:
                if wanted is not None:
                    raise
                skipped[name] = str(error)
        update(len(chosen))
    return Table(results, skipped)


def find_needs(name: str) -> tuple[Need, ...]:
    """Return what a proxy, by its name, is computed from besides the model and inputs."""
    return PROXIES[name.partition("@")[0]].needs


def _find(name: str) -> Callable[[Evaluator], Result]:
    if not isinstance(name, str):
        raise TypeError(f"names contain {name!r}; strings such as 'sharpness@0.05' were expected.")
    family, at, number = name.partition("@")
    proxy = PROXIES.get(family)
    if proxy is None or (at and not proxy.number):
        raise ValueError(f"{name!r} is not a known proxy. {suggest(name, [*names(), *PROXIES])}")
    settings: dict[str, float] = {}
    if at:
        try:
            settings[proxy.number] = float(number)
        except ValueError:
            example = f"{family}@{proxy.listed[0]:g}"
            raise ValueError(f"{name!r}: a number was expected after the @, as in {example}.") from None
        proxy.check_number(proxy.number, settings[proxy.number])
    return lambda evaluator: evaluator.compute(proxy.function, **settings)


def _check_needs(evaluator: Evaluator, needs: set[Need]) -> None:
    if needs & {"weights", "reference"}:
        evaluator.check_weights()
    if "labels" in needs:
        evaluator.check_data(labels=True)
    if "loss" in needs:
        evaluator.check_loss()
    for need, check in _CHECKS.items():
        if evaluator.given[need] is not None or need in needs:
            check(evaluator)
    evaluator.check_labels()


_CHECKS: dict[Need, Callable[[Evaluator], object]] = {
    "reference": check_reference,
    "others": check_others,
    "labeled": check_labeled,
    "change": check_change,
}
