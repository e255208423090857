"""Which of several networks is the best? What a choice among five gains, by every measure, with labels and without.

Networks were observed on the same examples (``engine/observation.py``), so any choice among any of them can be made
again. The *gain* of a rule is the accuracy of the network that it picks, from 0, that of a random one, to 100, that of
the best. The five that it picks from are drawn at random, and expectations are over all such draws.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import combinations
from math import comb
from typing import Any, ClassVar

import numpy as np

from effdeg.pools import estimate_errors, find_variance
from effdeg.proxies import larger_is_better
from effdeg_lab.core.recipe import Method, Recipe, Study, all_recipes
from effdeg_lab.core.results import Results, collect
from effdeg_lab.core.runs import Run
from effdeg_lab.core.search import Draws
from effdeg_lab.engine import Training, check_training, train
from effdeg_lab.engine.observation import COPIES, decode
from effdeg_lab.experiments.glue import RDROP_WEIGHT, FineTuning, check_texts
from effdeg_lab.experiments.glue import train as train_text
from effdeg_lab.experiments.picking.foreign import Foreign, check_foreign, run_foreign
from effdeg_lab.show.tables import NOTHING, Table
from effdeg_lab.show.verdicts import Verdict, judge, judge_all

Array = np.ndarray[Any, Any]

FITS = 0.97
"""The least training accuracy of a network that fits its training examples."""
PICK = "pick"
"""What :func:`effdeg.pick` does: the mean of inconsistency, and of disagreement among those to pick from."""
AIM = 85.0
"""The least gain of the pick that is aimed for, in every pool of networks that fit."""
LABELS = (10, 50, 200)
"""Numbers of labeled examples that a rival has."""
_CHOICE, _FEWEST = 5, 6  # how many there are to pick from, and how many a pool must have
_SUBSETS, _RESAMPLES, _DRAWS = 5000, 300, 100  # of networks to pick from, of configurations, and of labeled examples
_KINDS = {"resnet9": "ResNet-9", "resnet18": "ResNet-18", "vit": "ViT", "mlp": "MLP"}
_DATA = {"cifar10": "CIFAR-10", "tiny-imagenet": "Tiny-ImageNet", "pacs": "PACS", "mnist": "MNIST", "mrpc": "MRPC"}
_DATA |= {"rte": "RTE", "webnlg": "WebNLG", "foreign": "ImageNet"}
_SETS = {"test": "", "val5": " on ImageNet", "art_painting": " paintings", "cartoon": " cartoons"}
_SETS |= {"sketch": " sketches", "unseen": " unseen categories"}
_NOTES = (
    f"Picking one of {_CHOICE} random networks, or of all but one where there are no more. Gain: 0 is a random one of "
    "them, 100 the best.",
    f"Intervals (95%) are by the bootstrap over configurations. A network fits with {FITS:.0%} on its training images.",
)


@dataclass(frozen=True, eq=False)
class Pool:
    """Networks that were observed on the same examples."""

    name: str  # what they are, and on which examples
    accuracy: Array  # of each network
    predicted: Array  # classes, networks × examples
    changed: Array  # the same for the changed copies
    correct: Array  # whether predictions are
    measures: Mapping[str, Array]  # lower is better
    fits: Array  # whether networks fit their training examples
    columns: Mapping[str, Array]  # the configuration, architecture and network of each

    def __len__(self) -> int:
        return len(self.accuracy)

    def take(self, kept: Array, name: str | None = None) -> "Pool":
        def cut(values: Any) -> Any:
            return {key: each[kept] for key, each in values.items()} if isinstance(values, Mapping) else values[kept]

        parts = {each.name: cut(getattr(self, each.name)) for each in fields(self) if each.name != "name"}
        return replace(self, **parts, name=name or self.name)

    @cached_property
    def inconsistency(self) -> Array:
        """The share of examples whose copy is predicted differently."""
        return np.asarray((self.predicted != self.changed).mean(1))

    @cached_property
    def differences(self) -> Array:
        """The share of examples that two networks predict differently, networks × networks."""
        predicted = self.predicted.astype(np.uint16)
        return np.stack([(predicted != each).mean(1) for each in predicted])

    @cached_property
    def chances(self) -> tuple[Array, Array]:
        """The inconsistency of each network, and the differences of two, if predictions were independent."""
        classes = int(max(self.predicted.max(), self.changed.max())) + 1
        own, of_copies = (
            np.stack([np.bincount(each, minlength=classes) for each in predicted]) / predicted.shape[1]
            for predicted in (self.predicted, self.changed)
        )
        return 1 - (own * of_copies).sum(1), 1 - own @ own.T

    @property
    def scores(self) -> dict[str, Array]:
        """The measures that do not depend on which networks there are to pick from; lower is better."""
        whole = np.arange(len(self))[None]
        disagreement, by_chance = (each[0] for each in _average_others(self, whole))
        own = {"inconsistency": self.inconsistency, "disagreement": disagreement}
        own["pick, whole pool"] = (_divide(self.inconsistency, self.chances[0]) + _divide(disagreement, by_chance)) / 2
        return own | dict(self.measures)

    def split(self) -> list[Array]:
        """Return the members of each network, which differ in training alone."""
        values = self.columns["network"]
        return [np.flatnonzero(values == each) for each in np.unique(values)]


@dataclass(frozen=True)
class Gain:
    """What a rule gains, on average over choices; intervals are None where there are too few networks."""

    accuracy: float
    share: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Gains:
    """What rules gain in a pool, and the accuracies of chance and of the best."""

    pool: Pool
    chance: float
    best: float
    rules: Mapping[str, Gain]


@lru_cache(maxsize=8)
def read_pools(results: Results) -> tuple[Pool, ...]:
    """Read the pools of a recipe: one for each set of examples and kind of network, and one of all kinds."""
    recipe, runs = results.recipe, [run for each in results.methods for run in each.runs]
    sets = dict.fromkeys(name for run in runs for name in (run.summary or {}).get("observed", {}))
    pools = []
    for name in sets:
        known = [run for run in runs if name in (run.summary or {})["observed"]]
        data = recipe.name.removeprefix("picking-").removesuffix("@smoke")
        title = _DATA.get(data, data) + _SETS.get(name, f" {name}")
        whole = _read_pool(title, name, known, type(recipe.settings).complete)
        kinds = sorted({*whole.columns["architecture"]}, key=lambda kind: [*_KINDS, kind].index(kind))
        pools.append(whole)
        for kind in kinds if len(kinds) > 1 else ():
            part = whole.take(whole.columns["architecture"] == kind, f"{title}, {_KINDS.get(kind, kind)}")
            if len(part) >= _FEWEST:
                pools.append(part)
    return tuple(pools)


def read_all_pools(runs: Sequence[Run]) -> tuple[Pool, ...]:
    """Read the pools of all recipes that have some, for one table and one figure of them."""
    recipes = [recipe for recipe in all_recipes().values() if isinstance(recipe.study, Picking)]
    found = [collect(recipe, runs)[0] for recipe in recipes]
    return tuple(pool for results in found if results.done for pool in read_pools(results))


def _read_pool(title: str, name: str, runs: Sequence[Run], complete: Callable[..., dict[str, Any]]) -> Pool:
    summaries = [run.summary or {} for run in runs]
    observed = [summary["observed"][name] for summary in summaries]
    predicted, changed, correct = (np.stack(each) for each in zip(*map(decode, observed), strict=True))
    shared = [measure for measure in observed[0]["measures"] if all(measure in each["measures"] for each in observed)]
    # All test examples count, not only those that were observed.
    own = [each["accuracy"] for each in observed]
    accuracy = own if name != "test" else [summary["test_accuracy"] for summary in summaries]
    columns = [_describe(complete(run.settings)) for run in runs]
    return Pool(
        title,
        np.array(accuracy, float),
        predicted,
        changed,
        correct,
        {measure: orient(measure, [each["measures"][measure]["value"] for each in observed]) for measure in shared},
        np.array([summary.get("train_accuracy", 1.0) >= FITS for summary in summaries]),
        {key: np.array([each[key] for each in columns]) for key in columns[0]},
    )


def _describe(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return what a network is compared by."""
    network = str(settings.get("model", ""))
    kind = network.split("-")[0] if network.startswith((*_KINDS,)) else network
    configuration = json.dumps({key: value for key, value in settings.items() if key != "seed"}, sort_keys=True)
    return {"configuration": configuration, "architecture": kind, "network": network}


def orient(measure: str, values: Iterable[float | None]) -> Array:
    """Return the values of a measure so that lower is better; networks without a value come last."""
    kept = np.array([np.nan if value is None else value for value in values], float)
    try:
        better = larger_is_better(measure.replace(COPIES, ""))
    except ValueError:  # not a proxy
        better = False
    kept = -kept if better else kept
    return np.where(np.isnan(kept), np.inf, kept)


def expect_best_of(scores: Array, accuracy: Array, size: int) -> float:
    """Return the expected accuracy of the network with the lowest score among ``size`` random ones.

    The i-th of m networks in the order of their scores is picked if it is drawn and all others come after it, which
    happens in C(m − i, size − 1) of C(m, size) draws. Equal scores are picked equally often.
    """
    values, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    total = len(scores)
    weights = np.array([comb(total - 1 - place, size - 1) for place in range(total)], float) / comb(total, size)
    ends = np.cumsum(counts)
    shares = np.array([weights[end - count : end].sum() for end, count in zip(ends, counts, strict=True)])
    means = np.bincount(places.reshape(-1), weights=accuracy, minlength=len(values)) / counts
    return float(shares @ means)


def draw_subsets(groups: Sequence[Array], size: int) -> Array:
    """Return networks to pick from, choices × size, from one group each: if they are few, all equally often."""
    if len(groups) == 1 and (count := comb(len(groups[0]), size)) <= _SUBSETS:
        return np.repeat(np.array(list(combinations(groups[0], size))), _SUBSETS // count, axis=0)
    rng, total = np.random.default_rng(0), sum(map(len, groups))
    drawn = []
    for group in groups:
        count = max(1, round(_SUBSETS * len(group) / total))
        drawn.append(group[rng.random((count, len(group))).argpartition(size - 1, axis=1)[:, :size]])
    return np.concatenate(drawn)


def score_subsets(pool: Pool, subsets: Array) -> dict[str, Array]:
    """Return the scores of rules that depend on the networks to pick from, choices × size; lower is better."""
    inconsistency = pool.inconsistency[subsets]
    disagreement, of_chance = _average_others(pool, subsets)
    found = {
        PICK: (_divide(inconsistency, pool.chances[0][subsets]) + _divide(disagreement, of_chance)) / 2,
        "not divided by chance": (inconsistency + disagreement) / 2,
        "disagreement among five": disagreement,
    }
    if "inconsistency_soft" in pool.measures:
        found["soft inconsistency + disagreement"] = pool.measures["inconsistency_soft"][subsets] + disagreement
    wrong, rng = ~pool.correct, np.random.default_rng(1)
    for count in LABELS:
        if count > wrong.shape[1]:
            continue
        errors, variances = np.empty(subsets.shape), np.empty((len(subsets), 1))
        for draw in range(_DRAWS):
            labeled = wrong[:, rng.choice(wrong.shape[1], count, replace=False)][subsets[draw::_DRAWS]].astype(float)
            errors[draw::_DRAWS], variances[draw::_DRAWS, 0] = labeled.mean(2), find_variance(labeled.swapaxes(1, 2))
        found[f"{count} labels"] = errors
        found[f"{count} labels + pick"] = estimate_errors(found[PICK], errors, variances)
    return found


def _average_others(pool: Pool, subsets: Array) -> tuple[Array, Array]:
    """Return each network's disagreement with the others of a choice, choices × size, and what chance would give.

    Networks with the same predictions count as one, and not as others of each other.
    """
    differences, by_chance = (
        pairs[subsets[:, :, None], subsets[:, None, :]] for pairs in (pool.differences, pool.chances[1])
    )
    twins = differences == 0
    weights = ~twins / twins.sum(-1)[:, None, :]
    total = weights.sum(-1)
    disagreement, chance = ((each * weights).sum(-1) / np.maximum(total, 1) for each in (differences, by_chance))
    return disagreement, np.where(total > 0, chance, 1.0)


def _divide(part: Array, chance: Array) -> Array:
    """Return a part of a score as a share of what chance would give; as much as chance if that is nothing."""
    return np.where(chance > 0, part / np.maximum(chance, 1e-12), 1.0)


def measure_gains(pool: Pool, *, one_network: bool = False) -> Gains | None:
    """Return what every rule gains in a pool, or among members of one network; None if there are too few."""
    size = max(2, min(_CHOICE, len(pool) - 1))
    groups = pool.split() if one_network else [np.arange(len(pool))]
    groups = [group for group in groups if len(group) >= max(size, _FEWEST if one_network else 2)]
    if not groups:
        return None
    subsets, accuracy = draw_subsets(groups, size), pool.accuracy
    total = sum(map(len, groups))

    def expect(scores: Array) -> float:
        return sum(len(group) / total * expect_best_of(scores[group], accuracy[group], size) for group in groups)

    fixed = pool.scores
    scores = {name: values[subsets] for name, values in fixed.items()} | score_subsets(pool, subsets)
    inside = accuracy[subsets]
    chosen = np.stack([_pick(each, inside) for each in scores.values()], axis=1)
    chance, best = inside.mean(1), inside.max(1)
    weights = _resample(pool, subsets)
    possible, missed = weights @ (best - chance), weights @ (best[:, None] - chosen)
    exact_chance = sum(len(group) / total * float(accuracy[group].mean()) for group in groups)
    exact_best = expect(-accuracy)
    rules = {}
    for place, name in enumerate(scores):
        # Rules that depend on the choice are averaged over drawn ones, relative to the same choices.
        regret = exact_best - expect(fixed[name]) if name in fixed else float((best - chosen[:, place]).mean())
        whole = exact_best - exact_chance if name in fixed else float((best - chance).mean())
        rules[name] = Gain(
            exact_best - regret,
            100 * (1 - regret / whole) if whole > 0 else 0.0,
            _find_interval(100 * (1 - missed[:, place] / np.where(possible > 0, possible, np.nan))),
        )
    return Gains(pool, exact_chance, exact_best, rules)


def _pick(scores: Array, accuracy: Array) -> Array:
    """Return the accuracy of the network with the lowest score of each choice; the mean where several have it."""
    lowest = scores == scores.min(1, keepdims=True)
    return np.asarray((lowest * accuracy).sum(1) / lowest.sum(1))


def _resample(pool: Pool, subsets: Array) -> Array:
    """Return how often each choice is possible, resamples × choices, if configurations are drawn with replacement."""
    _, numbers = np.unique(pool.columns["configuration"], return_inverse=True)
    count = int(numbers.max()) + 1
    drawn = np.random.default_rng(2).multinomial(count, [1 / count] * count, _RESAMPLES)
    counts = drawn[:, numbers].astype(float)
    return np.asarray(math.prod(counts[:, column] for column in subsets.T))


def _find_interval(values: Array) -> tuple[float, float] | None:
    known = values[np.isfinite(values)]
    if len(known) < _RESAMPLES // 2 or len(np.unique(known)) < 2:
        return None
    low, high = np.percentile(known, [2.5, 97.5])
    return float(low), float(high)


@lru_cache(maxsize=16)  # verdict and tables need the same ones
def list_all_gains(pools: tuple[Pool, ...], *, fitted: bool = True, one_network: bool = False) -> list[Gains]:
    found, seen = [], set[tuple[str, bytes]]()
    for pool in pools:
        part = pool.take(pool.fits) if fitted else pool
        content = pool.name.split(",")[0], part.predicted.tobytes()
        # Only networks of one kind may fit; and a single network would be the whole pool again.
        if content in seen or len(part) < 2 or (one_network and len(part.split()) < 2):
            continue
        seen.add(content)
        found.append(measure_gains(part, one_network=one_network))
    return [each for each in found if each is not None]


def make_overview(pools: tuple[Pool, ...]) -> Table:
    """Tabulate accuracies by chance, of the pick and of the best, and the gains of the pick and of some rivals."""
    alike = {each.pool.name: each for each in list_all_gains(pools, one_network=True)}
    rivals = ("confidence", "effective_degree_normalized@10", "50 labels", "200 labels")
    rows = []
    for each in list_all_gains(pools):
        name, same = each.pool.name, alike.get(each.pool.name)
        rows.append((
            f"{name} ({len(each.pool)})",
            *(f"{100 * value:.1f}" for value in (each.chance, each.rules[PICK].accuracy, each.best)),
            _format_gain(each.rules[PICK]),
            _format_gain(same.rules[PICK]) if same else NOTHING,
            *(f"{each.rules[rival].share:.0f}" if rival in each.rules else NOTHING for rival in rivals),
        ))
    columns = ("networks", "random", PICK, "best", "gain", "gain within one network", "by confidence", "by ED")
    return Table("Picking one of five networks", (*columns, "by 50 labels", "by 200 labels"), tuple(rows), _NOTES)


def _list_rules(title: str, gains: Sequence[Gains]) -> Table:
    found: dict[str, list[Gain | None]] = {}
    for name in dict.fromkeys(name for each in gains for name in each.rules):
        found[name] = [each.rules.get(name) for each in gains]

    def get_mean(name: str) -> float:
        return float(np.mean([gain.share for gain in found[name] if gain]))

    rows = [
        (name, *(_format_gain(gain) if gain else NOTHING for gain in found[name]))
        for name in sorted(found, key=get_mean, reverse=True)
    ]
    columns = tuple(f"{each.pool.name} ({len(each.pool)})" for each in gains)
    return Table(title, ("rule", *columns), tuple(rows))


def _format_gain(gain: Gain) -> str:
    spread = "" if gain.interval is None else f" ({gain.interval[0]:z.0f}…{gain.interval[1]:z.0f})"
    return f"{gain.share:z.0f}{spread}"


@dataclass(frozen=True)
class Picking(Study):
    """Compares rules that pick one of several networks.

    The claim: in every pool of networks that fit, :func:`effdeg.pick` has at least 85% of the possible gain.
    """

    needs_all: ClassVar[bool] = False

    def claim(self, results: Results) -> Verdict:
        return judge_all(
            judge(f"gain of the pick, {each.pool.name}", each.rules[PICK].share, each.rules[PICK].interval, above=AIM)
            for each in list_all_gains(read_pools(results))
        )

    def tables(self, results: Results) -> list[Table]:
        """Return the overview, and the gains by every rule, also among networks that do not all fit."""
        pools = read_pools(results)
        fitted = list_all_gains(pools)
        known = {each.pool.name: len(each.pool) for each in fitted}
        every = list_all_gains(pools, fitted=False)
        every = [each for each in every if len(each.pool) > known.get(each.pool.name, 0)]
        parts = {"networks that fit": fitted, "all networks": every}
        rules = [_list_rules(f"Gain by every rule, {title}", gains) for title, gains in parts.items() if gains]
        return [make_overview(pools), *rules]

    def headline(self, run: Run) -> str:
        return f"{100 * run.value('test_accuracy'):.2f}%"


OBSERVED: dict[str, Any] = {"observe": 2000, "measure_paths": 200, "measure_nodes": 64}
# A run takes seconds: compiling, tuning kernels and looking at it on the way would take longer.
SETTINGS = Training(augment="none", compile=False, evaluate_every=1000, **OBSERVED)

RESNETS = ("resnet9-8", "resnet9-16", "resnet9-32", "resnet9-64")
LARGE_RESNETS = ("resnet18-16", "resnet18-32", "resnet18-64")
VITS = tuple(f"vit-128x{depth}-{patch}" for depth in (2, 4, 6) for patch in (4, 8))
# Ranges in which most networks fit their training images; a vision transformer does not with SGD in so few steps.
_RESNET_RATES = {"sgd": (0.01, 0.5), "adamw": (3e-4, 1e-2)}
_RATES = {"resnet9": _RESNET_RATES, "resnet18": _RESNET_RATES}
_RATES |= {"vit": {"adamw": (3e-4, 3e-3)}, "mlp": {"sgd": (0.01, 0.1), "adamw": (1e-4, 3e-3)}}
_EPOCHS = {"resnet9": (20, 30, 40), "resnet18": (20, 30, 40), "vit": (60, 90, 120), "mlp": (40, 60, 80)}
# One in so many is trained with crops and flips, and one in so many with mixup: MLPs do not fit cropped images.
_ONE_IN = {"resnet9": 2, "resnet18": 2, "vit": 3, "mlp": 4}


def draw(draws: Draws, model: str) -> dict[str, Any]:
    kind = model.split("-")[0]
    optimizer = draws.choice(*_RATES[kind])
    alpha = draws.choice(draws.uniform(0.1, 1.0), *[0.0] * (_ONE_IN[kind] - 1))
    return {
        "regularizer": "mixup" if alpha else "plain",
        "alpha": alpha,
        "model": model,
        "optimizer": optimizer,
        "lr": draws.log_uniform(*_RATES[kind][optimizer]),
        "weight_decay": draws.log_uniform(*((1e-5, 3e-3) if optimizer == "sgd" else (1e-3, 1.0))),
        "batch": draws.choice(64, 128, 256) if kind == "resnet9" else draws.choice(128, 256),
        "epochs": draws.choice(*_EPOCHS[kind]),
        "dropout": draws.choice(0.0, 0.0, 0.1) if kind == "vit" else 0.0,
        "augment": draws.choice("crop-flip", *["none"] * (_ONE_IN[kind] - 1)),
        "smoothing": draws.choice(0.0, 0.1),
    }


def search(
    counts: Mapping[Sequence[str], int], draw: Callable[[Draws, str], dict[str, Any]] = draw
) -> tuple[Mapping[str, Any], ...]:
    """Draw as many points for each list of networks, which take turns; the first points already have all kinds."""
    points = []
    for place, (models, count) in enumerate(counts.items()):
        draws = Draws(place)
        for number in range(count):
            points.append(((number + 0.5) / count, place, draw(draws, models[number % len(models)])))
    return tuple(point for *_, point in sorted(points, key=lambda each: each[:2]))


FOREIGN = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2", "resnet50_keras", "deit-tiny")


def draw_digits(draws: Draws, model: str) -> dict[str, Any]:
    """Draw how a network is trained: in small batches, and never on mirrored digits."""
    return draw(draws, model) | {"batch": draws.choice(16, 32, 64), "augment": "none"}


def draw_finetuning(draws: Draws, model: str) -> dict[str, Any]:
    alpha = draws.zero_or_uniform(0.1, 1.0)
    return {
        "regularizer": "mixup" if alpha else "plain",
        "alpha": alpha,
        "model": model,
        "start_from": draws.choice("probe", "pretrained"),
        "lr": draws.log_uniform(1e-5, 1e-3),
        "weight_decay": draws.log_uniform(1e-4, 0.6),
        "batch": draws.choice(32, 64),
        "epochs": draws.choice(4, 8, 16),
        "augment": draws.choice("none", "resized-crop-flip"),
        "crop_scale": draws.choice(0.3, 0.9),
        "smoothing": draws.choice(0.0, 0.1),
    }


def draw_text(draws: Draws, model: str) -> dict[str, Any]:
    regularizer = draws.choice("plain", "mixup", "rdrop")
    return {
        "regularizer": regularizer,
        "weight": RDROP_WEIGHT if regularizer == "rdrop" else 0.5,
        "model": model,
        "lr": draws.log_uniform(1e-5, 3e-4),
        "weight_decay": draws.choice(0.0, 0.01),
        "warm_up": draws.choice(0.0, 0.1),
        "batch": draws.choice(16, 32),
        "epochs": draws.choice(3, 6, 10),
    }


def make_recipe(name: str, what: str, *, settings: Any, cost: str, departs: str, **options: Any) -> Recipe:
    """Make a recipe, by default of a random search over classifiers of images, with one seed."""
    usual = {"run": train, "check_data": check_training, "methods": (Method("random", "Random search"),), "seeds": (0,)}
    usual["expects"] = "The measure that was chosen on CIFAR-10 picks as well here."
    own = {"settings": settings, "cost": cost, "departs": departs, "study": Picking(), **usual, **options}
    return Recipe(name=f"picking-{name}", title=f"Picking the best of {what}", paper="not in the paper", **own)


_SHARED = "on an H200 that 14 runs share by MPS (estimated)"
_TEXT: dict[str, Any] = {
    "run": train_text,
    "check_data": check_texts,
    "cost": f"about 3 s per run {_SHARED}",
    "departs": "40 fine-tunings of all-MiniLM-L6-v2 with one seed, observed on all dev examples.",
    "search": search({("all-MiniLM-L6-v2",): 40}, draw_text),
}
RECIPES = (
    make_recipe(
        "cifar10",
        "several networks without labels, on CIFAR-10 and with corruptions",
        expects=(
            "In a trial of 206 networks, changed predictions and disagreement found the best of five with 78 to 99% of "
            "the possible gain, for ConvNets and transformers alike."
        ),
        cost=f"about 2 s per run {_SHARED}",
        settings=replace(SETTINGS, data="cifar10", limit=6000),
        departs=(
            "210 networks, with two seeds each, on 6,000 images: 80 ResNet-9s of four widths, 80 small vision "
            "transformers of three depths and two sizes of patches, 30 MLPs, 20 ResNet-18s of three widths. Observed "
            "on 2,000 test images and, if there are any, on 2,000 with corruptions."
        ),
        seeds=(0, 1),
        search=search({RESNETS: 80, VITS: 80, ("mlp",): 30, LARGE_RESNETS: 20}),
    ),
    make_recipe(
        "foreign",
        "five ImageNet classifiers of others without labels",
        expects=(
            "Little: four of the five are within a point of each other on these images; DeiT-Tiny is 4 points below."
        ),
        cost="about 10 s per run on an H200 (estimated); 2 to 10 min on one core of a CPU with 500 images",
        settings=Foreign(),
        run=run_foreign,
        check_data=check_foreign,
        methods=(Method("given", "As published"),),
        departs=(
            "EfficientNet-Lite 0 to 2, Keras's ResNet-50 and DeiT-Tiny; images whose short side has 256 pixels, 5 of "
            "each class."
        ),
        grid={"model": FOREIGN},
    ),
    make_recipe(
        "mnist",
        "several networks without labels, on MNIST",
        cost="15 min on 2 cores",
        settings=replace(SETTINGS, data="mnist", limit=500, measure_paths=50, precision="float32"),
        departs=(
            "16 ResNet-9s of width 8, 24 small vision transformers and 24 MLPs with one seed, on 500 digits, and "
            "otherwise as on CIFAR-10. The change is a shift: a mirrored digit is another one."
        ),
        search=search({("resnet9-8",): 16, ("vit-64x2-7",): 24, ("mlp",): 24}, draw_digits),
    ),
    make_recipe(
        "pacs",
        "several fine-tuned DeiT-Tinys without labels, for paintings, cartoons and sketches",
        cost=f"about 5 s per run {_SHARED}",
        settings=replace(
            SETTINGS, data="pacs", model="deit-tiny", start_from="probe", pixels=128, observe=1000, measure_paths=60
        ),
        departs="48 fine-tunings of DeiT-Tiny with one seed on 1,336 photos at 128 pixels, observed on 1,000 images of "
        "each other domain and on 334 photos.",
        search=search({("deit-tiny",): 48}, draw_finetuning),
    ),
    make_recipe(
        "tiny-imagenet",
        "several networks without labels, on Tiny-ImageNet",
        cost=f"about 3 s per run {_SHARED}",
        settings=replace(SETTINGS, data="tiny-imagenet", limit=10_000, pixels=32),
        departs=(
            "32 ResNet-9s and 16 small vision transformers with one seed, on 10,000 images of 200 classes that are "
            "reduced to 32 pixels, and otherwise as on CIFAR-10."
        ),
        search=search({RESNETS[1:]: 32, VITS: 16}),
    ),
    *(
        make_recipe(
            task,
            f"several fine-tuned text encoders without labels, on {task.upper()}",
            settings=FineTuning(data=task, compile=False, observe=2000),
            **_TEXT,
        )
        for task in ("mrpc", "rte")
    ),
)
