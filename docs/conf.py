"""The site: how Sphinx builds it. ``make docs`` builds it into docs/_build/html, ``make docs-open`` serves it."""

import os
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))  # the scripts of docs/ import each other as files of one folder
os.environ.setdefault("OMP_NUM_THREADS", "1")

import site_pages  # noqa: E402

import effdeg  # noqa: E402

project = "effdeg"
author = "The effdeg authors"
copyright = author  # noqa: A001  (Sphinx's name)
release = effdeg.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
root_doc = "index"
# README.md is the list of pages for readers of the repository.
exclude_patterns = ["_build", "README.md", "gallery", "live", "examples/*.ipynb", "examples/*.py"]
templates_path = ["_templates"]
suppress_warnings = ["config.cache"]  # the gallery's settings hold functions, which cannot be pickled
nitpicky = True
# What others document, shapes of tensors, and a base class that only annotations name.
nitpick_ignore_regex = [
    ("py:.*", r"(collections|jaxtyping|matplotlib|numpy|os|pathlib|torch|transformers)\..*"),
    ("py:.*", r"Tensor|Figure|DataFrame|StoppedError|'.*'|effdeg\.measur\w+\._record\.PathRecord"),
]

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4  # links to headings are written as GitHub's

autosummary_generate = False  # tables only, see site_pages.add_summary
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_typehints_format = "fully-qualified"  # the short form leaves tildes where a type has strings
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True  # attributes are a list, not an entry each
toc_object_entries_show_parents = "hide"

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "examples",
    "image_scrapers": (site_pages.save_figures,),
    "reset_modules": (site_pages.reset_random_state,),
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "thumbnail_size": (480, 300),
    "show_memory": False,
    "show_signature": False,
    "remove_config_comments": True,
    "plot_gallery": True,
    "write_computation_times": False,
    "abort_on_example_error": True,
}

html_theme = "furo"
html_title = "effdeg"
html_static_path = [
    "_static",
    "../src/effdeg/_utils/colors.css",
    *(f"live/{each.name}" for each in (DOCS / "live").glob("*.[cj]s*")),
]
html_css_files = ["colors.css", "site.css"]
html_favicon = "_static/favicon.svg"
html_show_sourcelink = False
html_copy_source = False
html_show_search_summary = False  # a browser does not let a page on the disk read others
# The look is that of the library's own pages; light-dark() in colors.css makes one list of both themes.
_LOOK = {
    "color-brand-primary": "var(--simple)",
    "color-brand-content": "var(--link)",
    "color-background-primary": "var(--ground)",
    "color-background-secondary": "var(--tint)",
    "color-background-border": "var(--faint)",
    "color-foreground-primary": "var(--ink)",
    "color-foreground-secondary": "var(--muted)",
    "color-foreground-muted": "var(--muted)",
    "font-stack": "var(--font)",
    "font-stack--monospace": "var(--mono)",
}
html_theme_options = {"light_css_variables": _LOOK, "dark_css_variables": _LOOK}
pygments_style = "github-light"
pygments_dark_style = "github-dark"


def setup(app):
    """Connect what makes Sphinx read pages that are written for GitHub as well."""
    app.connect("source-read", site_pages.read_page)
    app.connect("autodoc-process-docstring", site_pages.escape_bars)
