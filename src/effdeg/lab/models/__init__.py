"""The lab's models, small and clear, and a user's own."""

from effdeg.lab.models.making import make

__all__ = ["make"]
