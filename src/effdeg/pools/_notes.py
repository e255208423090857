"""What a reader of a ranking should not overlook, in sentences without periods."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from effdeg._utils.checks import pluralize
from effdeg.pools._ranked import FITS, FITTED, join
from effdeg.pools._rows import FEW_CLUSTERS, MIN_RESAMPLED

if TYPE_CHECKING:
    from effdeg.pools._result import Ranking


def list_warnings(ranking: "Ranking") -> list[str]:
    """Return the notes on a ranking and on its strata, with advice on models, the target and signs of measures."""
    found = [*list_notes(ranking), *_describe_misfits(ranking), *_describe_target(ranking)]
    found += _describe_falling(ranking, ranking.falling)
    for inside in ranking.strata.values():
        undefined = _describe_undefined(inside, known=ranking.pool.undefined)
        falling = _describe_falling(inside, [name for name in inside.falling if name not in ranking.falling])
        found += [f"in {inside.pool.describe_stratum()}, {each}" for each in (*undefined, *falling)]
    return found


def list_notes(ranking: "Ranking") -> list[str]:
    """Return what was left out, guessed, undefined or is rough."""
    pool = ranking.pool
    found = _describe_duplicates(pool.duplicates)
    found += [f"{join(pool.strata_by)} {name} is left out: {reason}" for name, reason in pool.left_out_strata.items()]
    if pool.fit is not None and pool.below_fit:
        models = pluralize(len(pool.below_fit), "model")
        found.append(f"left out: {models} with a {FITTED} below {pool.fit:g}, or without one")
    found += _describe_undefined(ranking)
    for content in dict.fromkeys(pool.left_out.values()):
        names = [name for name, held in pool.left_out.items() if held == content]
        found.append(
            f"not ranked, since {'it holds' if len(names) == 1 else 'they hold'} {content}: {', '.join(names)}"
        )
    if pool.guessed:
        found.append(
            f"ranked because they hold numbers, although effdeg does not compute them: {', '.join(pool.guessed)}. Name "
            "those that describe how a model was trained with hyperparameters=…, or the columns to rank with measures=…"
        )
    return [*found, *_describe_neighbors(ranking), *_describe_few(ranking), *_describe_uncorrected(ranking)]


def _describe_duplicates(groups: Sequence[Sequence[str]]) -> list[str]:
    described = [
        f"{join(names)} are the same model" if len({*names}) > 1 else f"{names[0]} is listed {len(names)} times"
        for names in groups[:3]
    ]
    if len(groups) > 3:
        described = [f"{sum(map(len, groups))} rows are {len(groups)} models", *described, "…"]
    return [f"{'; '.join(described)}: counted once"] if groups else []


def _describe_undefined(ranking: "Ranking", known: Collection[str] = ()) -> list[str]:
    return [f"{name} is {reason}" for name, reason in ranking.pool.undefined.items() if name not in known]


def _describe_misfits(ranking: "Ranking") -> list[str]:
    pool = ranking.pool
    if pool.fit is not None or not 0 < len(pool.below_fit) < len(pool):
        return []
    return [
        f"{len(pool.below_fit)} of {len(pool)} models do not fit ({FITTED} below {FITS:g} or missing), and a "
        f"correlation over both kinds may come from that difference: leave them out with fit={FITS:g}"
    ]


def _describe_target(ranking: "Ranking") -> list[str]:
    target = ranking.pool.target
    if "accuracy" not in target or target.startswith("-"):
        return []
    return [
        f"larger values of {target} count as worse, as those of a gap do: to rank by accuracy, use target='-{target}'"
    ]


def _describe_falling(ranking: "Ranking", names: Sequence[str]) -> list[str]:
    if not names:
        return []
    fall, them = ("falls", "it") if len(names) == 1 else ("fall", "them")
    target = "the gap" if ranking.pool.target == "gap" else ranking.pool.target
    opposite = ", ".join(name[1:] if name in ranking.pool.negated else f"-{name}" for name in names)
    advice = f"if larger is meant to be better, rank {them} as {opposite}"
    return [f"{', '.join(names)} {fall} as {target} rises: {advice}"]


def _describe_neighbors(ranking: "Ranking") -> list[str]:
    """Describe which statistics some hyperparameters leave undefined, as those of a random search do."""
    varying = [name for name in ranking.pool.hyperparameters if name not in ranking.pool.strata_by]
    if not ranking.resampled or not varying:
        return []
    alone, given = ([name for name in varying if name in names] for names in (ranking.unvaried, ranking.unconditioned))
    found = []
    if alone == varying:
        found.append(
            f"no two models differ in {' or '.join(alone)} alone, as in a random search: there are no neighbors, which "
            "Ψ and sign errors compare"
        )
    elif alone:
        found.append(f"no two models differ in {' or '.join(alone)} alone: left out of Ψ and sign errors")
    if given:
        rest = "CMI is not conditional" if given == varying else "left out of CMI"
        found.append(f"given {' or '.join(given)}, no order is left to predict: {rest}")
    return found


def _describe_few(ranking: "Ranking") -> list[str]:
    """Describe where there are few models or configurations to resample."""
    pool, count = ranking.pool, ranking.pool.cluster_count
    rough, narrow = "intervals are rough", "intervals would be too narrow, and are left out"
    found = []
    for least, limit, problem in ((MIN_RESAMPLED, FEW_CLUSTERS, rough), (0, MIN_RESAMPLED, narrow)):
        if few := [name for name, inside in ranking.strata.items() if least <= inside.pool.cluster_count < limit]:
            them = f"{join(pool.strata_by)} {', '.join(few)}"
            found.append(f"fewer than {limit} configurations to resample in {them}: {problem}")
    if not ranking.resampled or ranking.strata:
        return found
    if pool.clustered and count < FEW_CLUSTERS:
        problem = f"few to resample: {rough}" if count >= MIN_RESAMPLED else f"too few to resample: {narrow}"
        found.append(f"{pool.describe_clusters()} are {problem}. Name every hyperparameter in which models differ")
    elif count < MIN_RESAMPLED:
        found.append(f"{count} models are too few to resample: {narrow}, except Pearson's by Fisher's z")
    return found


def _describe_uncorrected(ranking: "Ranking") -> list[str]:
    """Describe why the best of several variants has no corrected value."""
    chosen = [best for each in (ranking, *ranking.strata.values()) for best in each.best.values()]
    if all(best["pearson"].corrected is not None for best in chosen):
        return []
    return [f"the best of several variants is corrected for the choice only with {FEW_CLUSTERS} configurations or more"]
