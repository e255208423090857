"""Which changes of an experiment's code make it another experiment."""

import sys
from functools import partial
from types import ModuleType

import pytest

from effdeg_lab.core.code_hash import hash_code
from effdeg_lab.core.recipe import find_recipe

CODE = '''
"""An experiment."""
from math import pi
import torch

RATE = 0.1

def scale(x):
    return x * RATE

def train(settings, job):
    """Train."""
    return scale(settings.lr), pi

class Study:
    title = "one"

torch.set_num_threads(1)
'''


@pytest.fixture
def hash_of(tmp_path, monkeypatch):
    """Import code as a module; return the hash of a name in it."""
    monkeypatch.syspath_prepend(tmp_path)

    def import_and_hash(code, name="train", wrap=lambda found: found):
        sys.modules.pop("hashed_lab", None)
        file = tmp_path / "hashed_lab.py"
        file.write_text(code)
        module = sys.modules["hashed_lab"] = ModuleType("hashed_lab")
        module.__file__ = str(file)
        exec(compile(code, str(file), "exec"), vars(module))
        return hash_code([wrap(vars(module)[name])])

    yield import_and_hash
    sys.modules.pop("hashed_lab", None)


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("return x * RATE", "return (x  *  # a comment\n      RATE)", True),
        ('"""Train."""', '"""Train it."""', True),
        ('"""Train."""\n', "\n", True),
        ('title = "one"', 'title = "two"', True),  # training does not use the study
        ("RATE = 0.1", "RATE = 0.2", False),
        ("x * RATE", "x + RATE", False),
        ("from math import pi", "from math import tau as pi", False),
        ("set_num_threads(1)", "set_num_threads(2)", False),
        ("settings.lr", "settings.rl", False),
    ],
)
def test_only_what_training_uses_counts(hash_of, old, new, same):
    assert CODE.count(old) == 1
    assert (hash_of(CODE) == hash_of(CODE.replace(old, new))) == same


def test_of_what_has_no_name_the_whole_module_counts(hash_of):
    code = CODE + "run = lambda settings, job: train(settings, job)\n"
    assert hash_of(code, "run") == hash_of(code, "run", wrap=partial)
    assert hash_of(code, "run") != hash_of(code.replace('"one"', '"two"'), "run")


def test_the_lab_itself_is_known_by_its_version_and_other_recipes_by_how_they_train():
    assert find_recipe("digits-methods").code is None
    codes = [find_recipe(f"toys:{name}").code for name in ("RECIPE", "UNTUNED", "SHARED", "WITH_DATA")]
    assert None not in codes
    assert [code == codes[0] for code in codes] == [True, True, False, False]
