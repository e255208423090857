"""
Rank a pool of models
=====================

Which measure tells best how models generalize? ``results/pools/digits.csv`` has 27 small networks, with their gaps and
what was measured on them; ``examples/rank_a_pool.py`` made it, in some minutes.
"""

from pathlib import Path

from effdeg.pools import rank, read_table

table = read_table(Path("../../results/pools/digits.csv"))
measures = ["effective_degree_normalized", "total_variation", "sharpness@0.05", "adaptive_sharpness@0.5"]
measures += ["-mixup_margin", "path_norm", "jacobian_norm", "parameter_norm"]
ranking = rank(
    table,
    target="gap",
    measures=measures,
    hyperparameters=["width", "lr", "weight_decay"],
    clusters=["width", "lr"],  # networks that differ in weight decay alone are nearly copies
)
print(ranking)

# %%
# A measure that predicts the gap has its dots on a rising line. Intervals resample the clusters: 27 networks are few.
figure = ranking.plot(measures)

# sphinx_gallery_start_ignore
ALT = "The generalization gap of 27 networks against eight measures, one panel each, with a linear fit."
# sphinx_gallery_end_ignore
