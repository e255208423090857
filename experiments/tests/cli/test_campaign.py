import os
import signal
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import toys
from toys import NAME, Toy, finish, make_job, signal_when_held

from effdeg_lab.cli._running import REQUEUE

LINES = f"""
# the walks
{NAME} --method plain --seeds 0-1 --no-tune

{NAME} --method plain --seeds 2 --no-tune --set epochs=6   # a longer one
"""


@pytest.fixture
def start(run, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(toys.__file__).parent), prepend=os.pathsep)

    def start(lines, *options):
        Path("list.txt").write_text(lines)
        return run("campaign", "list.txt", "--device", "cpu", *options)

    return start


def read_counts(out):
    """Return all, the finished, the failed and the remaining runs of each sweep."""
    rows = [line.split()[-4:] for line in out.splitlines() if "--seeds" in line and "of" not in line.split()[:2]]
    return [tuple(map(int, row)) for row in rows]


def test_a_campaign_ends_where_all_is_finished_and_does_nothing_then(start, monkeypatch, folder):
    def carry_out(command, **_):  # in place of the process of a sweep
        if "broken" in command:
            make_job(folder, Toy(regularizer="broken"), "broken").fail("beyond repair")
        else:
            finish(folder, Toy(seed=2, epochs=6))
        return MagicMock()

    monkeypatch.setattr("subprocess.Popen", carry_out)
    broken, longer = f"{NAME} --method broken --seeds 0 --no-tune\n", LINES.splitlines()[-1]
    code, out, _ = start(broken + longer)  # failed runs do not stop it
    assert (code, read_counts(out)) == (1, [(1, 0, 1, 1), (1, 1, 0, 0)])
    monkeypatch.setattr("subprocess.Popen", lambda *_: pytest.fail("nothing is left to run"))
    assert start(longer)[0] == 0


def test_it_stops_when_told_to_and_says_what_is_left(start, tmp_path, folder):
    with signal_when_held(tmp_path, signal.SIGTERM):
        code, out, _ = start(LINES.replace("--seeds 0-1", "--seeds 0-1 --set epochs=5"))
    assert (code, read_counts(out)) == (REQUEUE, [(2, 0, 0, 2), (1, 0, 0, 1)])
    assert folder.find(Toy(seed=0, epochs=5)).stopped


def test_a_budget_that_is_spent_ends_it(start):
    code, out, _ = start(LINES, "--seconds", "0")
    assert (code, read_counts(out)) == (REQUEUE, [(2, 0, 0, 2), (1, 0, 0, 1)])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("# nothing", "list.txt names no sweep"),
        (f"{NAME} --metod plain", "--metod"),
        (f"{NAME} --method plin", "'plin' is not a method"),
        (f"{NAME}\n{NAME} --runs here", "--runs belongs to the campaign"),
        (f"{NAME}\n{NAME} --set 'lr=1", "No closing quotation"),
    ],
)
def test_every_line_is_checked_before_anything_starts(start, folder, lines, message):
    code, _, err = start(lines)
    assert (code, message in err) == (2, True)
    assert "#" in lines or f"This is line {len(lines.splitlines())} of list.txt" in err
    assert not folder.folder.exists()
