"""Slow, obvious float64 versions of everything, written from the paper and numpy alone."""
