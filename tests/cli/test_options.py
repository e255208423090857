"""Options that commands share are declared once, as the library declares its settings."""

from dataclasses import fields
from inspect import signature
from pathlib import Path

import effdeg
from effdeg import pools
from effdeg.cli._options import DeviceOptions, FitOptions, NamedModel, PathOptions, ReadOptions
from effdeg.cli._rank import RankOptions
from effdeg.io import ImageOptions

NOT_SHARED = {"damping", "partners", "progress", "tokenizer"}


def defaults(function):
    parameters = signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


def test_the_settings_of_a_measurement_are_those_of_the_library():
    declared = defaults(PathOptions) | defaults(FitOptions) | defaults(DeviceOptions) | {"tolerance": None}
    expected = defaults(effdeg.measure)
    assert declared == {name: value for name, value in expected.items() if name not in NOT_SHARED}
    assert defaults(effdeg.trace).keys() <= expected.keys()


def test_the_settings_of_a_ranking_are_those_of_the_library():
    assert defaults(RankOptions) == defaults(pools.rank) | {"hyperparameters": None}


def test_the_settings_of_images_are_those_of_the_library():
    declared = {field.name: field.default or None for field in fields(ReadOptions)}
    assert declared == {"key": None} | {field.name: field.default or None for field in fields(ImageOptions)}


def test_weights_come_from_files_unless_code_makes_them(tmp_path):
    file = tmp_path / "model.safetensors"
    file.touch()
    assert NamedModel("package:make", file, 0).weights_files() == [file]
    assert NamedModel("package:make", tmp_path, 0).weights_files() == [file]  # a Hugging Face model folder
    assert NamedModel(str(tmp_path), None, 0).weights_files() == [file]
    assert NamedModel("program.pt2", None, 0).weights_files() == [Path("program.pt2")]
    assert NamedModel("package:make", None, 0).weights_files() == []
