"""Run as ``python -m effdeg.lab``, or under ``torchrun -m effdeg.lab``: the same as ``effdeg lab``."""

import sys

from effdeg.cli._app import main

if __name__ == "__main__":
    main(["lab", *sys.argv[1:]])
