"""Smoke tests: every recipe runs in seconds, on made-up data, from its training to its table."""

import os
import re
import sys
from dataclasses import dataclass

import pytest

from effdeg_lab.cli import main
from effdeg_lab.core.recipe import all_recipes, find_recipe
from effdeg_lab.core.runs import RunFolder
from effdeg_lab.core.settings import Settings, setting
from effdeg_lab.data import load
from effdeg_lab.models import pretrained
from effdeg_lab.models.made_up import make_up


def command(*arguments, code=0):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == code


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One folder for all recipes, as equal runs are carried out once; processes share data, which are made up once."""
    base, runs = tmp_path_factory.getbasetemp(), tmp_path_factory.mktemp("runs")
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "made-up"
    for folder in (shared / "data", shared / "cache", runs / "smoke"):
        folder.mkdir(parents=True, exist_ok=True)
    (runs / "smoke" / ".data").symlink_to(shared / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EFFDEG_CACHE", str(shared / "cache"))
        patch.delenv("EFFDEG_DATA", raising=False)
        patch.setattr(pretrained, "read_templates", lambda: ["a {}."])  # for heads of 1,000 classes
        yield runs


@pytest.mark.parametrize("name", all_recipes())
def test_every_recipe_has_a_smoke_test(runs, name, capsys):
    recipe = find_recipe(name)
    if recipe.settings.to_dict().get("model", "").startswith(("clip", "all-MiniLM", "SmolLM2")):
        pytest.importorskip("transformers")
    method = next((each.name for each in recipe.methods if each.name.startswith("ed")), recipe.methods[0].name)
    command("run", name, "--smoke", "--method", method, "--runs", str(runs))
    out = capsys.readouterr().out
    assert f"{name}@smoke: " in out
    assert "its numbers mean nothing" in out
    command("table", name, "--smoke", "--runs", str(runs))
    out = capsys.readouterr().out
    assert "Here: " in out
    assert "not run" not in out.split("Here: ")[1][:10]
    assert [each.name for each in runs.iterdir()] == ["smoke"]
    assert not RunFolder(runs).read()  # nothing is among the real runs
    assert all(run.finished and run.recipe.endswith("@smoke") for run in RunFolder(runs / "smoke").read())


def test_a_smoke_test_is_small_and_keeps_what_differs_between_methods():
    recipe, smoke = (find_recipe(name) for name in ("cifar10-few-labels", "cifar10-few-labels@smoke"))
    assert [each.name for each in smoke.methods] == [each.name for each in recipe.methods]
    teacher = smoke.resolve(smoke.method("ed-teacher"))
    assert (teacher.epochs, teacher.batch, teacher.unlabeled_batch, teacher.model) == (2, 16, 16, "resnet9-2")
    assert (teacher.teacher, teacher.degree_weights, teacher.weight) == (0.99, "curvature", 7.0)
    assert (smoke.grid, smoke.tuning["held_out"], smoke.seeds) == ({"labeled": (20,)}, 16, (0, 1))
    pool = find_recipe("cifar10-random-pool@smoke")
    assert (len(pool.search), len(find_recipe("cifar10-random-pool").search)) == (4, 64)
    layers = find_recipe("imagenet-vit-strong@smoke").settings
    assert (layers.model, layers.pixels, layers.warm_up_steps) == ("vit-mu16-mean-sincos", 32, 1)


def test_a_setting_of_your_own_says_what_makes_a_run_short():
    @dataclass(frozen=True)
    class Long(Settings):
        steps: int = setting(1000, smoke=10)
        limit: int | None = setting(None, smoke=5)

    assert Long.shrink({"seed": 7, "steps": 1000, "limit": None}) == {"seed": 7, "steps": 10, "limit": None}
    assert Long.shrink({"steps": 3}) == {"steps": 3}
    with pytest.raises(ValueError, match="Settings has no smoke test: declare what makes it short"):
        Settings.shrink({})


def test_made_up_data_are_marked_and_others_must_have_their_published_size(tmp_path):
    folder = make_up(["mnist"], tmp_path)
    assert load("mnist", folder).train_inputs.shape == (400, 1, 28, 28)
    (folder / "made-up.txt").unlink()
    with pytest.raises(ValueError, match=r"mnist in .* expected 60,000 training and 10,000 test .* --set data=PATH"):
        load("mnist", folder)


def test_the_list_says_what_is_missing_here(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "procgen", None)
    names = ("digits-methods", "finetune-pool", "cifar10-methods", "procgen-jumper")
    recipes = {name: find_recipe(name) for name in names}
    monkeypatch.setattr("effdeg_lab.core.recipe.all_recipes", lambda: recipes)
    make_up(["cifar10"], tmp_path)
    command("list", "--data", str(tmp_path))
    found = re.findall(r"can run here|missing here: \S+", capsys.readouterr().out)
    assert found == ["can run here", "missing here: deit-tiny", "can run here", "missing here: procgen"]
