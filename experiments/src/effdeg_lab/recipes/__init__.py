"""One experiment per file, as a constant ``RECIPE``; :func:`effdeg_lab.all_recipes` finds them.

Files whose names start with an underscore hold what several recipes share.
"""
