from toy_results import METHODS, make_run

from effdeg_lab.core.results import collect
from effdeg_lab.show.report import list_tables

LOSSES = {"plain": (0.60, 0.62, 0.61), "mixup": (0.50, 0.53, 0.515), "ed": (0.40, 0.43, 0.419)}
# Mixup and ED are as far from each other as their seeds are.
BRIERS = {"plain": (0.30, 0.31, 0.32), "mixup": (0.20, 0.22, 0.21), "ed": (0.21, 0.19, 0.20)}


def make_runs(recipe=METHODS, corrupted=None, names=("plain", "mixup", "ed"), **changes):
    runs = []
    for name in names:
        for seed, (loss, brier) in enumerate(zip(LOSSES[name], BRIERS[name], strict=True)):
            summary = {
                "test_loss": loss,
                "test_loss_scaled": loss - 0.1,
                "test_brier": brier,
                "test_brier_scaled": brier / 2,
                "test_calibration_error": loss / 10,
                "test_calibration_error_scaled": brier / 10,
                "test_aurc": brier / 10,
                **((corrupted or {}).get(name) or {}),
            }
            runs.append(make_run(recipe, name, 0.8, seed=seed, summary=summary, **changes))
    return runs


def describe_corrupted(accuracy, severity=3, images=30_000):
    kinds = {"corrupted": {"fog": accuracy, "snow": accuracy}, "corrupted_accuracy": accuracy}
    return {**kinds, "corrupted_severity": severity, "corrupted_images": images}


def find_scores(runs, recipe=METHODS):
    (results,) = collect(recipe, runs)
    return [table for table in list_tables(results) if table.title.startswith("Probabilities")]


def test_scores_are_means_over_seeds_with_the_best_in_bold():
    corrupted = {"plain": describe_corrupted(0.7), "ed": describe_corrupted(0.6)}
    (table,) = find_scores(make_runs(corrupted=corrupted))
    assert table.title == "Probabilities and shifts, test examples: 20 epochs, seeds 0, 1, 2, Thinking Machine"
    heads = ("", "NLL", "NLL, scaled", "Brier", "ECE, %", "ECE, scaled, %", "AURC × 1000", "corrupted, %")
    assert table.columns == heads
    assert table.rows[1][1:4] == ("0.515 ± 0.015†", "0.415 ± 0.015†", "0.2100 ± 0.0100")
    assert table.rows[2] == (
        *("ED", "0.416 ± 0.015*", "0.316 ± 0.015*", "0.2000 ± 0.0100", "4.16 ± 0.15*"),
        *("2.00 ± 0.10", "20.00 ± 1.00", "60.00 ± 0.00"),
    )
    assert table.rows[1][-1] == "–"
    assert table.bold == {*((2, column) for column in range(1, 7)), (0, 7)}
    assert table.notes[-1].startswith("Corrupted: mean accuracy on 2 corruptions of severity 3, 30,000 images.")


def test_further_images_of_the_same_classes_have_a_column():
    further = {name: {"shifted": {"val5": 0.5}} for name in ("plain", "ed")}
    (table,) = find_scores(make_runs(corrupted=further))
    assert table.columns[-1] == "val5, %"
    assert [row[-1] for row in table.rows] == ["50.00 ± 0.00", "–", "50.00 ± 0.00"]
    assert table.notes[-1].startswith("val5: accuracy on images of ImageNet's validation set")


def test_earlier_runs_have_no_scores_and_no_table():
    old = [make_run(METHODS, "plain", 0.8, seed=seed, summary={"test_loss": 0.5}) for seed in (0, 1, 2)]
    assert find_scores(old) == []
    (table,) = find_scores(old + make_runs(names=("ed",)))
    assert table.rows[0] == ("Baseline", "0.500 ± 0.000†", *["–"] * 5)
    assert table.bold == {(1, 1)}  # there is nothing to compare the other scores with


def test_scores_at_equal_time_are_those_of_the_longer_runs():
    runs = make_runs(names=("plain", "mixup"), epochs=10) + make_runs(names=("ed",), epochs=10, step=2.0)
    runs += [
        make_run(METHODS, "plain", 0.9, seed=seed, epochs=20, summary={"test_brier": 0.1, "test_loss": 0.2})
        for seed in (0, 1, 2)
    ]
    shorter = next(each for each in collect(METHODS, runs) if each.epochs == 10)
    *_, equal_epochs, equal_time = list_tables(shorter)
    assert [row[0] for row in equal_epochs.rows] == ["Baseline", "Mixup", "ED"]
    assert equal_time.title == "Probabilities and shifts at equal time: 20 s, that of ED"
    cells = [(row[0], row[3]) for row in equal_time.rows]
    assert cells == [("Baseline", "0.1000 ± 0.0000*"), ("ED", "0.2000 ± 0.0100†")]
