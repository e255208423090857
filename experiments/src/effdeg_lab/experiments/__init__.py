"""The experiments, each in a file or a folder; every module with recipes has them in ``RECIPES``."""
