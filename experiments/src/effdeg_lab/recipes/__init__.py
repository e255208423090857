"""One experiment per file, each in a constant ``RECIPE``; :func:`effdeg_lab.all_recipes` finds them."""
