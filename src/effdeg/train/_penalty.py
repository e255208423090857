"""The regularizer: the effective degree of a model along paths between the examples of a batch, as a loss term."""

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from effdeg._adapters.arguments import name_arguments
from effdeg._adapters.checked import CheckedModels
from effdeg._adapters.examples import as_arguments, count_examples, is_plain_tuple
from effdeg._adapters.inference import check_has_values
from effdeg._adapters.labels import check_fitted_by_ids, check_soft_labels
from effdeg._adapters.layers import Layer, as_module, find_embeddings
from effdeg._adapters.outputs import Output, pick_tensor, shaped_values
from effdeg._adapters.partners import Change, name_partners
from effdeg._adapters.paths import Sampling
from effdeg._adapters.spaces import default_layer
from effdeg._utils.device import is_readable, is_traced
from effdeg._utils.shapes import Float, Int
from effdeg._utils.tree import Tree, tensors
from effdeg.functional import effective_degree, fit, project
from effdeg.functional._bases import Weights
from effdeg.functional._projection import drop_noise, share_of_components
from effdeg.train._anchors import OWN, check_labels, check_teacher, find_ends, run_teacher
from effdeg.train._batch import TrainingBatch, check_no_loss
from effdeg.train._collapse import CollapseWatch
from effdeg.train._joined import run_joined
from effdeg.train._language import Sequences, as_language_model
from effdeg.train._points import Points, draw_points
from effdeg.train._settings import TRAINING_DAMPING, Anchor, BatchNorm, PenaltySettings


class Penalty(nn.Module):
    """The effective degree of a model on a batch, as a term of the loss: it trains the model to be simpler.

    Pairs of the batch's examples are joined by paths x(α) = α x₁ + (1 − α) x₂. The model runs at a few nodes α of each
    path, in one forward pass with the batch itself, and a polynomial Σₖ cₖ Tₖ(2α − 1) of degree K is fitted to each of
    its outputs along the path. The penalty is the mean of Σₖ k |cₖ| over paths and outputs. It needs only first
    derivatives and has no state.

    The paper's settings; the weight is the one thing to tune:

    ===================  ======  =====  ============  ==========  =======  ===============================
    task                 degree  nodes  pairs         components  weight   ramp
    ===================  ======  =====  ============  ==========  =======  ===============================
    CIFAR-10, efficient  3       4      128 of 256    none        7        first third of training
    CIFAR-10, precise    7       15     256 of 256    none        2        first third; Chebyshev nodes
    ImageNet             3       4      512 of 1024   3           3        first third
    CLIP fine-tuning     3       4      256 of 512    3           2        none
    GLUE (BERT)          3       4      not given     none        0.3–0.5  none; ``at`` the embeddings
    Procgen (PPO actor)  3       4      2048 of 4096  3           0.01     first sixth; ``anchor=None``
    ===================  ======  =====  ============  ==========  =======  ===============================

    Labels must be classes, or finite soft labels: from 0 to 1 for ``"sigmoid"``, distributions for ``"softmax"``. On a
    GPU only the first call with a model checks their values, because that waits for the GPU; calls inside
    ``torch.compile`` or the capture of a CUDA graph do not. The first call with a model or a teacher also refuses
    outputs that are already probabilities.

    Args:
        degree: The highest degree of the fitted polynomials (the paper's K).
        nodes: The number of nodes on each path (the paper's r).
        pairs: The number of paths (the paper's n_p): a fraction of the batch (a float; 1.0, the largest, means as many
            paths as examples) or a count (an int, at least 2).
        sampling: ``"cosine"`` (random, stratified), ``"chebyshev"`` or ``"uniform"`` nodes.
        basis: ``"chebyshev"`` or ``"legendre"``.
        anchor: The values at the first and the last node of each path, where the model is then not run. ``"labels"``:
            the labels of its two examples (section 5.2), so the penalty asks for a straight line from label to label.
            ``"self"``: the model's own outputs for these examples, without gradients, or those of a ``teacher``, such
            as an average of this model over time. Cosine and uniform nodes then begin and end at the very ends;
            Chebyshev nodes stay where they are, and work only with labels. None: the model is run at all nodes.
        weights: The weight wₖ of each degree in Σₖ wₖ |cₖ|: ``"degree"`` is k, ``"square"`` is k², and a list or array
            holds a number for each degree from 0 to K. One that begins with 0, 0 penalizes only curvature.
        output: What is fitted: ``"softmax"`` (over the last dimension), ``"sigmoid"``, ``"identity"``, or a function
            of what the model returned. If that is several tensors, ``logits``, or else the first, is used.
        components: Reduce each path's values to this many principal components first; for outputs in the hundreds.
            Where there are fewer, all are used, as by :func:`effdeg.measure`.
        top: The number of tokens whose probabilities are fitted at each position of a causal language model: the labels
            and the most likely ones; all others are one more output. The degree, their mean, falls as ``top`` grows.
        normalized: Use the normalized effective degree, Σₖ wₖ |cₖ| / Σₖ |cₖ|.
        at: Put the paths at the output of this layer (a name or a module) instead of at the inputs. Of token ids it is
            by default the layer that embeds them, as in :func:`effdeg.measure`.
        batchnorm: ``"joint"``: BatchNorm layers see the batch and the points as one batch, so the points count in the
            statistics, including the running ones. ``"frozen"``: they see only the batch, and the points are normalized
            with its statistics; this costs one more pass over the activations of each such layer.
        partners: Changes that should not alter a prediction: a function of a batch, such as
            :func:`effdeg.changes.mirror`, or several, of which one is drawn for each path. Paths then lead from an
            example, α = 1, to its changed copy, and the values at both ends are those of the example, as in consistency
            training.
        damping: The ε in the coefficients c = (TᵀT + εI)⁻¹Tᵀv of values v. The paper gives none; 1e-3 is our choice.
        generator: The source of randomness; by default torch's global one on the batch's device.

    Raises:
        TypeError: If a setting is of the wrong type.
        ValueError: If a setting is out of range, or the nodes are too few for the degree, the components or anchors,
            or settings cannot be combined: ``anchor="self"`` with Chebyshev nodes.

    Example:
        >>> import torch, effdeg
        >>> from torch.nn.functional import cross_entropy
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> penalty = effdeg.Penalty(anchor="labels")
        >>> weight = effdeg.SineRamp(7.0, steps=1000)
        >>> for step in range(3):
        ...     x, y = torch.randn(16, 8), torch.randint(10, (16,))
        ...     logits, degree = penalty(model, x, y)
        ...     loss = cross_entropy(logits, y) + weight(step) * degree
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     optimizer.step()
        >>> logits.shape, degree.shape
        (torch.Size([16, 10]), torch.Size([]))
    """

    def __init__(
        self,
        *,
        degree: int = 3,
        nodes: int = 4,
        pairs: float | int = 0.5,
        sampling: Sampling = "cosine",
        basis: str = "chebyshev",
        anchor: Anchor | None = None,
        weights: Weights = "degree",
        output: Output = "softmax",
        components: int | None = None,
        top: int = 64,
        normalized: bool = False,
        at: Layer | None = None,
        batchnorm: BatchNorm = "joint",
        partners: Change | Sequence[Change] | None = None,
        damping: float = TRAINING_DAMPING,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        # In one plain object, so that a layer given as a module does not become a part of this one.
        self.settings = PenaltySettings(
            degree=degree,
            nodes=nodes,
            pairs=pairs,
            sampling=sampling,
            basis=basis,
            anchor=anchor,
            weights=weights,
            output=output,
            components=components,
            top=top,
            normalized=normalized,
            at=at,
            batchnorm=batchnorm,
            partners=partners,
            damping=damping,
            generator=generator,
        )
        self._checked_models, self._checked_teachers = CheckedModels(), CheckedModels()
        self._collapse = CollapseWatch()

    @classmethod
    def efficient(cls, **changes: Any) -> "Penalty":
        """Return the paper's efficient configuration for CIFAR-10 (its weight there: 7), with changes.

        Example:
            >>> import effdeg
            >>> effdeg.Penalty.efficient(components=3)
            Penalty(degree=3, nodes=4, pairs=0.5, anchor='labels', components=3)
        """
        return cls(**{"degree": 3, "nodes": 4, "pairs": 0.5, "sampling": "cosine", "anchor": "labels", **changes})

    @classmethod
    def cheap(cls, **changes: Any) -> "Penalty":
        """Return a cheaper configuration than the paper's, with one point per path (weight 7), with changes."""
        return cls.efficient(**{"degree": 2, "nodes": 3, **changes})

    @classmethod
    def precise(cls, **changes: Any) -> "Penalty":
        """Return the paper's precise configuration for CIFAR-10 (its weight there: 2), with changes.

        Example:
            >>> import effdeg
            >>> effdeg.Penalty.precise()
            Penalty(degree=7, nodes=15, pairs=1.0, sampling='chebyshev', anchor='labels')
        """
        precise = {"degree": 7, "nodes": 15, "pairs": 1.0, "sampling": "chebyshev", "anchor": "labels"}
        return cls(**{**precise, **changes})

    def forward(
        self,
        model: Callable[..., Any],
        x: Tree,
        y: Tensor | None = None,
        *,
        unlabeled: Tree = None,
        teacher: Callable[..., Any] | None = None,
        **model_kwargs: Any,
    ) -> tuple[Any, Tensor]:
        """Run a model on a batch and the points of its paths, in one forward pass.

        Unlabeled examples join the same pass: the same share of them is paired, only with each other or with their
        changed copies. The ends of these paths are anchored by the teacher, in which case the model runs only on the
        points between them, or else by the model's own outputs, even with ``anchor="labels"``, unless ``anchor=None``.
        Every 50 calls a warning tells if the outputs on unlabeled examples have become constant.

        Args:
            model: Any callable. It is called as usual, ``model(x)``, on a larger batch.
            x: The batch: a tensor, a tuple (passed as arguments) or a mapping (passed as keywords). Points are appended
                to its tensors with one row per example. Integer ``labels`` in a mapping are kept for Hugging Face
                models whose own loss can leave out the points.
            y: Labels for anchoring: class ids or soft labels, one row per example; by default the mapping's ``labels``.
                Of a causal language model, the tokens themselves, −100 where they do not count.
            unlabeled: Any number of further examples, in the form of ``x`` without labels.
            teacher: Another model for the values at the ends that would be the model's own outputs: of all examples
                with ``anchor="self"``, of the unlabeled ones with ``"labels"``. It runs without gradients.
            **model_kwargs: More arguments for the model, treated like ``x``.

        Returns:
            What the model would have returned for the batch, and the effective degree to add to the loss, a scalar.
            Examples must not depend on each other in the model, since the points are rows of the same batch: with
            ``batchnorm="joint"`` BatchNorm layers in training mode count them, and so does any other statistic over
            the batch, such as outputs that are standardized in ``forward``. Compute such statistics from the outputs.

        Raises:
            TypeError: If the model cannot be called, or no straight line joins examples: integers, complex numbers.
            ValueError: If labels, unlabeled examples, the outputs, ``at`` or the teacher do not fit, or if the model
                computes a loss of its own that would count the points.

        Example:
            >>> import torch, effdeg
            >>> from torch.nn.functional import cross_entropy
            >>> from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
            >>> model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10))
            >>> average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> penalty = effdeg.Penalty(anchor="labels", weights=(0, 0, 2, 3))
            >>> for step in range(3):
            ...     x, y, unlabeled = torch.randn(4, 8), torch.randint(10, (4,)), torch.randn(16, 8)
            ...     logits, degree = penalty(model, x, y, unlabeled=unlabeled, teacher=average)
            ...     optimizer.zero_grad()
            ...     (cross_entropy(logits, y) + 7.0 * degree).backward()
            ...     optimizer.step()
            ...     average.update_parameters(model)
            >>> logits.shape
            torch.Size([4, 10])
        """
        if not callable(model):
            raise TypeError(f"the model is a {type(model).__name__}, which cannot be called: penalty(model, x, y).")
        arguments, keywords = as_arguments(x, **model_kwargs)
        return self.joined(model, model, arguments, keywords, y, unlabeled=unlabeled, teacher=teacher)

    def joined(
        self,
        run: Callable[..., Any],
        model: object,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        y: Tensor | None = None,
        *,
        unlabeled: Tree = None,
        teacher: Callable[..., Any] | None = None,
    ) -> tuple[Any, Tensor]:
        """Do what a call does, with ``run`` to run the model."""
        check_has_values(model)
        named = name_arguments(arguments, model)
        batch = TrainingBatch.of_call(named, keywords, y)
        language = as_language_model(batch, model, self.settings)
        anchored = self.settings.anchor == "labels"
        batch.check_model_labels(model, anchored=anchored, is_language=language is not None)
        if language is not None:
            keywords = {**language.options, **keywords}
            batch = TrainingBatch.of_call(named, keywords, y)
        if unlabeled is not None:
            more, keywords_of_more = as_arguments(unlabeled)
            batch = batch.append((name_arguments(more, model), keywords_of_more))
        at = self.settings.at
        if at is None:
            at = default_layer(model, batch.examples) if language is None else find_embeddings(model)
        look = self._check(batch, model, at)
        new = not is_traced() and model not in self._checked_models
        sequences = None if language is None else Sequences.of(batch, look=new)
        if teacher is not None:
            check_teacher(self.settings, batch.unlabeled, teacher)
        # Paths at a layer need its output for the unlabeled examples; others, given a teacher, need only its outputs.
        unlabeled_rows = batch.unlabeled if teacher is None or at is not None else 0
        points = draw_points(batch, self.settings, between=at is None, unlabeled_rows=unlabeled_rows, **look)
        named, keywords = points.append_to((named, keywords))
        batchnorm = self.settings.batchnorm
        returned = run_joined(lambda: run(*named.values(), **keywords), model, points, at=at, batchnorm=batchnorm)
        if not isinstance(batch.model_labels, Tensor):
            check_no_loss(returned)
        # After the model, with which it may share weights: autocast of older torch keeps those it casts without
        # gradients, and would use them for the model.
        ends = OWN if teacher is None else run_teacher(teacher, *batch.take_for_teacher(self.settings.anchor))
        outputs = points.first_rows(returned)
        if sequences is None:
            degree = self._fit(returned, points, points.total, ends=ends, model=model, teacher=teacher)
        else:
            degree = self._fit_sequences(returned, points, sequences, ends=ends, model=model)
        _check_trains(degree, model)
        return outputs, degree

    def points(
        self,
        x: Tree,
        y: Tensor | None = None,
        *,
        unlabeled: Tree = None,
        pairs: Int[Tensor, "pairs 2"] | None = None,
        alpha: Float[Tensor, "pairs nodes"] | None = None,
    ) -> Points:
        """Draw paths between the examples of a batch: the first half of a call, for a forward pass of your own.

        With paths at a layer the model's forward pass does the rest: ``torch.cat([h, points.interpolate(h)])`` where
        ``h`` are the batch's features. With ``partners`` they are those of ``points.append_to(x)``, and
        ``h[: points.examples]`` is what the points are appended to.

        Args:
            x: The batch.
            y: Labels for anchoring: class ids or soft labels.
            unlabeled: More examples, in the form of ``x`` without labels, which are joined by paths of their own.
            pairs: Indices of the examples to join, instead of random ones; α = 1 at the first, 0 at the second.
                Not with unlabeled examples or ``partners``.
            alpha: Nodes on each path, ascending in [0, 1], instead of drawn ones. With uniform sampling, and with
                anchored cosine sampling, they begin with 0 and end with 1.

        Returns:
            The points; append their ``inputs`` to the batch.

        Raises:
            TypeError: If no straight line joins the examples.
            ValueError: If labels, unlabeled examples, pairs or nodes do not match the batch, or with
                ``batchnorm="frozen"``.

        Example:
            >>> import torch, effdeg
            >>> from torch.nn.functional import cross_entropy
            >>> model, x, y = torch.nn.Linear(8, 10), torch.randn(16, 8), torch.randint(10, (16,))
            >>> penalty = effdeg.Penalty(anchor="labels")
            >>> points = penalty.points(x, y)
            >>> outputs = model(points.append_to(x))
            >>> outputs.shape  # 16 examples, and 2 inner nodes on each of 8 paths
            torch.Size([32, 10])
            >>> loss = cross_entropy(points.first_rows(outputs), y) + 7.0 * penalty.degree(outputs, points)
        """
        if pairs is not None and self.settings.partners is not None:
            raise ValueError(
                "pairs were given, but Penalty(partners=…) leads paths to changed copies. Use one of them."
            )
        if self.settings.batchnorm == "frozen":
            raise ValueError("batchnorm='frozen' needs to run the model: call penalty(model, x, y).")
        if is_plain_tuple(x):
            name_arguments(x, None)  # raises if an entry may be a mask, which only its name would tell
        batch = TrainingBatch.of_inputs(x, y)
        if unlabeled is not None:
            if pairs is not None:
                raise ValueError("pairs and unlabeled were both given: the pairs of unlabeled examples are drawn.")
            batch = batch.append(unlabeled)
        look = self._check(batch, self, self.settings.at)
        between, rows = self.settings.at is None, batch.unlabeled
        return draw_points(batch, self.settings, between=between, unlabeled_rows=rows, pairs=pairs, alpha=alpha, **look)

    def draw_pairs(self, x: Tree) -> Int[Tensor, "pairs 2"]:
        """Draw the pairs of examples that a call would join, to build other ends of paths from them.

        Args:
            x: The batch.

        Returns:
            The indices of the two examples of each pair, on the device of the batch.

        Raises:
            ValueError: If the share of pairs rounds to none.

        Example:
            >>> import torch, effdeg
            >>> x = torch.rand(8, 4)
            >>> penalty = effdeg.Penalty(pairs=0.5)
            >>> first, second = penalty.draw_pairs(x).unbind(1)
            >>> ends = torch.cat([x[first], (x[first] + x[second]) / 2])  # paths that stop halfway
            >>> pairs = torch.stack([torch.arange(4), 4 + torch.arange(4)], dim=1)
            >>> penalty.points(ends, pairs=pairs).inputs.shape  # 4 paths of 4 nodes
            torch.Size([16, 4])
        """
        return self.settings.draw_pairs(count_examples(x), tensors(x)[0].device)

    def degree(self, values: Any, points: Points, *, ends: Any = OWN) -> Tensor:
        """Compute the effective degree from what a model returned: the second half of a call.

        Args:
            values: What the model returned for the batch followed by ``points.inputs``, or for ``points.inputs`` alone.
                If there are as many points as examples, outputs for the batch alone would be taken for the latter.
            points: The points.
            ends: What a teacher returned for the examples: for the batch followed by the unlabeled examples, or, with
                anchored labels, for the unlabeled ones alone; by default the model's own outputs for them.

        Returns:
            The mean of Σₖ wₖ |cₖ| over paths and outputs, a scalar that carries gradients.

        Raises:
            TypeError: If there is no tensor of real numbers among the values.
            ValueError: If the values do not have one row per point, or do not match the labels, the ends or
                ``output``.

        Example:
            >>> import torch, effdeg
            >>> penalty = effdeg.Penalty(output="identity", sampling="chebyshev", damping=0.0)
            >>> points = penalty.points(torch.tensor([[0.0], [2.0]]))
            >>> round(penalty.degree(points.inputs, points).item(), 4)  # a straight line from 0 to 2: |c₁| = 1
            1.0
        """
        # The model is not known here: of all that are used in this way, the first is checked.
        rows = points.total, points.total - points.batch
        return self._fit(values, points, *rows, ends=ends, model=self, teacher=self)

    def _fit(self, values: Any, points: Points, *possible: int, ends: Any, model: object, teacher: object) -> Tensor:
        """Return the degree of values with any of the possible numbers of rows."""
        settings = self.settings
        if ends is not OWN:
            check_teacher(settings, points.unlabeled)
        readable = is_readable(points.alpha)
        look = readable and model not in self._checked_models
        rows = shaped_values(values, settings.output, points=possible, look=look)
        if look and points.labels is not None:
            check_fitted_by_ids(rows, points.labels.flatten(0, 1), settings.output)
        pairs, nodes = points.alpha.shape
        along = rows[-len(points) :].reshape(pairs, len(points) // pairs, -1)
        if points.unlabeled:
            # The outputs for these examples or, where a teacher runs on them, those between them.
            between = along[-settings.count_pairs(points.unlabeled) :].flatten(0, 1)
            self._collapse.look(rows[: -len(points)][-points.unlabeled_rows :] if points.unlabeled_rows else between)
        if along.shape[1] < nodes:
            at_labels = points.labels is not None and self._may_look(points.labels, model)
            at_teacher = readable and ends is not OWN and teacher not in self._checked_teachers
            outer = find_ends(rows, points, settings, ends, look_at_labels=at_labels, look_at_teacher=at_teacher)
            if at_teacher:
                self._checked_teachers.add(teacher)
            along = torch.cat([outer[:, 1:], along, outer[:, :1]], dim=1)
        if look:
            self._checked_models.add(model)
        return self._degree(along, points.alpha, look=look)

    def _fit_sequences(
        self, returned: Any, points: Points, sequences: Sequences, *, ends: Any, model: object
    ) -> Tensor:
        """Return the degree of a causal language model: the mean over the positions of all paths that count."""
        look = is_readable(points.alpha) and model not in self._checked_models
        along, alpha = sequences.values(returned, points, self.settings, ends=ends, look=look)
        if look:
            self._checked_models.add(model)
        if points.unlabeled:
            logits = pick_tensor(returned, points.total)
            self._collapse.look(logits[points.batch : points.examples].flatten(1))
        return self._degree(along, alpha, look=False) if len(along) else along.sum()

    def _degree(self, along: Tensor, alpha: Tensor, *, look: bool) -> Tensor:
        settings = self.settings
        components = settings.count_components(along.shape[-1])
        if components is not None:
            along = drop_noise(project(along, components), along)
        coefficients = fit(along, alpha, settings.degree, settings.basis, settings.damping)
        degrees = effective_degree(coefficients, normalized=settings.normalized, weights=settings.weights)
        # Probabilities are never far from zero.
        if look and settings.damping > 0 and settings.output not in ("softmax", "sigmoid"):
            self._warn_of_offset(along.detach(), alpha, float(effective_degree(coefficients.detach()).mean()))
        if components is not None and settings.normalized:
            degrees = degrees / share_of_components(along)
        return degrees.mean()

    def _warn_of_offset(self, values: Tensor, alpha: Tensor, degree: float) -> None:
        """Warn if the damped fit counts how far values are from zero as a noticeable part of their degree."""
        settings = self.settings
        constant = values.mean(1, keepdim=True).expand_as(values)
        coefficients = fit(constant, alpha, settings.degree, settings.basis, settings.damping)
        counted = float(effective_degree(coefficients).mean())
        if counted > 0.05 * degree:
            warnings.warn(
                f"the outputs (about {float(constant.abs().mean()):.2g}) are far from zero for how little they vary, "
                f"which the damped fit counts: about {counted:.2g} of the degree, {degree:.2g}. Subtract their mean in "
                "output=…, or use damping=0.",
                stacklevel=5,
            )

    def extra_repr(self) -> str:
        """Show the settings that matter most and those that are not the defaults."""
        shown = []
        for name, parameter in inspect.signature(Penalty).parameters.items():
            value = getattr(self.settings, name)
            if name in {"degree", "nodes", "pairs", "anchor"} or value != parameter.default:
                plain = value is None or isinstance(value, str | int | float | tuple)
                short = repr(value) if plain else getattr(value, "__name__", type(value).__name__)
                shown.append(f"{name}={name_partners(value) if name == 'partners' else short}")
        return ", ".join(shown)

    def _check(self, batch: TrainingBatch, model: object, at: Layer | None) -> dict[str, Any]:
        """Raise unless lines can join the examples and labels be the values at ends; return what to check of copies."""
        batch.check_examples(model, between=at is None, look=not is_traced() and model not in self._checked_models)
        check_labels(batch, self.settings)
        anchored = self.settings.anchor == "labels"
        if anchored and batch.labels.is_floating_point() and self._may_look(batch.labels, model):
            check_soft_labels(batch.labels, self.settings.output)
        look = self._may_look(tensors(batch.inputs)[0], model)
        return {"look": look, "first": look and model not in self._checked_models}

    def _may_look(self, values: Tensor, model: object) -> bool:
        """Return whether to read values: on a GPU, which has to be waited for, only in the first call with a model."""
        return is_readable(values) and not (values.is_cuda and model in self._checked_models)


def _check_trains(degree: Tensor, model: object) -> None:
    """Raise if there are parameters to train and the degree does not depend on them: the penalty would do nothing."""
    if degree.requires_grad or not torch.is_grad_enabled():
        return
    module = as_module(model)
    if module is not None and any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(
            "the effective degree carries no gradient, so the penalty would have no effect: the outputs that are "
            "fitted were detached. Fit what the loss is computed from, such as the logits, "
            "or use torch.no_grad() if only the value is wanted."
        )
