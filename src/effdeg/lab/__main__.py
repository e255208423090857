"""Run as ``python -m effdeg.lab``, or under ``torchrun -m effdeg.lab``: the same as ``effdeg lab``."""

import sys

from effdeg.cli.app import main

sys.argv.insert(1, "lab")
main()
