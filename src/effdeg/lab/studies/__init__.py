"""Experiments that tell their results in their own way: a package each."""
