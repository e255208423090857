"""``effdeg demo`` as a user types it."""

import html
import json
import re

import pytest


def test_demo_writes_its_folder_and_its_command_works(run, tmp_path, monkeypatch):
    # Enough to tell the degrees apart.
    monkeypatch.setattr("effdeg.demo._experiments.SEEDS", 2)
    monkeypatch.setattr("effdeg.demo._experiments.STEPS", 60)
    for module in ("_experiments", "_page"):
        monkeypatch.setattr(f"effdeg.demo.{module}.TRACKED", (0, 10, 60))
    folder = tmp_path / "demo"
    code, out, _ = run("demo", "--out", folder)
    assert code == 0
    names = {file.name for file in folder.iterdir()}
    figures = {
        f"{name}-{theme}.png" for name in ("method", "training", "comparison", "penalty") for theme in ("light", "dark")
    }
    assert names == figures | {"index.html", "comparison.json", "penalty.json", "digits.npy", "gentle.pt", "hasty.pt"}
    effect = json.loads((folder / "penalty.json").read_text())
    assert len(effect["plain"]) == len(effect["penalized"]) == len(effect["seeds"])
    assert effect["differences"]["degree"]["high"] < 0  # whatever else it does, the penalty makes networks simpler
    page = (folder / "index.html").read_text()
    assert "width=device-width, initial-scale=1" in page
    # On a phone, tables and figures scroll by themselves, not the page.
    assert page.count("<table") == len(re.findall(r'<div class="wide"[^>]*><table', page)) == 1
    assert page.count("<picture") == len(re.findall(r'<div class="wide"[^>]*><picture', page)) == 4
    assert re.findall(r"<h(\d)", page) == ["1", "2", "2"]
    # The cells have the numbers that were measured, in the order of the ranking.
    stored = json.loads((folder / "comparison.json").read_text())
    degrees = [f"{stored['measurements'][name]['value']:.3g}" for name in stored["ranking"]]
    assert re.findall(r"<td>(\S+) \(.* to .*\)</td>", page) == degrees
    alts = re.findall(r'alt="([^"]*)"', page)
    assert all(len(alt) > 100 for alt in alts)
    assert len(set(alts)) == 4
    # The difference of the accuracies has an interval, and a sentence joins the two halves.
    for text in (page, out):
        assert re.search(r"held-out labels .* against .* points\)\. Its loss is .*95% interval", html.unescape(text))
        assert "making a network simpler need not make it better" in text
    assert "Trained with the penalty" in page
    assert "Trained with the penalty" in out
    command = out.strip().splitlines()[-1].split()[1:]
    code, out, _ = run(*command, "--json")
    assert code == 0
    record = json.loads(out)
    assert record["ranking"] == stored["ranking"]
    assert record["measurements"]["gentle"]["value"] == pytest.approx(
        stored["measurements"]["gentle"]["value"], rel=1e-5
    )


def test_the_folder_of_the_demo_is_no_file(run, tmp_path):
    (tmp_path / "taken").write_text("")
    code, out, err = run("demo", "--out", tmp_path / "taken")
    assert (code, out) == (2, "")
    assert f"--out: the demonstration cannot be kept in {tmp_path / 'taken'}: it is a file." in err
