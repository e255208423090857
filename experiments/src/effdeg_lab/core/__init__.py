"""What an experiment is, and how it is run: recipes, settings, runs on disk, sweeps, workers and results."""
