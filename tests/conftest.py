"""Shapes in the signatures of the maths are checked here, and only here."""

from jaxtyping import install_import_hook

with install_import_hook("effdeg.functional", "beartype.beartype"):
    import effdeg.functional  # noqa: F401
