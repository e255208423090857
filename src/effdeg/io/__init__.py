"""Models and data from files in common formats."""

from effdeg._utils.files import check_target, to_json, write_atomically, write_figure, write_json
from effdeg._utils.imports import describe_install, find_code
from effdeg._utils.pages import render_html
from effdeg.io._data import ImageList, ImageOptions, LoadedData, load_data
from effdeg.io._models import load_model

__all__ = [
    "ImageList",
    "ImageOptions",
    "LoadedData",
    "check_target",
    "describe_install",
    "find_code",
    "load_data",
    "load_model",
    "render_html",
    "to_json",
    "write_atomically",
    "write_figure",
    "write_json",
]
