"""The command ``effdeg-lab``. Commands import what they need, so that ``--help`` does not wait for torch."""

from effdeg_lab.cli._app import app, main

__all__ = ["app", "main"]
