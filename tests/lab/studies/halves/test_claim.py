import pytest

from tests.lab.studies.halves.stores import RECIPE, add, add_seeds, block_of


def found(folder):
    return RECIPE.shows.finding(block_of(folder))


def test_the_claim_holds_where_all_runs_rely_on_mnist(tmp_path):
    add_seeds(tmp_path, "plain", 0.9985, 0.4950, 0.9980)
    assert found(tmp_path).verdict == "not decided"  # a line of the paper's is missing
    add_seeds(tmp_path, "ed", 0.9990, 0.4960, 0.9985)
    holds = found(tmp_path)
    assert holds.verdict == "holds"
    assert holds.sentences[0] == (
        "Baseline relies on MNIST almost entirely: 49.50% with MNIST randomized (paper: 48.05), 99.80% with CIFAR "
        "randomized (paper: 99.85), 99.85% with neither."
    )
    assert "Not run: CutMix" in str(holds)
    assert "All of it at 30 epochs, 3 seeds." in str(holds)


def test_one_seed_decides_nothing(tmp_path):
    for row in ("plain", "ed"):
        add(tmp_path, row, 0.9985, 0.4950, 0.9980)
    assert found(tmp_path).verdict == "not decided"


@pytest.mark.parametrize(
    ("reached", "verdict"),
    [
        ((0.999, 0.549, 0.990), "holds"),
        ((0.999, 0.560, 0.998), "does not hold"),  # right in more cases than chance
        ((0.999, 0.495, 0.985), "does not hold"),  # loses without CIFAR
        ((0.900, 0.495, 0.900), "not decided"),  # has not learned
        ((0.500, 0.500, 0.500), "not decided"),
    ],
)
def test_every_part_of_the_rule_can_decide_the_claim(tmp_path, reached, verdict):
    add_seeds(tmp_path, "plain", 0.9985, 0.4950, 0.9980)
    add_seeds(tmp_path, "ed", *reached, spread=0.0005)
    assert found(tmp_path).verdict == verdict


def test_seeds_that_disagree_decide_nothing(tmp_path):
    add_seeds(tmp_path, "plain", 0.9985, 0.4950, 0.9980)
    for seed, simple in enumerate((0.50, 0.51, 0.60)):
        add(tmp_path, "ed", 0.999, simple, 0.998, seed=seed)
    assert found(tmp_path).verdict == "not decided"
    assert "ED relies on MNIST almost entirely with 2 of 3 seeds" in str(found(tmp_path))


def test_an_idea_must_be_above_the_first_line_beyond_the_noise_and_above_chance(tmp_path):
    add_seeds(tmp_path, "plain", 0.9985, 0.4950, 0.9980)
    add_seeds(tmp_path, "simple-half", 0.8000, 0.7900, 0.5100)
    add_seeds(tmp_path, "balanced", 0.9990, 0.5300, 0.9900)  # beyond the noise, but no more than chance
    add_seeds(tmp_path, "cuts", 0.9900, 0.6500, 0.9900, spread=0.4)  # high, but who knows
    told = str(found(tmp_path))
    assert (
        "With MNIST randomized, “ED, simple half” (79.00%, +29.50 points, for 19.85 points of test accuracy) is "
        "above Baseline, beyond the noise."
    ) in told
    assert "not beyond the noise of the seeds, or with one seed: “ED, cuts” (65.00%)." in told
    assert "Within 5 points of chance with MNIST randomized: “ED, balanced” (53.00%)." in told


def test_with_one_seed_no_idea_is_told_from_chance(tmp_path):
    add(tmp_path, "plain", 0.9985, 0.4950, 0.9980)
    add(tmp_path, "swapped", 0.9985, 0.8950, 0.5000)
    told = str(found(tmp_path))
    assert "or with one seed: Simple half swapped (89.50%)." in told
    assert "beyond the noise." not in told


def test_what_costs_nothing_is_said_to(tmp_path):
    add_seeds(tmp_path, "plain", 0.9985, 0.4950, 0.9980)
    add_seeds(tmp_path, "swapped", 0.9990, 0.8950, 0.5000)
    assert "(89.50%, +40.00 points, for no test accuracy) is above Baseline" in str(found(tmp_path))
