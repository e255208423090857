"""Does the estimator tell the truth? Held against functions that are known exactly, and against itself on a pool."""
