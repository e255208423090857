"""Is the estimator right? Bias and variance on functions whose effective degree is known exactly."""

from effdeg_lab.recipe import Method, Recipe
from effdeg_lab.studies.estimator import Estimation, EstimatorStudy, run

RECIPE = Recipe(
    name="estimator",
    title="Does the estimator tell the truth?",
    paper="none; appendix C.4 for uniform nodes",
    expects="Bias and variance of the estimator are left open; uniform nodes become unstable at high degree.",
    cost="25 s per run on one CPU core, 7 min in all",
    settings=Estimation(),
    run=run,
    methods=(
        Method("polynomial", "polynomial of degree 5", {"function": "polynomial"}),
        Method("sine-4", "sin 4x", {"function": "sine", "frequency": 4.0}),
        Method("sine-16", "sin 16x", {"function": "sine", "frequency": 16.0}),
        Method("sine-64", "sin 64x", {"function": "sine", "frequency": 64.0}),
        Method("kinks-4", "ReLU network, 4 units", {"function": "kinks", "units": 4}),
        Method("kinks-64", "ReLU network, 64 units", {"function": "kinks", "units": 64}),
    ),
    study=EstimatorStudy(),
)
