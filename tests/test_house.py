"""The house: imports point down, every module has a test, no class name has two meanings.

The experiments are a house of their own: they use what is public here, and nothing here uses them.
"""

import ast
import importlib
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "effdeg"
MODULES = sorted(SOURCE.rglob("*.py"))
LAB = TESTS.parent / "experiments" / "src" / "effdeg_lab"

# From the roof to the ground; "effdeg" is the package itself, with its public names. A module imports from lower
# floors and its own folder.
FLOORS = [
    *({"__main__"}, {"cli"}, {"demo"}, {"effdeg"}, {"integrations"}, {"plots"}, {"pools"}, {"baselines", "proxies"}),
    *({"measuring", "train"}, {"changes", "io"}, {"_adapters"}, {"functional"}, {"_utils"}, {"_version"}),
]
FLOOR = {folder: floor for floor, folders in enumerate(FLOORS) for folder in folders}

# Modules without a test file of their own name, by the file that covers them.
COVERED_BY = {
    "cli/test_demo.py": ["demo/_page.py"],
    "cli/test_start.py": ["__main__.py", "_version.py"],
    "functional/test_fitting.py": ["_utils/shapes.py"],
    "integrations/test_frameworks.py": ["_adapters/frameworks.py"],
    "integrations/test_huggingface.py": ["integrations/_calls.py"],
    "measuring/test_bad_input.py": ["_adapters/settings.py"],
    "measuring/test_estimator.py": ["_utils/progress.py"],
    "measuring/test_measurement.py": ["measuring/_record.py"],
    "pools/test_picking.py": ["pools/_choice.py"],
    "pools/test_pool.py": ["pools/_runners.py"],
    "pools/test_rank.py": ["pools/_ranking.py"],
    "train/test_bad_penalties.py": ["train/_settings.py"],
    "train/test_points.py": ["train/_batch.py"],
}


def name_of(file):
    return file.relative_to(SOURCE).as_posix()


def find_imports(tree):
    """Return all import statements, late ones and those for type checkers too; but ``.plot()`` may import plots."""
    plotting = {
        id(inner)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and function.name.startswith("plot")
        for inner in ast.walk(function)
        if isinstance(inner, ast.ImportFrom) and inner.module == "effdeg.plots"
    }
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return [node for node in statements if id(node) not in plotting]


def imports(tree):
    """Yield every import of effdeg: the folder or module of effdeg, and whether it is within a function."""
    late = {id(node) for part in ast.walk(tree) if isinstance(part, ast.FunctionDef) for node in ast.walk(part)}
    for each in find_imports(tree):
        names = [alias.name for alias in each.names]
        if isinstance(each, ast.ImportFrom):
            names = [f"effdeg.{name}" for name in names] if each.module == "effdeg" else [each.module or ""]
        for name in names:
            root, _, inner = name.partition(".")
            if root == "effdeg":
                yield inner.partition(".")[0] or "effdeg", id(each) in late


def wrong_imports(folder, tree):
    """Return what a module in a folder imports from no lower floor, or late without a reason."""
    return [
        imported
        for imported, late in imports(tree)
        if imported != folder
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
        ("_adapters", "from effdeg.measuring import measure", ["measuring"]),
        ("measuring", "import effdeg", ["effdeg"]),
        ("measuring", "def plot():\n    from effdeg.plots import plot", []),
        ("measuring", "def plot():\n    from effdeg._utils import tree", ["_utils"]),
        ("cli", "def run():\n    from effdeg.measuring import measure", []),
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


def find_private_names(tree):
    """Return what a module uses of effdeg that is not public: in no ``__all__``, or with an underscore."""
    found = []
    for each in ast.walk(tree):
        if isinstance(each, ast.Import):
            found += [alias.name for alias in each.names if alias.name.startswith("effdeg.") and "._" in alias.name]
        if isinstance(each, ast.ImportFrom) and (each.module or "").split(".")[0] == "effdeg":
            public = "._" not in each.module and vars(importlib.import_module(each.module)).get("__all__")
            # A module of effdeg is as public as its name.
            modules = {file.stem for file in SOURCE.glob("[a-z]*")} if each.module == "effdeg" else set()
            names = [alias.name for alias in each.names]
            found += [f"{each.module}.{name}" for name in names if not public or name not in {*public, *modules}]
        if isinstance(each, ast.Attribute) and each.attr.startswith("_") and not each.attr.startswith("__"):
            found += [ast.unparse(each)] if ast.unparse(each).startswith("effdeg.") else []
    return found


def test_the_lab_uses_only_public_names():
    found = {file.name: find_private_names(ast.parse(file.read_text())) for file in LAB.rglob("*.py")}
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import effdeg\neffdeg.measure, effdeg.__version__", []),
        ("from effdeg.io import to_json, replace_nonfinite", ["effdeg.io.replace_nonfinite"]),
        ("def late():\n    import effdeg._utils.checks", ["effdeg._utils.checks"]),
        ("import effdeg\neffdeg._utils", ["effdeg._utils"]),
    ],
)
def test_a_private_name_is_found(code, found):
    assert find_private_names(ast.parse(code)) == found


def test_the_library_does_not_use_the_lab():
    assert [name_of(file) for file in MODULES if "effdeg_lab" in file.read_text()] == []


def find_cycle(sources):
    """Return modules, given by name and code, that import each other in a circle, late too; None if there are none."""
    graph = {name: set() for name in sources}
    for name, code in sources.items():
        for node in find_imports(ast.parse(code)):
            modules = {alias.name for alias in node.names}
            if isinstance(node, ast.ImportFrom):
                inner = {f"{node.module}.{alias}" for alias in modules}
                modules = inner & sources.keys() if inner <= sources.keys() else {node.module, *inner}
            graph[name] |= {module for module in modules if module in sources and module != name}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return None


def read_sources(package):
    sources = {}
    for file in package.rglob("*.py"):
        parts = file.relative_to(package.parent).with_suffix("").parts
        sources[".".join(parts).removesuffix(".__init__")] = file.read_text()
    return sources


@pytest.mark.parametrize(("package", "module"), [(SOURCE, "effdeg.measuring._estimator"), (LAB, "effdeg_lab.cli")])
def test_there_is_no_import_cycle(package, module):
    sources = read_sources(package)
    assert module in sources
    assert find_cycle(sources) is None


def test_a_cycle_is_found():
    sources = {"lab": "", "lab.a": "from lab import b", "lab.b": "def late():\n    import lab.a"}
    assert set(find_cycle(sources)) == {"lab.a", "lab.b"}
    plot = {"lab": "", "lab.a": "def plot():\n    from effdeg.plots import draw", "effdeg.plots": "import lab.a"}
    assert find_cycle(plot) is None


def find_unsafe_readers(code):
    """Return the lines that may run code from a file that is read."""
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    options = {node: {each.arg: ast.unparse(each.value) for each in node.keywords} for node in calls}
    names = {node: ast.unparse(node.func) for node in calls}
    return [
        node.lineno
        for node in calls
        if (names[node] == "torch.load" and options[node].get("weights_only") != "True")
        or options[node].get("allow_pickle", "False") != "False"
        or names[node] in {"pickle.load", "pickle.loads", "pickle.Unpickler", "joblib.load", "pd.read_pickle"}
    ]


def test_no_reader_runs_code_from_a_file():
    sources = {**read_sources(SOURCE), **read_sources(LAB)}
    assert sum("torch.load(" in code for code in sources.values()) >= 4
    assert {name: lines for name, code in sources.items() if (lines := find_unsafe_readers(code))} == {}


@pytest.mark.parametrize("code", ["torch.load(f)", "np.load(f, allow_pickle=True)", "pickle.loads(f.read())"])
def test_an_unsafe_reader_is_found(code):
    assert find_unsafe_readers(code) == [1]
