import html
import json
import re
import shlex


def test_demo_writes_its_folder_and_its_command_works(run, tmp_path, monkeypatch):
    for name, value in {"SEEDS": 2, "STEPS": 30, "RATES": (0.003, 0.01)}.items():
        monkeypatch.setattr(f"effdeg.demo._experiment.{name}", value)
    folder = tmp_path / "demo"
    code, out, _ = run("demo", "--out", folder)
    assert code == 0
    figures = {f"{name}-{theme}.png" for name in ("pick", "method", "check", "penalty") for theme in ("light", "dark")}
    assert {file.name for file in folder.iterdir()} == figures | {"index.html", "demo.json", "digits.npy", "networks"}
    networks = {f"{method}-{rate}" for method in ("plain", "mixup", "ED") for rate in (0.003, 0.01)}
    assert {file.stem for file in (folder / "networks").iterdir()} == networks
    stored = json.loads((folder / "demo.json").read_text())
    assert [set(pool["scores"]) for pool in stored["pools"]] == [networks, networks]
    # Whatever else it does, the penalty makes networks simpler.
    assert stored["differences"]["ED - plain"]["degree"]["mean"] < 0
    page = html.unescape((folder / "index.html").read_text())
    assert "width=device-width, initial-scale=1" in page
    # On a phone, tables and figures scroll by themselves, not the page.
    assert page.count("<table") == len(re.findall(r'<div class="wide"[^>]*><table', page)) == 1
    assert page.count("<picture") == len(re.findall(r'<div class="wide"[^>]*><picture', page)) == 4
    assert re.findall(r"<h(\d)", page) == list("12222")
    alts = re.findall(r'alt="([^"]*)"', page)
    assert len(set(alts)) == 4
    assert all(len(alt) > 100 for alt in alts)
    # The rows have what was measured, the chosen network first, and the findings are those in the terminal.
    accuracies = stored["pools"][0]["scores"]
    ranking = [row["model"] for row in stored["choice"]["models"]]
    assert re.findall(r"<td>([\d.]+%)</td></tr>", page) == [f"{accuracies[name]['accuracy']:.1%}" for name in ranking]
    for sentence in (*stored["pick"], *stored["penalty"]):
        assert sentence in page
        assert sentence in out
        assert not re.search(r"(?<!\w)-\d", sentence)  # a minus sign is no hyphen
    command = shlex.split(out.strip().splitlines()[-1])[1:]
    code, out, _ = run(*command, "--json")
    assert code == 0
    assert [row["model"] for row in json.loads(out)["models"]] == ranking


def test_the_folder_of_the_demo_is_no_file(run, tmp_path):
    (tmp_path / "taken").write_text("")
    code, out, err = run("demo", "--out", tmp_path / "taken")
    assert (code, out) == (2, "")
    assert f"--out: the demonstration cannot be kept in {tmp_path / 'taken'}: it is a file." in err
