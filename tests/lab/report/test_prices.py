import pytest

from effdeg.lab.report import finding, result_of
from effdeg.lab.report.prices import best_buy, price_list
from effdeg.lab.report.sheets import block_sheets
from effdeg.lab.store import Store
from tests.lab.report.stores import PRICES, add


@pytest.fixture
def listed(tmp_path):
    """Plain 80%, all of the gain at 1.8 times, most of it at 1.3, and a little at 1.2; two seeds."""
    for row, accuracy, step in (("plain", 0.80, 1), ("ed", 0.84, 1.8), ("half", 0.839, 1.3), ("cheap", 0.81, 1.2)):
        for seed in (0, 1):
            noise = 0.002 * (1 if seed else -1) * (row == "plain")
            add(tmp_path, PRICES, row, accuracy + noise, step=step, seed=seed)

    def block():
        return result_of(PRICES, Store(tmp_path).records()).blocks[0]

    return tmp_path, block


def test_prices_and_shares(listed):
    block = listed[1]()
    found = [(priced.line.row.name, priced.price, priced.share) for priced in price_list(block)]
    assert [name for name, _, _ in found] == ["plain", "cheap", "half", "ed", "absent"]
    assert [price for _, price, _ in found] == [1, 1.2, 1.3, 1.8, None]
    assert [share for _, _, share in found] == [
        None,
        pytest.approx(0.25),
        pytest.approx(0.975),
        pytest.approx(1),
        None,
    ]
    assert best_buy(block).line.row.name == "cheap"
    missed = finding(block)
    assert missed.verdict == "aim missed"
    assert missed.sentences[0].startswith(
        "At 1.25 times the plain step or less, the best is every 4th step (1.20 times)"
    )
    assert "25% of the gain of the full setting; the aim was 95%" in str(missed)
    assert "Not run: never run." in str(missed)


def test_the_aim_is_met(listed):
    folder, block = listed
    add(folder, PRICES, "absent", 0.8385, step=1.25)
    assert best_buy(block()).line.row.name == "absent"
    assert finding(block()).verdict == "aim met"


def test_the_sheet(listed):
    (sheet,) = block_sheets(listed[1]())
    assert [row[:4] for row in sheet.rows] == [
        ("Baseline", "1.00×", "80.00 ± 0.28", "–"),
        ("every 4th step ★", "1.20×", "81.00 ± 0.00", "25%"),
        ("half of it", "1.30×", "83.90 ± 0.00", "98%"),
        ("all of it", "1.80×", "84.00 ± 0.00", "100%"),
        ("never run", "–", "not run", "–"),
    ]
    assert (1, 0) in sheet.strong


def test_there_may_be_no_gain(tmp_path):
    add(tmp_path, PRICES, "plain", 0.80)
    add(tmp_path, PRICES, "cheap", 0.81, step=1.1)
    block = result_of(PRICES, Store(tmp_path).records()).blocks[0]
    assert finding(block).verdict == "not decided"
    assert "not both run" in str(finding(block))
    add(tmp_path, PRICES, "ed", 0.79, step=2)
    block = result_of(PRICES, Store(tmp_path).records()).blocks[0]
    assert finding(block).verdict == "not decided"
    assert "gains nothing" in str(finding(block))
    assert all(priced.share is None for priced in price_list(block))


def test_one_seed_tells_no_shares(tmp_path):
    add(tmp_path, PRICES, "plain", 0.80)
    add(tmp_path, PRICES, "ed", 0.84, step=1.8)
    alone = finding(result_of(PRICES, Store(tmp_path).records()).blocks[0])
    assert "What a cheaper one would keep of it is not known: none was run." in str(alone)
    add(tmp_path, PRICES, "half", 0.839, step=1.3)
    block = result_of(PRICES, Store(tmp_path).records()).blocks[0]
    assert finding(block).verdict == "not decided"
    assert "Cheaper ones that were run, none of them at 1.25 times the plain step or less: half of it (1.30" in str(
        finding(block)
    )
    assert "is not known" not in str(finding(block))
    assert "It takes several seeds" in str(finding(block))
    assert [row[3] for row in block_sheets(block)[0].rows] == ["–"] * 5


def test_prices_on_a_cpu_are_rough(tmp_path):
    for row, step in (("plain", 1), ("ed", 1.8), ("cheap", 1.2)):
        add(tmp_path, PRICES, row, 0.8, step=step, device="CPU (x86, 2 threads)")
    (sheet,) = block_sheets(result_of(PRICES, Store(tmp_path).records()).blocks[0])
    assert not sheet.strong
    assert any(note.startswith("Times on a CPU are rough") for note in sheet.notes)
