"""Helpers that any package may use: trees of tensors, checks, devices, processes, progress, files and imports."""
