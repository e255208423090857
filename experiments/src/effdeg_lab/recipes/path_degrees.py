"""Theorem 3.1 of the paper: does a polynomial keep its degree along random paths? And does the degree survive noise?"""

from effdeg_lab.recipe import Method, Recipe
from effdeg_lab.studies.path_degrees import DegreesAlongPaths, PathDegrees, run_paths

RECIPE = Recipe(
    name="path-degrees",
    title="The degree of polynomials along paths",
    paper="Theorem 3.1",
    expects="The degree along a path is almost surely the total degree, so averages over paths are in the same order.",
    cost="5 to 45 s per run on one CPU core, 4 min in all",
    settings=PathDegrees(),
    run=run_paths,
    methods=(
        Method("dense-2", "2 variables, all terms", {"variables": 2}),
        Method("dense-3", "3 variables, all terms"),
        Method("sparse-10", "10 variables, 20 terms", {"variables": 10, "terms": 20, "inputs": "normal"}),
        Method("monomial-3", "3 variables, one term", {"terms": 1}),
        Method("lattice-3", "one term, on a lattice", {"terms": 1, "inputs": "lattice"}),
    ),
    departs="The paper proves it and has no experiment.",
    study=DegreesAlongPaths(),
)
