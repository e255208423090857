import sys

import pytest

from effdeg._utils.imports import find_code, importing_from_here, require


def test_the_working_directory_is_searched_only_meanwhile(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = [*sys.path]
    with importing_from_here():
        assert sys.path[0] == str(tmp_path)
        with importing_from_here():
            assert sys.path.count(str(tmp_path)) == 1
    assert sys.path == before


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nets/mlp.py:make", r"Name modules as in an import, relative to the working directory: nets\.mlp:make\."),
        ("no.such:make", "there is no Python module 'no' here or among the installed packages"),
        ("math:ta", "math has no 'ta'. Did you mean 'tau' or"),
    ],
)
def test_code_that_is_not_there(source, message):
    with pytest.raises(ValueError, match=message):
        find_code(source)


def test_a_missing_package_is_named_with_its_extra():
    assert require("json", extra="files", purpose="a .json file").loads("3") == 3
    with pytest.raises(ImportError, match=r"a figure needs absent_plots: pip install 'effdeg\[plots\]'"):
        require("absent_plots.figure", extra="plots", purpose="a figure")
