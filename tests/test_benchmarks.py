"""The benchmarks' command line: what it cannot run it refuses, instead of printing an empty table."""

import sys

import pytest

from benchmarks import __main__ as benchmarks


@pytest.mark.parametrize(("argument", "status"), [("--help", 0), ("proxy_cost", 2)])
def test_help_and_unknown_cases_run_nothing(argument, status, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", argument])
    monkeypatch.setattr(benchmarks, "_keep", lambda *_: pytest.fail("a case was run"))
    with pytest.raises(SystemExit) as ended:
        benchmarks.main()
    assert ended.value.code == status
    printed = "".join(capsys.readouterr())
    assert "measure_overhead" in printed
    assert ("proxy_cost: not a case on this machine" in printed) is (status == 2)
