"""Fine-tuned networks under distribution shifts: the paper's Table 2, and Figure 5 on weights between start and end."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from effdeg_lab.core.recipe import Method, Recipe, Reported, Study
from effdeg_lab.core.results import Difference, MethodRuns, Results
from effdeg_lab.core.runs import Run, RunFolder
from effdeg_lab.engine import Training, check_training, train
from effdeg_lab.engine.interpolation import Point, covers
from effdeg_lab.show.columns import MethodTable, format_points, list_notes, list_values, make_table, tested_on
from effdeg_lab.show.methods import judge_difference
from effdeg_lab.show.tables import NOTHING, Table
from effdeg_lab.show.verdicts import Verdict, Word, judge_all

MEAN = "shifted_accuracy"
SOUPS = "soups.json"
"""The file with the results of ``effdeg-lab soup``, in the folder of a recipe's runs."""
# WiSE-FT recommends this if nothing can be tuned.
_HALFWAY = 0.5
Relation = Literal["above", "below", "crosses", "level"]


@dataclass(frozen=True)
class Shifts(Study):
    """Compares fine-tuned networks on the test set and on shifted images, with weights from the start to the end.

    The claim has three parts: ED is ahead of the first method on the test set; it is ahead on the mean over
    shifts; and its curve, of the accuracies of weights between start and end, lies above that of the first.
    """

    # The paper's accuracies under shifts, by method and by shift, with their mean under "mean".
    paper: Mapping[str, Mapping[str, Reported]] = field(default_factory=dict)
    needs: ClassVar[str | None] = "test_accuracy"

    def claim(self, results: Results) -> Verdict:
        first, ed = results.methods[0], results.find("ed")
        parts = [judge_difference(results, ed, first, above=0.0)]
        if list_shifts(results):
            parts.append(judge_difference(results, ed, first, key=MEAN, unit="mean of shifts, points", above=0.0))
            parts.append(judge_curves(ed, first))
        return judge_all(parts)

    def tables(self, results: Results) -> list[Table]:
        tables = [self._list_accuracies(results)]
        if _get_curved(results):
            tables.append(_list_between(results))
        if len(_get_curved(results)) > 1 and list_shifts(results):
            tables.append(_list_relations(results))
        return tables + _list_soups(results)

    def headline(self, run: Run) -> str:
        found = f"{100 * run.value('test_accuracy'):.2f}%"
        return found if np.isnan(run.value(MEAN)) else f"{found}, {100 * run.value(MEAN):.2f}% under shifts"

    def _list_accuracies(self, results: Results) -> Table:
        table, shifts = MethodTable(results), list_shifts(results)
        keys = {"test": "test_accuracy", **{name: f"shifted.{name}" for name in shifts}}
        keys |= {"mean of shifts": MEAN} if shifts else {}
        for name, key in keys.items():
            table.add_means(f"{name}, %", key, states=True, bold=True)
        table.add_differences(f"test, against {table.first}")
        if shifts:
            table.add_differences(f"shifts, against {table.first}", MEAN)
        table.add("values", map(list_values, results.methods))
        table.add_degrees()
        table.add_prices()
        table.add_seeds()
        for name, row in self.paper.items():
            method = results.recipe.method(name)
            reported = [method.paper, *(row.get(shift) for shift in shifts), *([row["mean"]] if shifts else [])]
            cells = [f"{method.title}, paper", *map(format_points, reported)]
            for cell, column in zip([*cells, *[NOTHING] * len(table.columns)], table.columns.values(), strict=False):
                column.append(cell)
        notes = [*list_notes(results), "Differences have 95% intervals, paired by seed; * excludes zero."]
        if self.paper and len(shifts) < len(next(iter(self.paper.values()))) - 1:
            notes.append("The paper's mean is over all of its shifts, which are not all here.")
        title = f"At the end of training, {tested_on(results)} and shifted images: {results.heading}"
        return table.make(title, notes)


def list_shifts(results: Results) -> list[str]:
    found = [list((run.summary or {}).get("shifted", {})) for each in results.done for run in each.runs]
    return [name for name in (found[0] if found else []) if all(name in each for each in found)]


def read_curves(each: MethodRuns) -> np.ndarray:
    """Return test accuracy and mean accuracy under shifts along α, seeds × α × 2; nan where there are no shifts."""
    entries = [(run.summary or {})["interpolated"] for run in each.runs]
    return np.array([[(at["test_accuracy"], at.get(MEAN, np.nan)) for at in run] for run in entries])


def relate(curve: np.ndarray, other: np.ndarray, margin: float = 0.0) -> Relation:
    """Compare two curves, α × 2 each, by whether one covers the other to within a margin."""
    points: list[list[Point]] = [[(float(x), float(y)) for x, y in each] for each in (curve, other)]
    there, back = covers(*points, margin=margin), covers(*points[::-1], margin=margin)
    if there and back:
        return "level"
    return "above" if there else "below" if back else "crosses"


def judge_curves(one: MethodRuns, other: MethodRuns) -> Verdict:
    """Judge whether the curve of one method lies above that of another.

    It does if its mean curve covers that of the other and is somewhere above it by more than the error. It does not if
    it is somewhere below by more than the error.
    """
    found = _compare_curves(one, other)
    if found is None:
        return Verdict("not decided")
    word: Word = "not decided"
    if found.error is not None and found.mean == "above" == found.beyond_error:
        word = "holds"
    elif found.error is not None and found.beyond_error in {"below", "crosses"}:
        word = "does not hold"
    quantity = (
        f"seeds of {len(found.seeds)} in which the curve of {one.method.title} is above that of {other.method.title}"
    )
    return Verdict(word, quantity, found.seeds.count("above"))


@dataclass(frozen=True)
class _Comparison:
    seeds: list[Relation]  # of the two curves, for each seed
    mean: Relation  # of the mean curves
    error: float | None  # the largest half-width of 95% intervals of paired differences at any α; None for one seed
    beyond_error: Relation | None  # of the mean curves, to within this error


def _compare_curves(one: MethodRuns, other: MethodRuns) -> _Comparison | None:
    """Compare the curves of two methods on the seeds that they share; None if there are none."""
    curves = [
        dict(zip((run.seed for run in each.runs), read_curves(each), strict=True)) if _is_curved(each) else {}
        for each in (one, other)
    ]
    seeds = [seed for seed in curves[0] if seed in curves[1]]
    if not seeds:
        return None
    first, second = (np.stack([each[seed] for seed in seeds]) for each in curves)
    if np.isnan(first).any() or np.isnan(second).any():
        return None
    means, error = (first.mean(0), second.mean(0)), None
    if len(seeds) > 1:
        differences = (first - second).reshape(len(seeds), -1).T
        found = [Difference.of(dict(enumerate(each)), dict.fromkeys(range(len(each)), 0.0)) for each in differences]
        error = max((each.interval[1] - each.value for each in found if each.interval), default=0.0)
    relations = [relate(a, b) for a, b in zip(first, second, strict=True)]
    return _Comparison(relations, relate(*means), error, None if error is None else relate(*means, margin=error))


def _is_curved(each: MethodRuns) -> bool:
    return bool(each.runs) and all("interpolated" in (run.summary or {}) for run in each.runs)


def _get_curved(results: Results) -> list[MethodRuns]:
    return [each for each in results.done if _is_curved(each)]


def _describe_images(results: Results) -> str:
    counts = (_get_curved(results)[0].runs[0].summary or {}).get("interpolated_images", {})
    return f"On some images of each set: {', '.join(f'{name} {count:,}' for name, count in counts.items())}."


def _list_between(results: Results) -> Table:
    table, kinds = MethodTable(results, _get_curved(results)), ("test", *(["shifts"] if list_shifts(results) else []))
    for place, title in ((0, "start"), (5, f"α = {_HALFWAY:g}"), (-1, "end")):
        means = [100 * read_curves(each).mean(0)[place] for each in table.methods]
        for kind, name in enumerate(kinds):
            table.add(f"{title}: {name}, %", (f"{mean[kind]:.2f}" for mean in means))
    notes = ["Means over seeds, of the weights (1 − α) start + α end.", _describe_images(results)]
    return table.make("Between the start and the end of training", notes)


def _list_relations(results: Results) -> Table:
    first, *others = _get_curved(results)
    found = {each.method.title: _compare_curves(each, first) for each in others}
    known = {title: each for title, each in found.items() if each is not None}
    columns: dict[str, list[str]] = {
        "": list(known),
        "mean curves": [each.mean for each in known.values()],
        "beyond the error": [each.beyond_error or NOTHING for each in known.values()],
        "error, points": [NOTHING if each.error is None else f"{100 * each.error:.2f}" for each in known.values()],
        "seeds above": [f"{each.seeds.count('above')} of {len(each.seeds)}" for each in known.values()],
        "seeds below": [f"{each.seeds.count('below')} of {len(each.seeds)}" for each in known.values()],
    }
    notes = [
        "Above: for every point of the other curve there is one that is as good on the test set and under shifts, but "
        "not the other way around. Crosses: neither covers the other. Level: both do.",
        "Error: the largest half-width of a 95% interval of differences at the same α, paired by seed. Beyond it, "
        "smaller differences count as none.",
    ]
    return make_table(f"How curves lie to that of {first.method.title}", columns, notes)


def _list_soups(results: Results) -> list[Table]:
    """Tabulate the soups of the recipe's sweep, if they were made from runs with these settings."""
    folders = (RunFolder(run.file.parent.parent) for each in results.done for run in each.runs)
    file = next((folder.locate(results.recipe.name) / SOUPS for folder in folders), Path())
    found = json.loads(file.read_text()) if file.is_file() else None
    return [tabulate_soups(found)] if found and found.get("changes", {}) == results.changes else []


def tabulate_soups(found: Mapping[str, Any]) -> Table:
    """Tabulate the results of ``effdeg-lab soup``: the best model of each sweep, and its soups."""
    rows = found["rows"]
    shifts = list(rows[0].get("shifted", {})) if rows else []
    columns: dict[str, list[str]] = {
        "": [f"{row['method']}: {row['kind']}" for row in rows],
        "models": [str(row["models"]) for row in rows],
        "held-out, %": [f"{100 * row['held_out_accuracy']:.2f}" for row in rows],
        "test, %": [f"{100 * row['test_accuracy']:.2f}" for row in rows],
        **{f"{name}, %": [f"{100 * row['shifted'][name]:.2f}" for row in rows] for name in shifts},
    }
    if shifts:
        columns["mean of shifts, %"] = [f"{100 * row[MEAN]:.2f}" for row in rows]
    notes = (
        "Models of a sweep that held out training images. The best, and those of the greedy soup, by these images.",
    )
    return make_table("Soups of sweeps", columns, notes)


# From the paper's appendix F.3: half of the batch as pairs, principal components of the probabilities, and no ramp.
ED: dict[str, Any] = {"regularizer": "ed", "weight": 2.0, "nodes": 4, "degree": 3, "pairs": 0.5, "components": 3}
ED |= {"ramp": 0.0}
RATES = {"lr": (1e-4, 3e-5, 3e-4)}  # the first wins a tie
# The columns of the paper's Table 2: the shifts, and their mean. The paper has no numbers for curves.
COLUMNS = ("imagenet-v2", "imagenet-r", "imagenet-a", "imagenet-sketch", "objectnet", "mean")


def make_small_methods() -> tuple[Method, ...]:
    """List the methods for small data; all but the one with a random head start from the same probe."""
    lr = {"lr": 1e-4}
    tuned = {**RATES, "weight": (2.0, 0.5, 8.0)}
    return (
        Method("plain", "Plain (LP-FT)", lr, tune=RATES),
        Method("random-head", "Plain, random head", {**lr, "start_from": "pretrained"}, tune=RATES),
        Method("mixup", "Mixup", {**lr, "regularizer": "mixup", "alpha": 1.0}, tune=RATES),
        Method("ed", "ED", {**lr, **ED}, tune=tuned),
        Method("ed-self", "ED, self anchors", {**lr, **ED, "anchor": "self"}, tune=tuned),
    )


def make_clip_recipe(settings: Training, *, network: str, gains: tuple[float, float], **paper: Any) -> Recipe:
    """Make the recipe of a CLIP encoder from the paper's rows: means and standard deviations in turn."""
    rows = {name: list(map(Reported, row[::2], row[1::2])) for name, row in paper.items()}
    return Recipe(
        name=f"clip-finetune-{settings.model.removeprefix('clip-')}",
        title=f"Fine-tuning CLIP {network} on ImageNet, and five shifts of it",
        paper="Table 2, Figure 5, section 6.2, appendix F.3",
        expects="ED gains {:.2f} points on ImageNet and {:.2f} on the mean of five shifts; its curve lies above that "
        "of plain.".format(*gains),
        cost="not known yet: no run so far",
        settings=settings,
        run=train,
        check_data=check_training,
        study=Shifts(paper={name: dict(zip(COLUMNS, row[1:], strict=True)) for name, row in rows.items()}),
        methods=(
            Method("plain", "Plain", {"regularizer": "plain"}, rows["plain"][0]),
            Method("ed", "ED", ED, rows["ed"][0]),
        ),
        departs=(
            "Where the paper is silent, settings are those of WiSE-FT, which it follows: zero-shot head, features of "
            "norm 1, random resized crops of 0.9 to 1 of the area without flips, AdamW with weight decay 0.1, 500 "
            "steps of warm-up, clipping at 1. The paper calls its learning rate fixed; here it falls along a cosine, "
            "as in WiSE-FT. For a constant rate, set decay=constant and warm_up_steps=0. ImageNetV2 is the "
            "matched-frequency set. ImageNet's own images are resized by bilinear interpolation, those of its shifts "
            "by bicubic. Weights between start and end are tested on 2,000 images of each set."
        ),
    )


CLIP = Training(
    data="imagenet",
    model="clip-b32",
    start_from="pretrained",
    pixels=224,
    epochs=10,
    batch=512,
    lr=3e-5,
    weight_decay=0.1,
    warm_up_steps=500,
    augment="resized-crop",
    crop_scale=0.9,
    evaluate_every=1,
    measure_paths=200,
    measure_nodes=64,
    measure_degree=20,
)


# The paper's protocol for CLIP, with batch, learning rate and epochs for smaller data.
SETTINGS = replace(
    CLIP,
    data="pacs",
    model="deit-tiny",
    start_from="probe",
    epochs=30,
    batch=64,
    lr=1e-4,
    warm_up=0.05,
    warm_up_steps=None,
    compile=False,  # takes longer than training
    evaluate_every=5,
)
# Shared by the recipes on small data.
DEPARTS = (
    "DeiT-Tiny, trained on ImageNet with labels, replaces CLIP, and a logistic regression on its features replaces "
    "CLIP's zero-shot head. All methods start from this probe, so that plain fine-tuning is LP-FT (Kumar et al., "
    "2022), except one that starts from a random head, to show what that costs. ED has the paper's settings for "
    "CLIP: 3 components, λ = 2, 4 nodes, degree 3, half of the batch as pairs, no ramp. Learning rates and ED's λ can "
    "be tuned on held-out training images, never on shifted ones; without tuning, λ is the paper's."
)


PACS = Recipe(
    name="finetune-shifts",
    title="Fine-tuning DeiT-Tiny on photos, tested on paintings, cartoons and sketches (PACS)",
    paper="not in the paper; Table 2 and Figure 5 at small scale",
    expects="As with CLIP: ED is ahead on photos and under shifts, and its curve lies above that of plain fine-tuning.",
    cost="0.2 to 5 min per run on an H200 that several runs shared; not timed alone",
    settings=SETTINGS,
    run=train,
    check_data=check_training,
    study=Shifts(),
    methods=make_small_methods(),
    departs=f"{DEPARTS} Of 1,670 photos, 1,336 are trained on and 334 tested on.",
    seeds=(0, 1, 2, 3, 4),
    tuning={"held_out": 300},
)


RECIPES = (
    # In each row of the paper: ImageNet, then the columns above, each with its standard deviation.
    make_clip_recipe(
        CLIP,
        network="ViT-B/32",
        gains=(0.94, 1.27),
        plain=(76.20, 0.02, 64.21, 0.11, 56.82, 0.31, 20.48, 0.17, 39.08, 0.07, 39.62, 0.10, 44.04, 0.08),
        ed=(77.14, 0.05, 65.37, 0.18, 58.28, 0.09, 22.03, 0.37, 40.46, 0.24, 40.41, 0.17, 45.31, 0.08),
    ),
    make_clip_recipe(
        replace(CLIP, model="clip-b16"),
        network="ViT-B/16",
        gains=(0.84, 1.60),
        plain=(81.35, 0.11, 70.89, 0.13, 65.32, 0.10, 36.63, 0.11, 45.45, 0.32, 50.14, 0.14, 53.69, 0.04),
        ed=(82.19, 0.03, 72.04, 0.27, 66.30, 0.24, 39.81, 0.66, 47.53, 0.17, 50.76, 0.11, 55.29, 0.14),
    ),
    PACS,
    replace(
        PACS,
        name="finetune-shifts-cifar10",
        title="Fine-tuning DeiT-Tiny on CIFAR-10, tested on corruptions and on shapes with other textures",
        expects="As with CLIP: ED is ahead on the test set and under shifts, and its curve lies above that of plain.",
        cost="2 to 7 min per run on an H200 that several runs shared; not timed alone",
        settings=replace(
            SETTINGS,
            data="cifar10",
            pixels=96,
            epochs=10,
            batch=256,
            augment="crop-flip",
            crop_scale=0.08,
            evaluate_every=2,
        ),
        departs=(
            f"{DEPARTS} Images of 32 pixels are enlarged to 96; DeiT was trained on 224. There are two shifts, if the "
            "data folder has them: the test images with 15 corruptions, whose mean counts as one shift, and 525 "
            "images with the shape of one of seven classes and the texture of another, classified among all ten "
            "classes."
        ),
        seeds=(0, 1, 2),
        tuning={"held_out": 5000},
    ),
)
