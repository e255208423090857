"""Pages with one look: a template and a style sheet, in the colors of the figures."""

from typing import Any

from effdeg._version import __version__


def render_html(template: str, **values: Any) -> str:
    """Return a page as HTML that brings its own style sheet: light and dark, on phones, wide screens and paper.

    The Jinja template extends ``page.html.j2``: it sets ``title`` and ``program``, and fills the blocks ``lead``,
    ``contents`` (of a long page) and ``main`` with the values, which are escaped.

    Example:
        >>> from effdeg.io import render_html
        >>> template = '{% extends "page.html.j2" %}{% block main %}<p>{{ found }}</p>{% endblock %}'
        >>> page = render_html(template, title="Two models", program="my_script.py", found="a < b")
        >>> "<h1>Two models</h1>" in page, "<p>a &lt; b</p>" in page
        (True, True)
    """
    import jinja2  # torch needs it, too

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("effdeg._utils", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(template).render(version=__version__, **values)
