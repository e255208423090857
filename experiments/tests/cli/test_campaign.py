"""``effdeg-lab campaign``: sweeps in order, within a budget."""

import os
import signal
import threading
from pathlib import Path

import pytest
import toys
from toys import NAME, Toy, wait_for_hold

from effdeg_lab.cli import main
from effdeg_lab.cli._running import REQUEUE
from effdeg_lab.core.runs import RunFolder

LINES = f"""
# the walks
{NAME} --method plain --seeds 0-1 --no-tune

{NAME} --method plain --seeds 2 --no-tune --set epochs=6   # a longer one
"""


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Start a campaign with these lines; return its exit code, its output and its errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(toys.__file__).parent), prepend=os.pathsep)
    monkeypatch.setenv("COLUMNS", "200")

    def start(lines, *options):
        Path("list.txt").write_text(lines)
        with pytest.raises(SystemExit) as ended:
            main(["campaign", "list.txt", "--device", "cpu", *options])
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return start


def read_counts(out):
    """Return all, the finished, the failed and the remaining runs of each sweep."""
    rows = [line.split()[-4:] for line in out.splitlines() if "--seeds" in line and "of" not in line.split()[:2]]
    return [tuple(map(int, row)) for row in rows]


def test_a_campaign_ends_where_all_is_finished_and_does_nothing_then(run, monkeypatch, tmp_path):
    broken = f"{NAME} --method broken --seeds 0 --no-tune\n"
    code, out, _ = run(broken + LINES)  # failed runs do not stop it
    assert (code, read_counts(out)) == (1, [(1, 0, 1, 1), (2, 2, 0, 0), (1, 1, 0, 0)])
    runs = RunFolder(tmp_path / "effdeg-runs")
    assert all(each and each.finished for each in runs.find_all([Toy(seed=0), Toy(seed=1), Toy(seed=2, epochs=6)]))
    monkeypatch.setattr("subprocess.Popen", lambda *_: pytest.fail("nothing is left to run"))
    assert run(LINES)[0] == 0


def test_it_stops_when_told_to_and_says_what_is_left(run, monkeypatch, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setenv("TOY_HOLD", str(pipe))

    def end():
        wait_for_hold(pipe)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=end)
    thread.start()
    code, out, _ = run(LINES.replace("--seeds 0-1", "--seeds 0-1 --set epochs=5"))
    thread.join()
    assert (code, read_counts(out)) == (REQUEUE, [(2, 0, 0, 2), (1, 0, 0, 1)])
    assert RunFolder(tmp_path / "effdeg-runs").find(Toy(seed=0, epochs=5)).stopped


def test_a_budget_that_is_spent_ends_it(run):
    code, out, _ = run(LINES, "--seconds", "0")
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
def test_every_line_is_checked_before_anything_starts(run, lines, message, tmp_path):
    code, _, err = run(lines)
    assert code == 2
    assert message in err
    assert "#" in lines or f"This is line {len(lines.splitlines())} of list.txt" in err
    assert not (tmp_path / "effdeg-runs").exists()
