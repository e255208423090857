"""What a classifier's predictions say without labels: confidence, entropy, dispersion, disagreement and consistency.

All are of the probabilities at the examples themselves, so they belong on examples like those that the model will see,
not on its training set, where most networks are certain of everything. All share one forward pass. The functions
``score_…`` compute from logits or probabilities that are known already.
"""

import math
from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor

from effdeg._adapters.inference import Model
from effdeg._adapters.labels import check_range, read_class_ids
from effdeg._adapters.outputs import are_distributions, as_class_logits
from effdeg._adapters.partners import change_examples, name_partners, read_changes
from effdeg._adapters.paths import BLOCK
from effdeg._utils.statistics import mean_and_stderr
from effdeg._utils.tree import Tree, concatenate, take
from effdeg.proxies._evaluator import Evaluator, NotApplicable, Result, RunOptions, check_options
from effdeg.proxies._transport import transport

_LABELED = "the labels of labeled="


@check_options
def confidence(model: Model, data: Any, **options: Unpack[RunOptions]) -> Result:
    """Return the mean over examples of the largest probability, max_k p_k(x). Larger is better.

    The average confidence of Hendrycks and Gimpel (2017). For a calibrated model it is the accuracy; most models are
    overconfident.

    Args:
        model: Any callable that returns logits: examples × classes, or one number per example, the logit of class 1 of
            two classes.
        data: Examples; labels are not needed.

    Raises:
        ValueError: Outputs are NaN or infinite.
        NotApplicable: The outputs are not the logits of one prediction per example.

    Example:
        >>> import torch, effdeg
        >>> logits = torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log()
        >>> round(effdeg.proxies.confidence(torch.nn.Identity(), logits).value, 4)
        0.75
    """
    with Evaluator.open(model, data, **options) as evaluator:
        values = _log_probabilities(evaluator).amax(1).exp()
    return Result("confidence", *mean_and_stderr(values), {"examples": len(values)})


@check_options
def entropy(model: Model, data: Any, **options: Unpack[RunOptions]) -> Result:
    """Return the mean over examples of the entropy -Σ_k p_k(x) ln p_k(x) of the probabilities. Smaller is better.

    It is in nats. Arguments and errors are those of :func:`confidence`.

    Example:
        >>> import torch, effdeg
        >>> round(effdeg.proxies.entropy(torch.nn.Identity(), torch.zeros(3, 4)).value, 4)  # ln 4
        1.3863
    """
    with Evaluator.open(model, data, **options) as evaluator:
        values = _find_entropies(_log_probabilities(evaluator))
    return Result("entropy", *mean_and_stderr(values), {"examples": len(values)})


@check_options
def nuclear_norm(model: Model, data: Any, **options: Unpack[RunOptions]) -> Result:
    """Return the nuclear norm |P|_* / √(min(n, k) n) of the n × k matrix P of probabilities. Larger is better.

    The sum of the singular values is large if predictions are confident and all classes are predicted: Deng et al.
    (2023) predict accuracy under shift from it. It reaches its maximum of 1 if predictions are certain and equally many
    for every class, so it is smaller where the true classes are not balanced, however good the model is. Models are
    comparable on the same number of examples. Arguments and errors are those of :func:`confidence`.

    Example:
        >>> import torch, effdeg
        >>> model = torch.nn.Identity()
        >>> round(effdeg.proxies.nuclear_norm(model, 50 * torch.eye(4)).value, 4)  # certain, and all classes
        1.0
        >>> round(effdeg.proxies.nuclear_norm(model, 50 * torch.eye(4)[[0, 0, 0, 0]]).value, 4)  # one class only
        0.5
    """
    with Evaluator.open(model, data, **options) as evaluator:
        probabilities = _log_probabilities(evaluator).exp()
    return Result("nuclear_norm", *score_nuclear_norm(probabilities), {"examples": len(probabilities)})


@check_options
def mano(model: Model, data: Any, **options: Unpack[RunOptions]) -> Result:
    """Return MaNo, the norm (Σ_ik σ_ik⁴ / (n k))^¼ of the n × k matrix σ of normalized logits. Larger is better.

    Xie et al. (2024) predict accuracy under shift from it. Where predictions are certain, so that the mean of
    -ln softmax(q)_k over examples and classes is above 5, σ = softmax(q). Elsewhere softmax trusts the logits too much,
    and the exponential is replaced by its Taylor polynomial v = 1 + q + q²/2, of which the smallest over classes is
    subtracted: σ_k = (v_k - min_j v_j) / Σ_l (v_l - min_j v_j). Then σ changes if all logits of an example rise alike,
    although the probabilities do not. ``settings`` has the normalization, ``"taylor"`` or
    ``"softmax"``. Arguments and errors are those of :func:`confidence`; two classes are too few, since all predictions
    become certain when the smaller value is subtracted, and so are log-probabilities where the polynomial is used.

    Example:
        >>> import torch, effdeg
        >>> logits = torch.tensor([[2.0, 0.0, -1.0]])  # 1 + q + q²/2 is 5, 1 and 0.5
        >>> round(effdeg.proxies.mano(torch.nn.Identity(), logits).value, 4)  # σ = (0.9, 0.1, 0)
        0.6839
    """
    with Evaluator.open(model, data, **options) as evaluator:
        logits = _logits(evaluator)
    settings = {"normalization": "softmax" if _is_certain(logits) else "taylor", "examples": len(logits)}
    return Result("mano", *score_mano(logits), settings)


@check_options
def energy(model: Model, data: Any, **options: Unpack[RunOptions]) -> Result:
    """Return the meta-distribution energy -Σ_i ln softmax(E)_i / n of the energies of n examples. Larger is better.

    The energy of an example is E = -ln Σ_k exp q_k of its logits q; the softmax is over examples. Peng et al. (2024)
    predict accuracy under shift from it. It is ln n if all energies are equal, and rises as those of most examples fall
    below the highest: the model is sure of most, compared with the least sure. Like :func:`mano`, it depends on logits,
    not on probabilities alone: of log-probabilities all energies are 0, and it is not applicable. Models are comparable
    on the same number of examples. Arguments and errors are those of :func:`confidence`.

    Example:
        >>> import torch, effdeg
        >>> round(effdeg.proxies.energy(torch.nn.Identity(), torch.zeros(5, 3)).value, 4)  # ln 5
        1.6094
    """
    with Evaluator.open(model, data, **options) as evaluator:
        logits = _logits(evaluator)
    return Result("energy", *score_energy(logits), {"examples": len(logits)})


@check_options
def cot(model: Model, data: Any, **options: Unpack[RunOptions]) -> Result:
    """Predict the error as if classes had equal shares, by optimal transport. Smaller is better.

    Confidence optimal transport (COT) of Lu et al. (2023): the mean of 1 - p_k(x) over examples x if each is assigned
    to a class k, as cheaply as possible, such that all classes have equal shares. 1 - p_k is half the L1 distance from
    the probabilities to the one-hot vector of class k. It is at least 1 - :func:`confidence`, and equal to it if the
    predicted classes have equal shares; where the true ones do not, it is too large.

    It usually takes less than a second for 10,000 examples and 10 classes. Arguments and errors are those of
    :func:`confidence`.

    Example:
        >>> import torch, effdeg
        >>> logits = torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log()  # both are predicted to be of class 0
        >>> model = torch.nn.Identity()
        >>> round(effdeg.proxies.cot(model, logits).value, 4)  # the second is assigned to class 1: (0.1 + 0.6) / 2
        0.35
    """
    with Evaluator.open(model, data, **options) as evaluator:
        probabilities = _log_probabilities(evaluator).exp()
    return Result("cot", *score_cot(probabilities), {"examples": len(probabilities)})


@check_options
def disagreement(model: Model, data: Any, others: Sequence[Model] | None, **options: Unpack[RunOptions]) -> Result:
    """Return the share of examples on which the model and another predict different classes. Smaller is better.

    Between two runs that differ only in their seed, Jiang et al. (2022) found it close to the test error, and equal to
    it on average where the ensemble of such runs is calibrated. With several ``others``, the share is averaged over
    them. It takes one forward pass of every model, with the same options. The standard error is over examples. The
    other arguments are those of :func:`confidence`.

    Raises:
        TypeError: ``others`` is not a list of models.
        ValueError: ``others`` contains the model itself or one with another number of classes, or outputs are NaN or
            infinite.
        NotApplicable: ``others`` is None, or the outputs are not the logits of one prediction per example.

    Example:
        >>> import torch, effdeg
        >>> x = torch.tensor([[1.0, 0.0], [3.0, 2.0], [0.0, 2.0], [5.0, 0.0]])
        >>> effdeg.proxies.disagreement(torch.nn.Identity(), x, [lambda x: x - torch.tensor([2.0, 0.0])]).value
        0.5
    """
    with Evaluator.open(model, data, others=others, **options) as evaluator:
        compared = check_others(evaluator)
        logarithms = _log_probabilities(evaluator)
        differs = logarithms.new_zeros(len(logarithms))
        for number, other in enumerate(compared):
            with evaluator.open_beside(other, (evaluator.inputs, None)) as beside:
                those = _log_probabilities(beside)
            if those.shape != logarithms.shape:
                raise ValueError(
                    f"others[{number}] predicts one of {those.shape[1]} classes and the model one of "
                    f"{logarithms.shape[1]}: models of the same task were expected."
                )
            differs += (those.argmax(1) != logarithms.argmax(1)).double()
    settings = {"examples": len(differs), "others": len(compared)}
    return Result("disagreement", *mean_and_stderr(differs / len(compared)), settings)


@check_options
def inconsistency(model: Model, data: Any, change: Any, *, soft: bool = False, **options: Unpack[RunOptions]) -> Result:
    """Return the share of examples whose predicted class changes if the example is changed. Smaller is better.

    The change should not alter the true class, as a mirror image does not. It takes a second forward pass.

    Args:
        model: Any callable that returns logits, as for :func:`confidence`.
        data: Examples of any kind, also token ids; labels are not needed.
        change: A function of a batch, such as those of :mod:`effdeg.changes`; of several, one is drawn for each example
            with ``seed``. It gets and returns batches in the form of the model's inputs.
        soft: Return the mean of the total variation distance Σ_k |p_k - q_k| / 2 instead, between the probabilities of
            the example and of the changed one.

    Raises:
        TypeError: ``change`` is not a function or a list of functions.
        ValueError: ``change`` returns other shapes or types than it gets, or NaN; or outputs are NaN or infinite.
        NotApplicable: ``change`` is None, or the outputs are not the logits of one prediction per example.

    Example:
        >>> import torch, effdeg
        >>> x = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0], [5.0, 0.0]])
        >>> effdeg.proxies.inconsistency(torch.nn.Identity(), x, lambda x: x - torch.tensor([2.0, 0.0])).value
        0.25
    """
    name = f"inconsistency{'_soft' if soft else ''}"
    with Evaluator.open(model, data, change=change, **options) as evaluator:
        check_change(evaluator)
        logarithms = _log_probabilities(evaluator)
        others = evaluator.once("changed", lambda: _compute_changed_log_probabilities(evaluator))
    distances = (logarithms.exp() - others.exp()).abs().sum(1) / 2
    differs = distances if soft else (logarithms.argmax(1) != others.argmax(1)).double()
    settings = {"change": name_partners(evaluator.given["change"]), "examples": len(differs)}
    return Result(name, *mean_and_stderr(differs), settings)


@check_options
def thresholded_confidence(model: Model, data: Any, labeled: Any, **options: Unpack[RunOptions]) -> Result:
    """Predict the accuracy on unlabeled examples from a threshold that labeled ones give. Larger is better.

    The average thresholded confidence (ATC) of Garg et al. (2022) with the negative entropy as the score s(x), which
    was best in the paper: the threshold t is where as many labeled examples have a score s(x) < t as are
    misclassified; the predicted accuracy is the share of unlabeled examples with s(x) ≥ t. The model is taken as it is;
    the paper also tries one that is first calibrated by a temperature.

    Args:
        model: Any callable that returns logits, as for :func:`confidence`.
        data: The examples to predict the accuracy on; their labels, if any, are not used.
        labeled: Other examples with class ids as labels, as for :func:`evaluate`, which the model was not trained on:
            on training examples it makes no errors, and the threshold means nothing. All of them are used.

    Returns:
        The predicted accuracy. The standard error accounts for the number of examples of both kinds, as if both came
        from one distribution; it does not cover the error caused by a shift. ``settings`` has the threshold and the
        accuracy on the labeled examples.

    Raises:
        ValueError: The labels are missing or not class ids, or outputs are NaN or infinite.
        NotApplicable: ``labeled`` is None, or the outputs are not the logits of one prediction per example.

    Example:
        >>> import torch, effdeg
        >>> labeled = torch.tensor([[5.0, 0.0], [4.0, 0.0], [1.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 0, 1, 0])
        >>> unlabeled = torch.tensor([[1.5, 0.0], [3.0, 0.0]])  # one error in four: the threshold is at the logit 2
        >>> effdeg.proxies.thresholded_confidence(torch.nn.Identity(), unlabeled, labeled).value
        0.5
    """
    with Evaluator.open(model, data, labeled=labeled, **options) as evaluator:
        check_labeled(evaluator)
        with evaluator.open_beside(evaluator.runner.model, evaluator.given["labeled"]) as beside:
            logarithms = _log_probabilities(beside)
            ids = read_class_ids(beside.labels, _LABELED, floats=True)
            check_range(ids, _LABELED, logarithms.shape[1])
            wrong = logarithms.argmax(1) != ids
        fitted, scores = -_find_entropies(logarithms), -_find_entropies(_log_probabilities(evaluator))
    threshold = _find_threshold(fitted, int(wrong.sum()))
    above = (scores >= threshold).double()
    # To first order the prediction moves with the errors among the labeled examples, less those below the threshold.
    differs = wrong.double() - (fitted < threshold).double()
    stderr = math.hypot(mean_and_stderr(above)[1], mean_and_stderr(differs)[1])
    settings = {
        "threshold": threshold,
        "labeled": len(fitted),
        "labeled accuracy": 1 - float(wrong.double().mean()),
        "examples": len(scores),
    }
    return Result("thresholded_confidence", float(above.mean()), stderr, settings)


def check_others(evaluator: Evaluator) -> Sequence[Model]:
    """Return the other models; raise unless there are any to compare the predictions of this one with."""
    others = evaluator.given["others"]
    if others is None:
        raise NotApplicable(
            "this proxy needs others=, a list of models of the same task, such as those of other seeds."
        )
    if not isinstance(others, Sequence) or not all(map(callable, others)):
        raise TypeError(f"others= is {_describe(others)}; a list of models was expected, such as others=[model].")
    if not others:
        raise ValueError("others=[] is empty: at least one other model is needed.")
    if any(other is evaluator.runner.model for other in others):
        raise ValueError("others= contains the model itself, which always agrees with itself: leave it out.")
    return others


def check_change(evaluator: Evaluator) -> None:
    """Raise unless there is a change of examples that can be made, as far as the first of them show."""
    change = evaluator.given["change"]
    if change is None:
        raise NotApplicable("this proxy needs change=, a function of a batch, such as effdeg.changes.mirror.")
    if not read_changes(change):
        raise TypeError(
            f"change= is {_describe(change)}; a function of a batch was expected, such as effdeg.changes.mirror, or a "
            "list of such functions."
        )
    evaluator.check_data()
    _change(evaluator, evaluator.split(BLOCK)[0])


def check_labeled(evaluator: Evaluator) -> None:
    """Raise unless there are labeled examples to fit a threshold on."""
    if evaluator.given["labeled"] is None:
        raise NotApplicable("this proxy needs labeled=, examples with labels that the model was not trained on.")
    _, labels = evaluator.given["labeled"]
    if labels is None:
        raise ValueError("the examples of labeled= have no labels: give (inputs, labels), a Dataset or a DataLoader.")
    check_range(read_class_ids(labels, _LABELED, floats=True), _LABELED)


def predict_classes(evaluator: Evaluator) -> Tensor:
    """Return the class that the model predicts for each example."""
    return _log_probabilities(evaluator).argmax(1)


# These four are no means over examples. Their standard errors are those of the mean of what each example contributes:
# of how fast the score changes with its weight (the infinitesimal jackknife; Efron 1982, chapter 6).


def score_nuclear_norm(probabilities: Tensor) -> tuple[float, float]:
    """Return :func:`nuclear_norm` from probabilities, examples × classes, and its standard error."""
    examples, classes = probabilities.shape
    left, singular, _ = torch.linalg.svd(probabilities.double(), full_matrices=False)
    unit = math.sqrt(min(examples, classes) * examples)
    contributed = examples * left.square() @ singular / unit / 2
    return float(singular.sum()) / unit, mean_and_stderr(contributed)[1]


def score_mano(logits: Tensor) -> tuple[float, float]:
    """Return :func:`mano` from logits, examples × classes, and its standard error."""
    if logits.shape[1] < 3:
        raise NotApplicable(
            "MaNo subtracts the smallest value over classes, which makes every prediction of one of two classes "
            "certain: this proxy needs at least three classes."
        )
    logits = logits.double()
    if _is_certain(logits):
        normalized = logits.softmax(1)
    else:
        _check_no_log_probabilities(logits)
        powers = 1 + logits + logits.square() / 2
        if not bool(powers.isfinite().all()):
            raise NotApplicable(
                "the squares of the logits are too large for float64: subtract what they have in common."
            )
        powers = powers - powers.amin(1, keepdim=True)
        # Zeros where all logits of an example are equal, as in the authors' code.
        normalized = torch.nn.functional.normalize(powers, p=1, dim=1)
    mean, stderr = mean_and_stderr(normalized.pow(4).mean(1))
    return mean**0.25, stderr / (4 * mean**0.75) if mean > 0 else 0.0


def score_energy(logits: Tensor) -> tuple[float, float]:
    """Return :func:`energy` from logits, examples × classes, and its standard error."""
    _check_no_log_probabilities(logits)
    energies = -logits.double().logsumexp(1)
    contributed = len(energies) * energies.softmax(0) - energies
    return float(-energies.log_softmax(0).mean()), mean_and_stderr(contributed)[1]


def score_cot(probabilities: Tensor) -> tuple[float, float]:
    """Return :func:`cot` from probabilities, examples × classes, and its standard error."""
    cost, prices = transport(1 - probabilities.double().cpu().numpy())
    return cost, mean_and_stderr(torch.from_numpy(prices))[1]


def _check_no_log_probabilities(logits: Tensor) -> None:
    # The first of two logits that stand for a single output is zero.
    if bool(logits[:, 0].any()) and are_distributions(logits.double().exp()):
        raise NotApplicable(
            "the outputs are log-probabilities, as of log_softmax, from which the size of the logits cannot be known: "
            "this proxy needs the logits."
        )


def _is_certain(logits: Tensor) -> bool:
    """Return whether predictions are so far from uniform that MaNo trusts softmax."""
    return float(-logits.double().log_softmax(1).mean()) > 5


def _log_probabilities(evaluator: Evaluator) -> Tensor:
    return evaluator.once("log probabilities", lambda: _logits(evaluator).log_softmax(1))


def _logits(evaluator: Evaluator) -> Tensor:
    outputs, labels = evaluator.outputs().double(), evaluator.labels
    if outputs[0].numel() == 1 and isinstance(labels, Tensor) and not bool(((labels == 0) | (labels == 1)).all()):
        # The only sign of a regression: its outputs look like logits.
        raise NotApplicable(
            "a single output is taken for the logit of one of two classes, but the labels are not 0 and 1: this proxy "
            "is for classifiers."
        )
    try:
        return as_class_logits(outputs)
    except ValueError as error:
        raise NotApplicable(f"this proxy is for the logits of classifiers: {error}") from error


def _compute_changed_log_probabilities(evaluator: Evaluator) -> Tensor:
    changed = concatenate([_change(evaluator, block) for block in evaluator.split(BLOCK)])
    with evaluator.open_beside(evaluator.runner.model, (changed, None)) as beside:
        return _log_probabilities(beside)


def _change(evaluator: Evaluator, block: slice) -> Tree:
    """Return the changed copies of a block of examples, which do not depend on the batch size."""
    examples, count = take(evaluator.inputs, block), block.stop - block.start
    changes = read_changes(evaluator.given["change"])
    return change_examples(changes, examples, count, seed=evaluator.seed, block=block.start, option="change")


def _find_entropies(logarithms: Tensor) -> Tensor:
    # A probability of zero may have the logarithm -inf.
    return -(logarithms.exp() * logarithms.clamp(min=-1e300)).sum(1)


def _find_threshold(scores: Tensor, errors: int) -> float:
    """Return the threshold below which there are as many scores as errors, or nearly as many where scores are equal."""
    ordered = scores.sort().values
    thresholds = torch.cat([torch.unique_consecutive(ordered), ordered.new_tensor([math.inf])])
    below = torch.searchsorted(ordered, thresholds)
    return float(thresholds[(below - errors).abs().argmin()])


def _describe(given: object) -> str:
    if isinstance(given, Tensor):
        return f"{given.dtype} of shape {tuple(given.shape)}"
    return f"a {type(given).__name__}"
