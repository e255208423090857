"""One experiment per file, each in a constant ``RECIPE``; :mod:`effdeg.lab.registry` finds them by itself."""
