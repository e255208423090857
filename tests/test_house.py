"""The house: imports point down, every module has a test, and no class name has two meanings."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "effdeg"
# The lab is a house of its own.
MODULES = sorted(file for file in SOURCE.rglob("*.py") if file.relative_to(SOURCE).parts[0] != "lab")

# From the roof to the ground; "effdeg" is the package itself, with its public names. A module imports from lower
# floors and its own folder.
FLOORS = [
    {"__main__"},
    {"cli"},
    {"lab"},
    {"demo"},
    {"effdeg"},
    {"integrations"},
    {"ranking"},
    {"plots"},
    {"baselines", "proxies"},
    {"measure", "train"},
    {"io"},
    {"_models"},
    {"functional"},
    {"_utils"},
    {"_version"},
]
FLOOR = {folder: floor for floor, folders in enumerate(FLOORS) for folder in folders}

# Modules without a test file of their own name, by the file that covers them.
COVERED_BY = {
    "cli/test_demo.py": ["demo/_page.py"],
    "cli/test_lab.py": ["cli/_lab_options.py", "cli/_lab_recipes.py", "cli/_lab_run.py", "cli/_lab_sweep.py"],
    "cli/test_start.py": ["__main__.py", "_version.py"],
    "functional/test_fitting.py": ["_utils/shapes.py"],
    "integrations/test_frameworks.py": ["_models/frameworks.py"],
    "integrations/test_huggingface.py": ["integrations/_calls.py"],
    "ranking/test_rank.py": ["ranking/_pool.py", "ranking/_result.py"],
    "train/test_bad_penalties.py": ["train/_settings.py"],
}


def name_of(file):
    return file.relative_to(SOURCE).as_posix()


def imports(tree):
    """Yield every import of effdeg at run time: the folder or module of effdeg, and whether the import is late."""
    unused = {
        id(each)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.unparse(branch.test)
        for each in ast.walk(branch)
    }
    for each in ast.walk(tree):
        if id(each) in unused or not isinstance(each, ast.Import | ast.ImportFrom):
            continue
        names = [alias.name for alias in each.names]
        if isinstance(each, ast.ImportFrom):
            names = [f"effdeg.{name}" for name in names] if each.module == "effdeg" else [each.module or ""]
        for name in names:
            root, _, inner = name.partition(".")
            if root == "effdeg":
                yield inner.partition(".")[0] or "effdeg", each not in tree.body


def wrong_imports(folder, tree):
    """Return what a module in a folder imports from no lower floor, or late without a reason."""
    return [
        imported
        for imported, late in imports(tree)
        if imported != folder
        and not (late and imported == "plots")  # .plot()
        # The command line starts fast because it imports late.
        and (FLOOR.get(imported, FLOOR["effdeg"]) <= FLOOR[folder] or (late and folder != "cli"))
    ]


def test_imports_point_down():
    found = {}
    for file in MODULES:
        first = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        found[name_of(file)] = wrong_imports("effdeg" if first == "__init__" else first, ast.parse(file.read_text()))
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("folder", "code", "found"),
    [
        ("_models", "from effdeg.measure import measure", ["measure"]),
        ("_models", "from effdeg import measure", ["measure"]),
        ("measure", "import effdeg.train._points", ["train"]),
        ("measure", "import effdeg", ["effdeg"]),
        ("measure", "def plot():\n    from effdeg.plots import plot", []),
        ("measure", "def plot():\n    from effdeg._utils import tree", ["_utils"]),
        ("measure", "if TYPE_CHECKING:\n    from effdeg.plots import Theme", []),
        ("measure", "from effdeg.plots import Theme", ["plots"]),
        ("cli", "def run():\n    from effdeg.measure import measure", []),
        ("train", "from effdeg.train._points import Points", []),
    ],
)
def test_an_import_that_points_up_is_found(folder, code, found):
    assert wrong_imports(folder, ast.parse(code)) == found


def test_every_module_has_a_test():
    """``src/effdeg/a/_b.py`` is tested in ``tests/a/test_b.py``, or in a file that COVERED_BY names."""
    covered = {module for modules in COVERED_BY.values() for module in modules}
    modules = {name_of(file): file for file in MODULES if file.name != "__init__.py"}
    mirrored = {
        name
        for name, file in modules.items()
        if (TESTS / file.relative_to(SOURCE).parent / f"test_{file.stem.lstrip('_')}.py").exists()
    }
    assert sorted(modules.keys() - mirrored - covered) == [], "modules without a test"
    assert sorted(covered - (modules.keys() - mirrored)) == [], "entries of COVERED_BY that are not needed"
    assert [file for file in COVERED_BY if not (TESTS / file).exists()] == [], "tests of COVERED_BY that are gone"


def test_no_class_name_has_two_meanings():
    found = defaultdict(list)
    for file in SOURCE.rglob("*.py"):
        for each in ast.walk(ast.parse(file.read_text())):
            if isinstance(each, ast.ClassDef):
                found[each.name].append(name_of(file))
    # Both measure a model during training, each in its framework.
    del found["MeasureCallback"]
    assert {name: files for name, files in found.items() if len(files) > 1} == {}
