"""One experiment per file, each in a constant ``RECIPE``; :func:`effdeg_lab.all_recipes` finds them.

What several of them share is in a file whose name starts with an underscore.
"""
