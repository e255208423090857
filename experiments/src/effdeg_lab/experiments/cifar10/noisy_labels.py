"""Training with wrong labels: which method stays accurate, and which score of a label finds the wrong ones?"""

from effdeg_lab.core.recipe import Method
from effdeg_lab.core.results import Results
from effdeg_lab.core.runs import Run
from effdeg_lab.experiments.cifar10.relatives import ED, SETTINGS, make_recipe
from effdeg_lab.show.columns import MethodTable, format_points, make_table, tested_on
from effdeg_lab.show.methods import Methods, judge_difference
from effdeg_lab.show.tables import Table
from effdeg_lab.show.verdicts import Verdict, judge_all

LAST, BEST = "test_accuracy", "best_test_accuracy"
SCORES = {
    "loss": "loss",
    "margin": "margin",
    "nearby": "probability nearby",
    "degree": "ED",
    "degree_within_label": "ED within a label",
    "degree_of_label": "ED within a label, anchored",
    "mean_loss": "loss, mean over epochs",
    "area_under_margin": "area under the margin",
    "mean_nearby": "probability nearby, mean over epochs",
    "mean_degree": "ED, mean over epochs",
    "mean_degree_within_label": "ED within a label, mean over epochs",
    "mean_degree_of_label": "ED within a label, anchored, mean over epochs",
}
"""The scores of labels, by their names in summaries."""


class NoisyLabels(Methods):
    """Compares methods that are trained with wrong labels, and scores that should find these labels.

    The recipe's grid has the label sets, as ``data``. The claim is that ED is more accurate at the end of training
    than the best of the other methods, on every label set.
    """

    def claim(self, results: Results) -> Verdict:
        by_data, parts = _split(results), list[Verdict]()
        for part in by_data.values():
            ed = part.find("ed")
            others = [each for each in part.done if each is not ed]
            if not ed.runs or not others:
                parts.append(Verdict("not decided"))
                continue
            best = max(others, key=lambda each: float(each.values(LAST).mean()))
            parts.append(judge_difference(part, ed, best, above=0.0))
        missing = {*results.recipe.grid.get("data", ())} - by_data.keys()
        return judge_all([*parts, *([Verdict("not decided")] if missing else [])])

    def tables(self, results: Results) -> list[Table]:
        parts = _split(results).values()
        scored = [part for part in parts if any(each.spread("wrong_labels.loss") for each in part.done)]
        return [*map(_list_accuracies, parts), *map(_list_areas, scored)]

    def headline(self, run: Run) -> str:
        last, best = 100 * run.value(LAST), 100 * run.value(BEST)
        return f"{last:.2f}%" + (f" (best epoch {best:.2f}%)" if best >= 0 else "")


def _split(results: Results) -> dict[str, Results]:
    data = str(results.recipe.settings.to_dict()["data"])
    return {part.point or data: part for part in results.split()}


def _list_accuracies(results: Results) -> Table:
    table = MethodTable(results)
    share = next((each.spread("wrong_share") for each in results.done), None)
    for title, key in (("last", LAST), ("best", BEST)):
        table.add_means(f"{title} epoch, %", key, states=key == LAST, bold=True)
        table.add_differences(f"{title}: against {table.first}", key)
    table.add_means("training, %", "train_accuracy")
    table.add_prices()
    table.add_seeds()
    wrong = f" ({100 * share.mean:.1f}% of the labels wrong)" if share else ""
    notes = [
        f"Accuracies on {tested_on(results)} images, those of training on the given labels; ±: standard deviation over "
        "seeds. Differences have 95% intervals; * excludes zero.",
        f"The best epoch is chosen on the {tested_on(results)} images, as the literature reports it.",
        *results.failures,
    ]
    return table.make(f"Accuracy{wrong}: {results.heading}", notes)


def _list_areas(results: Results) -> Table:
    """Tabulate how well scores find wrong labels, by the method that a network was trained with."""
    columns = {"": list(SCORES.values())}
    for each in results.done:
        columns[each.method.title] = [format_points(each.spread(f"wrong_labels.{score}")) for score in SCORES]
    notes = [
        "AUROC: how likely a wrong label has a higher score than a right one; 50% is chance. Without a mean over "
        "epochs, scores are those of the last epoch. ±: standard deviation over seeds.",
        "ED: of paths from the example to any others; within a label: to others with the same given label; anchored: "
        "with the given label at the example. Probability nearby: that of the label at the first points of these "
        "paths, without degrees.",
    ]
    return make_table(f"Which score finds wrong labels, AUROC, %: {results.heading}", columns, notes)


RECIPES = (
    make_recipe(
        name="cifar10-noisy-labels",
        title="CIFAR-10 with people's labels, up to 40% of them wrong",
        paper="not in the paper",
        expects="In small trials with 36% wrong labels, mixup is most accurate, and ED has the best likelihood.",
        cost="10 s per run on one H200",
        settings=SETTINGS.change({"data": "cifar10n-worst", "evaluate_every": 3, "suspect": 5000}),
        study=NoisyLabels(),
        methods=(
            Method("plain", "Plain", {"regularizer": "plain"}),
            Method("mixup", "Mixup", {"regularizer": "mixup", "alpha": 1.0}),
            Method("cutmix", "CutMix", {"regularizer": "cutmix", "alpha": 1.0}),
            Method("regmixup", "RegMixup", {"regularizer": "regmixup", "alpha": 10.0, "ramp": 0.0, "epochs": 17}),
            Method("ed", "ED", ED),
            Method("ed-self", "ED, self anchors", {**ED, "anchor": "self", "weight": 2.0}),
        ),
        departs=(
            "ResNet-9 in equal time: that of 30 plain epochs. Nothing is tuned, as there are no clean images to tune "
            "on: mixup and CutMix have α = 1, RegMixup 10, and ED the paper's weight of 7, or 2 with self anchors."
        ),
        grid={"data": ("cifar10n-aggregate", "cifar10n-random1", "cifar10n-worst")},
    ),
)
