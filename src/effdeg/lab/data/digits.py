"""The demonstration's digits: 797 to train on, 1,000 to test on."""

from effdeg.demo import _digits as digits
from effdeg.lab.data.labelled import Labelled, shuffled


def load_digits() -> Labelled:
    """Load 64 features per digit, in [0, 1]. The split is always the same."""
    loaded = digits.load_digits(per_class=digits.POOL, seed=0)
    # The training examples come digit by digit.
    return shuffled(
        Labelled(
            train_inputs=loaded.labelled,
            train_labels=loaded.labels,
            test_inputs=loaded.held_out,
            test_labels=loaded.held_out_labels,
            classes=10,
        )
    )
