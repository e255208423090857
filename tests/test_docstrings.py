"""Public names have docstrings that teach: an example, which pytest executes, and the errors that a user can cause."""

import inspect
import re
from importlib import import_module

import pytest

PACKAGES = [
    *("effdeg", "effdeg.baselines", "effdeg.demo", "effdeg.functional", "effdeg.io", "effdeg.measuring"),
    *("effdeg.plots", "effdeg.proxies", "effdeg.pools", "effdeg.train"),
    *("effdeg.integrations.huggingface", "effdeg.integrations.lightning"),
]


def public_names():
    """Return the public functions and classes, each with the last name that it has."""
    found = {}
    for package in PACKAGES:
        module = import_module(package)
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == package]
        for name in getattr(module, "__all__", [each for each in own if not each.startswith("_")]):
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                found[value] = f"{package}.{name}"
    return [pytest.param(value, id=name) for value, name in found.items()]


def source_of(value):
    """Return what runs when a function is called or an object is made."""
    if inspect.isfunction(value):
        return inspect.getsource(inspect.unwrap(value))
    makers = [vars(value).get(name) for name in ("__init__", "__post_init__")]
    # A dataclass's own __init__ has no source.
    return "".join(inspect.getsource(each) for each in makers if each and each.__code__.co_filename != "<string>")


@pytest.mark.parametrize("value", public_names())
def test_a_public_name_has_an_example_and_names_its_errors(value):
    doc = inspect.getdoc(value) or ""
    # What a function returns may show its use method by method.
    methods = [each for each in vars(value).values() if callable(each) or isinstance(each, classmethod)]
    assert any(">>> " in (inspect.getdoc(each) or "") for each in (value, *methods)), "no example"
    if re.search(r"\braise\b|\bcheck_\w+\(", source_of(value)):
        assert "Raises:" in doc, "errors that are not documented"
